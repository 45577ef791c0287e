// Package browserscript is the plugin browser.script: it drives one page of a
// browser step by step and keeps screenshots and UI trees.
package browserscript

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// FailureScreenshot is the name of the artifact that a failing step leaves.
const FailureScreenshot = "failure.png"

const (
	defaultStepTimeout = 10 * time.Second
	// failureBound is how long the screenshot of a failure may take.
	failureBound = 5 * time.Second
)

// Plugin implements runtime.Plugin.
type Plugin struct{}

// New returns the plugin.
func New() Plugin { return Plugin{} }

// Manifest implements runtime.Plugin.
func (Plugin) Manifest() manifest.Manifest { return manifest.BrowserScript() }

// player goes through the steps of one run. Its ctx is that of the present step.
type player struct {
	ctx     context.Context
	page    runtime.Browser
	out     runtime.Out
	secrets redact.Strings
	inputs  map[string]string // paths by name
	reads   map[string]string
}

// outcome is what a task's result shows.
type outcome struct {
	StepsDone int               `json:"steps_done"`
	Reads     map[string]string `json:"reads"`
	Failed    *failure          `json:"failed_step,omitempty"`
}

// failure names the step that failed.
type failure struct {
	Index   int          `json:"index"`
	Action  string       `json:"action"`
	Reason  runtime.Code `json:"reason"`
	Message string       `json:"message"`
}

// Run implements runtime.Plugin.
func (Plugin) Run(ctx context.Context, job runtime.Job) runtime.Result {
	page, ok := job.Session.(runtime.Browser)
	if !ok {
		return runtime.Result{
			Outcome: runtime.OutcomeFailed, Reason: runtime.CodeUnsupported,
			Message: "the device shows no web pages; select one with driver=chromium",
		}
	}
	var s script
	if err := json.Unmarshal(job.Payload.Reveal(), &s); err != nil {
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: runtime.CodeInternal, Message: "the payload does not match the plugin's schema"}
	}
	p := &player{page: page, out: job.Out, secrets: job.Secrets, inputs: job.Inputs, reads: map[string]string{}}
	if s.Viewport != nil {
		scale := s.Viewport.Scale
		if scale == 0 {
			scale = 1
		}
		if err := page.SetViewport(ctx, s.Viewport.Width, s.Viewport.Height, scale); err != nil {
			return runtime.Result{Outcome: runtime.OutcomeInfraFailed, Reason: runtime.CodeOf(err), Message: "the viewport could not be set"}
		}
	}
	began := time.Now()
	for i, st := range s.Steps {
		name, act := st.action()
		job.Out.Progress(float64(i)/float64(len(s.Steps)), fmt.Sprintf("step %d of %d: %s", i+1, len(s.Steps), name))
		limit := firstPositive(st.TimeoutMS, s.StepTimeoutMS, defaultStepTimeout)
		stepBegan := time.Now()
		if err := p.play(ctx, act, limit); err != nil {
			_, _ = fmt.Fprintf(job.Out.Log(), "step %d %s: failed after %v\n", i, name, time.Since(stepBegan).Round(time.Millisecond))
			return p.failed(ctx, i, name, limit, err)
		}
		_, _ = fmt.Fprintf(job.Out.Log(), "step %d %s: ok, %v\n", i, name, time.Since(stepBegan).Round(time.Millisecond))
	}
	job.Out.Progress(1, "done")
	_, _ = fmt.Fprintf(job.Out.Log(), "%d steps done in %v\n", len(s.Steps), time.Since(began).Round(time.Millisecond))
	return runtime.Result{Outcome: runtime.OutcomeSucceeded, JSON: runtime.Object(outcome{StepsDone: len(s.Steps), Reads: p.reads})}
}

func firstPositive(step, script int64, fallback time.Duration) time.Duration {
	for _, ms := range []int64{step, script} {
		if ms > 0 {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return fallback
}

// play does one step within its limit.
func (p *player) play(ctx context.Context, act actor, limit time.Duration) error {
	if act == nil {
		return &runtime.ActionError{Code: runtime.CodeInternal, Message: "the step has no action"}
	}
	var stop context.CancelFunc
	p.ctx, stop = context.WithTimeout(ctx, limit)
	defer stop()
	return act.do(p)
}

// failed makes the result of a failing step: which, which action and why, with a
// picture of the page. Nothing of the step's own texts is in it.
func (p *player) failed(ctx context.Context, index int, name string, limit time.Duration, err error) runtime.Result {
	f := &failure{Index: index, Action: name, Reason: runtime.CodeOf(err), Message: runtime.MessageOf(err, "the browser refused the action")}
	var known *runtime.ActionError
	if !errors.As(err, &known) && errors.Is(err, context.DeadlineExceeded) {
		f.Reason, f.Message = runtime.CodeStepTimeout, "the step did not end in time"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		f.Message += fmt.Sprintf(" (limit %v)", limit)
	}
	res := runtime.Result{
		Outcome: runtime.OutcomeFailed, Reason: f.Reason,
		Message: fmt.Sprintf("step %d (%s): %s", index, name, f.Message),
		JSON:    runtime.Object(outcome{StepsDone: index, Reads: p.reads, Failed: f}),
	}
	if errors.Is(err, runtime.ErrDeviceLost) {
		res.Outcome = runtime.OutcomeInfraFailed
		return res
	}
	if ctx.Err() != nil {
		return res // killed: the page is going away
	}
	shotCtx, stop := context.WithTimeout(ctx, failureBound)
	defer stop()
	if err := p.screenshot(shotCtx, FailureScreenshot); err != nil {
		_, _ = fmt.Fprintln(p.out.Log(), "no screenshot of the failure: "+runtime.MessageOf(err, "the page gave none"))
	}
	return res
}
