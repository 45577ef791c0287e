package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// allPlaces looks at every place of tasks in one statement, that is in one
// snapshot: with two, a task that moves between them would be in none or in both.
// Each place is asked by key; OFFSET 0 keeps the planner from joining over all of
// the queue.
const allPlaces = `
SELECT t.id, COALESCE(t.final_state, ''), q.task_id IS NOT NULL, COALESCE(d.kind, ''), COALESCE(a.state, '')
FROM page t
LEFT JOIN LATERAL (SELECT q.task_id FROM queue q WHERE q.task_id = t.id OFFSET 0) q ON true
LEFT JOIN LATERAL (SELECT d.kind FROM delayed d WHERE d.task_id = t.id OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT a.state FROM attempts a WHERE a.task_id = t.id AND a.ended_at IS NULL OFFSET 0) a ON true
ORDER BY t.id`

type foundTask struct {
	task berth.TaskID
	berth.Places
}

func scanPlaces(row pgx.CollectableRow) (p foundTask, err error) {
	err = row.Scan(&p.task, &p.Final, &p.Queued, &p.Kind, &p.Live)
	p.Delayed = p.Kind != ""
	return p, err
}

// SweepTasks is documented at store.Keeping.
func (s *Store) SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (r store.SweepResult, err error) {
	var page []foundTask
	if err := s.read(ctx, "SweepTasks", func(t *tx) error {
		page, err = collect(t, scanPlaces, `
WITH page AS MATERIALIZED (SELECT id, final_state FROM tasks WHERE id > COALESCE($1::uuid, '00000000-0000-0000-0000-000000000000') ORDER BY id LIMIT $2)`+allPlaces,
			uid(after), max(1, limit))
		return err
	}); err != nil {
		return r, err
	}
	r.Looked = len(page)
	if len(page) >= max(1, limit) {
		r.Next = page[len(page)-1].task
	}
	var fault error
	for _, found := range page {
		if !found.Wrong() {
			continue
		}
		if err := s.repair(ctx, actor, found.task, &r); err != nil && fault == nil {
			fault = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return r, fault
}

// repair locks the task's places in their order, then the task, and looks again.
func (s *Store) repair(ctx context.Context, actor berth.Actor, id berth.TaskID, r *store.SweepResult) error {
	var wrong, repaired bool
	var move berth.Transition
	err := s.write(ctx, "SweepTasks", func(t *tx) error {
		wrong, repaired = false, false
		locked, err := t.lockPlaces(id)
		if err != nil {
			return err
		}
		now, ok, err := first(t, scanPlaces, `WITH page AS MATERIALIZED (SELECT id, final_state FROM tasks WHERE id = $1)`+allPlaces, uid(id))
		if err != nil || !ok || !now.Wrong() {
			return err
		}
		if now.Queued && !locked.Queued || now.Delayed && !locked.Delayed || now.Live != "" && locked.Live == "" {
			return errStartOver
		}
		wrong = true
		move, repaired, err = t.repair(actor, now)
		return err
	})
	if err != nil || !wrong {
		return err
	}
	r.Wrong++
	if repaired {
		r.Repaired = append(r.Repaired, move)
	} else {
		r.Unrepaired = append(r.Unrepaired, id)
	}
	return nil
}

// lockPlaces locks whatever says where a task is, and the task.
func (t *tx) lockPlaces(id berth.TaskID) (p berth.Places, err error) {
	n, err := t.exec(`SELECT 1 FROM queue WHERE task_id = $1 FOR NO KEY UPDATE`, uid(id))
	if err != nil {
		return p, err
	}
	p.Queued = n > 0
	if n, err = t.exec(`SELECT 1 FROM delayed WHERE task_id = $1 FOR NO KEY UPDATE`, uid(id)); err != nil {
		return p, err
	}
	p.Delayed = n > 0
	live, err := collect(t, column[berth.AttemptState], `
SELECT state FROM attempts WHERE task_id = $1 AND ended_at IS NULL ORDER BY number FOR NO KEY UPDATE`, uid(id))
	if err != nil {
		return p, err
	}
	if len(live) > 0 {
		p.Live = live[0]
	}
	return p, t.lockTasks([]berth.TaskID{id})
}

// strayed is what the repair of a task needs to know of it.
type strayed struct {
	token
	pool          berth.PoolID
	correlation   string
	tries, budget int
	cancelled     bool
	queueTimeout  time.Duration
	notBefore     time.Time
	now           time.Time
	live          berth.Transition // coordinates of the live attempt
}

func (t *tx) repair(actor berth.Actor, p foundTask) (move berth.Transition, repaired bool, err error) {
	k, err := t.strayed(p.task)
	if err != nil {
		return move, false, err
	}
	fix, ok := berth.RepairOf(p.Places, k.tries, k.budget, k.cancelled, k.notBefore.After(k.now))
	if !ok {
		return move, false, nil
	}
	if fix.DropQueued {
		if _, err := t.exec(`DELETE FROM queue WHERE task_id = $1`, uid(p.task)); err != nil {
			return move, false, err
		}
	}
	if fix.DropDelayed {
		if _, err := t.exec(`DELETE FROM delayed WHERE task_id = $1`, uid(p.task)); err != nil {
			return move, false, err
		}
	}
	switch {
	case fix.Requeue, fix.Schedule:
		from := k.now
		if fix.Schedule {
			from, k.kind, k.dueAt = k.notBefore, berth.StateScheduled, k.notBefore
		}
		if k.queueTimeout > 0 {
			k.giveUpAt = from.Add(k.queueTimeout)
		}
		err = t.insertTokens([]token{k.token})
		t.hint(store.HintWork, string(k.pool))
	case fix.Final != "":
		err = t.finishTasks(k.now, []finished{{task: p.task, class: k.class, state: fix.Final, reason: fix.Reason, ended: fix.Reason}})
	}
	if err != nil {
		return move, false, err
	}
	t.hint(store.HintTask, string(p.task))
	move = k.live
	move.Event, move.Task, move.From, move.To, move.Reason = berth.EventRepaired, p.task, p.State(), fix.To, fix.Reason
	move.Pool, move.CorrelationID, move.At = k.pool, k.correlation, k.now
	return move, true, t.audit(actor, []berth.Transition{move})
}

func (t *tx) strayed(id berth.TaskID) (strayed, error) {
	return found(t, "task", func(row pgx.CollectableRow) (k strayed, err error) {
		var us int64
		k.task = id
		err = row.Scan(&k.class, &k.rank, &k.pool, &k.correlation, &k.budget, &us, &k.tries, &k.number, &k.cancelled, instant(&k.notBefore),
			nullable(&k.live.Attempt), &k.live.Number, &k.live.Fence, nullable(&k.live.Device), nullable(&k.live.Host), &k.now)
		k.queueTimeout = microseconds(us)
		return k, err
	}, `
SELECT t.class_id, t.rank, t.pool_id, t.correlation_id, t.budget, t.queue_timeout_us, n.tries, n.last + 1,
       EXISTS (SELECT 1 FROM attempts x WHERE x.task_id = t.id AND x.number = n.last AND x.cancel_requested_at IS NOT NULL), t.not_before,
       a.id, COALESCE(a.number, 0), COALESCE(a.fence, 0), a.device_id, a.host_id, berth_now()
FROM tasks t
LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.outcome IS DISTINCT FROM 'released') AS tries, COALESCE(max(x.number), 0) AS last
    FROM attempts x WHERE x.task_id = t.id) n
WHERE t.id = $1`, uid(id))
}
