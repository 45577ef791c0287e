package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func completeChecks() []check {
	return []check{
		in("succeeded finishes the task with its result", completeSucceeded),
		in("each outcome that may be tried again waits its backoff", completeRetried),
		in("each outcome on the last try is dead-lettered", completeLastTry),
		in("cancelled that nobody asked for is not tried again", completeUnasked),
		in("started and not retry safe is dead-lettered", completeUnsafe),
		in("infra failures remember where", completeInfra),
		in("the same body again is stored, another is a mismatch", completeRepeat),
		in("gone for another fence, host, attempt or ended by the keeper", completeGone),
		in("accepted after expiry until the keeper wins the row", completeLate),
		in("succeeded needs its artifacts and log", completeMissing),
		in("other outcomes are stored with what there is", completeIncomplete),
		in("an unstarted attempt ends as infra_failed or cancelled only", completeNotStarted),
		in("after a cancel the task is cancelled and the attempt keeps its outcome", completeCancelled),
		in("an unclean device waits until it is proved clean", completeUnclean),
		in("each item in its own right", completeMixed),
	}
}

func releaseChecks() []check {
	return []check{
		in("an unstarted attempt is handed back and its task queued", releaseOne),
		in("five in a row dead-letter the task", releaseFive),
		in("a try between starts the count again", releaseInterrupted),
		in("draining does not count", releaseDraining),
		in("a started one is refused, a repeat accepted, others gone", releaseAnswers),
		in("waiting goes on where it was, less the time held", releaseGiveUp),
	}
}

