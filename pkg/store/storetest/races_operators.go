package storetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// Operations of operators and of the keeper's sweep, to be raced.

func (w *world) cordoning(d berth.DeviceID) callFunc {
	p := store.DeviceAdminParams{Actor: w.operator, Device: d, Admin: berth.AdminCordoned}
	return func(ctx context.Context, s store.Store) error { return err2(s.SetDeviceAdmin(ctx, p)) }
}

func (w *world) retiring(d berth.DeviceID) callFunc {
	p := store.DeviceAdminParams{Actor: w.operator, Device: d}
	return func(ctx context.Context, s store.Store) error { return err3(s.RetireDevice(ctx, p)) }
}

func (w *world) forcing(as store.Assignment) callFunc {
	p := store.ForceReleaseParams{Actor: w.operator, Device: as.Device, Attempt: as.Attempt}
	return func(ctx context.Context, s store.Store) error { return err3(s.ForceRelease(ctx, p)) }
}

func (w *world) draining(a *agent) callFunc {
	return func(ctx context.Context, s store.Store) error { return err3(s.DrainHost(ctx, w.operator, a.id, true)) }
}

func (w *world) revoking(a *agent) callFunc {
	return func(ctx context.Context, s store.Store) error { return err3(s.RevokeHost(ctx, w.operator, a.id)) }
}

func (w *world) prioritising(id berth.TaskID, priority int) callFunc {
	return func(ctx context.Context, s store.Store) error {
		return err3(s.SetTaskPriority(ctx, w.params(id), priority))
	}
}

func (w *world) promoting() callFunc {
	return func(ctx context.Context, s store.Store) error { return err2(s.PromoteDue(ctx, w.scheduler, 1000)) }
}

// sweeping puts what the sweep of the world's tasks found into wrong.
func (w *world) sweeping(wrong *int) callFunc {
	return func(ctx context.Context, s store.Store) error {
		for after := berth.TaskID(""); ; {
			r, err := s.SweepTasks(ctx, w.keeper, after, 1000)
			*wrong += r.Wrong
			if err != nil || r.Next == "" {
				return err
			}
			after = r.Next
		}
	}
}

// syncing syncs as a new process of the host that holds nothing, with changes.
func (a *agent) syncing(res *store.SyncResult, mods ...func(*store.SyncParams)) callFunc {
	p := a.syncParams(mods...)
	p.Instance, p.Epoch, p.JournalEpoch = a.instance+"+", 0, a.epoch
	return func(ctx context.Context, s store.Store) (err error) {
		*res, err = s.SyncHost(ctx, p)
		return err
	}
}

// nothingFree asserts I14.
func (w *world) nothingFree() {
	w.t.Helper()
	if free := w.freeIDs(); len(free) != 0 {
		w.t.Errorf("I14: %v may be placed on", free)
	}
}

// ranked asserts that a queued task stands at the rank of its priority.
func (w *world) ranked(id berth.TaskID, priority int) {
	w.t.Helper()
	task := w.state(id, berth.StateQueued)
	want := berth.RankOf(task.SubmittedAt, priority, w.pool.AgeingStep)
	i := slices.IndexFunc(w.heads(), func(h store.Head) bool { return h.Task == id })
	if i < 0 || w.heads()[i].Rank != want || task.Priority != priority {
		w.t.Errorf("priority %d, head %d of %+v, should be %d at rank %d", task.Priority, i, w.heads(), priority, want)
	}
}

func operatorRaces() []race {
	return slices.Concat(deviceRaces(), hostRaces(), syncRaces(), orderRaces())
}

