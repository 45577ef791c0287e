package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func cancelChecks() []check {
	return []check{
		in("a waiting task becomes cancelled", cancelWaiting),
		in("an assigned attempt ends with its task and frees the device", func(w *world) { cancelUnstarted(w, false) }),
		in("a claimed attempt ends with its task and frees the device", func(w *world) { cancelUnstarted(w, true) }),
		in("a running attempt is marked and told", cancelRunning),
		in("a running attempt is killed after the bound", cancelBound),
		in("a cancel bound never lengthens the run time", cancelNearRunTimeout),
		in("twice is no error and no effect", cancelTwice),
		in("a finished task is in the wrong state", cancelFinished),
	}
}

func retryChecks() []check {
	return []check{
		in("a dead-lettered task gets more tries and its numbers go on", retryDeadLetter),
		in("no number of tries means one", retryDefault),
		in("a repeat under one idempotency key has no effect", retryOnce),
		in("tries used count, not tries allowed", retryBudget),
		in("a failed task is queued at once", retryFailed),
		in("every other state is refused", retryElsewhere),
		in("with an edited payload", retryEdited),
	}
}

// oneTransition asserts that there is one, and returns it.
func (w *world) oneTransition(trs []berth.Transition) berth.Transition {
	w.t.Helper()
	if len(trs) != 1 {
		w.t.Fatalf("%d transitions, not 1: %+v", len(trs), trs)
	}
	return trs[0]
}

// failed brings a new task to failed (waiting for its retry).
func (a *agent) failed(mods ...func(*berth.NewTask)) berth.TaskID {
	a.w.t.Helper()
	as := a.running(mods...)
	if got := a.completed(as, berth.OutcomeFailed); got != berth.StateFailed {
		a.w.t.Fatalf("task is %s", got)
	}
	return as.Task
}

// deadLettered brings a new task to dead_letter with one try.
func (a *agent) deadLettered(mods ...func(*berth.NewTask)) berth.TaskID {
	a.w.t.Helper()
	as := a.running(append([]func(*berth.NewTask){maxAttempts(1)}, mods...)...)
	if got := a.completed(as, berth.OutcomeFailed); got != berth.StateDeadLetter {
		a.w.t.Fatalf("task is %s", got)
	}
	return as.Task
}

func cancelWaiting(w *world) {
	a := w.host("h1", 1)
	for from, id := range map[berth.TaskState]berth.TaskID{
		berth.StateFailed:    a.failed(),
		berth.StateScheduled: w.submit(notBefore(w.Clock.Now().Add(time.Hour))).ID,
		berth.StateQueued:    w.submit().ID,
	} {
		w.state(id, from)
		task, trs := w.cancel(id)
		want := berth.Transition{
			Event: berth.EventCancelled, Task: id, From: from, To: berth.StateCancelled, Pool: w.pool.ID, Reason: berth.ReasonCancelled,
			CorrelationID: task.CorrelationID, At: w.Clock.Now(),
		}
		if d := diff(want, w.oneTransition(trs)); d != "" {
			w.t.Errorf("%s: transition (-want +got):\n%s", from, d)
		}
		if task.State != berth.StateCancelled || task.FinalReason != berth.ReasonCancelled || !task.FinishedAt.Equal(w.Clock.Now()) {
			w.t.Errorf("%s: task is %s, reason %q, finished at %v", from, task.State, task.FinalReason, task.FinishedAt)
		}
		w.state(id, berth.StateCancelled)
	}
	w.Clock.Advance(2 * time.Hour)
	if trs := w.promote(); len(trs) != 0 || len(w.heads()) != 0 {
		w.t.Errorf("a cancelled task came back: %+v", trs)
	}
}

