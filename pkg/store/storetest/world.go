package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
	p, err := w.Store.CreatePool(bg(), w.operator, p)
	w.must("create pool", err)
	return p
}

// Changes of a new task.
func withName(s string) func(*berth.NewTask)       { return func(n *berth.NewTask) { n.Name = s } }
func withTags(tags ...string) func(*berth.NewTask) { return func(n *berth.NewTask) { n.Tags = tags } }
func withPriority(p int) func(*berth.NewTask)      { return func(n *berth.NewTask) { n.Priority = p } }
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

// agent is a Host Agent as the store sees it.
type agent struct {
	w        *world
	actor    berth.Actor
	id       berth.HostID
	name     string
	epoch    berth.Epoch
	instance string
	devices  []store.ReportedDevice
	ids      []berth.DeviceID
	plugins  []berth.Plugin
	store    store.Store
}

func hashOf(s string) [32]byte { return sha256.Sum256([]byte(s)) }

func hexOf(s string) string { h := hashOf(s); return hex.EncodeToString(h[:]) }

func keyOf(s string) []byte { h := hashOf("key " + s); return h[:] }

// token makes an enrolment token for hosts whose name fits pattern.
func (w *world) token(secret, pattern string, pool berth.PoolID) berth.EnrolmentToken {
	w.t.Helper()
	tok, err := w.Store.CreateEnrolment(bg(), store.CreateEnrolmentParams{
		Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: pool, Pattern: pattern,
		TokenHash: hashOf(secret), TTL: time.Hour,
	})
	w.must("create enrolment", err)
	return tok
}

// enrolled is a host that never synced, of pool, with n devices to report.
func (w *world) enrolled(name string, pool berth.PoolID, n int) *agent {
	w.t.Helper()
	w.token("token "+name, name, pool)
	h, err := w.Store.Enrol(bg(), store.EnrolParams{
		Actor:     berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "enrol"}},
		TokenHash: hashOf("token " + name), Host: newID[berth.HostID](w.Env), Name: name, PublicKey: keyOf(name),
	})
	w.must("enrol", err)
	a := &agent{
		w: w, id: h.ID, name: name, instance: "instance-" + name + "-1", store: w.Store,
		actor:   berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: string(h.ID)}, RequestID: "req-" + name},
		plugins: []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: pluginName, Version: pluginVersion}}},
	}
	for i := range n {
		a.devices = append(a.devices, a.reported(fmt.Sprintf("slot-%d", i)))
	}
	return a
}

func (a *agent) reported(hardware string) store.ReportedDevice {
	return store.ReportedDevice{
		ID: newID[berth.DeviceID](a.w.Env), Driver: driverName, HardwareID: hardware, Name: a.name + "/" + hardware,
		Labels: map[string]string{"os": "linux", "slot": hardware}, Health: berth.HealthGood, Clean: true,
	}
}

// host is an enrolled and synced host of the world's pool with n free devices.
func (w *world) host(name string, n int) *agent {
	w.t.Helper()
	a := w.enrolled(name+w.suffix, w.pool.ID, n)
	a.sync()
	return a
}

func (a *agent) call() store.AgentCall {
	return store.AgentCall{Actor: a.actor, Host: a.id, Epoch: a.epoch}
}

func (a *agent) syncParams(mods ...func(*store.SyncParams)) store.SyncParams {
	p := store.SyncParams{
		AgentCall: a.call(), Instance: a.instance, AgentVersion: "0.1.0", Plugins: a.plugins,
		Devices: append([]store.ReportedDevice(nil), a.devices...), JournalEpoch: a.epoch,
	}
	for _, mod := range mods {
		mod(&p)
	}
	return p
}

// sync syncs, which must work, and takes over the epoch.
func (a *agent) sync(mods ...func(*store.SyncParams)) store.SyncResult {
	a.w.t.Helper()
	res, err := a.store.SyncHost(bg(), a.syncParams(mods...))
	a.w.must("sync", err)
	a.epoch, a.ids = res.Epoch, res.Devices
	return res
}

// restart syncs as a new process whose journal knows the epoch before.
func (a *agent) restart(mods ...func(*store.SyncParams)) store.SyncResult {
	a.w.t.Helper()
	before := a.epoch
	a.instance += "+"
	a.epoch = 0
	return a.sync(append([]func(*store.SyncParams){func(p *store.SyncParams) { p.JournalEpoch = before }}, mods...)...)
}

// holding reports attempts as held at a sync.
func holding(as ...store.Assignment) func(*store.SyncParams) {
	return func(p *store.SyncParams) {
		for _, x := range as {
			p.Held = append(p.Held, store.HeldAttempt{Attempt: x.Attempt, Fence: x.Fence})
		}
	}
}

func (a *agent) beat() {
	a.w.t.Helper()
	_, err := a.store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	a.w.must("heartbeat", err)
}

func (a *agent) claimWith(claim string, limit int) []store.Assignment {
	a.w.t.Helper()
	as, _, err := a.store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: a.call(), ClaimID: claim, Max: limit})
	a.w.must("claim", err)
	return as
}

// claim takes all that is assigned, under a new claim id.
func (a *agent) claim() []store.Assignment {
	a.w.t.Helper()
	return a.claimWith(newID[string](a.w.Env), 100)
}

