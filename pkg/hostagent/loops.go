package hostagent

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// claimBatch is how many attempts one claim may bring.
const claimBatch = 100

// claimLoop takes the attempts that were assigned to this host, while it does
// not drain.
func (a *Agent) claimLoop(ctx, holds context.Context) {
	failures := 0
	for ctx.Err() == nil {
		if draining, turn := a.drained(); draining {
			select {
			case <-turn:
			case <-ctx.Done():
			}
			continue
		}
		sent := a.clock()
		poll, stop := a.while(ctx, false)
		attempts, err := a.claim(poll, protocol.MaxClaimWait)
		broken := poll.Err() != nil
		stop()
		if err != nil {
			if broken {
				continue // what was assigned comes with the next claim
			}
			failures++
			if failures == 1 {
				a.log.Warn("claim failed", zap.Error(unwanted(err)))
			}
			if !sleep(ctx, pauseAfter(err, min(time.Duration(failures)*200*time.Millisecond, 5*time.Second), maxPause)) {
				return
			}
			continue
		}
		failures = 0
		for _, as := range attempts {
			a.accept(holds, as)
		}
		if len(attempts) == 0 && a.clock()-sent < emptyClaimEvery && !sleep(ctx, jitter(emptyClaimEvery, 0.2)) {
			return // an empty answer at once is a server that stops
		}
	}
}

// claim asks once for what is assigned, one claim at a time. An answer that was
// lost is asked for again under the same claim id, which gives the same attempts.
func (a *Agent) claim(ctx context.Context, wait time.Duration) ([]protocol.Assignment, error) {
	select {
	case a.claiming <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.claiming }()
	req := protocol.ClaimRequest{ClaimID: a.claimID, Wait: protocol.MillisOf(wait), Max: claimBatch}
	var res protocol.ClaimResponse
	err := a.call(ctx, http.MethodPost, protocol.PathClaims, req, &res, callOptions{timeout: wait + a.conf().RequestTimeout.Duration()})
	if err != nil {
		return nil, err
	}
	a.claimID = uuid.NewString()
	return res.Attempts, nil
}

// emptyClaimEvery spaces claims that are answered empty without a wait.
const emptyClaimEvery = time.Second

// holding reports whether the attempt is held.
func (a *Agent) holding(id berth.AttemptID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds[id] != nil
}

// accept journals an assignment and begins to execute it. What is known already
// (a repeated answer) is left alone.
func (a *Agent) accept(ctx context.Context, as protocol.Assignment) {
	a.mu.Lock()
	dev, known := a.devices[as.Device], a.holds[as.Attempt] != nil
	there := dev != nil && a.seen.present[dev.key]
	a.mu.Unlock()
	switch {
	case known:
		return
	case a.draining():
		a.decline(ctx, as, reasonDraining, true)
		return
	case !there:
		a.decline(ctx, as, reasonDeviceUnknown, false)
		return
	case a.journal.Outdated(dev.key, as.Fence, as.Attempt):
		// An older lease than one we acted under: the database was restored.
		a.decline(ctx, as, reasonOlderFence, false)
		a.askSync()
		return
	}
	h := newHold(ctx, as, dev, filepath.Join(a.cfg.StateDir, "runs", string(as.Attempt)))
	if err := a.record(h.record(StageClaimed)); err != nil {
		h.end(nil)
		a.decline(ctx, as, reasonDraining, true)
		return
	}
	a.mu.Lock()
	a.holds[as.Attempt] = h
	a.metrics.holding(len(a.holds))
	a.mu.Unlock()
	if a.draining() { // it began meanwhile, and did not see this hold
		h.endUnasked(errDraining)
	}
	a.log.Info("claimed", a.fields(h)...)
	a.work.Go(func() { a.execute(h) })
}

