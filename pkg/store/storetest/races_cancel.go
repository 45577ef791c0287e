package storetest

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func cancelRaces() []race {
	return []race{
		{"cancel and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			w.host("h1", 1)
			task := w.submit()
			return w.cancelling(task.ID), w.placing(), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateCancelled)
				if len(w.free()) != 1 {
					w.t.Errorf("the device is not free")
				}
			}
		}},
		{"cancel and claim", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			task := w.submit()
			w.placed(task.ID)
			var got []store.Assignment
			return w.cancelling(task.ID), a.claiming(newID[string](w.Env), &got), func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateCancelled)
			}
		}},
		{"cancel and start", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.claimed()
			var ans store.LeaseAnswer
			return w.cancelling(as.Task), a.starting(as, &ans), func(x, y error) {
				w.fine(x, y)
				if ans.Status == store.LeaseGranted {
					if !w.state(as.Task, berth.StateRunning).CancelRequested {
						w.t.Errorf("I5: started, and not asked to stop")
					}
					return
				}
				w.state(as.Task, berth.StateCancelled)
			}
		}},
		{"cancel and complete", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.cancelling(as.Task), a.completing(item(as, berth.OutcomeSucceeded), &ans), func(x, y error) {
				w.must("complete", y)
				want := berth.StateCancelled
				if x != nil {
					w.fails("cancel", x, berth.ErrWrongState)
					want = berth.StateSucceeded
				}
				w.state(as.Task, want)
				if ans.Status != store.CompleteStored || w.attempt(as.Task).Outcome != berth.OutcomeSucceeded {
					w.t.Errorf("I6: answer %+v", ans)
				}
			}
		}},
		{"cancel and a failed try", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			return w.cancelling(as.Task), a.completing(item(as, berth.OutcomeFailed), &ans), func(x, y error) {
				w.fine(x, y)
				w.state(as.Task, berth.StateCancelled)
			}
		}},
		{"cancel and renew", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.LeaseAnswer
			return w.cancelling(as.Task), a.renewing(as, &ans), func(x, y error) {
				w.fine(x, y)
				if ans.Status != store.LeaseGranted || !w.state(as.Task, berth.StateRunning).CancelRequested {
					w.t.Errorf("answer %+v", ans)
				}
				if again := a.renew(as)[0]; !again.Cancel {
					w.t.Errorf("the next renewal does not tell: %+v", again)
				}
			}
		}},
		{"cancel and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			w.expired()
			return w.cancelling(as.Task), w.reaping(), func(x, y error) {
				w.fine(x, y)
				w.reap()
				w.state(as.Task, berth.StateCancelled)
			}
		}},
		{"cancel and promote", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			task := w.submit(notBefore(w.Clock.Now().Add(time.Second)))
			w.Clock.Advance(time.Minute)
			promote := func(ctx context.Context, s store.Store) error { return err2(s.PromoteDue(ctx, w.scheduler, 1000)) }
			return w.cancelling(task.ID), promote, func(x, y error) {
				w.fine(x, y)
				w.state(task.ID, berth.StateCancelled)
			}
		}},
		{"cancel twice", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			as := w.host("h1", 1).claimed()
			return w.cancelling(as.Task), w.cancelling(as.Task), func(x, y error) {
				w.fine(x, y)
				w.state(as.Task, berth.StateCancelled)
			}
		}},
	}
}
