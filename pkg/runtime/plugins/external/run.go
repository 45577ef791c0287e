package external

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

const (
	// exitWithin is how long a process may take to exit after its result.
	exitWithin = 5 * time.Second
	maxMessage = 1000
	maxNote    = 200
)

// Plugin implements runtime.Plugin with a program.
type Plugin struct {
	spec    spec
	home    string // its folder
	program string
	table   *procs.Table
}

// Manifest implements runtime.Plugin.
func (p *Plugin) Manifest() manifest.Manifest { return p.spec.Manifest }

// Run implements runtime.Plugin. It returns when the process and all that it
// started are dead.
func (p *Plugin) Run(ctx context.Context, job runtime.Job) runtime.Result {
	if limit := p.spec.Limits.Timeout; limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, errPluginTimeout)
		defer stop()
	}
	d := dirsOf(job)
	for _, dir := range []string{d.work, d.artifacts} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return notStarted(err, "its directories could not be made")
		}
	}
	doc, env, err := p.describe(ctx, job, d)
	if err != nil {
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: runtime.CodeInternal, Message: "the payload could not be handed over"}
	}
	r := &run{
		plugin: p, job: job, left: p.spec.Limits.OutputBytes, wrong: make(chan struct{}), finished: make(chan struct{}),
		keeper: keeper{ctx: ctx, dir: d.artifacts, limits: p.spec.Limits, out: job.Out, taken: map[string]bool{}},
	}
	proc, readers, err := r.start(doc, env, d.work)
	if err != nil {
		return notStarted(err, "the plugin's process could not be started: "+procs.StartFault(err))
	}
	stopped := r.await(ctx, proc, runtime.OpenOptions{StopWithin: job.StopWithin})
	readers()
	return r.judge(ctx, proc, stopped)
}

var errPluginTimeout = errors.New("the plugin's own limit of time passed")

func notStarted(err error, message string) runtime.Result {
	if full := runtime.DiskFull(err); full != nil {
		return runtime.Result{Outcome: runtime.OutcomeInfraFailed, Reason: full.Code, Message: full.Message}
	}
	return runtime.Result{Outcome: runtime.OutcomeInfraFailed, Reason: runtime.CodePluginStart, Message: message}
}

// run is one run of a process.
type run struct {
	plugin *Plugin
	job    runtime.Job
	left   int64       // of the output, by both readers
	dead   atomic.Bool // the process and all that it started

	// Of the goroutine that reads standard output, until it ended.
	keeper keeper
	line   int
	result *resultLine

	finished  chan struct{} // closed with the result
	wrong     chan struct{} // closed at the first fault
	faultOnce sync.Once
	fault     *runtime.ActionError // when wrong is closed
}

// start starts the process and what reads its output. readers waits until all
// of the output is read; the process is dead then.
func (r *run) start(doc redact.Bytes, env []string, dir string) (proc *procs.Proc, readers func(), err error) {
	outR, outW, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, outR.Close(), outW.Close())
	}
	args := append([]string{r.plugin.program}, r.plugin.spec.Command[1:]...)
	cmd := &exec.Cmd{
		Path: r.plugin.program, Args: args, Dir: dir, Env: env,
		Stdin: bytes.NewReader(doc.Reveal()), Stdout: outW, Stderr: errW,
	}
	proc, err = r.plugin.table.Start(cmd, string(r.job.RunID))
	_, _ = outW.Close(), errW.Close() // the process has its own
	if err != nil {
		_, _ = outR.Close(), errR.Close()
		return nil, nil, err
	}
	var reading sync.WaitGroup
	reading.Go(func() { r.readLines(outR) })
	reading.Go(func() { r.readLog(errR) })
	return proc, func() {
		r.dead.Store(true)
		past := time.Unix(1, 0)
		_, _ = outR.SetReadDeadline(past), errR.SetReadDeadline(past) // wakes them; closed ones are read
		reading.Wait()
	}, nil
}

// await waits until the process exits or has to go, and ends it. stopped is
// whether it was told to go.
func (r *run) await(ctx context.Context, proc *procs.Proc, opts runtime.OpenOptions) (stopped bool) {
	stopped, wait := true, grace
	select {
	case <-proc.Exited():
		stopped = false
	case <-ctx.Done():
		wait = opts.Grace(grace)
	case <-r.wrong:
	case <-r.finished:
		t := time.NewTimer(exitWithin)
		defer t.Stop()
		select {
		case <-proc.Exited():
			stopped = false
		case <-ctx.Done():
			wait = opts.Grace(grace)
		case <-r.wrong:
		case <-t.C:
			_, _ = fmt.Fprintf(r.job.Out.Log(), "[the plugin did not exit within %v of its result and was killed]\n", exitWithin)
		}
	}
	// Not bounded: Run returns when all is dead, and the Runtime knows what to do
	// with a plugin that does not return.
	_ = proc.End(context.Background(), wait)
	return stopped
}

// wrongly notes the first fault, for which the process has to go.
func (r *run) wrongly(code runtime.Code, message string) {
	r.faultOnce.Do(func() {
		r.fault = &runtime.ActionError{Code: code, Message: message}
		close(r.wrong)
	})
}

// readLines reads standard output to its end or to the first fault.
func (r *run) readLines(f *os.File) {
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(metered{f, r}, 64<<10)
	for {
		r.line++
		b, err := readLine(in)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err == nil && len(bytes.TrimSpace(b)) == 0:
			continue
		case err == nil:
			err = r.take(b)
		}
		if err != nil {
			r.wrongly(runtime.CodePluginOutput, fmt.Sprintf("line %d of the plugin's standard output %s", r.line, err))
			return
		}
	}
}