func completeSucceeded(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	now := w.Clock.Advance(time.Second)
	it := item(as, berth.OutcomeSucceeded)
	answers, trs := a.completeItems(it)
	if d := diff(store.CompleteAnswer{Attempt: as.Attempt, Status: store.CompleteStored, Outcome: berth.OutcomeSucceeded, TaskState: berth.StateSucceeded}, clearLog(answers[0])); d != "" {
		w.t.Errorf("answer (-want +got):\n%s", d)
	}
	want := berth.Transition{
		Event: berth.EventCompleted, Task: as.Task, From: berth.StateRunning, To: berth.StateSucceeded, Attempt: as.Attempt, Number: 1, Device: as.Device,
		Host: a.id, Fence: as.Fence, Outcome: berth.OutcomeSucceeded, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	task := w.state(as.Task, berth.StateSucceeded)
	if diff(task.Result, it.Result) != "" || !task.FinishedAt.Equal(now) {
		w.t.Errorf("task finished at %v, result of %d bytes", task.FinishedAt, task.Result.Len())
	}
	if at := w.attempt(as.Task); at.Outcome != berth.OutcomeSucceeded || at.Reason != "succeeded" || !at.EndedAt.Equal(now) {
		w.t.Errorf("attempt %+v", at)
	}
	if len(w.free()) != 1 {
		w.t.Errorf("the device is not free")
	}
}

// clearLog leaves out what the contract only fills when something is missing.
func clearLog(a store.CompleteAnswer) store.CompleteAnswer {
	a.LogNext = 0
	if len(a.MissingArtifacts) == 0 {
		a.MissingArtifacts = nil
	}
	return a
}

func completeRetried(w *world) {
	for _, outcome := range []berth.Outcome{berth.OutcomeFailed, berth.OutcomeInfraFailed, berth.OutcomeTimedOut} {
		a := w.host("host-"+string(outcome[0])+"1", 1)
		pinned := withSelector("berth.dev/device=" + string(a.ids[0]))
		as := a.running(pinned)
		policy := w.task(as.Task).Retry
		for try := 1; try <= 2; try++ {
			now := w.Clock.Now()
			answers, trs := a.completeItems(item(as, outcome))
			if ans := answers[0]; ans.Status != store.CompleteStored || ans.Outcome != outcome || ans.TaskState != berth.StateFailed {
				w.t.Fatalf("%s: answer %+v", outcome, ans)
			}
			if tr := w.oneTransition(trs); tr.Event != berth.EventRetried || tr.Outcome != outcome || tr.To != berth.StateFailed {
				w.t.Errorf("%s: transition %+v", outcome, tr)
			}
			task := w.state(as.Task, berth.StateFailed)
			if want := now.Add(policy.Backoff(try, berth.JitterOf(as.Attempt))); !task.DueAt.Equal(want) {
				w.t.Errorf("%s: try %d is due at %v, should be %v", outcome, try+1, task.DueAt, want)
			}
			as = a.again(as.Task)
			if as.Number != try+1 {
				w.t.Errorf("%s: number %d", outcome, as.Number)
			}
		}
		if task := w.task(as.Task); task.Tries != 3 || task.Attempts != 3 {
			w.t.Errorf("%s: tries %d", outcome, task.Tries)
		}
	}
}

func completeLastTry(w *world) {
	a := w.host("h1", 1)
	for _, outcome := range []berth.Outcome{berth.OutcomeFailed, berth.OutcomeInfraFailed, berth.OutcomeTimedOut} {
		as := a.running(maxAttempts(1))
		answers, trs := a.completeItems(item(as, outcome))
		if answers[0].TaskState != berth.StateDeadLetter {
			w.t.Errorf("%s: answer %+v", outcome, answers[0])
		}
		if tr := w.oneTransition(trs); tr.Event != berth.EventFailed || tr.Outcome != outcome {
			w.t.Errorf("%s: transition %+v", outcome, tr)
		}
		if task := w.state(as.Task, berth.StateDeadLetter); task.FinalReason != berth.ReasonNoTriesLeft || !task.FinishedAt.Equal(w.Clock.Now()) || !task.Result.IsZero() {
			w.t.Errorf("%s: reason %q", outcome, task.FinalReason)
		}
	}
}

func completeUnasked(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	if got := a.completed(as, berth.OutcomeCancelled); got != berth.StateDeadLetter {
		w.t.Errorf("task went to %s", got)
	}
	if got := w.task(as.Task).FinalReason; got != berth.ReasonNotRetryable {
		w.t.Errorf("reason %q", got)
	}
}

func completeUnsafe(w *world) {
	a := w.host("h1", 1)
	as := a.running(retryUnsafe)
	if got := a.completed(as, berth.OutcomeInfraFailed); got != berth.StateDeadLetter || w.task(as.Task).FinalReason != berth.ReasonNotRetrySafe {
		w.t.Errorf("task went to %s, %q", got, w.task(as.Task).FinalReason)
	}
	// Unstarted, it is safe.
	as = a.claimed(retryUnsafe)
	if got := a.completed(as, berth.OutcomeInfraFailed); got != berth.StateFailed {
		w.t.Errorf("unstarted: task went to %s", got)
	}
}

func completeInfra(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.completed(as, berth.OutcomeInfraFailed)
	w.Clock.Set(w.task(as.Task).DueAt)
	w.promote()
	if heads := w.heads(); len(heads) != 1 || heads[0].LastHost != a.id || heads[0].LastDevice != a.ids[0] {
		w.t.Errorf("heads %+v", heads)
	}
	a.beat()
	as = a.again(as.Task)
	a.completed(as, berth.OutcomeFailed)
	w.Clock.Set(w.task(as.Task).DueAt)
	w.promote()
	if heads := w.heads(); len(heads) != 1 || heads[0].LastHost != "" || heads[0].LastDevice != "" {
		w.t.Errorf("heads after the work said no %+v", heads)
	}
}

func completeRepeat(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	it := item(as, berth.OutcomeFailed)
	first, _ := a.completeItems(it)
	task := w.task(as.Task)
	w.Clock.Advance(time.Second)
	again, trs := a.completeItems(it)
	if d := diff(first, again); d != "" || len(trs) != 0 {
		w.t.Errorf("the repeat answers otherwise, with transitions %+v:\n%s", trs, d)
	}
	other, trs := a.completeItems(item(as, berth.OutcomeSucceeded))
	if ans := other[0]; ans.Status != store.CompleteMismatch || ans.Outcome != berth.OutcomeFailed || len(trs) != 0 {
		w.t.Errorf("another body: %+v", ans)
	}
	if d := diff(task, w.task(as.Task)); d != "" {
		w.t.Errorf("the repeats changed the task:\n%s", d)
	}
	a.again(as.Task)
	if again, _ := a.completeItems(it); again[0].Status != store.CompleteStored || again[0].Outcome != berth.OutcomeFailed {
		w.t.Errorf("a repeat while the next try runs: %+v", again[0])
	}
	w.state(as.Task, berth.StateRunning)
}

func completeGone(w *world) {
	a, b := w.host("h1", 2), w.host("h2", 1)
	good, reaped := a.running(), a.running()
	foreign := b.running(withSelector("berth.dev/device=" + string(b.ids[0])))
	w.Clock.Advance(w.Timings.LeaseTTL - time.Second)
	a.renew(good)
	b.renew(foreign)
	w.Clock.Advance(time.Second + w.Timings.ReapGrace)
	if tr := w.oneTransition(w.reap()); tr.Attempt != reaped.Attempt {
		w.t.Fatalf("reaped %+v", tr)
	}
	above := good
	above.Fence++
	unknown := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	answers, trs := a.completeItems(item(foreign, berth.OutcomeSucceeded), item(above, berth.OutcomeSucceeded), item(unknown, berth.OutcomeSucceeded), item(reaped, berth.OutcomeSucceeded))
	for i, ans := range answers {
		if ans.Status != store.CompleteGone {
			w.t.Errorf("answer %d: %+v", i, ans)
		}
	}
	if len(trs) != 0 {
		w.t.Errorf("transitions %+v", trs)
	}
	w.state(good.Task, berth.StateRunning)
	w.state(foreign.Task, berth.StateRunning)
	w.state(reaped.Task, berth.StateQueued)
}

func completeLate(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(w.Timings.LeaseTTL + time.Hour)
	if got := a.completed(as, berth.OutcomeSucceeded); got != berth.StateSucceeded {
		w.t.Errorf("task went to %s", got)
	}
	if trs := w.reap(); len(trs) != 0 {
		w.t.Errorf("reaped %+v", trs)
	}
}

func completeMissing(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.appendLog(as, 0, "12345")
	a.addArtifact(as, "here.png", "here")
	with := func(it *store.CompleteItem) {
		it.LogBytes = 8
		it.Artifacts = map[string]string{"here.png": hexOf("here"), "z.png": hexOf("z"), "a.png": hexOf("a")}
	}
	answers, trs := a.completeItems(item(as, berth.OutcomeSucceeded, with))
	ans := answers[0]
	missing := slices.Clone(ans.MissingArtifacts)
	slices.Sort(missing)
	if ans.Status != store.CompleteMissing || !slices.Equal(missing, []string{"a.png", "z.png"}) || ans.LogNext != 5 || len(trs) != 0 {
		w.t.Fatalf("answer %+v, transitions %+v", ans, trs)
	}
	w.state(as.Task, berth.StateRunning)
	a.addArtifact(as, "a.png", "a")
	a.addArtifact(as, "z.png", "z")
	if ans := a.complete(as, berth.OutcomeSucceeded, with); ans.Status != store.CompleteMissing || len(ans.MissingArtifacts) != 0 || ans.LogNext != 5 {
		w.t.Errorf("with half a log: %+v", ans)
	}
	a.appendLog(as, 5, "678")
	if got := a.completed(as, berth.OutcomeSucceeded, with); got != berth.StateSucceeded {
		w.t.Errorf("task went to %s", got)
	}
}

func completeIncomplete(w *world) {
	a := w.host("h1", 1)
	as := a.running(maxAttempts(1))
	with := func(it *store.CompleteItem) { it.LogBytes, it.Artifacts = 8, map[string]string{"z.png": hexOf("z")} }
	if got := a.completed(as, berth.OutcomeFailed, with); got != berth.StateDeadLetter {
		w.t.Errorf("task went to %s", got)
	}
}

func completeNotStarted(w *world) {
	a := w.host("h1", 1)
	as := a.claimed()
	for _, outcome := range []berth.Outcome{berth.OutcomeSucceeded, berth.OutcomeFailed, berth.OutcomeTimedOut} {
		answers, trs := a.completeItems(item(as, outcome))
		if answers[0].Status != store.CompleteNotStarted || len(trs) != 0 {
			w.t.Errorf("%s: %+v", outcome, answers[0])
		}
		w.state(as.Task, berth.StateClaimed)
	}
	if got := a.completed(as, berth.OutcomeInfraFailed); got != berth.StateFailed {
		w.t.Errorf("infra_failed: task went to %s", got)
	}
	as = a.claimed()
	if got := a.completed(as, berth.OutcomeCancelled); got != berth.StateDeadLetter {
		w.t.Errorf("cancelled: task went to %s", got)
	}
	if len(w.free()) != 1 {
		w.t.Errorf("the device is not free")
	}
}

func completeCancelled(w *world) {
	a := w.host("h1", 1)
	for _, outcome := range []berth.Outcome{berth.OutcomeSucceeded, berth.OutcomeFailed, berth.OutcomeInfraFailed, berth.OutcomeTimedOut, berth.OutcomeCancelled} {
		as := a.running()
		w.cancel(as.Task)
		answers, trs := a.completeItems(item(as, outcome))
		if answers[0].TaskState != berth.StateCancelled || answers[0].Outcome != outcome {
			w.t.Errorf("I6: %s: answer %+v", outcome, answers[0])
		}
		if tr := w.oneTransition(trs); tr.Event != berth.EventCancelled || tr.Outcome != outcome || tr.To != berth.StateCancelled {
			w.t.Errorf("I6: %s: transition %+v", outcome, tr)
		}
		if at := w.attempt(as.Task); at.Outcome != outcome || w.state(as.Task, berth.StateCancelled).FinalReason != berth.ReasonCancelled {
			w.t.Errorf("I6: %s: attempt %s, task's reason %q", outcome, at.Outcome, w.task(as.Task).FinalReason)
		}
	}
}

func completeUnclean(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	id := a.ids[0]
	as := a.running()
	a.completed(as, berth.OutcomeFailed, unclean)
	if d := w.device(id); !d.Unclean || d.Occupancy != berth.OccupancyUnclean || slices.Contains(w.freeIDs(), id) {
		w.t.Fatalf("device %+v", d)
	}
	if n := w.acted(berth.AuditDeviceUnclean, "device", string(id)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	clean := func(by *agent, fence berth.Fence) error {
		return w.Store.CleanDevice(bg(), store.CleanParams{AgentCall: by.call(), Device: id, Fence: fence})
	}
	w.fails("another host", clean(b, as.Fence), berth.ErrNotFound)
	w.fails("an older fence", clean(a, as.Fence-1), berth.ErrLeaseLost)
	w.fails("an unknown device", w.Store.CleanDevice(bg(), store.CleanParams{AgentCall: a.call(), Device: newID[berth.DeviceID](w.Env), Fence: 1}), berth.ErrNotFound)
	if !w.device(id).Unclean {
		w.t.Fatalf("a refused call cleaned the device")
	}
	for range 2 {
		w.must("clean", clean(a, as.Fence))
		if w.device(id).Unclean || !slices.Contains(w.freeIDs(), id) {
			w.t.Errorf("the device stayed unclean")
		}
	}
	if n := w.acted(berth.AuditDeviceCleaned, "device", string(id)); n != 1 {
		w.t.Errorf("%d audit rows of the cleaning", n)
	}
}

func completeMixed(w *world) {
	a := w.host("h1", 3)
	one, two, three := a.running(), a.claimed(), a.running()
	ghost := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	answers, trs := a.completeItems(item(three, berth.OutcomeFailed), item(ghost, berth.OutcomeFailed), item(two, berth.OutcomeFailed), item(one, berth.OutcomeSucceeded))
	for i, want := range []struct {
		id     berth.AttemptID
		status store.CompleteStatus
	}{{three.Attempt, store.CompleteStored}, {ghost.Attempt, store.CompleteGone}, {two.Attempt, store.CompleteNotStarted}, {one.Attempt, store.CompleteStored}} {
		if answers[i].Attempt != want.id || answers[i].Status != want.status {
			w.t.Errorf("answer %d: %+v, should be %+v", i, answers[i], want)
		}
	}
	if len(trs) != 2 {
		w.t.Errorf("transitions %+v", trs)
	}
}

func releaseOne(w *world) {
	a := w.host("h1", 1)
	for _, claim := range []bool{true, false} {
		var as store.Assignment
		from := berth.StateClaimed
		if claim {
			as = a.claimed()
		} else {
			task := w.submit()
			at := w.placed(task.ID)
			as, from = store.Assignment{Attempt: at.ID, Fence: at.Fence, Task: task.ID, Device: at.Device}, berth.StateAssigned
		}
		now := w.Clock.Advance(time.Second)
		answers, trs, err := w.Store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(as)}})
		w.must("release", err)
		if answers[0].Status != store.LeaseReleased || answers[0].Attempt != as.Attempt {
			w.t.Errorf("answer %+v", answers[0])
		}
		want := berth.Transition{
			Event: berth.EventReleased, Task: as.Task, From: from, To: berth.StateQueued, Attempt: as.Attempt, Number: 1, Device: a.ids[0], Host: a.id,
			Fence: as.Fence, Outcome: berth.OutcomeReleased, Reason: berth.ReasonHandBack, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
		}
		if d := diff(want, w.oneTransition(trs)); d != "" {
			w.t.Errorf("transition (-want +got):\n%s", d)
		}
		task := w.state(as.Task, berth.StateQueued)
		if task.Tries != 0 || task.Attempts != 1 || w.attempt(as.Task).Reason != berth.ReasonHandBack || len(w.free()) != 1 {
			w.t.Errorf("task %+v", task)
		}
		if heads := w.heads(); len(heads) != 1 || heads[0].Number != 2 || heads[0].LastHost != a.id {
			w.t.Errorf("heads %+v", heads)
		}
		w.cancel(as.Task)
	}
}

