package storetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func amnestyChecks() []check {
	return []check{
		in("granted when the database was away, so that outcomes are handed in", amnestyBlind),
		in("granted when agents renew before the first sweep", amnestyReconnected),
		in("none while agents renew and only keepers were down", amnestyKeeperDown),
		in("none for one dead host", amnestyOneHost),
		in("once when most leases of three hosts expire together", amnestyMany),
		in("what was not started is given back all the same", amnestyUnstarted),
		in("a keeper that was stopped in mid-sweep ends nothing", amnestyMidSweep),
		in("two keepers grant one", amnestyTwoKeepers),
	}
}

func reapOrderChecks() []check {
	return []check{in("what cannot be ended does not use up the limit", reapSetAside)}
}

func (w *world) amnesty() berth.Amnesty {
	w.t.Helper()
	a, err := w.Store.LastAmnesty(bg())
	w.must("last amnesty", err)
	return a
}

// granted asserts that the newest amnesty is one of reason that was granted now.
func (w *world) granted(reason string) berth.Amnesty {
	w.t.Helper()
	now := w.Clock.Now()
	got, want := w.amnesty(), berth.Amnesty{GrantedAt: now, Until: now.Add(w.Timings.LeaseTTL), Reason: reason}
	if d := diff(want, got); d != "" {
		w.t.Fatalf("amnesty (-want +got):\n%s", d)
	}
	return got
}

// amnesties counts the audited ones.
func (w *world) amnesties() int {
	w.t.Helper()
	return w.acted(berth.AuditAmnesty, "leases", "all")
}

func (w *world) silence() []berth.HostID {
	w.t.Helper()
	hosts, err := w.Store.MarkSilentHosts(bg(), w.keeper, 100)
	w.must("silent hosts", err)
	return hosts
}

func (w *world) reaped(what string, want int) {
	w.t.Helper()
	if trs := w.reap(); len(trs) != want {
		w.t.Fatalf("%s: reaped %d, should be %d: %+v", what, len(trs), want, trs)
	}
}

func amnestyBlind(w *world) {
	a := w.host("h1", 2)
	done, lost := a.running(), a.running()
	a.renew(done, lost)
	w.reaped("before", 0)
	if d := diff(berth.Amnesty{}, w.amnesty()); d != "" {
		w.t.Fatalf("amnesty at rest: %s", d)
	}
	w.Clock.Advance(2 * time.Minute) // the database is away
	if hosts := w.silence(); len(hosts) != 0 {
		w.t.Errorf("hosts are offline before the first sweep: %v", hosts)
	}
	w.reaped("the first sweep", 0)
	granted := w.granted(berth.AmnestyBlind)
	rows := w.audit("leases", "all")
	if len(rows) != 1 || rows[0].Action != berth.AuditAmnesty || rows[0].Reason != berth.AmnestyBlind || rows[0].Actor.ID != w.keeper.ID {
		w.t.Errorf("audit %+v", rows)
	}
	w.Clock.Advance(30 * time.Second)
	w.reaped("in force", 0)
	if hosts := w.silence(); len(hosts) != 0 {
		w.t.Errorf("hosts are offline in an amnesty: %v", hosts)
	}
	if state := a.completed(done, berth.OutcomeSucceeded); state != berth.StateSucceeded {
		w.t.Errorf("handed in: %s", state)
	}
	w.Clock.Set(granted.Until.Add(-time.Microsecond))
	w.reaped("a microsecond before its end", 0)
	w.Clock.Set(granted.Until)
	w.reaped("at its end", 1)
	if at := w.attempt(lost.Task); at.Outcome != berth.OutcomeTimedOut {
		w.t.Errorf("attempt %+v", at)
	}
	if hosts := w.silence(); len(hosts) != 1 {
		w.t.Errorf("silent hosts at its end: %v", hosts)
	}
	if n := w.amnesties(); n != 1 {
		w.t.Errorf("%d amnesties", n)
	}
}

func amnestyReconnected(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	held := a.claimed()
	a.renew(as, held)
	w.reaped("before", 0)
	w.Clock.Advance(w.Timings.BlindAfter() + 5*time.Second)
	if got := a.renew(held); got[0].Status != store.LeaseGranted {
		w.t.Fatalf("renewal: %+v", got)
	}
	w.Clock.Advance(w.Timings.MarkEvery())
	a.renew(held)
	w.reaped("the first sweep", 0)
	w.granted(berth.AmnestyBlind)
	w.Clock.Advance(30 * time.Second)
	w.reaped("past the grace", 0)
	w.state(as.Task, berth.StateRunning)
}

func amnestyKeeperDown(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	dead := a.running()
	held := b.running()
	a.renew(dead)
	b.renew(held)
	w.reaped("before", 0)
	for range 5 {
		w.Clock.Advance(w.Timings.RenewEvery)
		b.renew(held)
	}
	w.reaped("the first sweep after it", 1)
	w.state(held.Task, berth.StateRunning)
	if got := w.amnesty(); got != (berth.Amnesty{}) {
		w.t.Errorf("amnesty %+v", got)
	}
}

// sweepFor sweeps every five seconds while the agents' attempts are renewed
// every fifteen, and returns how many attempts the keeper ended.
func (w *world) sweepFor(d time.Duration, renewed map[*agent][]store.Assignment) (ended int) {
	w.t.Helper()
	for i := range int(d / (5 * time.Second)) {
		w.Clock.Advance(5 * time.Second)
		if i%3 == 0 {
			for a, as := range renewed {
				a.renew(as...)
				a.beat()
			}
		}
		ended += len(w.reap())
	}
	return ended
}

