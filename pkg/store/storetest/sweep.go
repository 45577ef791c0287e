package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func sweepChecks() []check {
	return []check{
		in("pages over all tasks, finished ones too, and finds nothing wrong", sweepPages),
		in("in no place: queued again with the next number, or in wait of its not-before", sweepLost),
		in("in no place after a cancel or with no tries left: finished", sweepLostForGood),
		in("in queue and delayed: the queue's token stays", sweepTwoTokens),
		in("a live attempt and tokens: the attempt stays", sweepTokenBesideAttempt),
		in("finished and tokens: it stays finished", sweepFinished),
		in("finished with a live attempt is only told of", sweepUnrepairable),
		in("one that cannot be repaired does not stop the others", sweepGoesOn),
		in("no false alarm under load", sweepUnderLoad),
	}
}

// sweep looks at all tasks.
func (w *world) sweep() (r store.SweepResult) {
	w.t.Helper()
	for after := berth.TaskID(""); ; after = r.Next {
		page, err := w.Store.SweepTasks(bg(), w.keeper, after, 2)
		w.must("sweep", err)
		r.Looked, r.Wrong, r.Next = r.Looked+page.Looked, r.Wrong+page.Wrong, page.Next
		r.Repaired, r.Unrepaired = append(r.Repaired, page.Repaired...), append(r.Unrepaired, page.Unrepaired...)
		if r.Next == "" {
			return r
		}
	}
}

// repaired sweeps and asserts that exactly one task was wrong and is right now.
func (w *world) repaired(want berth.Transition) {
	w.t.Helper()
	r := w.sweep()
	if r.Wrong != 1 || len(r.Unrepaired) != 0 {
		w.t.Fatalf("sweep: %+v", r)
	}
	want.Event, want.Pool, want.CorrelationID, want.At = berth.EventRepaired, w.pool.ID, "corr-1", w.Clock.Now()
	if d := diff(want, w.oneTransition(r.Repaired)); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	if r := w.sweep(); r.Wrong != 0 {
		w.t.Errorf("swept again: %+v", r)
	}
}

func sweepPages(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.completed(as, berth.OutcomeSucceeded)
	a.failed()
	w.submit(notBefore(w.Clock.Now().Add(time.Hour)))
	w.cancel(w.submit().ID)
	for range 2 {
		w.submit()
	}
	if r := w.sweep(); r.Looked != 6 || r.Wrong != 0 || len(r.Repaired) != 0 {
		w.t.Errorf("sweep: %+v", r)
	}
	r, err := w.Store.SweepTasks(bg(), w.keeper, "", 6)
	w.must("sweep", err)
	if r.Looked != 6 || r.Next == "" {
		w.t.Errorf("a full page: %+v", r)
	}
	if r, err = w.Store.SweepTasks(bg(), w.keeper, r.Next, 6); err != nil || r.Looked != 0 || r.Next != "" {
		w.t.Errorf("after the last: %+v, %v", r, err)
	}
}

func sweepLost(w *world) {
	a := w.host("h1", 1)
	fresh := w.submit(withPriority(4), queueTimeout(time.Minute))
	w.exec("DELETE FROM queue WHERE task_id = '%s'", fresh.ID)
	w.repaired(berth.Transition{Task: fresh.ID, To: berth.StateQueued, Reason: berth.ReasonFoundLost})
	task := w.state(fresh.ID, berth.StateQueued)
	if h := w.headOf(fresh.ID); h.Number != 1 || h.Rank != berth.RankOf(task.SubmittedAt, 4, w.pool.AgeingStep) || !task.GiveUpAt.Equal(w.Clock.Now().Add(time.Minute)) {
		w.t.Errorf("head %+v, gives up at %v", h, task.GiveUpAt)
	}
	w.cancel(fresh.ID)
	later := w.Clock.Now().Add(time.Hour)
	scheduled := w.submit(notBefore(later), queueTimeout(time.Minute))
	w.exec("DELETE FROM delayed WHERE task_id = '%s'", scheduled.ID)
	w.repaired(berth.Transition{Task: scheduled.ID, To: berth.StateScheduled, Reason: berth.ReasonFoundLost})
	if task := w.state(scheduled.ID, berth.StateScheduled); !task.DueAt.Equal(later) || !task.GiveUpAt.Equal(later.Add(time.Minute)) {
		w.t.Errorf("due at %v, gives up at %v", task.DueAt, task.GiveUpAt)
	}
	w.cancel(scheduled.ID)
	tried := a.failed()
	w.exec("DELETE FROM delayed WHERE task_id = '%s'", tried)
	w.repaired(berth.Transition{Task: tried, To: berth.StateQueued, Reason: berth.ReasonFoundLost})
	if as := a.again(tried); as.Number != 2 {
		w.t.Errorf("attempt %+v", as)
	}
}

