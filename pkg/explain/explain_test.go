package explain_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/explain"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

// world is a database with a clock, in which situations are made by the acts of
// agents, operators and workers.
type world struct {
	t     *testing.T
	s     store.Store
	clock *storetest.Clock
	sched *scheduler.Scheduler
	host  *enginetest.Host // two devices, n=0 and n=1
}

var operator = berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "op"}}

func newWorld(t *testing.T, db enginetest.DB) *world {
	w := &world{t: t, clock: storetest.NewClock()}
	w.s = db.Open(t, store.Options{Clock: w.clock})
	w.sched = scheduler.New(scheduler.Config{Store: w.s, Instance: "s"})
	w.host = enginetest.NewHost(t, w.s, "h1", 2)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// submit submits one task that asks for a selector.
func (w *world) submit(selector string) berth.TaskID {
	w.t.Helper()
	return w.task(func(n *berth.NewTask) { n.Requirement.Selector = selector })
}

func (w *world) task(change func(*berth.NewTask)) berth.TaskID {
	w.t.Helper()
	return enginetest.Submit(w.t, w.s, 1, func(_ int, n *berth.NewTask) { change(n) })[0]
}

func (w *world) place() {
	w.t.Helper()
	w.must(w.sched.PlaceOnce(w.t.Context()))
}

// run makes n tasks run and returns their assignments.
func (w *world) run(n int) []store.Assignment {
	w.t.Helper()
	enginetest.Submit(w.t, w.s, n, nil)
	w.place()
	as := w.host.Claim()
	w.host.Start(as)
	if len(as) != n {
		w.t.Fatalf("%d of %d tasks run", len(as), n)
	}
	return as
}

func (w *world) admin(device int, state berth.AdminState) {
	w.t.Helper()
	_, err := w.s.SetDeviceAdmin(w.t.Context(), store.DeviceAdminParams{Actor: operator, Device: w.host.Devices[device], Admin: state, Note: "a note"})
	w.must(err)
}

func (w *world) beat(healths ...berth.Health) {
	w.t.Helper()
	p := store.HeartbeatParams{AgentCall: w.host.Call(), Health: map[berth.DeviceID]berth.Health{}}
	for i, h := range healths {
		p.Health[w.host.Devices[i]] = h
	}
	_, err := w.s.Heartbeat(w.t.Context(), p)
	w.must(err)
}

// situation makes a task whose explanation is known.
type situation struct {
	name string
	make func(w *world) berth.TaskID
	want []explain.Code // in order
	// fitting and free devices of the pool's.
	fitting, free int
	unsatisfiable bool
	says          string // part of the summary
	remedy        string // part of the first remedy
}

func situations() []situation {
	const none = 0
	return []situation{
		{
			"no such label", func(w *world) berth.TaskID { return w.submit("os=plan9") },
			[]explain.Code{explain.CodeLabelMissing},
			none, none, true, "no device of pool default has os=plan9", "correct the selector",
		},
		{
			"no device has both labels", func(w *world) berth.TaskID { return w.submit("n in (0),n in (1)") },
			[]explain.Code{explain.CodeNoCombination},
			none, none, true, "though some have each", "ask for less",
		},
		{
			"two labels that nobody has", func(w *world) berth.TaskID { return w.submit("a=b,c=d") },
			[]explain.Code{explain.CodeLabelMissing, explain.CodeLabelMissing},
			none, none, true, "a=b", "",
		},
		{
			"all busy", func(w *world) berth.TaskID { w.run(2); return w.submit("") },
			[]explain.Code{explain.CodeBusy},
			2, none, false, "all 2 devices that fit are busy", "",
		},
		{
			"the pinned one is busy", func(w *world) berth.TaskID {
				as := w.run(1)
				return w.submit(berth.LabelDevice + "=" + string(as[0].Device))
			},
			[]explain.Code{explain.CodeBusy},
			1, none, false, "the only device that fits is busy", "",
		},
		{
			"cordoned", func(w *world) berth.TaskID { w.admin(0, berth.AdminCordoned); return w.submit("n=0") },
			[]explain.Code{explain.CodeCordoned},
			1, none, false, "cordoned by an operator", "berth device activate",
		},
		{
			"an operator's probe of a cordoned one is next", func(w *world) berth.TaskID {
				w.admin(0, berth.AdminCordoned)
				return w.submit(berth.LabelProbe + "=" + string(w.host.Devices[0]))
			},
			[]explain.Code{explain.CodeNext},
			1, 1, false, "next round takes it", "",
		},
		{
			"maintenance", func(w *world) berth.TaskID { w.admin(1, berth.AdminMaintenance); return w.submit("n=1") },
			[]explain.Code{explain.CodeMaintenance},
			1, none, false, "in maintenance", "end it",
		},
		{
			"quarantined", func(w *world) berth.TaskID { w.beat(berth.HealthQuarantined, berth.HealthGood); return w.submit("n=0") },
			[]explain.Code{explain.CodeQuarantined},
			1, none, false, "quarantined", "berth device trust",
		},
		{
			"unclean", func(w *world) berth.TaskID {
				w.host.CompleteAs(w.run(2), berth.OutcomeSucceeded, false)
				return w.submit("")
			},
			[]explain.Code{explain.CodeUnclean},
			2, none, false, "all 2 devices that fit are unclean", "berth device clean",
		},
		{
			"offline", func(w *world) berth.TaskID { w.clock.Advance(time.Minute); return w.submit("") },
			[]explain.Code{explain.CodeOffline},
			2, none, false, "on a host that is offline", "start its Host Agent",
		},
		{
			"draining", func(w *world) berth.TaskID {
				_, _, err := w.s.DrainHost(w.t.Context(), operator, w.host.Call().Host, true)
				w.must(err)
				return w.submit("")
			},
			[]explain.Code{explain.CodeDraining},
			2, none, false, "host that drains", "undrain",
		},
		{
			"absent", func(w *world) berth.TaskID { w.host.Sync(1); return w.submit("n=1") },
			[]explain.Code{explain.CodeAbsent},
			1, none, false, "not reported by the host's agent", "plug it in",
		},
		{
			"host revoked", func(w *world) berth.TaskID {
				_, _, err := w.s.RevokeHost(w.t.Context(), operator, w.host.Call().Host)
				w.must(err)
				return w.submit("")
			},
			[]explain.Code{explain.CodeRevoked},
			2, none, true, "host that was revoked", "enrol",
		},
		{
			"retired devices are none", func(w *world) berth.TaskID {
				for _, d := range w.host.Devices {
					_, _, err := w.s.RetireDevice(w.t.Context(), store.DeviceAdminParams{Actor: operator, Device: d})
					w.must(err)
				}
				return w.submit("")
			},
			[]explain.Code{explain.CodeNoDevices},
			none, none, true, "pool default has no devices", "enrol a host",
		},
		{
			"unknown plugin", func(w *world) berth.TaskID {
				return w.task(func(n *berth.NewTask) { n.Requirement.Plugin = "nobody.knows" })
			},
			[]explain.Code{explain.CodePluginUnknown},
			none, none, true, "nobody.knows is not registered", "correct the name",
		},
		{
			"version out of range", func(w *world) berth.TaskID {
				return w.task(func(n *berth.NewTask) { n.Requirement.VersionRange = "^2" })
			},
			[]explain.Code{explain.CodePluginNoVersion},
			none, none, true, "no registered version of work", "1.0.0",
		},
		{
			"a version that no host has", func(w *world) berth.TaskID {
				w.must(w.s.RegisterPlugins(w.t.Context(), operator, []berth.Plugin{{
					PluginVersion: berth.PluginVersion{Name: "work", Version: "2.0.0"}, Enabled: true, Schema: []byte(`{}`),
				}}))
				return w.task(func(n *berth.NewTask) { n.Requirement.VersionRange = "^2" })
			},
			[]explain.Code{explain.CodePluginNoVersion},
			none, none, true, "has a version in work ^2", "update the hosts",
		},
		{
			"a plugin that no host has", func(w *world) berth.TaskID {
				w.must(w.s.RegisterPlugins(w.t.Context(), operator, []berth.Plugin{{
					PluginVersion: berth.PluginVersion{Name: "other", Version: "1.0.0"}, Enabled: true, Schema: []byte(`{}`),
				}}))
				return w.task(func(n *berth.NewTask) { n.Requirement.Plugin = "other" })
			},
			[]explain.Code{explain.CodePluginNotThere},
			none, none, true, "has plugin other", "install it",
		},
		{
			"plugin disabled", func(w *world) berth.TaskID {
				off := false
				_, err := w.s.ChangePlugin(w.t.Context(), store.ChangePluginParams{Actor: operator, Plugin: enginetest.Plugin, Change: berth.PluginChange{Enabled: &off}})
				w.must(err)
				return w.submit("")
			},
			[]explain.Code{explain.CodePluginDisabled},
			none, none, false, "work is disabled", "enable",
		},
		{
			"pool paused", func(w *world) berth.TaskID {
				_, err := w.s.SetPoolPaused(w.t.Context(), operator, berth.DefaultPool, true)
				w.must(err)
				return w.submit("")
			},
			[]explain.Code{explain.CodePoolPaused},
			2, 2, false, "pool default is paused", "berth pool resume default",
		},
		{
			"not due", func(w *world) berth.TaskID {
				return w.task(func(n *berth.NewTask) { n.NotBefore = w.clock.Now().Add(3 * time.Hour) })
			},
			[]explain.Code{explain.CodeNotDue},
			2, 2, false, "becomes due in 3 h", "",
		},
		{
			"not due, and nothing would fit", func(w *world) berth.TaskID {
				return w.task(func(n *berth.NewTask) {
					n.NotBefore, n.Requirement.Selector = w.clock.Now().Add(3*time.Hour), "os=plan9"
				})
			},
			[]explain.Code{explain.CodeNotDue, explain.CodeLabelMissing},
			none, none, true, "becomes due in 3 h", "",
		},
		{
			"backoff", func(w *world) berth.TaskID {
				as := w.run(1)
				w.host.CompleteAs(as, berth.OutcomeFailed, true)
				return as[0].Task
			},
			[]explain.Code{explain.CodeBackoff},
			2, 2, false, "try 1 of 3 failed: it is tried again in ", "retry it at once",
		},
		{
			"others first", func(w *world) berth.TaskID { w.submit(""); w.submit(""); return w.submit("") },
			[]explain.Code{explain.CodeAhead},
			2, 2, false, "2 tasks are of its kind before it", "",
		},
		{
			"next", func(w *world) berth.TaskID { return w.submit("") },
			[]explain.Code{explain.CodeNext},
			2, 2, false, "2 fitting devices are free", "see that a scheduler runs",
		},
		{
			"several at once", func(w *world) berth.TaskID {
				enginetest.NewHost(w.t, w.s, "h2", 3)
				w.clock.Advance(40 * time.Second)
				w.beat()
				w.clock.Advance(20 * time.Second) // h2 is silent for too long
				w.run(1)
				w.admin(1, berth.AdminCordoned)
				return w.submit("")
			},
			[]explain.Code{explain.CodeOffline, explain.CodeBusy, explain.CodeCordoned},
			5, none, false, "3 of 5 devices that fit are on a host that is offline", "",
		},
		{
			"starting", func(w *world) berth.TaskID { id := w.submit("n=0"); w.place(); return id },
			[]explain.Code{explain.CodeStarting},
			none, none, false, "it has device 0 of host h1", "",
		},
		{
			"running, cancel asked", func(w *world) berth.TaskID {
				id := w.run(1)[0].Task
				_, _, err := w.s.CancelTask(w.t.Context(), store.TaskParams{Actor: operator, Scope: berth.Scope{All: true}, Task: id})
				w.must(err)
				return id
			},
			[]explain.Code{explain.CodeRunning, explain.CodeCancelled},
			none, none, false, "it runs on device", "",
		},
		{
			"finished", func(w *world) berth.TaskID { as := w.run(1); w.host.Complete(as); return as[0].Task },
			[]explain.Code{explain.CodeFinished},
			none, none, false, "it has ended", "",
		},
	}
}

// TestSituations makes each situation on both engines by what agents, operators
// and workers do, and holds what is said of it against what is so.
func TestSituations(t *testing.T) {
	for _, c := range situations() {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
				w := newWorld(t, db)
				id := c.make(w)
				facts, err := w.s.PlacementFacts(t.Context(), berth.Scope{All: true}, id)
				w.must(err)
				e := explain.Explain(facts)
				codes := make([]explain.Code, len(e.Reasons))
				for i, r := range e.Reasons {
					codes[i] = r.Code
				}
				if !slices.Equal(codes, c.want) {
					t.Errorf("reasons %v, should be %v: %+v", codes, c.want, e)
				}
				if e.Fitting != c.fitting || e.Free != c.free || e.Unsatisfiable != c.unsatisfiable {
					t.Errorf("%d fit, %d free, unsatisfiable %v; should be %d, %d, %v", e.Fitting, e.Free, e.Unsatisfiable, c.fitting, c.free, c.unsatisfiable)
				}
				if !strings.Contains(e.Summary, c.says) {
					t.Errorf("it says %q, should say %q", e.Summary, c.says)
				}
				if len(e.Reasons) > 0 && !strings.Contains(e.Reasons[0].Remedy, c.remedy) {
					t.Errorf("the remedy is %q, should say %q", e.Reasons[0].Remedy, c.remedy)
				}
				if e.State == berth.StateQueued {
					w.agrees(id, e)
				}
			})
		})
	}
}

// agrees lets the scheduler place, and looks whether it did what was said: a
// task for which a device is free is placed, another is not.
func (w *world) agrees(id berth.TaskID, e explain.Explanation) {
	w.t.Helper()
	w.place()
	task, err := w.s.GetTask(w.t.Context(), berth.Scope{All: true}, id)
	w.must(err)
	said := len(e.Reasons) > 0 && e.Reasons[0].Code == explain.CodeNext
	if placed := task.State == berth.StateAssigned; placed != said {
		w.t.Errorf("it said %v, and then the task is %s", e.Reasons, task.State)
	}
}

func TestForeignTasksAreNotExplained(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		w := newWorld(t, db)
		id := w.submit("")
		_, err := w.s.PlacementFacts(t.Context(), berth.Scope{Owner: operator.Principal}, id)
		if err == nil || !strings.Contains(err.Error(), berth.ErrNotFound.Error()) {
			t.Errorf("%v", err)
		}
	})
}
