package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// CancelTask is documented at store.Tasks. It reads where the task is, takes
// that place's row, and starts over when somebody else was first.
func (s *Store) CancelTask(ctx context.Context, p store.TaskParams) (k berth.Task, moves []berth.Transition, err error) {
	err = s.write(ctx, "CancelTask", func(t *tx) error {
		moves = nil
		k, err = t.task(p.Scope, p.Task)
		if err != nil {
			return err
		}
		switch {
		case k.State == berth.StateCancelled, k.CancelRequested:
			return nil
		case k.State.Finished():
			return &berth.WrongStateError{Thing: "task", State: string(k.State), Message: "only an unfinished task can be cancelled"}
		case k.State.Live():
			moves, err = t.cancelLive(p, k)
		default:
			moves, err = t.cancelWaiting(p, k)
		}
		if err != nil {
			return err
		}
		k, err = t.task(p.Scope, p.Task)
		return err
	})
	return committed(k, moves, err)
}

// takeToken removes a waiting task's row, whichever place it is in. Zero rows
// mean that somebody else moved the task: start over.
func (t *tx) takeToken(k berth.Task) (token, error) {
	sql := `DELETE FROM queue WHERE task_id = $1 RETURNING class_id, rank, number, give_up_at, last_host, last_device`
	if k.State != berth.StateQueued {
		sql = `DELETE FROM delayed WHERE task_id = $1 RETURNING class_id, rank, number, give_up_at, last_host, last_device`
	}
	tok, ok, err := first(t, func(row pgx.CollectableRow) (r token, err error) {
		r.task = k.ID
		return r, row.Scan(&r.class, &r.rank, &r.number, instant(&r.giveUpAt), nullable(&r.lastHost), nullable(&r.lastDevice))
	}, sql, uid(k.ID))
	if err == nil && !ok {
		err = errStartOver
	}
	return tok, err
}

func (t *tx) cancelWaiting(p store.TaskParams, k berth.Task) ([]berth.Transition, error) {
	if _, err := t.takeToken(k); err != nil {
		return nil, err
	}
	return t.cancelTaken(p, k)
}

// cancelTaken cancels a waiting task whose token was taken.
func (t *tx) cancelTaken(p store.TaskParams, k berth.Task) ([]berth.Transition, error) {
	if err := t.lockTasks([]berth.TaskID{k.ID}); err != nil {
		return nil, err
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	if err := t.finishTasks(now, []finished{{task: k.ID, state: berth.StateCancelled, reason: berth.ReasonCancelled}}); err != nil {
		return nil, err
	}
	t.hint(store.HintTask, string(k.ID))
	moves := []berth.Transition{{
		Event: berth.EventCancelled, Task: k.ID, From: k.State, To: berth.StateCancelled, Reason: berth.ReasonCancelled,
		Pool: k.Pool, CorrelationID: k.CorrelationID, At: now,
	}}
	return moves, t.audit(p.Actor, moves)
}

// cancelLive ends an attempt that was not started, or asks a running one to
// stop.
func (t *tx) cancelLive(p store.TaskParams, k berth.Task) ([]berth.Transition, error) {
	keys, err := t.lockForEnd([]berth.AttemptID{k.Attempt}, "")
	if err != nil {
		return nil, err
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	loaded, err := t.load(attemptsOf(keys))
	if err != nil {
		return nil, err
	}
	if len(loaded) != 1 || loaded[0].ended() {
		return nil, errStartOver
	}
	a := loaded[0]
	switch {
	case !a.state.Started():
		return t.endAttempts(p.Actor, now, []*end{{
			live: a, outcome: berth.OutcomeCancelled, reason: berth.ReasonCancelled, by: berth.EndedByCancel,
		}})
	case !a.cancelAt.IsZero():
		return nil, nil
	}
	return t.askToStop(p.Actor, a, now)
}

// askToStop marks a running attempt and moves the bound of its work nearer.
func (t *tx) askToStop(actor berth.Actor, a *live, now time.Time) ([]berth.Transition, error) {
	if _, err := t.exec(`UPDATE attempts SET cancel_requested_at = $3 WHERE task_id = $1 AND number = $2`,
		uid(a.task), a.number, now); err != nil {
		return nil, err
	}
	if _, err := t.exec(`UPDATE leases SET kill_by = $3 WHERE device_id = $1 AND attempt_id = $2`,
		uid(a.device), uid(a.id), t.s.timings.KillBy(a.startedAt, a.runTimeout, now)); err != nil {
		return nil, err
	}
	t.hint(store.HintAssigned, string(a.host))
	t.hint(store.HintTask, string(a.task))
	moves := []berth.Transition{a.transition(berth.EventCancelRequested, berth.StateRunning, berth.StateRunning, now)}
	return moves, t.audit(actor, moves)
}

// RetryTask is documented at store.Tasks.
func (s *Store) RetryTask(ctx context.Context, p store.RetryParams) (k berth.Task, moves []berth.Transition, err error) {
	err = s.write(ctx, "RetryTask", func(t *tx) error {
		moves = nil
		_, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(p.Task)})
		if err != nil {
			return err
		}
		k, err = t.task(p.Scope, p.Task)
		if err != nil || replayed {
			return err
		}
		switch k.State {
		case berth.StateFailed:
			moves, err = t.retryNow(p, k)
		case berth.StateDeadLetter:
			moves, err = t.revive(p, k)
		default:
			return &berth.WrongStateError{
				Thing: "task", State: string(k.State), Message: "only a dead_letter task, or a failed one that waits for its retry, can be retried",
			}
		}
		if err != nil {
			return err
		}
		k, err = t.task(p.Scope, p.Task)
		return err
	})
	return committed(k, moves, err)
}

