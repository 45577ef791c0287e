package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// places are a task's, with what its repair needs.
type places struct {
	id berth.TaskID
	berth.Places
	token
	pool          berth.PoolID
	correlationID string
	queueTimeout  time.Duration
}

const placesSelect = `SELECT t.id, t.final_state, q.task_id IS NOT NULL, d.kind, a.state, t.class_id, t.rank,
	(SELECT coalesce(max(x.number), 0) + 1 FROM attempts x WHERE x.task_id = t.id), t.pool_id, t.correlation_id, t.queue_timeout_us
	FROM tasks t
	LEFT JOIN queue q ON q.task_id = t.id
	LEFT JOIN delayed d ON d.task_id = t.id
	LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL`

func scanPlaces(r row) (p places, err error) {
	err = r.Scan(&p.id, opt(&p.Final), &p.Queued, opt(&p.Delayed), opt(&p.Live), &p.class, &p.rank, &p.number,
		&p.pool, &p.correlationID, span(&p.queueTimeout))
	p.task = p.id
	return p, err
}

// SweepTasks implements store.Keeping. A page is judged in one statement; what
// is wrong, again in the transaction that repairs it.
func (s *Store) SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (result store.SweepResult, err error) {
	var page []places
	if err := s.read(ctx, "SweepTasks", func(t *tx) error {
		page, err = queryAll(t, scanPlaces, placesSelect+" WHERE t.id > ?1 ORDER BY t.id LIMIT ?2", after, max(1, limit))
		return err
	}); err != nil {
		return result, err
	}
	result.Looked = len(page)
	if len(page) == max(1, limit) {
		result.Next = page[len(page)-1].id
	}
	for _, p := range page {
		if _, wrong := p.Repair(); !wrong {
			continue
		}
		var wrong bool
		var trs []berth.Transition
		if err := s.write(ctx, "SweepTasks", func(t *tx) error {
			wrong, trs, err = repair(t, actor, p.id)
			return err
		}); err != nil {
			return result, err
		}
		if wrong {
			result.Wrong++
		}
		result.Repaired = append(result.Repaired, trs...)
	}
	return result, nil
}

// repair judges a task again and leaves it in one place.
func repair(t *tx, actor berth.Actor, id berth.TaskID) (wrong bool, trs []berth.Transition, err error) {
	p, ok, err := queryOne(t, scanPlaces, placesSelect+" WHERE t.id = ?1", id)
	if err != nil || !ok {
		return false, nil, err
	}
	fix, wrong := p.Repair()
	if !wrong || fix == (berth.Repair{}) {
		return wrong, nil, nil
	}
	if fix.DropQueued {
		err = t.execOne("DELETE FROM queue WHERE task_id = ?1", id)
	}
	if err == nil && fix.DropDelayed {
		err = t.execOne("DELETE FROM delayed WHERE task_id = ?1", id)
	}
	if err == nil && fix.Queue {
		if p.queueTimeout > 0 {
			p.giveUp = t.now.Add(p.queueTimeout)
		}
		err = enqueue(t, p.token, p.pool)
	}
	if err != nil {
		return true, nil, err
	}
	hintOf(t, store.HintTask, id)
	tr := taskTransition(t, berth.Task{ID: id, State: fix.From, Pool: p.pool, CorrelationID: p.correlationID}, berth.EventRepaired, fix.To, fix.Reason)
	return true, []berth.Transition{tr}, audit(t, actor, tr)
}
