package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// waiting is a locked token with what a transition says of its task.
type waiting struct {
	token
	from        berth.TaskState
	pool        berth.PoolID
	correlation string
	now         time.Time
}

func scanWaiting(row pgx.CollectableRow) (w waiting, err error) {
	return w, row.Scan(&w.task, &w.from, &w.class, &w.rank, &w.number, instant(&w.giveUpAt), nullable(&w.lastHost),
		nullable(&w.lastDevice), &w.pool, &w.correlation, &w.now)
}

func (w waiting) transition(event berth.Event, to berth.TaskState, reason string) berth.Transition {
	return berth.Transition{
		Event: event, Task: w.task, From: w.from, To: to, Reason: reason, Pool: w.pool, CorrelationID: w.correlation, At: w.now,
	}
}

// PromoteDue is documented at store.Scheduling.
func (s *Store) PromoteDue(ctx context.Context, actor berth.Actor, limit int) (moves []berth.Transition, err error) {
	err = s.write(ctx, "PromoteDue", func(t *tx) error {
		moves = nil
		due, err := collect(t, scanWaiting, `
WITH due AS MATERIALIZED (
    SELECT * FROM delayed WHERE due_at <= (SELECT berth_now())
    ORDER BY due_at, task_id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
)
SELECT d.task_id, d.kind, d.class_id, d.rank, d.number, d.give_up_at, d.last_host, d.last_device, t.pool_id, t.correlation_id, n.now
FROM due d JOIN tasks t ON t.id = d.task_id, (SELECT berth_now() AS now OFFSET 0) n
ORDER BY d.due_at, d.task_id`, max(0, limit))
		if err != nil || len(due) == 0 {
			return err
		}
		if err := t.removeTokens(`DELETE FROM delayed WHERE task_id = ANY ($1)`, due); err != nil {
			return err
		}
		if err := t.insertTokens(mapped(due, func(w waiting) token { return w.token })); err != nil {
			return err
		}
		for _, w := range due {
			moves = append(moves, w.transition(berth.EventQueued, berth.StateQueued, ""))
			t.hint(store.HintWork, string(w.pool))
			t.hint(store.HintTask, string(w.task))
		}
		return t.audit(actor, moves)
	})
	return only(moves, err)
}

// removeTokens deletes locked tokens by their key.
func (t *tx) removeTokens(sql string, rows []waiting) error {
	n, err := t.exec(sql, mapped(rows, func(w waiting) pgtype.UUID { return uid(w.task) }))
	if err == nil && n != int64(len(rows)) {
		err = &dbError{op: t.op, what: "a token that was locked is not there"}
	}
	return err
}

// GiveUp is documented at store.Scheduling.
func (s *Store) GiveUp(ctx context.Context, actor berth.Actor, limit int) (moves []berth.Transition, err error) {
	err = s.write(ctx, "GiveUp", func(t *tx) error {
		moves = nil
		queued, err := t.overdue(`SELECT *, 'queued' AS kind FROM queue WHERE give_up_at <= (SELECT berth_now())`, limit)
		if err != nil {
			return err
		}
		failed, err := t.overdue(`SELECT * FROM delayed WHERE kind = 'failed' AND give_up_at <= (SELECT berth_now())`, limit-len(queued))
		if err != nil || len(queued)+len(failed) == 0 {
			return err
		}
		if err := t.removeTokens(`DELETE FROM queue WHERE task_id = ANY ($1)`, queued); err != nil {
			return err
		}
		if err := t.removeTokens(`DELETE FROM delayed WHERE task_id = ANY ($1)`, failed); err != nil {
			return err
		}
		all := slices.Concat(queued, failed)
		if err := t.lockTasks(mapped(all, func(w waiting) berth.TaskID { return w.task })); err != nil {
			return err
		}
		if err := t.finishTasks(all[0].now, mapped(all, func(w waiting) finished {
			return finished{
				task: w.task, class: w.class, state: berth.StateDeadLetter, reason: berth.ReasonQueueTimeout, ended: berth.ReasonQueueTimeout,
			}
		})); err != nil {
			return err
		}
		for _, w := range all {
			moves = append(moves, w.transition(berth.EventFailed, berth.StateDeadLetter, berth.ReasonQueueTimeout))
			t.hint(store.HintTask, string(w.task))
		}
		return t.audit(actor, moves)
	})
	return only(moves, err)
}

// overdue locks at most limit tokens of one place whose time to be given up has
// passed, the earliest first.
func (t *tx) overdue(from string, limit int) ([]waiting, error) {
	if limit <= 0 {
		return nil, nil
	}
	return collect(t, scanWaiting, `
WITH due AS MATERIALIZED (`+from+` ORDER BY give_up_at, task_id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED)
SELECT d.task_id, d.kind, d.class_id, d.rank, d.number, d.give_up_at, d.last_host, d.last_device, t.pool_id, t.correlation_id, n.now
FROM due d JOIN tasks t ON t.id = d.task_id, (SELECT berth_now() AS now OFFSET 0) n
ORDER BY d.give_up_at, d.task_id`, limit)
}

// SchedulablePools is documented at store.Scheduling.
func (s *Store) SchedulablePools(ctx context.Context) (pools []berth.PoolID, err error) {
	err = s.read(ctx, "SchedulablePools", func(t *tx) error {
		pools, err = collect(t, column[berth.PoolID], `SELECT id FROM pools WHERE NOT paused ORDER BY id`)
		return err
	})
	return pools, err
}
