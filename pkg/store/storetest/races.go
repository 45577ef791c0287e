package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// race is two operations on one world. Each is paused in turn before each of
// its statements while the other runs.
type race struct {
	name string
	// alike: both operations are the same, so one order is enough.
	alike bool
	// prepare gives the two operations, and a judge of what they left.
	prepare func(w *world) (x, y callFunc, judge func(xErr, yErr error))
}

// rivalWait is how long a paused operation waits for its rival, which may be
// blocked by the paused one's locks and finish only afterwards. Both orders are
// legal; the wait only makes the first one likely.
const rivalWait = 25 * time.Millisecond

func raceChecks() []check {
	var out []check
	for _, r := range races() {
		for _, swapped := range []bool{false, true} {
			name := r.name
			if swapped && r.alike {
				continue
			}
			if swapped {
				name += " swapped"
			}
			out = append(out, check{name, func(t *testing.T, h Harness) { runRaces(t, h, r, swapped) }})
		}
	}
	return out
}

// runRaces pauses before each statement in turn, on one database: each time in
// a pool of its own.
func runRaces(t *testing.T, h Harness, r race, swapped bool) {
	w := newWorld(t, h)
	s, hk := w.hooked()
	for at := 1; !t.Failed(); at++ {
		through := false
		t.Run(fmt.Sprintf("paused at %d", at), func(t *testing.T) { through = runRace(w.another(t), s, hk, r, swapped, at) })
		// A writer that holds the one lock holds it at every statement.
		if through || h.Serial && at == 2 {
			return
		}
	}
}

// runRace reports whether the operation to pause was through before statement
// number at.
func runRace(w *world, s store.Store, hk *hook, r race, swapped bool, at int) (through bool) {
	x, y, judge := r.prepare(w)
	// The clock has jumped: let the keeper's sweep be the first, or it would take
	// the jump for an outage.
	w.exec("UPDATE marks SET at = NULL")
	paused, rival := x, y
	if swapped {
		paused, rival = y, x
	}
	rivalErr := make(chan error, 1)
	started := false
	hk.arm(at, func(context.Context) error {
		begun := make(chan struct{})
		go func() {
			close(begun)
			rivalErr <- rival(bg(), w.Store)
		}()
		<-begun
		started = true
		if w.Serial {
			return nil
		}
		timer := time.NewTimer(rivalWait)
		defer timer.Stop()
		select {
		case err := <-rivalErr:
			rivalErr <- err
		case <-timer.C:
		}
		return nil
	})
	pausedErr := paused(bg(), s)
	hk.disarm()
	if !started {
		rivalErr <- rival(bg(), w.Store)
	}
	errs := []error{pausedErr, <-rivalErr}
	for i, err := range errs {
		if errors.Is(err, berth.ErrUnavailable) {
			w.t.Errorf("I13: %s operation: %v", []string{"the paused", "the rival"}[i], err)
		}
	}
	if swapped {
		slices.Reverse(errs)
	}
	judge(errs[0], errs[1])
	return !started
}

func races() []race {
	return slices.Concat(agentRaces(), manyRaces(), cancelRaces(), otherRaces(), operatorRaces(), inputRaces(), fleetRaces())
}

// expired moves the clock to where the keeper ends running work.
func (w *world) expired() { w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace) }

func (w *world) reaping() callFunc {
	return func(ctx context.Context, s store.Store) error { return err2(s.ReapLeases(ctx, w.keeper, 1000)) }
}

func (w *world) cancelling(id berth.TaskID) callFunc {
	return func(ctx context.Context, s store.Store) error { return err3(s.CancelTask(ctx, w.params(id))) }
}

func (w *world) placing() callFunc {
	return func(ctx context.Context, s store.Store) error {
		_, err := s.PlacementRound(ctx, w.scheduler, w.pool.ID, w.placeIn)
		if errors.Is(err, berth.ErrNotActive) {
			return nil
		}
		return err
	}
}