func sweepLostForGood(w *world) {
	a := w.host("h1", 1)
	spent := a.failed(maxAttempts(2))
	w.exec("DELETE FROM delayed WHERE task_id = '%s'", spent)
	w.exec("UPDATE tasks SET budget = 1 WHERE id = '%s'", spent)
	w.repaired(berth.Transition{Task: spent, To: berth.StateDeadLetter, Reason: berth.ReasonFoundLost})
	w.state(spent, berth.StateDeadLetter)
	stopped := a.failed()
	w.exec("DELETE FROM delayed WHERE task_id = '%s'", stopped)
	w.exec("UPDATE attempts SET cancel_requested_at = ended_at WHERE task_id = '%s'", stopped)
	w.repaired(berth.Transition{Task: stopped, To: berth.StateCancelled, Reason: berth.ReasonFoundLost})
	w.state(stopped, berth.StateCancelled)
}

const secondToken = "INSERT INTO queue (task_id, class_id, rank, number) SELECT id, class_id, rank, 7 FROM tasks WHERE id = '%s'"

func sweepTwoTokens(w *world) {
	task := w.submit(notBefore(w.Clock.Now().Add(time.Hour)))
	w.exec(secondToken, task.ID)
	w.exec("UPDATE queue SET number = 1 WHERE task_id = '%s'", task.ID)
	w.repaired(berth.Transition{Task: task.ID, From: berth.StateQueued, To: berth.StateQueued, Reason: berth.ReasonFoundTwice})
	w.state(task.ID, berth.StateQueued)
}

func sweepTokenBesideAttempt(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.exec(secondToken, as.Task)
	w.repaired(berth.Transition{
		Task: as.Task, From: berth.StateRunning, To: berth.StateRunning, Reason: berth.ReasonFoundTwice,
		Attempt: as.Attempt, Number: 1, Fence: as.Fence, Device: as.Device, Host: a.id,
	})
	a.completed(as, berth.OutcomeSucceeded)
}

func sweepFinished(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.completed(as, berth.OutcomeSucceeded)
	w.exec(secondToken, as.Task)
	w.repaired(berth.Transition{Task: as.Task, From: berth.StateSucceeded, To: berth.StateSucceeded, Reason: berth.ReasonFoundTwice})
	w.state(as.Task, berth.StateSucceeded)
}

func sweepUnrepairable(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.exec("UPDATE tasks SET final_state = 'succeeded', final_reason = 'succeeded', finished_at = submitted_at WHERE id = '%s'", as.Task)
	if r := w.sweep(); r.Wrong != 1 || len(r.Repaired) != 0 || len(r.Unrepaired) != 1 || r.Unrepaired[0] != as.Task {
		w.t.Errorf("sweep: %+v", r)
	}
	w.exec("UPDATE tasks SET final_state = NULL, final_reason = NULL, finished_at = NULL WHERE id = '%s'", as.Task)
}

// sweepGoesOn fails the first repair.
func sweepGoesOn(w *world) {
	s, hk := w.hooked()
	ids := []berth.TaskID{w.submit().ID, w.submit().ID}
	w.exec("DELETE FROM queue")
	hk.arm(1, func(context.Context) error { return errors.New("broken") })
	r, err := s.SweepTasks(bg(), w.keeper, "", 10)
	hk.disarm()
	if err == nil || len(r.Repaired) != 1 || r.Repaired[0].Task != ids[1] {
		w.t.Errorf("sweep: %+v, %v", r, err)
	}
	w.repaired(berth.Transition{Task: ids[0], To: berth.StateQueued, Reason: berth.ReasonFoundLost})
}

// sweepUnderLoad moves tasks through all places while a keeper sweeps.
func sweepUnderLoad(w *world) {
	const movers, tasks = 3, 12
	done := make(chan struct{})
	var group sync.WaitGroup
	for i := range movers {
		o := w.another(w.t)
		group.Go(func() {
			a := o.host([]string{"a", "b", "c"}[i], 2)
			for range tasks {
				as := a.running()
				a.completed(as, berth.OutcomeFailed)
				o.retry(as.Task, 0)
				a.completed(a.again(as.Task), berth.OutcomeSucceeded)
			}
		})
	}
	go func() { group.Wait(); close(done) }()
	s := w.second()
	for rounds := 0; ; rounds++ {
		for after := berth.TaskID(""); ; {
			r, err := s.SweepTasks(bg(), w.keeper, after, 10)
			if err != nil || r.Wrong != 0 {
				w.t.Errorf("sweep %d: %+v, %v", rounds, r, err)
			}
			if after = r.Next; after == "" {
				break
			}
		}
		select {
		case <-done:
			if rounds < 3 {
				w.t.Errorf("only %d sweeps met the load", rounds)
			}
			return
		default:
		}
	}
}
