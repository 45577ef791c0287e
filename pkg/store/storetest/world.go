package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// marker stands in every payload, result, message and note of the suite; no
// error and no audit row may hold it.
const marker = "c0ntent-m4rk"

// Names that the suite uses throughout.
const (
	pluginName    = "work"
	pluginVersion = "1.2.0"
	driverName    = "process"
)

// tb is what fixtures need of a test; *rapid.T has it too.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// world is an Env with a pool, an enabled plugin and fixtures that fail the
// test when a step that must work does not.
type world struct {
	*Env
	t    tb
	pool berth.Pool
	// suffix of the names of pool and hosts.
	suffix string
	// open opens another handle with changed options.
	open func(change func(*store.Options)) store.Store
	// user submits, operator sees all.
	user, operator, scheduler, keeper berth.Actor
}

// all is the scope that sees everything.
var all = berth.Scope{All: true}

func bg() context.Context { return context.Background() }

// newWorld makes a world and checks the invariants when the test ends.
func newWorld(t testing.TB, h Harness) *world {
	t.Helper()
	e := h.New(t)
	w := worldOf(t, e, "")
	w.open = func(change func(*store.Options)) store.Store { return e.OpenWith(t, change) }
	t.Cleanup(func() {
		if !t.Failed() {
			w.checkInvariants()
		}
	})
	return w
}

func worldOf(t tb, e *Env, suffix string) *world {
	t.Helper()
	w := &world{
		Env: e, t: t, suffix: suffix,
		user:      berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: newID[string](e)}, RequestID: "req-user"},
		operator:  berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: newID[string](e)}, RequestID: "req-operator"},
		scheduler: berth.Daemon(berth.ActorScheduler, "scheduler-1"),
		keeper:    berth.Daemon(berth.ActorLeasekeeper, "keeper-1"),
	}
	w.pool = w.makePool("lab" + suffix)
	err := e.Store.RegisterPlugins(bg(), w.operator, []berth.Plugin{{
		PluginVersion: berth.PluginVersion{Name: pluginName, Version: pluginVersion},
		Enabled:       true, Schema: []byte(`{"type":"object"}`), Description: "does work",
	}})
	w.must("register plugin", err)
	return w
}

// another is a world beside w on the same database: a pool and actors of its own.
func (w *world) another(t tb) *world {
	t.Helper()
	o := worldOf(t, w.Env, "-"+newID[string](w.Env)[24:])
	o.open = w.open
	return o
}

// second opens a second handle: another process.
func (w *world) second() store.Store { return w.open(nil) }

func (w *world) must(what string, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// fails asserts that err is of kind want.
func (w *world) fails(what string, err, want error) {
	w.t.Helper()
	if !errors.Is(err, want) {
		w.t.Fatalf("%s: error is %v, should be %q", what, err, want)
	}
}

func (w *world) makePool(name string, mods ...func(*berth.Pool)) berth.Pool {
	w.t.Helper()
	p := berth.Pool{ID: newID[berth.PoolID](w.Env), Name: name, AgeingStep: berth.DefaultAgeingStep}
	for _, mod := range mods {
		mod(&p)
	}
	p, err := w.Store.CreatePool(bg(), store.CreatePoolParams{Actor: w.operator, Pool: p})
	w.must("create pool", err)
	return p
}

// Changes of a new task.
func withName(s string) func(*berth.NewTask) { return func(n *berth.NewTask) { n.Name = s } }

func withTags(tags ...string) func(*berth.NewTask) { return func(n *berth.NewTask) { n.Tags = tags } }

func withPriority(p int) func(*berth.NewTask) { return func(n *berth.NewTask) { n.Priority = p } }

func withSelector(s string) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.Requirement.Selector = s }
}
func withPool(p berth.PoolID) func(*berth.NewTask) { return func(n *berth.NewTask) { n.Pool = p } }
func notBefore(t time.Time) func(*berth.NewTask)   { return func(n *berth.NewTask) { n.NotBefore = t } }

func maxAttempts(i int) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.Retry.MaxAttempts = i }
}
func retryUnsafe(n *berth.NewTask) { n.Retry.RetryUnsafe = true }
func retryOn(o ...berth.Outcome) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.Retry.On = o }
}

func queueTimeout(d time.Duration) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.QueueTimeout = d }
}

func runTimeout(d time.Duration) func(*berth.NewTask) {
	return func(n *berth.NewTask) { n.RunTimeout = d }
}