// retryNow moves a failed task from its backoff to the queue.
func (t *tx) retryNow(p store.RetryParams, k berth.Task) ([]berth.Transition, error) {
	tok, err := t.takeToken(k)
	if err != nil {
		return nil, err
	}
	return t.requeueByHand(p, k, tok, k.Budget)
}

// revive takes a dead-lettered task back. It has no token: its own row decides.
func (t *tx) revive(p store.RetryParams, k berth.Task) ([]berth.Transition, error) {
	// Attempts are locked before tasks, also ended ones.
	if _, err := t.exec(`
WITH backs AS MATERIALIZED (
    SELECT task_id, number FROM attempts WHERE task_id = $1 AND outcome = 'released' AND NOT uncounted ORDER BY number FOR NO KEY UPDATE)
UPDATE attempts a SET uncounted = true FROM backs b WHERE a.task_id = b.task_id AND a.number = b.number`, uid(k.ID)); err != nil {
		return nil, err
	}
	if err := t.lockTasks([]berth.TaskID{k.ID}); err != nil {
		return nil, err
	}
	type row struct {
		state         string
		rank          berth.Rank
		tries, number int
		now           time.Time
	}
	r, ok, err := first(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.state, &r.rank, &r.tries, &r.number, &r.now)
	}, `
SELECT COALESCE(t.final_state, ''), t.rank, n.tries, n.last, berth_now()
FROM tasks t CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.outcome IS DISTINCT FROM 'released') AS tries, COALESCE(max(x.number), 0) AS last
    FROM attempts x WHERE x.task_id = t.id) n
WHERE t.id = $1`, uid(k.ID))
	if err != nil {
		return nil, err
	}
	if !ok || berth.TaskState(r.state) != berth.StateDeadLetter {
		return nil, errStartOver
	}
	tok := token{task: k.ID, class: k.Class, rank: r.rank, number: r.number + 1}
	if k.QueueTimeout > 0 {
		tok.giveUpAt = r.now.Add(k.QueueTimeout)
	}
	budget := r.tries + max(1, p.AddTries)
	if _, err := t.exec(`
UPDATE tasks SET budget = $2, final_state = NULL, final_reason = NULL, finished_at = NULL, result = NULL, cause_key = NULL WHERE id = $1`,
		uid(k.ID), budget); err != nil {
		return nil, err
	}
	return t.requeueByHand(p, k, tok, budget)
}

func (t *tx) requeueByHand(p store.RetryParams, k berth.Task, tok token, budget int) ([]berth.Transition, error) {
	edited := !p.Payload.IsZero()
	if edited {
		if err := t.lockTasks([]berth.TaskID{k.ID}); err != nil {
			return nil, err
		}
		if _, err := t.exec(`UPDATE tasks SET payload = $2 WHERE id = $1`, uid(k.ID), cleanJSON(p.Payload.Reveal())); err != nil {
			return nil, err
		}
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	if err := t.insertTokens([]token{tok}); err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	t.hint(store.HintWork, string(k.Pool))
	t.hint(store.HintTask, string(k.ID))
	moves := []berth.Transition{{
		Event: berth.EventRetriedByHand, Task: k.ID, From: k.State, To: berth.StateQueued, Pool: k.Pool,
		CorrelationID: k.CorrelationID, At: now,
	}}
	return moves, t.auditMove(p.Actor, moves[0], berth.RetryFacts(k.Budget, false), berth.RetryFacts(budget, edited))
}
