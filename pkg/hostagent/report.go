package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime"
)

// completion is an attempt's end as it is reported, and what is needed to
// report it after a restart. It lies in the run's directory with mode 0600,
// since it has the work's result, and never in the journal.
type completion struct {
	protocol.CompleteItem
	Task          berth.TaskID       `json:"task"`
	Number        int                `json:"number"`
	Device        berth.DeviceID     `json:"device"`
	DeviceKey     string             `json:"device_key"`
	CorrelationID string             `json:"correlation_id"`
	Files         []runtime.Artifact `json:"files"`
}

func completionOf(h *hold, res runtime.Result) completion {
	c := completion{
		CompleteItem: protocol.CompleteItem{
			Holder: h.holder(), Outcome: berth.Outcome(res.Outcome), Reason: string(res.Reason),
			Message: berth.Clip(res.Message, 4000), Result: json.RawMessage(res.JSON.Reveal()),
			LogBytes: res.LogSize, Artifacts: map[string]string{}, DeviceClean: res.DeviceClean,
		},
		Task: h.Task, Number: h.Number, Device: h.Device, DeviceKey: h.dev.key, CorrelationID: h.CorrelationID, Files: res.Artifacts,
	}
	if len(c.Result) == 0 {
		c.Result = nil
	}
	for _, f := range res.Artifacts {
		c.Artifacts[f.Name] = f.SHA256
	}
	return c
}

// bare is the end without what the work said of it, for a server that refused
// that: a result larger than it takes, for example. Left to the leasekeeper, the
// attempt would hold its device for a whole lease and tell nobody why.
func (c completion) bare() completion {
	if c.Outcome == berth.OutcomeSucceeded {
		c.Outcome = berth.OutcomeFailed
	}
	c.Reason, c.Message = reasonRefused, "the server refused what the work reported: its result may be too large"
	c.Result, c.Artifacts, c.LogBytes = nil, nil, 0
	return c
}

func (c completion) save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "completion.json"), b)
}

func loadCompletion(dir string) (completion, error) {
	var c completion
	b, err := os.ReadFile(filepath.Join(dir, "completion.json"))
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, errors.New("completion.json is broken")
	}
	for i := range c.Files {
		c.Files[i].Path = filepath.Join(dir, "artifacts", c.Files[i].Name)
	}
	return c, nil
}

// maxRounds bounds how often the server may say that something is missing.
const maxRounds = 5

// handIn uploads what the attempt left and completes it, repeating until the
// server has answered or the agent stops; then the next process goes on.
func (a *Agent) handIn(h *hold, end completion) {
	ctx := h.base
	up := a.uploads(h)
	up.expect(end)
	for round := range maxRounds {
		if err := retry(ctx, func() error { return up.flush(ctx) }); err != nil && ctx.Err() != nil {
			a.log.Warn("the end of an attempt is not reported yet", a.fields(h, zap.Error(err))...)
			return
		}
		up.settle(&end)
		if last := round == maxRounds-1; last && end.Outcome == berth.OutcomeSucceeded {
			// The server keeps missing what was sent: a success has all of it (I3).
			end.Outcome, end.Reason = berth.OutcomeInfraFailed, reasonArtifactLost
		}
		ans, err := a.complete(ctx, h, end)
		switch {
		case err != nil:
			a.log.Warn("the end of an attempt is not reported", a.fields(h, zap.Error(err))...)
			if !permanent(err) {
				return
			}
			if end.Reason != reasonRefused {
				end = end.bare()
				continue
			}
			a.done(h, "refused")
			a.removeRun(h.Attempt)
			return
		case ans.Status == "missing":
			up.missing(ans)
			continue
		}
		a.log.Info("completed", a.fields(h, zap.String("outcome", string(end.Outcome)), zap.String("reason", end.Reason), zap.String("answer", ans.Status))...)
		a.done(h, ans.Status)
		a.removeRun(h.Attempt)
		if ans.Status == "gone" || !end.DeviceClean {
			a.prove(h, end.DeviceClean)
		}
		return
	}
	a.log.Error("the server keeps missing files of an attempt; it is left to the leasekeeper", a.fields(h)...)
	a.done(h, "incomplete")
}

func (a *Agent) complete(ctx context.Context, h *hold, end completion) (protocol.CompleteAnswer, error) {
	var ans protocol.CompleteAnswer
	err := retry(ctx, func() error {
		var res protocol.CompleteResponse
		err := a.call(ctx, http.MethodPost, protocol.PathComplete, protocol.CompleteRequest{Items: []protocol.CompleteItem{end.CompleteItem}}, &res, a.timeout())
		if err == nil && len(res.Items) != 1 {
			return errors.New("the server's answer to complete does not match the request")
		}
		if err == nil {
			ans = res.Items[0]
		}
		return err
	})
	return ans, err
}

// finishedBefore lists what an earlier process had finished and not reported.
func (a *Agent) finishedBefore() []Record {
	var out []Record
	for _, r := range a.journal.Open() {
		if r.Stage == StageFinished {
			out = append(out, r)
		}
	}
	return out
}

// resumeFinished closes what an earlier process left open: finished attempts
// are reported, the others were settled by the sync (what had started was
// killed before this process began, and is never resumed).
func (a *Agent) resumeFinished(ctx context.Context) {
	for _, r := range a.journal.Open() {
		h := newHold(ctx, protocol.Assignment{
			Attempt: r.Attempt, Task: r.Task, Number: r.Number, Fence: r.Fence,
		}, a.deviceByKey(r.Device), filepath.Join(a.cfg.StateDir, "runs", string(r.Attempt)))
		if r.Stage != StageFinished {
			a.done(h, "left_behind")
			a.removeRun(r.Attempt)
			h.end(nil)
			continue
		}
		end, err := loadCompletion(h.dir)
		if err != nil {
			a.log.Error("an attempt's end cannot be read; it is left to the leasekeeper", a.fields(h, zap.Error(err))...)
			a.done(h, "unreadable")
			h.end(nil)
			continue
		}
		h.Device, h.CorrelationID, h.stage = end.Device, end.CorrelationID, StageFinished
		a.mu.Lock()
		a.holds[h.Attempt] = h
		a.mu.Unlock()
		a.work.Go(func() {
			defer a.drop(h)
			a.handIn(h, end)
		})
	}
}

// deviceByKey finds a device by its name in the journal; one that this host has
// no more is made up, for reporting only.
func (a *Agent) deviceByKey(key string) *device {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.byKey[key]; d != nil {
		return d
	}
	return &device{key: key, use: make(chan struct{}, 1)}
}