// take does what a line says.
func (r *run) take(b []byte) error {
	if r.result != nil {
		return errAfterResult
	}
	l, err := parseLine(b)
	if err != nil {
		return err
	}
	switch l := l.(type) {
	case *progressLine:
		r.job.Out.Progress(*l.Fraction, berth.Clip(l.Note, maxNote))
	case *logLine:
		text := *l.Text
		if len(text) == 0 || text[len(text)-1] != '\n' {
			text += "\n"
		}
		_, _ = io.WriteString(r.job.Out.Log(), text)
	case *artifactLine:
		r.keeper.keep(*l)
	case *resultLine:
		r.result = l
		close(r.finished)
	}
	return nil
}

// readLog passes standard error on to the log, line by line where lines are not
// too long, so that the two streams do not cut each other's words.
func (r *run) readLog(f *os.File) {
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(metered{f, r}, 16<<10)
	for {
		part, err := in.ReadSlice('\n')
		if len(part) > 0 {
			_, _ = r.job.Out.Log().Write(part)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// metered is an output of the process. Where both together pass the limit, that
// is a fault and the output's end.
type metered struct {
	f *os.File
	r *run
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.next(p)
	if atomic.AddInt64(&m.r.left, -int64(n)) < 0 {
		m.r.wrongly(runtime.CodeOutputLimit, fmt.Sprintf("the plugin wrote more than %d bytes to its standard output and standard error", m.r.plugin.spec.Limits.OutputBytes))
		return 0, io.EOF
	}
	return n, err
}

// next waits for output while there may be more. Once the process is dead, what
// it wrote is in the pipe: the rest is read without waiting, since what escaped
// its end may hold the pipe open for ever.
func (m metered) next(p []byte) (int, error) {
	if !m.r.dead.Load() {
		n, err := m.f.Read(p)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
	conn, err := m.f.SyscallConn()
	for err == nil {
		var n int
		var fault error
		err = conn.Read(func(fd uintptr) bool {
			n, fault = unix.Read(int(fd), p)
			return true
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = m.f.SetReadDeadline(time.Time{}) // it was to wake us
		case err == nil && fault == nil && n > 0:
			return n, nil
		case err == nil && !errors.Is(fault, unix.EINTR):
			return 0, io.EOF
		}
	}
	return 0, err
}

// judge says how the run ended; the process is dead and its output read.
func (r *run) judge(ctx context.Context, proc *procs.Proc, stopped bool) runtime.Result {
	failed := func(outcome runtime.Outcome, code runtime.Code, message string) runtime.Result {
		return runtime.Result{Outcome: outcome, Reason: code, Message: message}
	}
	select {
	case <-r.wrong:
		return failed(runtime.OutcomeFailed, r.fault.Code, r.fault.Message)
	default:
	}
	code, signal := proc.Exit()
	how := fmt.Sprintf("the plugin exited with code %d", code)
	if signal != "" {
		how = "the plugin was ended by " + signal
	}
	switch {
	case r.result == nil && stopped && errors.Is(context.Cause(ctx), errPluginTimeout):
		return failed(runtime.OutcomeTimedOut, runtime.CodePluginTimeout, fmt.Sprintf("the plugin ran longer than its own limit of %v", r.plugin.spec.Limits.Timeout))
	case r.result == nil && stopped:
		return failed(runtime.OutcomeFailed, runtime.CodeKilled, "the plugin was stopped") // the Runtime knows why
	case r.result == nil && (signal == "SIGKILL" || signal == "SIGTERM"):
		return failed(runtime.OutcomeInfraFailed, runtime.CodePluginKilled, "something on the host ended the plugin with "+signal+"; it may be short of memory")
	case r.result == nil && (code != 0 || signal != ""):
		return failed(runtime.OutcomeFailed, runtime.CodeExitCode, how+" and gave no result")
	case r.result == nil:
		return failed(runtime.OutcomeFailed, runtime.CodePluginNoResult, "the plugin exited without a result")
	}
	return r.said(ctx, stopped || code == 0 && signal == "", how)
}

// said is the result that the process gave, unless something speaks against it.
func (r *run) said(ctx context.Context, wellExited bool, how string) runtime.Result {
	res := runtime.Result{Outcome: runtime.Outcome(r.result.Outcome), Message: berth.Clip(r.result.Message, maxMessage)}
	if len(r.result.Result) > 0 {
		res.JSON = redact.NewBytes(r.result.Result)
	}
	switch res.Outcome {
	case runtime.OutcomeFailed:
		res.Reason = runtime.CodePluginFailed
	case runtime.OutcomeInfraFailed:
		res.Reason = runtime.CodePluginInfraFailed
	}
	if ctx.Err() == nil {
		r.keeper.rest() // of failed work too: that is when they are wanted
	}
	if res.Outcome != runtime.OutcomeSucceeded {
		return res
	}
	switch err := r.keeper.fault; {
	case !wellExited:
		res.Outcome, res.Reason, res.Message = runtime.OutcomeFailed, runtime.CodeExitCode, how+" after it said that it succeeded"
	case err != nil:
		res.Outcome, res.Reason, res.Message = runtime.OutcomeFailed, runtime.CodeOf(err), runtime.MessageOf(err, "an artifact could not be kept")
	}
	return res
}