// completing puts the answer into ans.
func (a *agent) completing(it store.CompleteItem, ans *store.CompleteAnswer) callFunc {
	call := a.call()
	return func(ctx context.Context, s store.Store) error {
		got, _, err := s.CompleteAttempts(ctx, store.CompleteParams{AgentCall: call, Items: []store.CompleteItem{it}})
		if err == nil {
			*ans = got[0]
		}
		return err
	}
}

func (a *agent) starting(as store.Assignment, ans *store.LeaseAnswer) callFunc {
	call := a.call()
	return func(ctx context.Context, s store.Store) error {
		got, _, err := s.StartAttempts(ctx, store.StartParams{AgentCall: call, Items: []store.Holder{holder(as)}})
		if err == nil {
			*ans = got[0]
		}
		return err
	}
}

func (a *agent) renewing(as store.Assignment, ans *store.LeaseAnswer) callFunc {
	call := a.call()
	return func(ctx context.Context, s store.Store) error {
		got, _, err := s.RenewAttempts(ctx, store.RenewParams{AgentCall: call, Items: []store.RenewItem{{Holder: holder(as), Progress: -1}}})
		if err == nil {
			*ans = got[0]
		}
		return err
	}
}

func (a *agent) claiming(claim string, got *[]store.Assignment) callFunc {
	call := a.call()
	return func(ctx context.Context, s store.Store) (err error) {
		*got, _, err = s.ClaimAttempts(ctx, store.ClaimParams{AgentCall: call, ClaimID: claim, Max: 10})
		return err
	}
}

// fine asserts that neither operation failed.
func (w *world) fine(x, y error) {
	w.t.Helper()
	w.must("first operation", x)
	w.must("second operation", y)
}

