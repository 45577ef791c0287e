package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// allPlaces looks at every place of tasks in one statement.
const allPlaces = `SELECT t.id, coalesce(t.final_state, ''), q.task_id IS NOT NULL, coalesce(d.kind, ''), coalesce(a.state, '')
	FROM tasks t
	LEFT JOIN queue q ON q.task_id = t.id
	LEFT JOIN delayed d ON d.task_id = t.id
	LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL`

type foundTask struct {
	task berth.TaskID
	berth.Places
}

func scanPlaces(r row) (p foundTask, err error) {
	err = r.Scan(&p.task, &p.Final, &p.Queued, &p.Kind, &p.Live)
	p.Delayed = p.Kind != ""
	return p, err
}

// SweepTasks implements store.Keeping.
func (s *Store) SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (r store.SweepResult, err error) {
	var page []foundTask
	err = s.read(ctx, "SweepTasks", func(t *tx) error {
		page, err = queryAll(t, scanPlaces, allPlaces+" WHERE t.id > ?1 ORDER BY t.id LIMIT ?2", after, max(1, limit))
		return err
	})
	if err != nil {
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

// repair looks again, as the only writer.
func (s *Store) repair(ctx context.Context, actor berth.Actor, id berth.TaskID, r *store.SweepResult) error {
	var wrong, repaired bool
	var tr berth.Transition
	err := s.write(ctx, "SweepTasks", func(t *tx) error {
		found, ok, err := queryOne(t, scanPlaces, allPlaces+" WHERE t.id = ?1", id)
		if err != nil || !ok || !found.Wrong() {
			return err
		}
		wrong = true
		tr, repaired, err = repair(t, actor, found)
		return err
	})
	if err != nil || !wrong {
		return err
	}
	r.Wrong++
	if repaired {
		r.Repaired = append(r.Repaired, tr)
	} else {
		r.Unrepaired = append(r.Unrepaired, id)
	}
	return nil
}

// strayed is what the repair of a task needs to know of it.
type strayed struct {
	token
	pool          berth.PoolID
	correlationID string
	tries, budget int
	cancelled     bool
	queueTimeout  time.Duration
	notBefore     time.Time
	live          berth.Transition // coordinates of the live attempt
}

func repair(t *tx, actor berth.Actor, p foundTask) (tr berth.Transition, repaired bool, err error) {
	k, err := loadStrayed(t, p.task)
	if err != nil {
		return tr, false, err
	}
	fix, ok := berth.RepairOf(p.Places, k.tries, k.budget, k.cancelled, k.notBefore.After(t.now))
	if !ok {
		return tr, false, nil
	}
	if fix.DropQueued {
		err = t.execOne("DELETE FROM queue WHERE task_id = ?1", p.task)
	}
	if err == nil && fix.DropDelayed {
		err = t.execOne("DELETE FROM delayed WHERE task_id = ?1", p.task)
	}
	switch {
	case err != nil:
	case fix.Requeue:
		if k.queueTimeout > 0 {
			k.giveUp = t.now.Add(k.queueTimeout)
		}
		err = enqueue(t, k.token, k.pool)
	case fix.Schedule:
		if k.queueTimeout > 0 {
			k.giveUp = k.notBefore.Add(k.queueTimeout)
		}
		err = delay(t, k.token, berth.StateScheduled, k.notBefore)
	case fix.Final == berth.StateDeadLetter:
		err = deadLetter(t, p.task, k.class, fix.Reason, fix.Reason, "")
	case fix.Final != "":
		err = finishTask(t, p.task, fix.Final, fix.Reason, nil)
	}
	if err != nil {
		return tr, false, err
	}
	hintOf(t, store.HintTask, p.task)
	tr = k.live
	tr.Event, tr.Task, tr.From, tr.To, tr.Reason = berth.EventRepaired, p.task, p.State(), fix.To, fix.Reason
	tr.Pool, tr.CorrelationID, tr.At = k.pool, k.correlationID, t.now
	return tr, true, audit(t, actor, tr)
}

func loadStrayed(t *tx, id berth.TaskID) (strayed, error) {
	k, ok, err := queryOne(t, func(r row) (k strayed, err error) {
		k.task = id
		return k, r.Scan(&k.class, &k.rank, &k.pool, &k.correlationID, &k.budget, span(&k.queueTimeout), &k.tries, &k.number, &k.cancelled, at(&k.notBefore),
			opt(&k.live.Attempt), &k.live.Number, &k.live.Fence, opt(&k.live.Device), opt(&k.live.Host))
	}, `WITH n AS (
		SELECT count(*) FILTER (WHERE outcome IS NOT 'released') AS tries, coalesce(max(number), 0) AS last FROM attempts WHERE task_id = ?1)
	SELECT t.class_id, t.rank, t.pool_id, t.correlation_id, t.budget, t.queue_timeout_us, n.tries, n.last + 1,
		EXISTS (SELECT 1 FROM attempts x WHERE x.task_id = t.id AND x.number = n.last AND x.cancel_requested_at IS NOT NULL), t.not_before,
		a.id, coalesce(a.number, 0), coalesce(a.fence, 0), a.device_id, a.host_id
	FROM n, tasks t LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL WHERE t.id = ?1`, id)
	if err == nil && !ok {
		err = notFound("task")
	}
	return k, err
}