// decline hands back an attempt that this host cannot take, once: when that
// fails its lease runs out. To wait for a sync instead would have the server
// deliver it again and again, with a fresh lease each time.
func (a *Agent) decline(ctx context.Context, as protocol.Assignment, reason string, draining bool) {
	log := a.log.With(zap.String("task_id", string(as.Task)), zap.String("attempt_id", string(as.Attempt)), zap.String("device_id", string(as.Device)),
		zap.String("correlation_id", as.CorrelationID), zap.String("reason", reason))
	if draining {
		log.Info("handing back an attempt that came while draining")
	} else {
		log.Error("an attempt that this host cannot take; handing it back")
	}
	req := protocol.ReleaseRequest{Items: []protocol.Holder{{Attempt: as.Attempt, Fence: as.Fence}}, Reason: reason, Draining: draining}
	if err := a.call(ctx, http.MethodPost, protocol.PathRelease, req, nil, a.timeout()); err != nil {
		log.Warn("not handed back; the leasekeeper will", zap.Error(err))
	}
}

// fields are the identifiers that go with every line about an attempt.
func (a *Agent) fields(h *hold, more ...zap.Field) []zap.Field {
	return append([]zap.Field{
		zap.String("task_id", string(h.Task)), zap.String("host_id", string(a.id.HostID)), zap.String("device_id", string(h.Device)),
		zap.String("attempt_id", string(h.Attempt)), zap.String("lease_id", string(h.Attempt)), zap.String("correlation_id", h.CorrelationID),
		zap.Int("number", h.Number), zap.Int64("fence", int64(h.Fence)),
	}, more...)
}

// renewLoop renews all leases with one request, every RenewEvery ±10 %, and
// soon again when that failed.
func (a *Agent) renewLoop(ctx context.Context) {
	wait := a.conf().RenewEvery.Duration()
	for sleep(ctx, jitter(wait, 0.1)) {
		every := a.conf().RenewEvery.Duration()
		wait = every
		if err := a.renew(ctx); err != nil {
			// A lease cannot wait for long, whatever the server asks for.
			wait = pauseAfter(err, min(every/5, 2*time.Second), every/2)
			if ctx.Err() == nil {
				a.log.Warn("renewal failed", zap.Error(err))
			}
		}
	}
}

// renew renews once what is held and not finished, and what is finished and
// not yet reported, so that the server waits for the report.
func (a *Agent) renew(ctx context.Context) error {
	held := a.held()
	for len(held) > 0 {
		batch := held[:min(len(held), claimBatch)]
		held = held[len(batch):]
		req := protocol.RenewRequest{}
		for _, h := range batch {
			req.Items = append(req.Items, h.renewal())
		}
		sent := a.clock()
		var res protocol.LeaseResponse
		if err := a.call(ctx, http.MethodPost, protocol.PathRenew, req, &res, a.timeout()); err != nil {
			return err
		}
		if len(res.Items) != len(batch) {
			return errors.New("the server's answer to renew does not match the request")
		}
		for i, ans := range res.Items {
			a.renewed(batch[i], ans, sent)
		}
	}
	return nil
}

func (a *Agent) renewed(h *hold, ans protocol.LeaseAnswer, sent time.Duration) {
	switch {
	case ans.Status == "gone" && h.getStage() == StageFinished:
		// complete will be told; late logs and artifacts are still wanted
	case ans.Status == "gone":
		h.end(errGone)
	default:
		h.extend(sent, ans.LeaseLeft.Duration())
		if ans.Cancel || ans.Status == "cancelled" {
			h.end(errCancelled)
		}
	}
}

// fenceEvery is how often fences are looked at; it is part of FenceMargin.
const fenceEvery = 100 * time.Millisecond

// fenceLoop ends what could not be renewed in time. It compares a clock that
// runs through suspend at every tick, since timers do not.
func (a *Agent) fenceLoop(ctx context.Context) {
	t := time.NewTicker(fenceEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := a.clock()
		for _, h := range a.held() {
			a.fenceIfDue(h, now)
		}
	}
}

// fenceIfDue ends the hold when no renewal succeeded in time.
func (a *Agent) fenceIfDue(h *hold, now time.Duration) {
	if h.overdue(now, a.conf().FenceMargin.Duration()) && h.cause() == nil {
		a.metrics.fence()
		a.log.Warn("fenced: no renewal succeeded in time", a.fields(h)...)
		h.end(errFenced)
	}
}

// sleep waits for d; false when ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// jitter spreads d by ±share.
func jitter(d time.Duration, share float64) time.Duration {
	return time.Duration(float64(d) * (1 - share + 2*share*rand.Float64()))
}
