package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func promoteChecks() []check {
	return []check{
		in("due ones, earliest first, at most limit", promoteDue),
		in("a retry keeps its rank and goes on with its number", promoteRetry),
	}
}

func giveUpChecks() []check {
	return []check{
		in("queued and failed past their time, not scheduled ones", giveUp),
		in("at most limit, and held attempts move the time on", giveUpLimit),
	}
}

func reapChecks() []check {
	return []check{
		in("assigned and not claimed in time is queued again", func(w *world) { reapUnstarted(w, false) }),
		in("claimed and not started in time is queued again", func(w *world) { reapUnstarted(w, true) }),
		in("five unclaimed in a row dead-letter the task", reapUnclaimedFive),
		in("running is ended after the grace and queued at once", reapRunning),
		in("running on the last try is dead-lettered", func(w *world) { reapForGood(w, berth.ReasonNoTriesLeft, maxAttempts(1)) }),
		in("running and not retry safe is dead-lettered", func(w *world) { reapForGood(w, berth.ReasonNotRetrySafe, retryUnsafe) }),
		in("running and not retried by policy is dead-lettered", func(w *world) { reapForGood(w, berth.ReasonNotRetryable, retryOn(berth.OutcomeFailed)) }),
		in("run time-out waits the backoff or is dead-lettered", reapRunTimeout),
		in("at most limit, live ones untouched", reapLimit),
		in("silent hosts go offline and their attempts stay", silentHosts),
		in("silent hosts: at most limit, fresh and unknown ones untouched", silentLimit),
	}
}

func promoteDue(w *world) {
	now := w.Clock.Now()
	c := w.submit(notBefore(now.Add(3 * time.Second)))
	a := w.submit(notBefore(now.Add(1 * time.Second)))
	b := w.submit(notBefore(now.Add(2 * time.Second)))
	d := w.submit(notBefore(now.Add(4 * time.Second)))
	if trs := w.promote(); len(trs) != 0 {
		w.t.Errorf("promoted %+v", trs)
	}
	w.Clock.Set(now.Add(time.Second - time.Microsecond))
	if trs := w.promote(); len(trs) != 0 {
		w.t.Errorf("promoted a microsecond early: %+v", trs)
	}
	w.Clock.Set(now.Add(3 * time.Second))
	trs, err := w.Store.PromoteDue(bg(), w.scheduler, 2)
	w.must("promote", err)
	if len(trs) != 2 {
		w.t.Fatalf("promoted %d, not 2", len(trs))
	}
	for i, id := range []berth.TaskID{a.ID, b.ID} {
		want := berth.Transition{Event: berth.EventQueued, Task: id, From: berth.StateScheduled, To: berth.StateQueued, Pool: w.pool.ID, CorrelationID: "corr-1", At: w.Clock.Now()}
		if x := diff(want, clearReason(trs)[i]); x != "" {
			w.t.Errorf("transition %d (-want +got):\n%s", i, x)
		}
		w.state(id, berth.StateQueued)
	}
	w.state(c.ID, berth.StateScheduled)
	if tr := w.oneTransition(w.promote()); tr.Task != c.ID {
		w.t.Errorf("promoted %+v", tr)
	}
	w.state(d.ID, berth.StateScheduled)
}

func promoteRetry(w *world) {
	a := w.host("h1", 1)
	id := a.failed(withPriority(4))
	task := w.task(id)
	w.Clock.Set(task.DueAt.Add(-time.Microsecond))
	if trs := w.promote(); len(trs) != 0 {
		w.t.Errorf("promoted early: %+v", trs)
	}
	w.Clock.Set(task.DueAt)
	if tr := w.oneTransition(w.promote()); tr.From != berth.StateFailed || tr.To != berth.StateQueued || tr.Event != berth.EventQueued {
		w.t.Errorf("transition %+v", tr)
	}
	if h := w.headOf(id); h.Rank != berth.RankOf(task.SubmittedAt, 4, w.pool.AgeingStep) || h.Number != 2 {
		w.t.Errorf("head %+v", h)
	}
}