// handBack places and claims the task and hands it back.
func (a *agent) handBack(id berth.TaskID, draining bool) {
	a.w.t.Helper()
	a.w.placed(id)
	as := a.one(id)
	if s := a.release(draining, as)[0].Status; s != store.LeaseReleased {
		a.w.t.Fatalf("release answered %s", s)
	}
}

func releaseFive(w *world) {
	a := w.host("h1", 1)
	id := w.submit(maxAttempts(1)).ID
	for range berth.MaxHandBacks - 1 {
		a.handBack(id, false)
		w.state(id, berth.StateQueued)
	}
	a.handBack(id, false)
	task := w.state(id, berth.StateDeadLetter)
	if task.FinalReason != berth.ReasonHandBackLimit || task.Tries != 0 || task.Attempts != berth.MaxHandBacks {
		w.t.Errorf("reason %q, tries %d", task.FinalReason, task.Tries)
	}
	if _, trs := w.retry(id, 1); len(trs) != 1 {
		w.t.Errorf("retry by hand: %+v", trs)
	}
	if got := w.task(id).Budget; got != 1 {
		w.t.Errorf("no try used and one added give a budget of %d", got)
	}
	for range berth.MaxHandBacks - 1 { // they count anew
		a.handBack(id, false)
		w.state(id, berth.StateQueued)
	}
	a.completed(a.again(id), berth.OutcomeSucceeded)
}