func amnestyOneHost(w *world) {
	a := w.host("h1", 4)
	w.reaped("before", 0)
	var dead []store.Assignment
	for i := range 4 {
		dead = append(dead, a.running(withSelector(fmt.Sprintf("slot=slot-%d", i))))
	}
	a.renew(dead...)
	if n := w.sweepFor(w.Timings.LeaseTTL+w.Timings.ReapGrace, nil); n != 4 {
		w.t.Errorf("%d of 4 ended in time", n)
	}
	if got := w.amnesty(); got != (berth.Amnesty{}) {
		w.t.Errorf("amnesty %+v", got)
	}
}

func amnestyMany(w *world) {
	renewed := map[*agent][]store.Assignment{}
	var dead []store.Assignment
	for i := range 5 {
		a := w.host(fmt.Sprintf("h%d", i), 1)
		as := a.running()
		if a.renew(as); i < 2 {
			renewed[a] = []store.Assignment{as}
		} else {
			dead = append(dead, as)
		}
	}
	w.reaped("before", 0)
	if n := w.sweepFor(w.Timings.LeaseTTL, renewed); n != 0 {
		w.t.Fatalf("%d ended", n)
	}
	w.granted(berth.AmnestyMany)
	if n := w.sweepFor(w.Timings.LeaseTTL-5*time.Second, renewed); n != 0 {
		w.t.Errorf("%d ended in an amnesty", n)
	}
	if n := w.sweepFor(5*time.Second, renewed); n != 3 {
		w.t.Errorf("%d of 3 ended after it, though the other hosts renew", n)
	}
	for _, as := range dead {
		if at := w.attempt(as.Task); at.Outcome != berth.OutcomeTimedOut {
			w.t.Errorf("attempt %+v", at)
		}
	}
	if n := w.amnesties(); n != 1 {
		w.t.Errorf("%d amnesties", n)
	}
}

func amnestyUnstarted(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	held := a.claimed()
	w.reaped("before", 0)
	w.Clock.Advance(2 * time.Minute)
	if tr := w.oneTransition(w.reap()); tr.Task != held.Task || tr.Outcome != berth.OutcomeReleased {
		w.t.Errorf("reaped %+v", tr)
	}
	w.granted(berth.AmnestyBlind)
	w.state(as.Task, berth.StateRunning)
}

// amnestyMidSweep stops a keeper between the judgement of the amnesty and the
// end of the first attempt, for longer than agents may go without a renewal.
func amnestyMidSweep(w *world) {
	var mu sync.Mutex
	var commit int // of the judgement
	act := func(int) {}
	s := w.open(func(o *store.Options) {
		o.BeforeStatement = func(_ context.Context, op string, n int) error {
			mu.Lock()
			defer mu.Unlock()
			act(n)
			return nil
		}
	})
	set := func(f func(n int)) { mu.Lock(); defer mu.Unlock(); act = f }
	sweep := func() []berth.Transition {
		trs, err := s.ReapLeases(bg(), w.keeper, 10)
		w.must("reap", err)
		return trs
	}
	a := w.host("h1", 1)
	as := a.running()
	a.renew(as)
	set(func(n int) { commit = n })
	sweep()
	w.sweepFor(w.Timings.LeaseTTL+w.Timings.ReapGrace-5*time.Second, nil)
	w.Clock.Advance(5 * time.Second)
	stopped := false
	set(func(n int) {
		if n == commit && !stopped {
			stopped = true
			w.Clock.Advance(w.Timings.BlindAfter())
		}
	})
	if trs := sweep(); len(trs) != 0 || !stopped {
		w.t.Fatalf("stopped %v, ended %+v", stopped, trs)
	}
	w.state(as.Task, berth.StateRunning)
	if trs := sweep(); len(trs) != 0 {
		w.t.Errorf("ended %+v", trs)
	}
	w.granted(berth.AmnestyBlind)
}

func amnestyTwoKeepers(w *world) {
	a := w.host("h1", 1)
	a.renew(a.running())
	w.reaped("before", 0)
	w.Clock.Advance(2 * time.Minute)
	second := w.second()
	var group sync.WaitGroup
	for _, s := range []store.Store{w.Store, second, w.Store, second} {
		group.Go(func() {
			if trs, err := s.ReapLeases(bg(), w.keeper, 10); err != nil || len(trs) != 0 {
				w.t.Errorf("reaped %+v, %v", trs, err)
			}
		})
	}
	group.Wait()
	if n := w.amnesties(); n != 1 {
		w.t.Errorf("%d amnesties", n)
	}
}

// exec runs a statement beside the engine.
func (w *world) exec(format string, args ...any) {
	w.t.Helper()
	statement := fmt.Sprintf(format, args...)
	w.must(statement, w.database.Exec(statement))
}

// reapSetAside: the oldest attempt cannot be ended, at each try, because its
// task has a second token.
func reapSetAside(w *world) {
	a := w.host("h1", 4)
	stuck := a.running()
	w.Clock.Advance(time.Second)
	var rest []store.Assignment
	for range 3 {
		rest = append(rest, a.running())
	}
	w.exec("INSERT INTO queue (task_id, class_id, rank, number) SELECT id, class_id, rank, 2 FROM tasks WHERE id = '%s'", stuck.Task)
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace)
	faults := 0
	for range 6 {
		trs, err := w.Store.ReapLeases(bg(), w.keeper, 1)
		if err != nil {
			faults++
		}
		if len(trs) > 1 || err != nil && len(trs) > 0 {
			w.t.Errorf("reaped %+v, %v", trs, err)
		}
	}
	for _, as := range rest {
		w.state(as.Task, berth.StateQueued)
	}
	if faults < 2 {
		w.t.Errorf("it was tried %d times", faults)
	}
	w.exec("DELETE FROM queue WHERE task_id = '%s'", stuck.Task)
	w.reaped("once it can be", 1)
	w.state(stuck.Task, berth.StateQueued)
}
