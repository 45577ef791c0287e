package postgres

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// SetTaskPriority is documented at store.Operators. The token, or the live
// attempt, is held before the task's rank is written, so whoever moves the task
// on reads one rank or the other, never half of each.
func (s *Store) SetTaskPriority(ctx context.Context, p store.TaskParams, priority int) (k berth.Task, moves []berth.Transition, err error) {
	if err := berth.CheckPriority("priority", priority); err != nil {
		return berth.Task{}, nil, err
	}
	err = s.write(ctx, "SetTaskPriority", func(t *tx) error {
		moves = nil
		k, err = t.task(p.Scope, p.Task)
		switch {
		case err != nil:
			return err
		case k.State.Finished():
			return &berth.WrongStateError{Thing: "task", State: string(k.State), Message: "only an unfinished task has an order to change"}
		case k.Priority == priority:
			return nil
		}
		if moves, err = t.prioritise(p, k, priority); err != nil {
			return err
		}
		k, err = t.task(p.Scope, p.Task)
		return err
	})
	return committed(k, moves, err)
}

func (t *tx) prioritise(p store.TaskParams, k berth.Task, priority int) ([]berth.Transition, error) {
	pool, err := found(t, "pool", scanPool, poolColumns+` WHERE id = $1`, uid(k.Pool))
	if err != nil {
		return nil, err
	}
	rank := berth.RankOf(k.SubmittedAt, priority, pool.AgeingStep)
	switch {
	case k.State.Live():
		err = t.holdLive(k)
	case k.State == berth.StateQueued:
		var tok token
		if tok, err = t.takeToken(k); err == nil {
			tok.rank = rank
			err = t.insertTokens([]token{tok})
		}
	default:
		var n int64
		if n, err = t.exec(`UPDATE delayed SET rank = $2 WHERE task_id = $1`, uid(k.ID), int64(rank)); err == nil && n == 0 {
			err = errStartOver
		}
	}
	if err != nil {
		return nil, err
	}
	if err := t.lockTasks([]berth.TaskID{k.ID}); err != nil {
		return nil, err
	}
	if _, err := t.exec(`UPDATE tasks SET priority = $2, rank = $3 WHERE id = $1`, uid(k.ID), priority, int64(rank)); err != nil {
		return nil, err
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	t.hint(store.HintWork, string(k.Pool))
	t.hint(store.HintTask, string(k.ID))
	moves := []berth.Transition{{
		Event: berth.EventReprioritised, Task: k.ID, From: k.State, To: k.State, Reason: berth.PriorityReason(priority),
		Pool: k.Pool, CorrelationID: k.CorrelationID, At: now,
	}}
	return moves, t.auditMove(p.Actor, moves[0], berth.NumberFacts("priority", k.Priority), berth.NumberFacts("priority", priority))
}

// holdLive locks a task's live attempt; one that ended meanwhile starts over.
func (t *tx) holdLive(k berth.Task) error {
	if _, err := t.lockAttempts([]berth.AttemptID{k.Attempt}, ""); err != nil {
		return err
	}
	live, _, err := first(t, column[bool], `SELECT ended_at IS NULL AND state = $2 FROM attempts WHERE id = $1`, uid(k.Attempt), string(k.State))
	if err == nil && !live {
		err = errStartOver
	}
	return err
}

// SetPoolPaused is documented at store.Operators.
func (s *Store) SetPoolPaused(ctx context.Context, actor berth.Actor, name string, paused bool) (pool berth.Pool, err error) {
	err = s.write(ctx, "SetPoolPaused", func(t *tx) error {
		changed, ok, err := first(t, scanPool, `
UPDATE pools SET paused = $2 WHERE name = $1 AND paused <> $2 RETURNING id, name, paused, ageing_step_us, created_at`, clean(name), paused)
		if err != nil {
			return err
		}
		if !ok {
			pool, err = found(t, "pool", scanPool, poolColumns+` WHERE name = $1`, clean(name))
			return err
		}
		pool = changed
		now, err := t.now()
		if err != nil {
			return err
		}
		action := berth.AuditPoolResumed
		if paused {
			action = berth.AuditPoolPaused
		} else {
			t.hint(store.HintWork, string(pool.ID))
		}
		before, after := berth.FlagFacts("paused", paused)
		return t.auditChange(actor, now, action, "pool", string(pool.ID), before, after)
	})
	return only(pool, err)
}