// newTask is a normalised task of the world's pool.
func (w *world) newTask(mods ...func(*berth.NewTask)) berth.NewTask {
	w.t.Helper()
	n := berth.NewTask{
		ID: newID[berth.TaskID](w.Env), Pool: w.pool.ID, Name: "task",
		Requirement: berth.Requirement{Plugin: pluginName},
		Payload:     redact.NewBytes([]byte(`{"text": "` + marker + `", "n":  1}`)),
		Retry:       berth.DefaultRetryPolicy(),
	}
	for _, mod := range mods {
		mod(&n)
	}
	var f berth.Faults
	n.Normalise("", w.Clock.Now(), &f)
	w.must("normalise", f.Err())
	req, err := eligibility.Canonical("", n.Requirement)
	w.must("canonical requirement", err)
	n.Requirement = req
	return n
}

func (w *world) submitParams(tasks ...berth.NewTask) store.SubmitParams {
	return store.SubmitParams{
		Actor: w.user, Tasks: tasks, CorrelationID: "corr-1",
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
}

// submit stores one task.
func (w *world) submit(mods ...func(*berth.NewTask)) berth.Task {
	w.t.Helper()
	res, err := w.Store.SubmitTasks(bg(), w.submitParams(w.newTask(mods...)))
	w.must("submit", err)
	return res.Tasks[0]
}

// task reads a task.
func (w *world) task(id berth.TaskID) berth.Task {
	w.t.Helper()
	task, err := w.Store.GetTask(bg(), all, id)
	w.must("get task", err)
	return task
}

// state asserts a task's state and returns the task.
func (w *world) state(id berth.TaskID, want berth.TaskState) berth.Task {
	w.t.Helper()
	task := w.task(id)
	if task.State != want {
		w.t.Fatalf("task is %s (reason %q), should be %s", task.State, task.FinalReason, want)
	}
	return task
}

func (w *world) attempts(id berth.TaskID) []berth.Attempt {
	w.t.Helper()
	as, err := w.Store.ListAttempts(bg(), all, id)
	w.must("list attempts", err)
	return as
}

// attempt returns the task's last attempt.
func (w *world) attempt(id berth.TaskID) berth.Attempt {
	w.t.Helper()
	as := w.attempts(id)
	if len(as) == 0 {
		w.t.Fatalf("task has no attempt")
	}
	return as[len(as)-1]
}

func (w *world) device(id berth.DeviceID) berth.Device {
	w.t.Helper()
	d, err := w.Store.GetDevice(bg(), id)
	w.must("get device", err)
	return d
}

func (w *world) params(id berth.TaskID) store.TaskParams {
	return store.TaskParams{Actor: w.operator, Scope: all, Task: id}
}

func (w *world) cancel(id berth.TaskID) (berth.Task, []berth.Transition) {
	w.t.Helper()
	task, trs, err := w.Store.CancelTask(bg(), w.params(id))
	w.must("cancel", err)
	return task, trs
}

func (w *world) promote() []berth.Transition {
	w.t.Helper()
	trs, err := w.Store.PromoteDue(bg(), w.scheduler, 100)
	w.must("promote", err)
	return trs
}

func (w *world) reap() []berth.Transition {
	w.t.Helper()
	trs, err := w.Store.ReapLeases(bg(), w.keeper, 100)
	w.must("reap", err)
	return trs
}

// round runs fn as a round of the world's pool.
func (w *world) round(fn func(ctx context.Context, r store.Round) error) []berth.Transition {
	w.t.Helper()
	trs, err := w.Store.PlacementRound(bg(), w.scheduler, w.pool.ID, fn)
	w.must("placement round", err)
	return trs
}

// place runs one round that places first fits and asserts that all planned were
// placed.
func (w *world) place() []berth.Transition {
	w.t.Helper()
	return w.round(func(ctx context.Context, r store.Round) error {
		plan, err := w.plan(ctx, r)
		if err != nil {
			return err
		}
		placed, err := r.Apply(ctx, plan)
		if err == nil && len(placed) != len(plan) {
			err = fmt.Errorf("placed %v of %d", placed, len(plan))
		}
		return err
	})
}

// placed places one task on some free device and asserts that it was.
func (w *world) placed(id berth.TaskID) berth.Attempt {
	w.t.Helper()
	w.place()
	w.state(id, berth.StateAssigned)
	return w.attempt(id)
}

func (w *world) free() []store.FreeDevice {
	w.t.Helper()
	var free []store.FreeDevice
	w.round(func(ctx context.Context, r store.Round) (err error) {
		free, err = r.FreeDevices(ctx, 0)
		return err
	})
	return free
}

func (w *world) freeIDs() []berth.DeviceID {
	w.t.Helper()
	var out []berth.DeviceID
	for _, d := range w.free() {
		out = append(out, d.ID)
	}
	return out
}

// heads lists the heads of every class of the pool.
func (w *world) heads() []store.Head {
	w.t.Helper()
	var heads []store.Head
	w.round(func(ctx context.Context, r store.Round) (err error) {
		heads, err = allHeads(ctx, r, 1000)
		return err
	})
	return heads
}

// hasMarker reports whether content stands in s.
func hasMarker(s string) bool { return strings.Contains(s, marker) }
