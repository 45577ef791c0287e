package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// SetTaskPriority implements store.Operators.
func (s *Store) SetTaskPriority(ctx context.Context, p store.TaskParams, priority int) (task berth.Task, trs []berth.Transition, err error) {
	if err := berth.CheckPriority("priority", priority); err != nil {
		return berth.Task{}, nil, err
	}
	err = s.write(ctx, "SetTaskPriority", func(t *tx) error {
		trs = nil
		task, err = loadTask(t, p.Scope, p.Task)
		switch {
		case err != nil:
			return err
		case task.State.Finished():
			return &berth.WrongStateError{Thing: "task", State: string(task.State), Message: "only an unfinished task has an order to change"}
		case task.Priority == priority:
			return nil
		}
		tr, err := prioritise(t, p.Actor, task, priority)
		if err != nil {
			return err
		}
		trs = []berth.Transition{tr}
		task, err = loadTask(t, p.Scope, p.Task)
		return err
	})
	if err != nil {
		return berth.Task{}, nil, err
	}
	return task, trs, nil
}

func prioritise(t *tx, actor berth.Actor, task berth.Task, priority int) (berth.Transition, error) {
	pool, ok, err := queryOne(t, scanPool, poolSelect+" WHERE id = ?1", task.Pool)
	if err != nil || !ok {
		return berth.Transition{}, orElse(err, "pool %s is not there", task.Pool)
	}
	rank := berth.RankOf(task.SubmittedAt, priority, pool.AgeingStep)
	switch task.State {
	case berth.StateQueued:
		k, ok, err := takeToken(t, task.ID)
		if err != nil || !ok {
			return berth.Transition{}, orElse(err, "task %s is in no place", task.ID)
		}
		k.rank = rank
		if err := enqueue(t, k, task.Pool); err != nil {
			return berth.Transition{}, err
		}
	case berth.StateScheduled, berth.StateFailed:
		if err := t.execOne("UPDATE delayed SET rank = ?2 WHERE task_id = ?1", task.ID, rank); err != nil {
			return berth.Transition{}, err
		}
	}
	if err := t.execOne("UPDATE tasks SET priority = ?2, rank = ?3 WHERE id = ?1", task.ID, priority, rank); err != nil {
		return berth.Transition{}, err
	}
	hintOf(t, store.HintTask, task.ID)
	tr := taskTransition(t, task, berth.EventReprioritised, task.State, berth.PriorityReason(priority))
	return tr, auditMove(t, actor, tr, berth.NumberFacts("priority", task.Priority), berth.NumberFacts("priority", priority))
}

// SetPoolPaused implements store.Operators.
func (s *Store) SetPoolPaused(ctx context.Context, actor berth.Actor, name string, paused bool) (pool berth.Pool, err error) {
	err = s.write(ctx, "SetPoolPaused", func(t *tx) error {
		n, err := t.exec("UPDATE pools SET paused = ?2 WHERE name = ?1 AND paused <> ?2", name, paused)
		if err != nil {
			return err
		}
		var ok bool
		pool, ok, err = queryOne(t, scanPool, poolSelect+" WHERE name = ?1", name)
		switch {
		case err != nil:
			return err
		case !ok:
			return notFound("pool")
		case n == 0:
			return nil
		}
		action := berth.AuditPoolResumed
		if paused {
			action = berth.AuditPoolPaused
		} else {
			hintOf(t, store.HintWork, pool.ID)
		}
		before, after := berth.FlagFacts("paused", paused)
		return auditChange(t, actor, action, "pool", string(pool.ID), before, after)
	})
	if err != nil {
		return berth.Pool{}, err
	}
	return pool, nil
}
