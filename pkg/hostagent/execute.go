package hostagent

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Reasons that the agent itself gives to ended attempts. Those that say nothing
// about the device are the server's words, too.
const (
	reasonFenced         = berth.ReasonFenced          // no renewal succeeded in time
	reasonNotAnswered    = berth.ReasonStartUnanswered // it is not known whether it was started; nothing was done
	reasonAgentStopped   = berth.ReasonAgentStopped    // the agent was told to stop
	reasonRefused        = "report_refused"            // the server did not take what the work reported
	reasonDeviceUnknown  = "device_unknown"            // assigned to a device that this host does not have (any more)
	reasonOlderFence     = "older_fence"               // assigned under a fence below one that was acted under
	reasonDeviceRefused  = "device_refused"            // busy, unclean or gone on this host
	reasonPluginMissing  = "plugin_missing"            // not provided here any more
	reasonInvalidPayload = "invalid_payload"           // against the plugin's schema
	reasonArtifactLost   = "artifact_refused"          // the server did not take an artifact
	reasonDraining       = berth.ReasonDraining        // this host takes nothing more
	reasonInputs         = berth.ReasonInputs          // an input could not be fetched or does not fit; nothing was done
	reasonInputLost      = berth.ReasonInputLost       // the server has an input's bytes no more; nothing was done
	reasonJournal        = berth.ReasonJournal         // the start could not be put on disk; nothing was done
)

// execute brings a held attempt to its end: it fetches the inputs, waits for the
// device, asks for the start, runs the work, and hands in what came of it.
func (a *Agent) execute(h *hold) {
	defer a.drop(h)
	release, ok := a.fetchInputs(h)
	if !ok {
		return
	}
	defer release()
	select {
	case h.dev.use <- struct{}{}:
	case <-h.ctx.Done():
		a.handBack(h)
		return
	}
	end, ran := a.perform(h)
	gone := ran && errors.Is(h.cause(), errGone)
	if gone {
		// Whatever came of it, somebody else decided. The device is proved clean,
		// so that it can be used again.
		a.done(h, "gone")
		a.removeRun(h.Attempt)
		a.prove(h, end.DeviceClean)
	}
	<-h.dev.use
	if ran && !gone {
		a.handIn(h, end)
	}
}

// perform asks for the start and runs the work. It returns when the work is
// dead. ran is false when nothing is left to report.
func (a *Agent) perform(h *hold) (end completion, ran bool) {
	switch a.start(h) {
	case startUnasked:
		a.handBack(h)
		return end, false
	case startUnknown:
		if errors.Is(h.cause(), errStopping) {
			a.handBack(h)
			return end, false
		}
		// The start may have been committed. Say that nothing was done.
		end = completionOf(h, failed(reasonNotAnswered))
		return end, a.finish(h, end)
	case startRefused:
		return end, false
	}
	if err := a.record(h.record(StageStarted)); err != nil {
		a.log.Error("the journal cannot be written; the attempt is not run", a.fields(h, zap.Error(err))...)
		end = completionOf(h, failed(reasonJournal))
		return end, a.finish(h, end)
	}
	h.setStage(StageStarted)
	a.fenceIfDue(h, a.clock()) // the machine may have slept since the answer
	end = a.run(h)
	return end, a.finish(h, end)
}

// failed is a result of the agent's own: the work did not say anything.
func failed(reason string) runtime.Result {
	return runtime.Result{Outcome: runtime.OutcomeInfraFailed, Reason: runtime.Code(reason), DeviceClean: true}
}

// started is what came of asking for a start.
type started int

const (
	startUnasked started = iota // the hold ended before; nothing was sent
	startUnknown                // sent, and not answered
	startRefused                // answered: never begin; nothing is left to report
	startGranted
)