func giveUp(w *world) {
	a := w.host("h1", 1)
	failed := a.failed(queueTimeout(time.Minute), func(n *berth.NewTask) {
		n.Retry.Initial, n.Retry.Max = time.Hour, time.Hour
	})
	queued := w.submit(queueTimeout(time.Minute), withSelector("os=none"))
	scheduled := w.submit(queueTimeout(time.Minute), notBefore(w.Clock.Now().Add(time.Hour)))
	never := w.submit(withSelector("os=none"))
	at := w.task(queued.ID).GiveUpAt
	if !w.task(failed).GiveUpAt.Equal(at) {
		w.t.Fatalf("give-up times %v and %v", w.task(failed).GiveUpAt, at)
	}
	give := func() []berth.Transition {
		trs, err := w.Store.GiveUp(bg(), w.scheduler, 100)
		w.must("give up", err)
		return trs
	}
	w.Clock.Set(at.Add(-time.Microsecond))
	if trs := give(); len(trs) != 0 {
		w.t.Errorf("given up early: %+v", trs)
	}
	w.Clock.Set(at.Add(time.Microsecond))
	trs := give()
	if len(trs) != 2 {
		w.t.Fatalf("given up %+v", trs)
	}
	for _, tr := range trs {
		from := map[berth.TaskID]berth.TaskState{failed: berth.StateFailed, queued.ID: berth.StateQueued}[tr.Task]
		want := berth.Transition{Event: berth.EventFailed, Task: tr.Task, From: from, To: berth.StateDeadLetter, Reason: berth.ReasonQueueTimeout, Pool: w.pool.ID, CorrelationID: "corr-1", At: w.Clock.Now()}
		if d := diff(want, tr); d != "" {
			w.t.Errorf("transition (-want +got):\n%s", d)
		}
		if task := w.state(tr.Task, berth.StateDeadLetter); task.FinalReason != berth.ReasonQueueTimeout || !task.FinishedAt.Equal(w.Clock.Now()) {
			w.t.Errorf("task %+v", task)
		}
	}
	w.state(scheduled.ID, berth.StateScheduled)
	w.Clock.Set(w.task(scheduled.ID).DueAt)
	w.promote()
	w.Clock.Advance(time.Minute + time.Microsecond)
	if tr := w.oneTransition(give()); tr.Task != scheduled.ID {
		w.t.Errorf("given up %+v", tr)
	}
	w.state(never.ID, berth.StateQueued)
	if len(give()) != 0 {
		w.t.Errorf("given up again")
	}
	// A retry by hand counts anew.
	if task, _ := w.retry(queued.ID, 1); !task.GiveUpAt.Equal(w.Clock.Now().Add(time.Minute)) {
		w.t.Errorf("gives up at %v", task.GiveUpAt)
	}
}

func giveUpLimit(w *world) {
	a := w.host("h1", 1)
	for range 3 {
		w.submit(queueTimeout(time.Minute), withSelector("os=none"))
	}
	moved := w.submit(queueTimeout(time.Minute))
	w.placed(moved.ID)
	as := a.one(moved.ID)
	w.Clock.Advance(time.Minute)
	a.renew(as)
	w.Clock.Advance(time.Second)
	got := 0
	for _, want := range []int{2, 1, 0} {
		trs, err := w.Store.GiveUp(bg(), w.scheduler, 2)
		w.must("give up", err)
		if got += len(trs); len(trs) != want {
			w.t.Fatalf("given up %d, not %d", len(trs), want)
		}
	}
	w.state(moved.ID, berth.StateClaimed)
	a.release(true, as)
	if trs, err := w.Store.GiveUp(bg(), w.scheduler, 2); err != nil || len(trs) != 0 {
		w.t.Errorf("given up though it was held all the time: %+v, %v", trs, err)
	}
}

