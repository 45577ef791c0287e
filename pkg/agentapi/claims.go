package agentapi

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

// claim hands over assigned attempts, waiting for them when there are none. An
// answer that got lost on its way is given again to the same claim id.
func (a *API) claim(c echo.Context) error {
	call, err := caller(c)
	if err != nil {
		return err
	}
	req, err := read[protocol.ClaimRequest](c)
	if err != nil {
		return err
	}
	var f berth.Faults
	if !berth.ValidID(req.ClaimID) {
		f.Add("claim_id", "it is no UUID", "make one for each claim, and keep it for the claim's repeats")
	}
	if req.Wait < 0 || req.Wait > protocol.MillisOf(protocol.MaxClaimWait) {
		f.Add("wait_ms", "out of range", fmt.Sprintf("use 0 to %d", protocol.MillisOf(protocol.MaxClaimWait)))
	}
	if req.Max < 1 || req.Max > maxItems {
		f.Add("max", "out of range", fmt.Sprintf("use 1 to %d", maxItems))
	}
	if err := f.Err(); err != nil {
		return err
	}
	assignments, err := a.poll(c.Request().Context(), req.Wait.Duration(), store.ClaimParams{
		AgentCall: call, ClaimID: req.ClaimID, Max: req.Max,
	})
	if err != nil {
		return err
	}
	handed, err := a.hand(c.Request().Context(), call, assignments)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, claimed{Attempts: handed})
}

// poll claims until there is something, the wait is over, the server drains or
// the client is gone. It subscribes before it looks, so that no hint falls
// between looking and waiting.
func (a *API) poll(ctx context.Context, wait time.Duration, p store.ClaimParams) ([]store.Assignment, error) {
	hints, cancel := a.Store.Subscribe(store.HintAssigned, string(p.Host))
	defer cancel()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		assignments, transitions, err := a.Store.ClaimAttempts(ctx, p)
		a.log(transitions)
		if err != nil || len(assignments) > 0 || wait == 0 {
			return assignments, err
		}
		look := time.NewTimer(jitter(a.PollEvery))
		select {
		case <-hints:
			look.Stop()
		case <-look.C:
		case <-over.C:
			look.Stop()
			return nil, nil
		case <-a.Drain.C():
			look.Stop()
			return nil, nil
		case <-ctx.Done():
			look.Stop()
			return nil, ctx.Err()
		}
	}
}

// jitter is d ±20 %, so that many hosts do not look at one instant.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

func assignmentOf(as store.Assignment) protocol.Assignment {
	payload := json.RawMessage(as.Payload.Reveal())
	if len(payload) == 0 {
		payload = json.RawMessage("{}")
	}
	var inputs []protocol.Input
	for _, in := range as.Inputs {
		inputs = append(inputs, protocol.Input{Name: in.Name, Digest: in.Digest, Size: in.Size})
	}
	return protocol.Assignment{
		Attempt: as.Attempt, Task: as.Task, TaskName: as.TaskName, Number: as.Number, Device: as.Device, Fence: as.Fence,
		LeaseLeft: protocol.MillisOf(as.Left), Plugin: as.Plugin, Payload: payload,
		RunTimeout: protocol.MillisOf(as.RunTimeout), CorrelationID: as.CorrelationID, TraceParent: as.TraceParent,
		Inputs: inputs,
	}
}
