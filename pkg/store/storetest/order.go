package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func orderChecks() []check {
	return []check{
		in("another priority gives a waiting task another place", priorityWaiting),
		in("of a live one: its next try has it", priorityLive),
		in("finished, out of range, unseen, unchanged", priorityRefused),
		in("a paused pool is not scheduled until it is resumed", poolPaused),
		in("a disabled plugin is not placed, what was placed goes on", pluginDisabled),
	}
}

func (w *world) prioritise(id berth.TaskID, priority int) berth.Transition {
	w.t.Helper()
	task, trs, err := w.Store.SetTaskPriority(bg(), w.params(id), priority)
	w.must("prioritise", err)
	if task.Priority != priority || task.ID != id {
		w.t.Errorf("task %+v", task)
	}
	return w.oneTransition(trs)
}

func (w *world) order() (ids []berth.TaskID) {
	w.t.Helper()
	for _, h := range w.heads() {
		ids = append(ids, h.Task)
	}
	return ids
}

func priorityWaiting(w *world) {
	first, second := w.submit(), w.submit()
	if got := w.order(); !slices.Equal(got, []berth.TaskID{first.ID, second.ID}) {
		w.t.Fatalf("order %v", got)
	}
	tr := w.prioritise(second.ID, 5)
	want := berth.Transition{
		Event: berth.EventReprioritised, Task: second.ID, From: berth.StateQueued, To: berth.StateQueued, Reason: "priority_5",
		Pool: w.pool.ID, CorrelationID: "corr-1", At: w.Clock.Now(),
	}
	if d := diff(want, tr); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if got := w.order(); !slices.Equal(got, []berth.TaskID{second.ID, first.ID}) {
		w.t.Errorf("order %v", got)
	}
	if w.prioritise(second.ID, 0); !slices.Equal(w.order(), []berth.TaskID{first.ID, second.ID}) {
		w.t.Errorf("order %v", w.order())
	}
	later := w.submit(notBefore(w.Clock.Now().Add(time.Second)))
	if tr := w.prioritise(later.ID, 9); tr.From != berth.StateScheduled || tr.To != berth.StateScheduled {
		w.t.Errorf("transition %+v", tr)
	}
	w.Clock.Advance(time.Second)
	w.promote()
	w.ranked(later.ID, 9)
}

func priorityLive(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	tr := w.prioritise(as.Task, 7)
	if tr.From != berth.StateRunning || tr.To != berth.StateRunning || tr.Reason != "priority_7" {
		w.t.Errorf("transition %+v", tr)
	}
	if s := a.renew(as)[0].Status; s != store.LeaseGranted {
		w.t.Errorf("renewal: %s", s)
	}
	a.completed(as, berth.OutcomeFailed)
	w.retry(as.Task, 0)
	w.ranked(as.Task, 7)
}

func priorityRefused(w *world) {
	task := w.submit(withPriority(3))
	set := func(p store.TaskParams, priority int) error {
		_, trs, err := w.Store.SetTaskPriority(bg(), p, priority)
		if len(trs) != 0 {
			w.t.Errorf("transitions %+v", trs)
		}
		return err
	}
	for _, out := range []int{berth.MinPriority - 1, berth.MaxPriority + 1} {
		w.fails("out of range", set(w.params(task.ID), out), berth.ErrInvalid)
	}
	w.fails("unknown", set(w.params(newID[berth.TaskID](w.Env)), 1), berth.ErrNotFound)
	foreign := w.params(task.ID)
	foreign.Scope = berth.Scope{Owner: berth.Principal{Kind: berth.ActorUser, ID: "somebody"}}
	w.fails("foreign", set(foreign, 1), berth.ErrNotFound)
	w.must("the same", set(w.params(task.ID), 3))
	w.cancel(task.ID)
	w.fails("finished", set(w.params(task.ID), 1), berth.ErrWrongState)
}

func poolPaused(w *world) {
	pause := func(paused bool) {
		w.t.Helper()
		for range 2 { // the second finds its work done
			p, err := w.Store.SetPoolPaused(bg(), w.operator, w.pool.Name, paused)
			w.must("pause", err)
			if p.Paused != paused || p.ID != w.pool.ID {
				w.t.Errorf("pool %+v", p)
			}
		}
		pools, err := w.Store.SchedulablePools(bg())
		w.must("schedulable pools", err)
		if slices.Contains(pools, w.pool.ID) == paused {
			w.t.Errorf("paused %v: schedulable pools %v", paused, pools)
		}
	}
	work, stop := w.Store.Subscribe(store.HintWork, string(w.pool.ID))
	defer stop()
	pause(true)
	drain(work)
	pause(false)
	w.hinted("work after the resumption", work)
	for _, action := range []berth.AuditAction{berth.AuditPoolPaused, berth.AuditPoolResumed} {
		if n := w.acted(action, "pool", string(w.pool.ID)); n != 1 {
			w.t.Errorf("%d audit rows of %s", n, action)
		}
	}
	_, err := w.Store.SetPoolPaused(bg(), w.operator, "no-such-pool", true)
	w.fails("unknown pool", err, berth.ErrNotFound)
}

func pluginDisabled(w *world) {
	a := w.host("h1", 2)
	version := berth.PluginVersion{Name: pluginName, Version: pluginVersion}
	enable := func(on bool) {
		w.t.Helper()
		for range 2 {
			p, err := w.Store.ChangePlugin(bg(), enabling(w.operator, version, on))
			w.must("enable", err)
			if p.Enabled != on || p.PluginVersion != version {
				w.t.Errorf("plugin %+v", p)
			}
		}
	}
	placed := w.submit()
	w.placed(placed.ID)
	work, stop := w.Store.Subscribe(store.HintWork, string(w.pool.ID))
	defer stop()
	enable(false)
	waits := w.submit()
	w.place()
	w.state(waits.ID, berth.StateQueued)
	as := a.one(placed.ID)
	a.start(as)
	a.completed(as, berth.OutcomeSucceeded)
	drain(work)
	enable(true)
	w.hinted("work after a plugin is enabled", work)
	w.placed(waits.ID)
	for _, action := range []berth.AuditAction{berth.AuditPluginDisabled, berth.AuditPluginEnabled} {
		if n := w.acted(action, "plugin", pluginName+"@"+pluginVersion); n != 1 {
			w.t.Errorf("%d audit rows of %s", n, action)
		}
	}
	_, err := w.Store.ChangePlugin(bg(), enabling(w.operator, berth.PluginVersion{Name: "none", Version: "1.0.0"}, true))
	w.fails("unknown plugin", err, berth.ErrNotFound)
}