func cancelUnstarted(w *world, claim bool) {
	a := w.host("h1", 1)
	task := w.submit()
	w.placed(task.ID)
	as := store.Assignment{Task: task.ID, Attempt: w.attempt(task.ID).ID, Fence: w.attempt(task.ID).Fence, Number: 1}
	from := berth.StateAssigned
	if claim {
		as, from = a.one(task.ID), berth.StateClaimed
	}
	w.Clock.Advance(time.Second)
	got, trs := w.cancel(task.ID)
	want := berth.Transition{
		Event: berth.EventCancelled, Task: task.ID, From: from, To: berth.StateCancelled, Attempt: as.Attempt, Number: 1,
		Device: a.ids[0], Host: a.id, Fence: as.Fence, Outcome: berth.OutcomeCancelled, Reason: berth.ReasonCancelled, Pool: w.pool.ID,
		CorrelationID: task.CorrelationID, At: w.Clock.Now(),
	}
	if d := diff(want, w.oneTransition(trs)); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if got.State != berth.StateCancelled || w.attempt(task.ID).Outcome != berth.OutcomeCancelled {
		w.t.Errorf("task %s, attempt %s", got.State, w.attempt(task.ID).Outcome)
	}
	if free := w.freeIDs(); !slices.Equal(free, a.ids) {
		w.t.Errorf("free devices %v", free)
	}
	if n := len(a.claim()); n != 0 {
		w.t.Errorf("%d attempts of a cancelled task were claimed", n)
	}
	answers, _ := a.startAnswers(as)
	if s := answers[0].Status; s != store.LeaseGone {
		w.t.Errorf("I5: start of a cancelled attempt: %s", s)
	}
	if s := a.renew(as)[0].Status; s != store.LeaseGone {
		w.t.Errorf("renewal of a cancelled attempt: %s", s)
	}
	if s := a.complete(as, berth.OutcomeSucceeded).Status; s != store.CompleteGone {
		w.t.Errorf("complete of a cancelled attempt: %s", s)
	}
	w.state(task.ID, berth.StateCancelled)
}