func agentRaces() []race {
	return []race{
		{"complete and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			w.expired()
			var ans store.CompleteAnswer
			return a.completing(item(as, berth.OutcomeSucceeded), &ans), w.reaping(), func(x, y error) {
				w.fine(x, y)
				want := map[store.CompleteStatus]berth.TaskState{store.CompleteStored: berth.StateSucceeded, store.CompleteGone: berth.StateQueued}[ans.Status]
				w.state(as.Task, want)
			}
		}},
		{"renew and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			w.Clock.Advance(w.Timings.LeaseTTL - time.Microsecond)
			var ans store.LeaseAnswer
			reap := w.reaping()
			late := func(ctx context.Context, s store.Store) error {
				w.Clock.Advance(w.Timings.ReapGrace + time.Second)
				return reap(ctx, s)
			}
			return a.renewing(as, &ans), late, func(x, y error) {
				w.fine(x, y)
				if ans.Status == store.LeaseGranted {
					w.state(as.Task, berth.StateRunning)
				} else {
					w.reap()
					w.state(as.Task, berth.StateQueued)
				}
			}
		}},
		{"start and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.claimed()
			w.Clock.Advance(w.Timings.LeaseTTL - time.Microsecond)
			var ans store.LeaseAnswer
			reap := w.reaping()
			late := func(ctx context.Context, s store.Store) error {
				w.Clock.Advance(time.Second)
				return reap(ctx, s)
			}
			return a.starting(as, &ans), late, func(x, y error) {
				w.fine(x, y)
				if ans.Status == store.LeaseGranted {
					w.state(as.Task, berth.StateRunning)
				} else {
					w.reap()
					w.state(as.Task, berth.StateQueued)
				}
			}
		}},
		{"release and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.claimed()
			w.expired()
			p := store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(as)}}
			release := func(ctx context.Context, s store.Store) error { return err3(s.ReleaseAttempts(ctx, p)) }
			return release, w.reaping(), func(x, y error) {
				w.fine(x, y)
				if n := w.state(as.Task, berth.StateQueued).Attempts; n != 1 {
					w.t.Errorf("%d attempts", n)
				}
			}
		}},
		{"complete twice", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var one, two store.CompleteAnswer
			it := item(as, berth.OutcomeFailed)
			return a.completing(it, &one), a.completing(it, &two), func(x, y error) {
				w.fine(x, y)
				if one.Status != store.CompleteStored || diff(one, two) != "" {
					w.t.Errorf("answers %+v and %+v", one, two)
				}
				w.state(as.Task, berth.StateFailed)
			}
		}},
		{"claim and claim", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 3)
			for range 3 {
				w.submit()
			}
			w.place()
			var one, two []store.Assignment
			return a.claiming(newID[string](w.Env), &one), a.claiming(newID[string](w.Env), &two), func(x, y error) {
				w.fine(x, y)
				seen := map[berth.AttemptID]int{}
				for _, as := range slices.Concat(one, two) {
					seen[as.Attempt]++
				}
				if len(seen) != 3 || len(one)+len(two) != 3 {
					w.t.Errorf("claimed %d and %d of 3", len(one), len(two))
				}
			}
		}},
		{"sync of a new process and complete of the old one", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			as := a.running()
			var ans store.CompleteAnswer
			complete := a.completing(item(as, berth.OutcomeSucceeded), &ans)
			p := a.syncParams()
			p.Instance, p.Epoch = "another", 0
			sync := func(ctx context.Context, s store.Store) error { return err2(s.SyncHost(ctx, p)) }
			return sync, complete, func(x, y error) {
				w.must("sync", x)
				if errors.Is(y, berth.ErrStaleEpoch) {
					w.state(as.Task, berth.StateQueued)
					return
				}
				w.must("complete", y)
				w.state(as.Task, berth.StateSucceeded)
			}
		}},
		{"sync of two processes", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 2)
			as := a.running()
			var epochs [2]berth.Epoch
			sync := func(i int) callFunc {
				p := a.syncParams()
				p.Instance, p.Epoch = fmt.Sprint("process ", i), 0
				return func(ctx context.Context, s store.Store) error {
					res, err := s.SyncHost(ctx, p)
					epochs[i] = res.Epoch
					return err
				}
			}
			return sync(0), sync(1), func(x, y error) {
				// The first may have lost its epoch between its two transactions.
				for i, err := range []error{x, y} {
					if err != nil && !errors.Is(err, berth.ErrStaleEpoch) {
						w.t.Errorf("sync %d: %v", i, err)
					}
				}
				if x != nil && y != nil || x == nil && y == nil && epochs[0] == epochs[1] {
					w.t.Errorf("epochs %v, errors %v and %v", epochs, x, y)
				}
				if h := w.hostOf(a); h.Epoch != 3 {
					w.t.Errorf("the host's epoch is %d, not 3", h.Epoch)
				}
				w.state(as.Task, berth.StateQueued)
			}
		}},
	}
}

