package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/redact"
)

var runIDPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// The causes with which a run's context is cancelled.
var (
	errKilled     = errors.New("killed")
	errRunTimeout = errors.New("run time limit passed")
)

// Run runs a plugin on a device and returns when the work is dead and the
// device was given back. It returns an error, and has started nothing, when the
// request is refused: ErrInvalidRequest, ErrUnknownDevice, ErrUnknownPlugin,
// ErrInvalidPayload, ErrBusy, ErrUnclean, ErrClosed. Otherwise the Result says
// how it went.
//
// Cancelling ctx kills the work: the outcome is then OutcomeCancelled, unless
// the work had just succeeded.
func (r *Runtime) Run(ctx context.Context, req RunRequest) (Result, error) {
	if !runIDPattern.MatchString(string(req.RunID)) {
		return Result{}, fmt.Errorf("%w: run id must be 1 to 64 letters, digits, '.', '_' or '-'", ErrInvalidRequest)
	}
	if !filepath.IsAbs(req.Dir) {
		return Result{}, fmt.Errorf("%w: the run's directory must be an absolute path", ErrInvalidRequest)
	}
	if err := checkInputs(req.Inputs); err != nil {
		return Result{}, err
	}
	p, err := r.plugin(req.Plugin, req.Version)
	if err != nil {
		return Result{}, err
	}
	if req.Payload.IsZero() {
		req.Payload = redact.NewBytes([]byte("{}"))
	}
	if err := p.check(req.Payload); err != nil {
		return Result{}, err
	}
	driver, err := r.driverOf(ctx, req.DeviceID)
	if err != nil {
		return Result{}, err
	}
	runCtx, h, err := r.acquire(ctx, req.DeviceID, req.RunID)
	if err != nil {
		return Result{}, err
	}
	clean := true
	defer func() { r.release(h, clean) }()
	if err := r.closeDirect(h); err != nil {
		clean = false
		return Result{}, fmt.Errorf("%w: %q", ErrUnclean, req.DeviceID)
	}
	res, err := r.run(runCtx, driver, p, req, h)
	clean = res.DeviceClean || err != nil
	r.log.Info("run ended", zap.String("run_id", string(req.RunID)), zap.String("device_id", string(req.DeviceID)),
		zap.String("plugin", p.manifest.Name), zap.String("outcome", string(res.Outcome)), zap.String("reason", string(res.Reason)))
	return res, err
}

// run does an accepted run; the device is held.
func (r *Runtime) run(ctx context.Context, driver Driver, p compiled, req RunRequest, h *hold) (Result, error) {
	work := workDir(req)
	out, err := newOutput(req, r.limits)
	if err == nil {
		if err = os.Mkdir(work, 0o700); err == nil {
			err = layInputs(req)
		}
		if err != nil {
			out.close()
		}
	}
	switch {
	case isFull(err):
		return Result{Outcome: OutcomeInfraFailed, Reason: CodeDiskFull, Message: diskFull, DeviceClean: true}, nil
	case err != nil:
		return Result{}, fmt.Errorf("%w: the run's directory holds an earlier run or cannot be prepared: %w", ErrInvalidRequest, err)
	}
	if req.Timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, req.Timeout, errRunTimeout)
		defer stop()
	}
	began := time.Now()
	if req.StopWithin == nil {
		req.StopWithin = func() time.Duration { return 2 * r.closeTimeout }
	}
	end := endOf(ctx, req.StopWithin)
	defer end.over()
	res := Result{DeviceClean: true}
	session, err := r.open(ctx, end, driver, req.DeviceID, OpenOptions{RunID: req.RunID, WorkDir: work, StopWithin: req.StopWithin}, h)
	if err != nil {
		res = openFailed(err)
	} else {
		c := &closing{s: session}
		res = r.supervise(ctx, end, p, c, req, out, h)
		res.DeviceClean = r.giveBack(end, c, h) && res.Reason != CodePluginStuck
	}
	res = settle(ctx, p.checkResult(wellFormed(res)))
	if err := errors.Join(os.RemoveAll(work), removeInputs(req)); err != nil {
		r.log.Warn("run's work directory is left", zap.String("run_id", string(req.RunID)), zap.Error(err))
	}
	out.finish(&res)
	res.Duration = time.Since(began)
	return res, nil
}

// workDir is where a run's work is done.
func workDir(req RunRequest) string { return filepath.Join(req.Dir, "work") }

// supervise runs the plugin. One that does not return soon after its context
// ended has its session closed under it; one that does not return even then is
// left alone, and its device counts as unclean, because its work may go on.
func (r *Runtime) supervise(ctx context.Context, end *ending, p compiled, c *closing, req RunRequest, out *output, h *hold) Result {
	done := make(chan Result, 1)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		done <- r.work(ctx, p, c.s, req, out)
	}()
	select {
	case res := <-done:
		return res
	case <-end.soft.Done():
	}
	r.giveBack(end, c, h)
	select {
	case res := <-done:
		return res
	case <-end.hard.Done():
	}
	select { // it may have been just in time
	case res := <-done:
		return res
	default:
	}
	r.log.Error("plugin does not stop", zap.String("run_id", string(req.RunID)), zap.String("plugin", p.manifest.Name))
	r.leave(h, returned)
	return Result{Outcome: OutcomeInfraFailed, Reason: CodePluginStuck, Message: "the plugin did not stop when it was told to"}
}