func reapUnstarted(w *world, claim bool) {
	a := w.host("h1", 1)
	task := w.submit()
	at := w.placed(task.ID)
	from, reason, wait := berth.StateAssigned, berth.ReasonUnclaimed, w.Timings.ClaimWithin
	if claim {
		a.one(task.ID)
		from, reason, wait = berth.StateClaimed, berth.ReasonNotStarted, w.Timings.LeaseTTL
	}
	w.Clock.Advance(wait - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped a microsecond early: %+v", trs)
	}
	now := w.Clock.Advance(time.Microsecond)
	want := berth.Transition{
		Event: berth.EventReleased, Task: task.ID, From: from, To: berth.StateQueued, Attempt: at.ID, Number: 1, Device: a.ids[0], Host: a.id,
		Fence: at.Fence, Outcome: berth.OutcomeReleased, Reason: reason, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, w.oneTransition(w.reap())); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	got := w.state(task.ID, berth.StateQueued)
	if got.Tries != 0 || got.Attempts != 1 || w.device(a.ids[0]).Unclean {
		w.t.Errorf("task %+v", got)
	}
	a.beat()
	if len(w.free()) != 1 {
		w.t.Errorf("the device is not free")
	}
	if answers, _ := a.startAnswers(store.Assignment{Attempt: at.ID, Fence: at.Fence}); answers[0].Status != store.LeaseGone {
		w.t.Errorf("start of the withdrawn attempt: %s", answers[0].Status)
	}
	if next := a.again(task.ID); next.Number != 2 || next.Fence <= at.Fence {
		w.t.Errorf("next attempt %+v", next)
	}
}

func reapUnclaimedFive(w *world) {
	a := w.host("h1", 1)
	id := w.submit().ID
	for i := range berth.MaxHandBacks {
		a.beat()
		w.placed(id)
		w.Clock.Advance(w.Timings.ClaimWithin)
		tr := w.oneTransition(w.reap())
		if last := i == berth.MaxHandBacks-1; last != (tr.To == berth.StateDeadLetter) || last != (tr.Event == berth.EventFailed) {
			w.t.Fatalf("hand-back %d: %+v", i+1, tr)
		}
	}
	if task := w.state(id, berth.StateDeadLetter); task.FinalReason != berth.ReasonHandBackLimit || task.Tries != 0 {
		w.t.Errorf("reason %q, tries %d", task.FinalReason, task.Tries)
	}
}

func reapRunning(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped a microsecond early: %+v", trs)
	}
	now := w.Clock.Advance(time.Microsecond)
	want := berth.Transition{
		Event: berth.EventRetried, Task: as.Task, From: berth.StateRunning, To: berth.StateQueued, Attempt: as.Attempt, Number: 1, Device: as.Device,
		Host: a.id, Fence: as.Fence, Outcome: berth.OutcomeTimedOut, Reason: berth.ReasonLeaseExpired, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, w.oneTransition(w.reap())); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	w.state(as.Task, berth.StateQueued)
	if at := w.attempt(as.Task); at.Outcome != berth.OutcomeTimedOut || !at.EndedAt.Equal(now) {
		w.t.Errorf("attempt %+v", at)
	}
	a.beat()
	if d := w.device(as.Device); !d.Unclean || len(w.free()) != 0 || w.acted(berth.AuditDeviceUnclean, "device", string(as.Device)) != 1 {
		w.t.Errorf("device %+v, free %v", d, w.freeIDs())
	}
	if trs := w.reap(); len(trs) != 0 {
		w.t.Errorf("reaped again: %+v", trs)
	}
	if s := a.renew(as)[0].Status; s != store.LeaseGone {
		w.t.Errorf("renewal: %s", s)
	}
	w.must("clean", w.Store.CleanDevice(bg(), store.CleanParams{AgentCall: a.call(), Device: as.Device, Fence: w.device(as.Device).Fence}))
	a.again(as.Task)
}

func reapForGood(w *world, reason string, mod func(*berth.NewTask)) {
	a := w.host("h1", 1)
	as := a.running(mod)
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace)
	if tr := w.oneTransition(w.reap()); tr.Event != berth.EventFailed || tr.Outcome != berth.OutcomeTimedOut || tr.To != berth.StateDeadLetter {
		w.t.Errorf("transition %+v", tr)
	}
	if task := w.state(as.Task, berth.StateDeadLetter); task.FinalReason != reason {
		w.t.Errorf("reason %q, should be %q", task.FinalReason, reason)
	}
}