func deviceRaces() []race {
	return []race{
		{"cordon and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			return w.cordoning(a.ids[0]), w.placing(), func(x, y error) {
				w.fine(x, y)
				if s := w.task(task.ID).State; s != berth.StateQueued && s != berth.StateAssigned {
					w.t.Errorf("task is %s", s)
				}
				w.nothingFree()
			}
		}},
		{"retire and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			return w.retiring(a.ids[0]), w.placing(), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateQueued)
				w.nothingFree()
			}
		}},
		{"retire and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.retiring(as.Device), a.completing(item(as, berth.OutcomeSucceeded), &ans), func(x, y error) {
				w.fine(x, y)
				want := map[store.CompleteStatus]berth.TaskState{store.CompleteStored: berth.StateSucceeded, store.CompleteGone: berth.StateFailed}
				w.state(as.Task, want[ans.Status])
				if d := w.device(as.Device); d.Admin != berth.AdminRetired || d.Unclean != (ans.Status == store.CompleteGone) {
					w.t.Errorf("answer %s, device %s, unclean %v", ans.Status, d.Admin, d.Unclean)
				}
				w.nothingFree()
			}
		}},
		{"force release and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.forcing(as), a.completing(item(as, berth.OutcomeSucceeded), &ans), func(x, y error) {
				w.fine(x, y)
				want := map[store.CompleteStatus]berth.TaskState{store.CompleteStored: berth.StateSucceeded, store.CompleteGone: berth.StateFailed}
				w.state(as.Task, want[ans.Status])
				if got := w.attempt(as.Task); ans.Status == store.CompleteGone && (got.Outcome != berth.OutcomeInfraFailed || got.Reason != berth.ReasonForceReleased) {
					w.t.Errorf("the attempt ended %s, %s", got.Outcome, got.Reason)
				}
			}
		}},
		{"force release and renew", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.LeaseAnswer
			return w.forcing(as), a.renewing(as, &ans), func(x, y error) {
				w.fine(x, y)
				w.state(as.Task, berth.StateFailed)
				if again := a.renew(as)[0]; again.Status != store.LeaseGone {
					w.t.Errorf("the next renewal is %s", again.Status)
				}
			}
		}},
		{"force release and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			as := w.host("h1", 1).running()
			w.expired()
			return w.forcing(as), w.reaping(), func(x, y error) {
				w.fine(x, y)
				if n := len(w.attempts(as.Task)); n != 1 || w.attempt(as.Task).Live() {
					w.t.Errorf("%d attempts, the last live: %v", n, w.attempt(as.Task).Live())
				}
			}
		}},
		{"a third infra failure and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			for range berth.FailuresToQuarantine - 1 {
				a.completed(a.running(), berth.OutcomeInfraFailed)
			}
			as := a.running()
			w.submit()
			var ans store.CompleteAnswer
			return a.completing(item(as, berth.OutcomeInfraFailed), &ans), w.placing(), func(x, y error) {
				w.fine(x, y)
				if h := w.device(as.Device).Health; h != berth.HealthQuarantined {
					w.t.Errorf("the device is %s", h)
				}
				w.nothingFree()
			}
		}},
		{"trust and a broken probe", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			trust := func(ctx context.Context, s store.Store) error {
				return err2(s.TrustDevice(ctx, w.operator, a.ids[0]))
			}
			beat := func(ctx context.Context, s store.Store) error {
				return err2(s.Heartbeat(ctx, store.HeartbeatParams{AgentCall: a.call(), Health: map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthQuarantined}}))
			}
			return trust, beat, func(x, y error) {
				w.fine(x, y)
				if quarantined := w.device(a.ids[0]).Health == berth.HealthQuarantined; quarantined == (len(w.free()) == 1) {
					w.t.Errorf("quarantined %v, free %v", quarantined, w.freeIDs())
				}
			}
		}},
	}
}

func hostRaces() []race {
	return []race{
		{"drain by an operator and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 2)
			task := w.submit()
			return w.draining(a), w.placing(), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateQueued)
				w.nothingFree()
			}
		}},
		{"drain by an operator and claim", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			w.placed(task.ID)
			var got []store.Assignment
			return w.draining(a), a.claiming(newID[string](w.Env), &got), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateQueued)
				w.nothingFree()
			}
		}},
		{"drain by an operator and start", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.claimed()
			var ans store.LeaseAnswer
			return w.draining(a), a.starting(as, &ans), func(x, y error) {
				w.fine(x, y)
				want := berth.StateQueued
				if ans.Status == store.LeaseGranted {
					want = berth.StateRunning
				}
				w.state(as.Task, want)
				w.nothingFree()
			}
		}},
		{"drain by an operator and undrain", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			undrain := func(ctx context.Context, s store.Store) error { return err3(s.DrainHost(ctx, w.operator, a.id, false)) }
			return w.draining(a), undrain, func(x, y error) {
				w.fine(x, y)
				if asked := !w.hostOf(a).DrainRequestedAt.IsZero(); asked == (len(w.free()) == 1) {
					w.t.Errorf("drain asked %v, free %v", asked, w.freeIDs())
				}
			}
		}},
		{"revoke and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			return w.revoking(a), w.placing(), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateQueued)
				w.nothingFree()
			}
		}},
		{"revoke and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.revoking(a), a.completing(item(as, berth.OutcomeSucceeded), &ans), func(x, y error) {
				w.must("revoke", x)
				if y == nil && ans.Status == store.CompleteStored {
					w.state(as.Task, berth.StateSucceeded)
				} else {
					w.state(as.Task, berth.StateFailed)
				}
				if y != nil {
					w.fails("complete", y, berth.ErrNotFound)
				}
				w.nothingFree()
			}
		}},
	}
}