// work runs the plugin and turns a panic and a lost device into a result.
func (r *Runtime) work(ctx context.Context, p compiled, s Session, req RunRequest, out *output) (res Result) {
	defer func() {
		if v := recover(); v != nil {
			buf := make([]byte, 16<<10)
			// The panic's value may hold content, its place in the code does not.
			r.log.Error("plugin panicked", zap.String("run_id", string(req.RunID)), zap.String("plugin", p.manifest.Name),
				zap.ByteString("stack", framesOnly(buf[:goruntime.Stack(buf, false)])))
			res = Result{Outcome: OutcomeFailed, Reason: CodePanic, Message: "the plugin panicked; the host's log has the place"}
		}
		if lost(s) && res.Outcome != OutcomeSucceeded {
			res.Outcome, res.Reason, res.Message = OutcomeInfraFailed, CodeDeviceLost, "the device went away during the run"
		}
	}()
	return p.plugin.Run(ctx, Job{
		RunID: req.RunID, Task: req.Task, Attempt: req.Attempt, Session: s, WorkDir: workDir(req), StopWithin: req.StopWithin,
		Payload: req.Payload, Secrets: req.Secrets, Inputs: seenInputs(req), InputsDir: inputsDir(req), Out: out,
	})
}

func lost(s Session) bool {
	select {
	case <-s.Lost(): // a nil channel is never ready
		return true
	default:
		return false
	}
}

func openFailed(err error) Result {
	code := CodeOf(err)
	if code == CodeInternal {
		code = CodeDeviceOpen
	}
	return Result{
		Outcome: OutcomeInfraFailed, Reason: code,
		Message:     MessageOf(err, "the device could not be opened"),
		DeviceClean: !errors.Is(err, ErrUnclean),
	}
}

// settle replaces what a killed plugin says by why it was killed. A lost device
// stays what it is: that the caller cancelled later does not explain it.
func settle(ctx context.Context, res Result) Result {
	if res.Outcome == OutcomeSucceeded || res.Reason == CodeDeviceLost || res.Reason == CodePluginStuck || ctx.Err() == nil {
		return res
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errRunTimeout):
		res.Outcome, res.Reason, res.Message = OutcomeTimedOut, CodeRunTimeout, "the run's time limit passed and the work was killed"
	case errors.Is(cause, errKilled):
		res.Outcome, res.Reason, res.Message = OutcomeCancelled, CodeKilled, "the work was killed on request"
	default:
		res.Outcome, res.Reason, res.Message = OutcomeCancelled, CodeCancelled, "the run was cancelled and the work killed"
	}
	return res
}

// acquire takes the device for a use, or says why not. The returned context
// ends with ctx, and when Kill or Close ask for it.
func (r *Runtime) acquire(ctx context.Context, id DeviceID, run RunID) (context.Context, *hold, error) {
	return r.take(ctx, id, run, false)
}

// take is acquire; unclean allows it of an unclean device, for cleaning.
func (r *Runtime) take(ctx context.Context, id DeviceID, run RunID, unclean bool) (context.Context, *hold, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, nil, ErrClosed
	}
	h := r.holds[id]
	if h == nil {
		h = &hold{}
		r.holds[id] = h
	}
	if h.busy {
		return nil, nil, fmt.Errorf("%w: %q", ErrBusy, id)
	}
	if h.unclean && !unclean {
		return nil, nil, fmt.Errorf("%w: %q", ErrUnclean, id)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h.busy, h.runID, h.cancel, h.done = true, run, cancel, make(chan struct{})
	r.active.Add(1)
	return ctx, h, nil
}

// release ends a use.
func (r *Runtime) release(h *hold, clean bool) {
	r.mu.Lock()
	h.cancel(nil)
	h.busy, h.runID, h.unclean = false, "", !clean
	close(h.done)
	r.mu.Unlock()
	r.active.Done()
}

// Kill ends whatever uses the device and returns when it is dead, or when ctx
// ends. The run's outcome is OutcomeCancelled with CodeKilled. Nothing happens
// when the device is idle or unknown.
func (r *Runtime) Kill(ctx context.Context, id DeviceID) error {
	r.mu.Lock()
	h := r.holds[id]
	if h == nil || !h.busy {
		r.mu.Unlock()
		return nil
	}
	h.cancel(errKilled)
	done := h.done
	r.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Clean returns an idle device to a pristine state and ends Unclean. ErrBusy
// while it is used, ErrUnknownDevice, ErrUnclean while a plugin or a driver is
// still at work on it that did not stop when it had to, or why it could not be
// cleaned.
func (r *Runtime) Clean(ctx context.Context, id DeviceID) error {
	d, err := r.driverOf(ctx, id)
	if err != nil {
		return err
	}
	cleanCtx, h, err := r.take(ctx, id, "", true) // release judges anew
	if err != nil {
		return err
	}
	_ = r.closeDirect(h) // Clean does more than this could
	if err = d.Clean(cleanCtx, id); err == nil && r.left(h) > 0 {
		err = fmt.Errorf("%w: an earlier run still works on it; restart this process if that does not end", ErrUnclean)
	}
	r.release(h, err == nil)
	if err != nil {
		return fmt.Errorf("cleaning %q: %w", id, err)
	}
	return nil
}

// Close kills all runs, closes the drivers and returns when everything is dead.
// It may be called twice.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	for _, h := range r.holds {
		if h.busy {
			h.cancel(errKilled)
		}
	}
	r.mu.Unlock()
	r.active.Wait()
	var faults []error
	for _, h := range r.holds { // nobody can take a hold any more
		faults = append(faults, r.closeDirect(h))
	}
	for _, d := range r.drivers {
		faults = append(faults, d.Close())
	}
	return errors.Join(faults...)
}