func holder(as store.Assignment) store.Holder {
	return store.Holder{Attempt: as.Attempt, Fence: as.Fence}
}

func holders(as []store.Assignment) []store.Holder {
	var out []store.Holder
	for _, x := range as {
		out = append(out, holder(x))
	}
	return out
}

func (a *agent) startAnswers(as ...store.Assignment) ([]store.LeaseAnswer, []berth.Transition) {
	a.w.t.Helper()
	answers, trs, err := a.store.StartAttempts(bg(), store.StartParams{AgentCall: a.call(), Items: holders(as)})
	a.w.must("start", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d starts", len(answers), len(as))
	}
	for i := range as {
		if answers[i].Attempt != as[i].Attempt {
			a.w.t.Fatalf("answer %d is of attempt %s, asked for %s", i, answers[i].Attempt, as[i].Attempt)
		}
	}
	return answers, trs
}

func (a *agent) start(as ...store.Assignment) {
	a.w.t.Helper()
	answers, _ := a.startAnswers(as...)
	for _, x := range answers {
		if x.Status != store.LeaseGranted {
			a.w.t.Fatalf("start answered %s", x.Status)
		}
	}
}

func (a *agent) renew(as ...store.Assignment) []store.LeaseAnswer {
	a.w.t.Helper()
	answers, _ := a.renewWith(as...)
	return answers
}

func (a *agent) renewWith(as ...store.Assignment) ([]store.LeaseAnswer, []berth.Transition) {
	a.w.t.Helper()
	var items []store.RenewItem
	for _, x := range as {
		items = append(items, store.RenewItem{Holder: holder(x), Progress: -1})
	}
	answers, trs, err := a.store.RenewAttempts(bg(), store.RenewParams{AgentCall: a.call(), Items: items})
	a.w.must("renew", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d renewals", len(answers), len(as))
	}
	return answers, trs
}

// item is how an attempt is completed with a clean device and nothing uploaded.
func item(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) store.CompleteItem {
	it := store.CompleteItem{
		Holder: holder(as), Outcome: outcome, Message: redact.NewString("message " + marker),
		Result: redact.NewBytes([]byte(`{"result": "` + marker + `"}`)), DeviceClean: true,
	}
	for _, mod := range mods {
		mod(&it)
	}
	it.Digest = hashOf(fmt.Sprint(it.Attempt, it.Fence, it.Outcome, it.Reason, it.LogBytes, it.Artifacts, it.DeviceClean))
	return it
}

func unclean(it *store.CompleteItem) { it.DeviceClean = false }

func (a *agent) completeItems(items ...store.CompleteItem) ([]store.CompleteAnswer, []berth.Transition) {
	a.w.t.Helper()
	answers, trs, err := a.store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: a.call(), Items: items})
	a.w.must("complete", err)
	if len(answers) != len(items) {
		a.w.t.Fatalf("%d answers for %d completes", len(answers), len(items))
	}
	return answers, trs
}

// complete completes one attempt and returns the answer.
func (a *agent) complete(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) store.CompleteAnswer {
	a.w.t.Helper()
	answers, _ := a.completeItems(item(as, outcome, mods...))
	return answers[0]
}

// completed completes one attempt, which must be stored.
func (a *agent) completed(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) berth.TaskState {
	a.w.t.Helper()
	ans := a.complete(as, outcome, mods...)
	if ans.Status != store.CompleteStored || ans.Outcome != outcome {
		a.w.t.Fatalf("complete answered %s, outcome %q", ans.Status, ans.Outcome)
	}
	return ans.TaskState
}

func (a *agent) release(draining bool, as ...store.Assignment) []store.LeaseAnswer {
	a.w.t.Helper()
	answers, _, err := a.store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: holders(as), Draining: draining})
	a.w.must("release", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d releases", len(answers), len(as))
	}
	return answers
}

// one claims and asserts that exactly task id came.
func (a *agent) one(id berth.TaskID) store.Assignment {
	a.w.t.Helper()
	as := a.claim()
	if len(as) != 1 || as[0].Task != id {
		a.w.t.Fatalf("claimed %d attempts, wanted the one of task %s", len(as), id)
	}
	return as[0]
}

// claimed brings a new task to claimed.
func (a *agent) claimed(mods ...func(*berth.NewTask)) store.Assignment {
	a.w.t.Helper()
	task := a.w.submit(mods...)
	a.w.placed(task.ID)
	return a.one(task.ID)
}

// running brings a new task to running.
func (a *agent) running(mods ...func(*berth.NewTask)) store.Assignment {
	a.w.t.Helper()
	as := a.claimed(mods...)
	a.start(as)
	return as
}

// again promotes, places, claims and starts the next try of a task that waits.
func (a *agent) again(id berth.TaskID) store.Assignment {
	a.w.t.Helper()
	if task := a.w.task(id); task.State == berth.StateFailed {
		a.w.Clock.Set(task.DueAt)
		a.beat()
		a.w.promote()
	}
	a.w.placed(id)
	as := a.one(id)
	a.start(as)
	return as
}

// hasMarker reports whether content stands in s.
func hasMarker(s string) bool { return bytes.Contains([]byte(s), []byte(marker)) }