func cancelRunning(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	at := w.Clock.Advance(time.Second)
	task, trs := w.cancel(as.Task)
	want := berth.Transition{
		Event: berth.EventCancelRequested, Task: as.Task, From: berth.StateRunning, To: berth.StateRunning, Attempt: as.Attempt, Number: 1,
		Device: a.ids[0], Host: a.id, Fence: as.Fence, Pool: w.pool.ID, CorrelationID: task.CorrelationID, At: at,
	}
	if d := diff(want, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if task.State != berth.StateRunning || !task.CancelRequested || !w.task(as.Task).CancelRequested {
		w.t.Errorf("task %s, asked to stop %v", task.State, task.CancelRequested)
	}
	if got := w.attempt(as.Task).CancelRequestedAt; !got.Equal(at) {
		w.t.Errorf("attempt was asked at %v", got)
	}
	ans := a.renew(as)[0]
	if ans.Status != store.LeaseGranted || !ans.Cancel || ans.Left != w.Timings.LeaseTTL {
		w.t.Errorf("renewal: %+v", ans)
	}
	// The attempt keeps what it really came to (I6).
	if got := a.completed(as, berth.OutcomeSucceeded); got != berth.StateCancelled {
		w.t.Errorf("I6: task went to %s", got)
	}
	done := w.state(as.Task, berth.StateCancelled)
	if done.FinalReason != berth.ReasonCancelled || w.attempt(as.Task).Outcome != berth.OutcomeSucceeded {
		w.t.Errorf("I6: reason %q, outcome %s", done.FinalReason, w.attempt(as.Task).Outcome)
	}
}

func cancelBound(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(time.Second)
	w.cancel(as.Task)
	w.Clock.Advance(w.Timings.CancelWithin)
	a.renew(as)
	w.Clock.Advance(w.Timings.ReapGrace - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped a microsecond early: %+v", trs)
	}
	w.Clock.Advance(time.Microsecond)
	tr := w.oneTransition(w.reap())
	if tr.Event != berth.EventCancelled || tr.Outcome != berth.OutcomeTimedOut || tr.To != berth.StateCancelled {
		w.t.Errorf("transition %+v", tr)
	}
	if at := w.attempt(as.Task); at.Reason != berth.ReasonCancelTimeout || !w.device(a.ids[0]).Unclean {
		w.t.Errorf("reason %q, device unclean %v", at.Reason, w.device(a.ids[0]).Unclean)
	}
	w.state(as.Task, berth.StateCancelled)
}

func cancelNearRunTimeout(w *world) {
	a := w.host("h1", 1)
	as := a.running(runTimeout(20 * time.Second))
	w.Clock.Advance(10 * time.Second)
	w.cancel(as.Task)
	a.renew(as)
	w.Clock.Advance(10*time.Second + w.Timings.ReapGrace - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Fatalf("reaped early: %+v", trs)
	}
	w.Clock.Advance(time.Microsecond)
	w.oneTransition(w.reap())
	w.state(as.Task, berth.StateCancelled)
}

func cancelTwice(w *world) {
	a := w.host("h1", 2)
	waiting, as := w.submit(withSelector("os=none")).ID, a.running()
	w.cancel(waiting)
	w.cancel(as.Task)
	at := w.attempt(as.Task).CancelRequestedAt
	first := w.task(waiting)
	w.Clock.Advance(5 * time.Second)
	for _, id := range []berth.TaskID{waiting, as.Task} {
		before := w.task(id)
		task, trs := w.cancel(id)
		if len(trs) != 0 {
			w.t.Errorf("a second cancel gave %+v", trs)
		}
		task.Payload = before.Payload
		if d := diff(before, task); d != "" {
			w.t.Errorf("a second cancel changed or answered otherwise:\n%s", d)
		}
	}
	if got := w.attempt(as.Task).CancelRequestedAt; !got.Equal(at) || !w.task(waiting).FinishedAt.Equal(first.FinishedAt) {
		w.t.Errorf("the time of the first cancel moved")
	}
	a.completed(as, berth.OutcomeCancelled)
	if _, trs := w.cancel(as.Task); len(trs) != 0 {
		w.t.Errorf("cancel of a cancelled task gave %+v", trs)
	}
}

func (w *world) wrongState(what string, err error, state berth.TaskState) {
	w.t.Helper()
	w.fails(what, err, berth.ErrWrongState)
	var ws *berth.WrongStateError
	if !errors.As(err, &ws) || ws.State != string(state) || ws.Message == "" {
		w.t.Errorf("%s: %v does not name the state %s", what, err, state)
	}
}

func cancelFinished(w *world) {
	a := w.host("h1", 1)
	dead := a.deadLettered()
	as := a.running()
	a.completed(as, berth.OutcomeSucceeded)
	for id, state := range map[berth.TaskID]berth.TaskState{dead: berth.StateDeadLetter, as.Task: berth.StateSucceeded} {
		before := w.state(id, state)
		_, trs, err := w.Store.CancelTask(bg(), w.params(id))
		w.wrongState("cancel", err, state)
		if len(trs) != 0 || diff(before, w.task(id)) != "" {
			w.t.Errorf("a refused cancel had an effect: %+v", trs)
		}
	}
}

func (w *world) retry(id berth.TaskID, tries int) (berth.Task, []berth.Transition) {
	w.t.Helper()
	task, trs, err := w.Store.RetryTask(bg(), store.RetryParams{TaskParams: w.params(id), AddTries: tries})
	w.must("retry", err)
	return task, trs
}

func retryDeadLetter(w *world) {
	a := w.host("h1", 1)
	id := a.deadLettered(queueTimeout(time.Hour), withPriority(5))
	rank := berth.RankOf(w.task(id).SubmittedAt, 5, w.pool.AgeingStep)
	w.Clock.Advance(2 * time.Hour)
	a.beat()
	task, trs := w.retry(id, 2)
	want := berth.Transition{
		Event: berth.EventRetriedByHand, Task: id, From: berth.StateDeadLetter, To: berth.StateQueued, Pool: w.pool.ID,
		CorrelationID: task.CorrelationID, At: w.Clock.Now(),
	}
	if d := diff(want, w.oneTransition(clearReason(trs))); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if task.State != berth.StateQueued || task.Budget != 3 || task.Tries != 1 || task.FinalReason != "" || !task.FinishedAt.IsZero() || !task.Result.IsZero() {
		w.t.Errorf("task %s, budget %d, reason %q, finished %v", task.State, task.Budget, task.FinalReason, task.FinishedAt)
	}
	if !task.GiveUpAt.Equal(w.Clock.Now().Add(time.Hour)) {
		w.t.Errorf("gives up at %v", task.GiveUpAt)
	}
	heads := w.heads()
	if len(heads) != 1 || heads[0].Number != 2 || heads[0].Rank != rank {
		w.t.Errorf("heads %+v, should have number 2 and rank %d", heads, rank)
	}
	as := a.again(id)
	if as.Number != 2 {
		w.t.Errorf("number %d", as.Number)
	}
	a.completed(as, berth.OutcomeFailed)
	if got := a.completed(a.again(id), berth.OutcomeFailed); got != berth.StateDeadLetter {
		w.t.Errorf("I9: after the last added try the task is %s", got)
	}
	if got := w.task(id).FinalReason; got != berth.ReasonNoTriesLeft {
		w.t.Errorf("reason %q", got)
	}
}

// retryOnce: the answer was lost and the task went on; the repeat of the call
// changes nothing more, and the key tells another call apart.
func retryOnce(w *world) {
	a := w.host("h1", 1)
	id := a.deadLettered()
	p := store.RetryParams{TaskParams: w.params(id), AddTries: 1, Once: store.Once{Key: "k", BodyDigest: hashOf("retry")}}
	_, _, err := w.Store.RetryTask(bg(), p)
	w.must("retry", err)
	a.completed(a.again(id), berth.OutcomeFailed)
	before := w.state(id, berth.StateDeadLetter)
	rows := len(w.audit("", ""))
	task, trs, err := w.Store.RetryTask(bg(), p)
	w.must("repeat", err)
	if len(trs) != 0 || diff(before, task) != "" || diff(before, w.task(id)) != "" || len(w.audit("", "")) != rows {
		w.t.Errorf("the repeat had an effect: %+v, task %s", trs, task.State)
	}
	p.Once.BodyDigest = hashOf("other")
	_, _, err = w.Store.RetryTask(bg(), p)
	w.fails("another body under the key", err, berth.ErrIdempotencyMismatch)

	queued := w.submit().ID
	refused := store.RetryParams{TaskParams: w.params(queued), Once: store.Once{Key: "k2", BodyDigest: hashOf("retry")}}
	_, _, err = w.Store.RetryTask(bg(), refused)
	w.wrongState("retry", err, berth.StateQueued)
	_, _, err = w.Store.RetryTask(bg(), refused)
	w.wrongState("a refused call leaves the key free", err, berth.StateQueued)
}

func retryDefault(w *world) {
	a := w.host("h1", 1)
	task, _ := w.retry(a.deadLettered(), 0)
	if task.Budget != 2 {
		w.t.Errorf("budget %d, should be 2", task.Budget)
	}
}

func retryBudget(w *world) {
	a := w.host("h1", 1)
	as := a.running(maxAttempts(5), retryOn(berth.OutcomeLost))
	if got := a.completed(as, berth.OutcomeFailed); got != berth.StateDeadLetter {
		w.t.Fatalf("task is %s", got)
	}
	if reason := w.task(as.Task).FinalReason; reason != berth.ReasonNotRetryable {
		w.t.Errorf("reason %q", reason)
	}
	if task, _ := w.retry(as.Task, 3); task.Budget != 4 {
		w.t.Errorf("one try used and three added give a budget of %d", task.Budget)
	}
}

func retryFailed(w *world) {
	a := w.host("h1", 1)
	id := a.failed()
	task, trs := w.retry(id, 7)
	if tr := w.oneTransition(trs); tr.Event != berth.EventRetriedByHand || tr.From != berth.StateFailed || tr.To != berth.StateQueued {
		w.t.Errorf("transition %+v", tr)
	}
	if task.State != berth.StateQueued || task.Budget != 3 || !task.DueAt.IsZero() {
		w.t.Errorf("task %s, budget %d, due %v", task.State, task.Budget, task.DueAt)
	}
	if as := a.again(id); as.Number != 2 {
		w.t.Errorf("number %d", as.Number)
	}
}

func retryElsewhere(w *world) {
	a := w.host("h1", 3)
	done := a.running()
	a.completed(done, berth.OutcomeSucceeded)
	running, claimed := a.running(), a.claimed()
	assigned := w.submit()
	w.placed(assigned.ID)
	queued, scheduled := w.submit(), w.submit(notBefore(w.Clock.Now().Add(time.Hour)))
	cancelled := w.submit()
	w.cancel(cancelled.ID)
	for state, id := range map[berth.TaskState]berth.TaskID{
		berth.StateScheduled: scheduled.ID, berth.StateQueued: queued.ID, berth.StateAssigned: assigned.ID, berth.StateClaimed: claimed.Task,
		berth.StateRunning: running.Task, berth.StateSucceeded: done.Task, berth.StateCancelled: cancelled.ID,
	} {
		before := w.state(id, state)
		_, trs, err := w.Store.RetryTask(bg(), store.RetryParams{TaskParams: w.params(id), AddTries: 1})
		w.wrongState("retry", err, state)
		if len(trs) != 0 || diff(before, w.task(id)) != "" {
			w.t.Errorf("a refused retry had an effect on a %s task", state)
		}
	}
}

// retryEdited: the payload is another, the trail tells that and nothing of it.
func retryEdited(w *world) {
	a := w.host("h1", 1)
	payload := redact.NewBytes([]byte(`{"text": "` + marker + ` edited"}`))
	for _, id := range []berth.TaskID{a.deadLettered(), a.failed()} {
		task, _, err := w.Store.RetryTask(bg(), store.RetryParams{TaskParams: w.params(id), Payload: payload})
		w.must("retry", err)
		if string(task.Payload.Reveal()) != string(payload.Reveal()) {
			w.t.Errorf("the payload is %s", task.Payload.Reveal())
		}
		trail := w.audit("task", string(id))
		if after := trail[len(trail)-1].After; after != berth.RetryFacts(task.Budget, true) {
			w.t.Errorf("the trail says %s", after)
		}
		if as := a.again(id); string(as.Payload.Reveal()) != string(payload.Reveal()) {
			w.t.Errorf("the next attempt gets %s", as.Payload.Reveal())
		} else {
			a.completed(as, berth.OutcomeSucceeded)
		}
	}
}