func releaseInterrupted(w *world) {
	a := w.host("h1", 1)
	id := w.submit().ID
	for range 2 {
		for range berth.MaxHandBacks - 1 {
			a.handBack(id, false)
		}
		w.state(id, berth.StateQueued)
		a.completed(a.again(id), berth.OutcomeFailed)
		w.Clock.Set(w.task(id).DueAt)
		a.beat()
		w.promote()
	}
	a.handBack(id, false)
	w.state(id, berth.StateQueued)
}

func releaseDraining(w *world) {
	a := w.host("h1", 1)
	id := w.submit().ID
	for range berth.MaxHandBacks + 2 {
		a.handBack(id, true)
		w.state(id, berth.StateQueued)
	}
	for range berth.MaxHandBacks - 1 {
		a.handBack(id, false)
	}
	w.state(id, berth.StateQueued)
}

func releaseAnswers(w *world) {
	a, b := w.host("h1", 3), w.host("h2", 1)
	started, back := a.running(), a.claimed()
	foreign := b.claimed(withSelector("berth.dev/device=" + string(b.ids[0])))
	above := back
	above.Fence++
	answers := a.release(false, started, foreign, above, back)
	for i, want := range []store.LeaseStatus{store.LeaseStarted, store.LeaseGone, store.LeaseGone, store.LeaseReleased} {
		if answers[i].Status != want {
			w.t.Errorf("answer %d: %s, should be %s", i, answers[i].Status, want)
		}
	}
	w.state(started.Task, berth.StateRunning)
	w.state(foreign.Task, berth.StateClaimed)
	a.again(back.Task)
	if s := a.release(false, back)[0].Status; s != store.LeaseReleased {
		w.t.Errorf("a repeat: %s", s)
	}
	w.state(back.Task, berth.StateRunning)
	a.completed(started, berth.OutcomeSucceeded)
	if s := a.release(false, started)[0].Status; s == store.LeaseReleased || s == store.LeaseGranted {
		w.t.Errorf("release of a completed one: %s", s)
	}
}

func releaseGiveUp(w *world) {
	a := w.host("h1", 1)
	id := w.submit(queueTimeout(time.Minute)).ID
	giveUp := w.task(id).GiveUpAt
	w.Clock.Advance(10 * time.Second)
	w.placed(id)
	as := a.one(id)
	w.Clock.Advance(20 * time.Second)
	a.release(false, as)
	if got := w.task(id).GiveUpAt; !got.Equal(giveUp.Add(20 * time.Second)) {
		w.t.Errorf("gives up at %v, should be 20 s after %v", got, giveUp)
	}
}