func otherRaces() []race {
	return []race{
		{"place and place", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			w.host("h1", 3)
			for range 3 {
				w.submit()
			}
			return w.placing(), w.placing(), func(x, y error) {
				w.fine(x, y)
				if n := len(w.allTasks(store.TaskFilter{Pool: w.pool.ID, States: []berth.TaskState{berth.StateAssigned}})); n != 3 {
					w.t.Errorf("%d placed of 3", n)
				}
			}
		}},
		{"submit and submit under one key", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			var got [2]store.SubmitResult
			submit := func(i int) callFunc {
				p := w.keyed("k", "body", w.user, w.newTask(), w.newTask(withSelector("a=b")))
				return func(ctx context.Context, s store.Store) (err error) {
					got[i], err = s.SubmitTasks(ctx, p)
					return err
				}
			}
			return submit(0), submit(1), func(x, y error) {
				w.fine(x, y)
				if got[0].Replayed == got[1].Replayed || diff(got[0].Tasks, got[1].Tasks) != "" || len(w.allTasks(store.TaskFilter{Pool: w.pool.ID})) != 2 {
					w.t.Errorf("answers %+v and %+v", got[0], got[1])
				}
			}
		}},
		{"submits of new classes in opposite order", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			submit := func(first, second string) callFunc {
				p := w.submitParams(w.newTask(withSelector(first)), w.newTask(withSelector(second)))
				return func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
			}
			return submit("a=b", "c=d"), submit("c=d", "a=b"), func(x, y error) { w.fine(x, y) }
		}},
		{"give up and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			w.host("h1", 1)
			task := w.submit(queueTimeout(time.Second))
			w.Clock.Advance(2 * time.Second)
			giveUp := func(ctx context.Context, s store.Store) error { return err2(s.GiveUp(ctx, w.scheduler, 1000)) }
			return giveUp, w.placing(), func(x, y error) {
				w.fine(x, y)
				if s := w.task(task.ID).State; s != berth.StateDeadLetter && s != berth.StateAssigned {
					w.t.Errorf("task is %s", s)
				}
			}
		}},
		{"drain and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 2)
			task := w.submit()
			p := store.HeartbeatParams{AgentCall: a.call(), Draining: true}
			drain := func(ctx context.Context, s store.Store) error { return err2(s.Heartbeat(ctx, p)) }
			return drain, w.placing(), func(x, y error) {
				w.fine(x, y)
				if s := w.task(task.ID).State; s != berth.StateQueued && s != berth.StateAssigned {
					w.t.Errorf("task is %s", s)
				}
				if len(w.free()) != 0 {
					w.t.Errorf("I14: devices of a draining host are free")
				}
			}
		}},
		{"silence and place", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			w.host("h1", 1)
			w.submit()
			silent := func(ctx context.Context, s store.Store) error {
				w.Clock.Advance(w.Timings.HostOfflineAfter + time.Second)
				return err2(s.MarkSilentHosts(ctx, w.keeper, 1000))
			}
			return silent, w.placing(), func(x, y error) {
				w.fine(x, y)
				if len(w.free()) != 0 {
					w.t.Errorf("I14: devices of a silent host are free")
				}
			}
		}},
		{"silence and heartbeat", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 1)
			w.Clock.Advance(w.Timings.HostOfflineAfter + time.Second)
			var res store.HeartbeatResult
			beat := func(ctx context.Context, s store.Store) (err error) {
				res, err = s.Heartbeat(ctx, store.HeartbeatParams{AgentCall: a.call()})
				return err
			}
			silent := func(ctx context.Context, s store.Store) error { return err2(s.MarkSilentHosts(ctx, w.keeper, 1000)) }
			return silent, beat, func(x, y error) {
				w.fine(x, y)
				again, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
				w.must("heartbeat", err)
				if offline := w.hostOf(a).State == berth.HostOffline; offline != again.Resync || offline == (len(w.free()) == 1) {
					w.t.Errorf("the host is offline: %v, is told to sync: %v then %v, free %v", offline, res.Resync, again.Resync, w.freeIDs())
				}
			}
		}},
		{"retry and retry", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			id := w.host("h1", 1).deadLettered()
			retry := func(ctx context.Context, s store.Store) error {
				return err3(s.RetryTask(ctx, store.RetryParams{TaskParams: w.params(id), AddTries: 1}))
			}
			return retry, retry, func(x, y error) {
				if (x == nil) == (y == nil) || !errors.Is(errors.Join(x, y), berth.ErrWrongState) {
					w.t.Errorf("errors %v and %v", x, y)
				}
				if task := w.state(id, berth.StateQueued); task.Budget != 2 {
					w.t.Errorf("budget %d", task.Budget)
				}
			}
		}},
		{"promote and promote", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			var ids []berth.TaskID
			for range 3 {
				ids = append(ids, w.submit(notBefore(w.Clock.Now().Add(time.Second))).ID)
			}
			w.Clock.Advance(time.Minute)
			promote := func(ctx context.Context, s store.Store) error { return err2(s.PromoteDue(ctx, w.scheduler, 1000)) }
			return promote, promote, func(x, y error) {
				w.fine(x, y)
				for _, id := range ids {
					w.state(id, berth.StateQueued)
				}
			}
		}},
		{"reap and reap", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a := w.host("h1", 2)
			one, two := a.running(), a.claimed()
			w.expired()
			return w.reaping(), w.reaping(), func(x, y error) {
				w.fine(x, y)
				w.state(one.Task, berth.StateQueued)
				w.state(two.Task, berth.StateQueued)
			}
		}},
	}
}
