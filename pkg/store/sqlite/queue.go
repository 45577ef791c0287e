package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// token is a waiting task's one row in queue or delayed. Whoever removes it
// decides what comes next.
type token struct {
	task       berth.TaskID
	class      berth.ClassID
	rank       berth.Rank
	number     int // of the next attempt
	giveUp     time.Time
	lastHost   berth.HostID
	lastDevice berth.DeviceID
}

const tokenColumns = "task_id, class_id, rank, number, give_up_at, last_host, last_device"

func scanToken(r row) (k token, err error) {
	return k, r.Scan(&k.task, &k.class, &k.rank, &k.number, at(&k.giveUp), opt(&k.lastHost), opt(&k.lastDevice))
}

// takeToken removes a waiting task's token; ok is false when it does not wait.
func takeToken(t *tx, id berth.TaskID) (k token, ok bool, err error) {
	k, ok, err = queryOne(t, scanToken, "DELETE FROM queue WHERE task_id = ?1 RETURNING "+tokenColumns, id)
	if err != nil || ok {
		return k, ok, err
	}
	return queryOne(t, scanToken, "DELETE FROM delayed WHERE task_id = ?1 RETURNING "+tokenColumns, id)
}

// enqueue puts a token in the queue.
func enqueue(t *tx, k token, pool berth.PoolID) error {
	hintOf(t, store.HintWork, pool)
	hintOf(t, store.HintTask, k.task)
	return t.execOne("INSERT INTO queue ("+tokenColumns+") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
		k.task, k.class, k.rank, k.number, micros(k.giveUp), null(k.lastHost), null(k.lastDevice))
}

// delay puts a token in delayed until due; state is scheduled or failed.
func delay(t *tx, k token, state berth.TaskState, due time.Time) error {
	hintOf(t, store.HintTask, k.task)
	return t.execOne("INSERT INTO delayed ("+tokenColumns+", kind, due_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
		k.task, k.class, k.rank, k.number, micros(k.giveUp), null(k.lastHost), null(k.lastDevice), state, micros(due))
}

// waiting is a token with what a transition needs of its task.
type waiting struct {
	token
	state         berth.TaskState
	pool          berth.PoolID
	correlationID string
}

func scanWaiting(r row) (w waiting, err error) {
	return w, r.Scan(&w.task, &w.class, &w.rank, &w.number, at(&w.giveUp), opt(&w.lastHost), opt(&w.lastDevice),
		&w.state, &w.pool, &w.correlationID)
}

func (w waiting) transition(t *tx, event berth.Event, to berth.TaskState, reason string) berth.Transition {
	return taskTransition(t, berth.Task{ID: w.task, State: w.state, Pool: w.pool, CorrelationID: w.correlationID}, event, to, reason)
}

const waitingColumns = "w.task_id, w.class_id, w.rank, w.number, w.give_up_at, w.last_host, w.last_device"

// PromoteDue implements store.Scheduling.
func (s *Store) PromoteDue(ctx context.Context, actor berth.Actor, limit int) (trs []berth.Transition, err error) {
	err = s.write(ctx, "PromoteDue", func(t *tx) error {
		due, err := queryAll(t, scanWaiting, `SELECT `+waitingColumns+`, w.kind, t.pool_id, t.correlation_id
			FROM delayed w JOIN tasks t ON t.id = w.task_id
			WHERE w.due_at <= ?1 ORDER BY w.due_at, w.task_id LIMIT ?2`, micros(t.now), max(limit, 0))
		if err != nil {
			return err
		}
		for _, w := range due {
			if err := t.execOne("DELETE FROM delayed WHERE task_id = ?1", w.task); err != nil {
				return err
			}
			if err := enqueue(t, w.token, w.pool); err != nil {
				return err
			}
			tr := w.transition(t, berth.EventQueued, berth.StateQueued, "")
			if err := audit(t, actor, tr); err != nil {
				return err
			}
			trs = append(trs, tr)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return trs, nil
}

// GiveUp implements store.Scheduling.
func (s *Store) GiveUp(ctx context.Context, actor berth.Actor, limit int) (trs []berth.Transition, err error) {
	err = s.write(ctx, "GiveUp", func(t *tx) error {
		over, err := queryAll(t, scanWaiting, `SELECT `+waitingColumns+`, 'queued', t.pool_id, t.correlation_id
			FROM queue w JOIN tasks t ON t.id = w.task_id
			WHERE w.give_up_at IS NOT NULL AND w.give_up_at <= ?1 ORDER BY w.give_up_at, w.task_id LIMIT ?2`, micros(t.now), max(limit, 0))
		if err != nil {
			return err
		}
		failed, err := queryAll(t, scanWaiting, `SELECT `+waitingColumns+`, w.kind, t.pool_id, t.correlation_id
			FROM delayed w JOIN tasks t ON t.id = w.task_id
			WHERE w.give_up_at IS NOT NULL AND w.kind = 'failed' AND w.give_up_at <= ?1
			ORDER BY w.give_up_at, w.task_id LIMIT ?2`, micros(t.now), max(limit-len(over), 0))
		if err != nil {
			return err
		}
		for _, w := range append(over, failed...) {
			tr, err := giveUp(t, actor, w)
			if err != nil {
				return err
			}
			trs = append(trs, tr)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return trs, nil
}

func giveUp(t *tx, actor berth.Actor, w waiting) (berth.Transition, error) {
	if _, ok, err := takeToken(t, w.task); err != nil || !ok {
		return berth.Transition{}, orElse(err, "task %s is in no place", w.task)
	}
	if err := deadLetter(t, w.task, w.class, berth.ReasonQueueTimeout, berth.ReasonQueueTimeout, ""); err != nil {
		return berth.Transition{}, err
	}
	tr := w.transition(t, berth.EventFailed, berth.StateDeadLetter, berth.ReasonQueueTimeout)
	return tr, audit(t, actor, tr)
}