func syncRaces() []race {
	return []race{
		{"sync and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			w.expired()
			var res store.SyncResult
			return a.syncing(&res), w.reaping(), func(x, y error) {
				w.fine(x, y)
				w.state(as.Task, berth.StateQueued)
				if got := w.attempt(as.Task); got.Number != 1 || got.Outcome != berth.OutcomeLost && got.Outcome != berth.OutcomeTimedOut {
					w.t.Errorf("attempt %d ended %s", got.Number, got.Outcome)
				}
			}
		}},
		{"sync and claim", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			w.placed(task.ID)
			var res store.SyncResult
			var got []store.Assignment
			return a.syncing(&res), a.claiming(newID[string](w.Env), &got), func(x, y error) {
				w.must("sync", x)
				if y != nil {
					w.fails("claim", y, berth.ErrStaleEpoch)
				}
				if len(res.Undelivered) != 1 {
					w.t.Errorf("undelivered: %v", res.Undelivered)
				}
				a.epoch = res.Epoch
				a.start(a.one(task.ID)) // I11
			}
		}},
		{"sync with a new device and drain by an operator", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			var res store.SyncResult
			sync := a.syncing(&res, func(p *store.SyncParams) { p.Devices = append(p.Devices, a.reported("new")) })
			return sync, w.draining(a), func(x, y error) {
				w.fine(x, y)
				if n := w.hostOf(a).Devices; n != 2 {
					w.t.Errorf("%d devices", n)
				}
				w.nothingFree()
			}
		}},
		{"sync with a new device and revoke", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			var res store.SyncResult
			sync := a.syncing(&res, func(p *store.SyncParams) { p.Devices = append(p.Devices, a.reported("new")) })
			return sync, w.revoking(a), func(x, y error) {
				w.must("revoke", y)
				if x != nil {
					w.fails("sync", x, berth.ErrNotFound)
				}
				w.nothingFree()
			}
		}},
	}
}

func orderRaces() []race {
	const urgent = 5
	return []race{
		{"prioritise and promote", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			task := w.submit(notBefore(w.Clock.Now().Add(time.Second)))
			w.Clock.Advance(time.Minute)
			return w.prioritising(task.ID, urgent), w.promoting(), func(x, y error) {
				w.fine(x, y)
				w.promote()
				w.ranked(task.ID, urgent)
			}
		}},
		{"prioritise and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.prioritising(as.Task, urgent), a.completing(item(as, berth.OutcomeFailed), &ans), func(x, y error) {
				w.fine(x, y)
				w.Clock.Set(w.state(as.Task, berth.StateFailed).DueAt)
				w.promote()
				w.ranked(as.Task, urgent)
			}
		}},
		{"prioritise and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			return w.prioritising(task.ID, urgent), w.placing(), func(x, y error) {
				w.fine(x, y)
				if w.task(task.ID).State == berth.StateAssigned {
					a.release(false, a.one(task.ID))
				}
				w.ranked(task.ID, urgent)
			}
		}},
		{"prioritise and cancel", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			task := w.submit()
			return w.prioritising(task.ID, urgent), w.cancelling(task.ID), func(x, y error) {
				w.must("cancel", y)
				if x != nil {
					w.fails("prioritise", x, berth.ErrWrongState)
				}
				w.state(task.ID, berth.StateCancelled)
			}
		}},
		{"prioritise twice", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			task := w.submit()
			return w.prioritising(task.ID, urgent), w.prioritising(task.ID, 2), func(x, y error) {
				w.fine(x, y)
				w.ranked(task.ID, w.task(task.ID).Priority)
			}
		}},
		{"sweep and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			w.host("h1", 1)
			task := w.submit()
			return w.noFalseAlarm(w.placing(), func() { w.state(task.ID, berth.StateAssigned) })
		}},
		{"sweep and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.noFalseAlarm(a.completing(item(as, berth.OutcomeFailed), &ans), func() { w.state(as.Task, berth.StateFailed) })
		}},
		{"sweep and promote", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			task := w.submit(notBefore(w.Clock.Now().Add(time.Second)))
			w.Clock.Advance(time.Minute)
			return w.noFalseAlarm(w.promoting(), func() {
				w.promote()
				w.state(task.ID, berth.StateQueued)
			})
		}},
		{"sweep and submit", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			p := w.submitParams(w.newTask())
			submit := func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
			return w.noFalseAlarm(submit, func() { w.state(p.Tasks[0].ID, berth.StateQueued) })
		}},
	}
}

// noFalseAlarm races an operation with a sweep that must find nothing.
func (w *world) noFalseAlarm(rival callFunc, judge func()) (x, y callFunc, judged func(x, y error)) {
	var wrong int
	return w.sweeping(&wrong), rival, func(x, y error) {
		if err := errors.Join(x, y); err != nil {
			w.t.Fatalf("%v", err)
		}
		if wrong != 0 {
			w.t.Errorf("the sweep found %d tasks in no place or two", wrong)
		}
		judge()
	}
}