// start asks the server whether the work may begin, until it answers or the
// hold ends; a repeat gets the same decision.
func (a *Agent) start(h *hold) started {
	if h.cause() != nil {
		return startUnasked
	}
	if err := a.record(h.record(StageStarting)); err != nil {
		a.log.Error("the journal cannot be written; the attempt is handed back", a.fields(h, zap.Error(err))...)
		h.end(errDraining)
		return startUnasked
	}
	if !h.asking() {
		return startUnasked
	}
	var ans protocol.LeaseAnswer
	err := retry(h.ctx, func() error {
		a.starts.RLock()
		defer a.starts.RUnlock()
		if h.ctx.Err() != nil {
			return h.ctx.Err() // a sync that we waited for ended it
		}
		sent := a.clock()
		var res protocol.LeaseResponse
		err := a.call(h.ctx, http.MethodPost, protocol.PathStart, protocol.StartRequest{Items: []protocol.Holder{h.holder()}}, &res, a.timeout())
		if err != nil {
			return err
		}
		if len(res.Items) != 1 {
			return errors.New("the server's answer to start does not match the request")
		}
		ans = res.Items[0]
		if ans.Status == "granted" {
			h.extend(sent, ans.LeaseLeft.Duration())
		}
		return nil
	})
	switch {
	case err != nil:
		a.log.Warn("start was not answered", a.fields(h, zap.Error(err))...)
		return startUnknown
	case ans.Status != "granted":
		a.log.Info("not started", a.fields(h, zap.String("answer", ans.Status))...)
		a.done(h, ans.Status)
		return startRefused
	case ans.Cancel:
		h.end(errCancelled)
	}
	return startGranted
}

// run does the work and returns when it is dead.
func (a *Agent) run(h *hold) completion {
	if len(h.MissingSecrets) > 0 {
		a.log.Warn("not run: secrets that the task names were not given", a.fields(h, zap.Strings("secrets", h.MissingSecrets))...)
		return completionOf(h, secretsMissing(h.MissingSecrets))
	}
	up := a.uploads(h)
	a.log.Info("started", a.fields(h, zap.String("plugin", h.Plugin.Name), zap.String("version", h.Plugin.Version))...)
	res, err := a.cfg.Runtime.Run(h.ctx, runtime.RunRequest{
		RunID: runtime.RunID(h.Attempt), Task: string(h.Task), Attempt: h.Number, DeviceID: h.dev.local, Plugin: h.Plugin.Name, Version: h.Plugin.Version,
		Payload: redact.NewBytes(h.Payload), Timeout: h.RunTimeout.Duration(), Dir: h.dir, Sink: up, Inputs: h.inputs, Secrets: h.Secrets,
		StopWithin: func() time.Duration { return h.stopWithin(a.clock(), a.conf()) },
	})
	if err != nil {
		res = refusal(err)
		why := zap.Error(err)
		if errors.Is(err, runtime.ErrInvalidPayload) {
			why = zap.Skip() // it names parts of the payload
		}
		a.log.Warn("the runtime refused the run", a.fields(h, zap.String("reason", string(res.Reason)), why)...)
	}
	up.stop()
	end := completionOf(h, res)
	if !end.DeviceClean {
		a.metrics.leftUnclean()
		a.log.Error("the device was not given back in time; it is reported unclean", a.fields(h, zap.String("reason", end.Reason))...)
	}
	if end.Outcome == berth.OutcomeSucceeded {
		return end // it was just in time
	}
	switch cause := h.cause(); {
	case errors.Is(cause, errFenced):
		end.Outcome, end.Reason, end.Message = berth.OutcomeInfraFailed, reasonFenced, ""
	case errors.Is(cause, errStopping):
		end.Outcome, end.Reason, end.Message = berth.OutcomeInfraFailed, reasonAgentStopped, ""
	case errors.Is(cause, errUnplugged):
		end.Outcome, end.Reason, end.Message = berth.OutcomeInfraFailed, string(runtime.CodeDeviceLost), "the device is not there any more"
	case errors.Is(cause, errCancelled) && end.Outcome == berth.OutcomeCancelled:
		end.Reason = berth.ReasonCancelled
	}
	return end
}

// secretsMissing is a failure of the task, not of the host: nothing was done.
func secretsMissing(names []string) runtime.Result {
	return runtime.Result{
		Outcome: runtime.OutcomeFailed, Reason: runtime.CodeSecretMissing, DeviceClean: true,
		Message: "deleted, or not granted to the task's submitter any more: " + strings.Join(names, ", "),
	}
}