func reapRunTimeout(w *world) {
	a := w.host("h1", 2)
	retried, last := a.running(runTimeout(30*time.Second)), a.running(runTimeout(30*time.Second), maxAttempts(1))
	w.Clock.Advance(30 * time.Second)
	a.renew(retried, last)
	w.Clock.Advance(w.Timings.ReapGrace - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped a microsecond early: %+v", trs)
	}
	now := w.Clock.Advance(time.Microsecond)
	if trs := w.reap(); len(trs) != 2 {
		w.t.Fatalf("reaped %+v", trs)
	}
	task := w.state(retried.Task, berth.StateFailed)
	if want := now.Add(task.Retry.Backoff(1, berth.JitterOf(retried.Attempt))); !task.DueAt.Equal(want) {
		w.t.Errorf("due at %v, should be %v", task.DueAt, want)
	}
	w.state(last.Task, berth.StateDeadLetter)
	for _, as := range []store.Assignment{retried, last} {
		if at := w.attempt(as.Task); at.Outcome != berth.OutcomeTimedOut || at.Reason != berth.ReasonRunTimeout || !w.device(as.Device).Unclean {
			w.t.Errorf("attempt %+v", at)
		}
	}
}

func reapLimit(w *world) {
	a := w.host("h1", 6)
	for range 5 {
		a.running()
	}
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace)
	a.beat()
	live := a.running()
	for _, want := range []int{2, 2, 1, 0} {
		trs, err := w.Store.ReapLeases(bg(), w.keeper, 2)
		if err != nil || len(trs) != want {
			w.t.Fatalf("reaped %d, not %d; %v", len(trs), want, err)
		}
	}
	w.state(live.Task, berth.StateRunning)
}

func silentHosts(w *world) {
	a, b := w.host("h1", 2), w.host("h2", 1)
	as := a.running(withSelector("slot=slot-1"))
	w.Clock.Advance(w.Timings.HostOfflineAfter)
	if hosts, err := w.Store.MarkSilentHosts(bg(), w.keeper, 10); err != nil || len(hosts) != 0 {
		w.t.Fatalf("silent at the limit: %v, %v", hosts, err)
	}
	w.Clock.Advance(time.Microsecond)
	b.beat()
	for _, want := range []int{1, 0} {
		hosts, err := w.Store.MarkSilentHosts(bg(), w.keeper, 10)
		if err != nil || len(hosts) != want || want == 1 && hosts[0] != a.id {
			w.t.Fatalf("silent hosts %v, %v", hosts, err)
		}
	}
	if h := w.hostOf(a); h.State != berth.HostOffline || w.hostOf(b).State != berth.HostOnline {
		w.t.Errorf("host %+v", h)
	}
	if n := w.acted(berth.AuditHostOffline, "host", string(a.id)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	w.state(as.Task, berth.StateRunning)
	if s := a.renew(as)[0].Status; s != store.LeaseGranted {
		w.t.Errorf("I11: the attempt of an offline host cannot be renewed: %s", s)
	}
	if free := w.freeIDs(); !slices.Equal(free, b.ids) {
		w.t.Errorf("free %v", free)
	}
	a.sync(holding(as))
	if free := w.freeIDs(); len(free) != 2 {
		w.t.Errorf("after the sync: free %v", free)
	}
}

func silentLimit(w *world) {
	w.enrolled("never", w.pool.ID, 1)
	var hosts []berth.HostID
	for _, name := range []string{"h1", "h2", "h3"} {
		hosts = append(hosts, w.host(name, 1).id)
	}
	w.Clock.Advance(w.Timings.HostOfflineAfter + time.Second)
	fresh := w.host("h4", 1)
	var got []berth.HostID
	for _, want := range []int{2, 1, 0} {
		some, err := w.Store.MarkSilentHosts(bg(), w.keeper, 2)
		if err != nil || len(some) != want {
			w.t.Fatalf("silent hosts %v, %v", some, err)
		}
		got = append(got, some...)
	}
	slices.Sort(got)
	if !slices.Equal(got, hosts) || !slices.Equal(w.freeIDs(), fresh.ids) {
		w.t.Errorf("silent hosts %v, free %v", got, w.freeIDs())
	}
}