// refusal is the result of a run that the Runtime did not start.
func refusal(err error) runtime.Result {
	res := failed(reasonDeviceRefused)
	res.Message = runtime.MessageOf(err, "the host refused the run; its log says why")
	switch {
	case errors.Is(err, runtime.ErrInvalidPayload):
		res.Outcome, res.Reason, res.Message = runtime.OutcomeFailed, reasonInvalidPayload, err.Error()
	case errors.Is(err, runtime.ErrUnknownPlugin):
		res.Reason = reasonPluginMissing
	case errors.Is(err, runtime.ErrUnclean):
		res.DeviceClean = false
	}
	return res
}

// finish puts the end on disk before it is reported. It is true when it is to
// be reported.
func (a *Agent) finish(h *hold, end completion) bool {
	h.setStage(StageFinished)
	rec := h.record(StageFinished)
	rec.Outcome, rec.Reason = end.Outcome, end.Reason
	err := end.save(h.dir)
	if err != nil {
		a.storageFailed(err)
	}
	if err = errors.Join(err, a.record(rec)); err != nil {
		// It can still be reported by this process.
		a.log.Error("the end of an attempt could not be journaled", a.fields(h, zap.Error(err))...)
	}
	return true
}

// handBack releases an attempt that was not started, when the agent stops or
// drains, or when its inputs cannot be had; any other end of its hold needs no
// answer.
func (a *Agent) handBack(h *hold) {
	reason, draining := reasonAgentStopped, true
	switch cause := h.cause(); {
	case errors.Is(cause, errDraining):
		reason = reasonDraining
	case errors.Is(cause, errInputLost):
		reason, draining = reasonInputLost, false
	case errors.Is(cause, errInputs):
		reason, draining = reasonInputs, false
	case !errors.Is(cause, errStopping):
		a.done(h, "dropped")
		return
	}
	ctx := h.base
	req := protocol.ReleaseRequest{Items: []protocol.Holder{h.holder()}, Reason: reason, Draining: draining}
	var res protocol.LeaseResponse
	err := retry(ctx, func() error {
		return a.call(ctx, http.MethodPost, protocol.PathRelease, req, &res, a.timeout())
	})
	if err != nil {
		a.log.Warn("not handed back; the leasekeeper will", a.fields(h, zap.Error(err))...)
		return
	}
	if len(res.Items) == 1 && res.Items[0].Status == "started" {
		// The start was committed and its answer lost. Nothing was done.
		end := completionOf(h, failed(reason))
		a.finish(h, end)
		a.handIn(h, end)
		return
	}
	a.done(h, "released")
}

// done closes an attempt in the journal.
func (a *Agent) done(h *hold, how string) {
	rec := h.record(StageDone)
	rec.Reason = how
	if err := a.record(rec); err != nil {
		a.log.Error("the journal cannot be written", a.fields(h, zap.Error(err))...)
	}
}

// drop forgets a hold.
func (a *Agent) drop(h *hold) {
	h.end(nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.holds, h.Attempt)
	a.metrics.holding(len(a.holds))
}

// removeRun removes an attempt's files.
func (a *Agent) removeRun(id berth.AttemptID) {
	if err := os.RemoveAll(filepath.Join(a.cfg.StateDir, "runs", string(id))); err != nil {
		a.log.Warn("files of an attempt are left", zap.String("attempt_id", string(id)), zap.Error(err))
	}
}

// prove makes the device usable again after an attempt that the server ended:
// it cleans it if need be and tells so under the attempt's fence.
func (a *Agent) prove(h *hold, clean bool) {
	ctx, stop := context.WithTimeout(h.base, a.cfg.StopWithin)
	defer stop()
	if !clean {
		if err := a.clean(ctx, h.dev.local); err != nil {
			a.log.Error("the device cannot be cleaned; it gets no work until it is", a.fields(h, zap.String("reason", string(runtime.CodeOf(err))))...)
			return
		}
	}
	err := retry(ctx, func() error {
		return a.call(ctx, http.MethodPost, fill(protocol.PathClean, "id", string(h.Device)), protocol.CleanRequest{Fence: h.Fence}, nil, a.timeout())
	})
	if err != nil {
		// Sync reports it too. Where the server knows the device under another
		// fence, its database may have been restored: then nothing else would.
		a.log.Warn("the device could not be reported clean", a.fields(h, zap.Error(err))...)
		a.askSync()
	}
}
