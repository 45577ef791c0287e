package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// placesOf says in which places the tasks of p are. Each place is asked by key;
// OFFSET 0 keeps the planner from joining over the whole of it.
const placesOf = `
LEFT JOIN LATERAL (SELECT true AS here FROM queue q WHERE q.task_id = p.id OFFSET 0) q ON true
LEFT JOIN LATERAL (SELECT d.kind FROM delayed d WHERE d.task_id = p.id OFFSET 0) d ON true
LEFT JOIN LATERAL (SELECT a.state FROM attempts a WHERE a.task_id = p.id AND a.ended_at IS NULL OFFSET 0) a ON true`

// sweepPage judges a page of tasks in one statement: two would see a task that
// moves between them in no place, or in two.
const sweepPage = `
WITH page AS MATERIALIZED (SELECT id, final_state FROM tasks WHERE id > $1 ORDER BY id LIMIT $2)
SELECT p.id, (q.here IS NOT NULL)::int + (d.kind IS NOT NULL)::int + (a.state IS NOT NULL)::int
             <> CASE WHEN p.final_state IS NULL THEN 1 ELSE 0 END
FROM page p` + placesOf + ` ORDER BY p.id`

// SweepTasks is documented at store.Keeping.
func (s *Store) SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (r store.SweepResult, err error) {
	type row struct {
		id    berth.TaskID
		wrong bool
	}
	from := uid(after)
	from.Valid = true // "" is below every id
	var page []row
	if err := s.read(ctx, "SweepTasks", func(t *tx) error {
		page, err = collect(t, func(c pgx.CollectableRow) (k row, err error) { return k, c.Scan(&k.id, &k.wrong) }, sweepPage, from, max(1, limit))
		return err
	}); err != nil {
		return r, err
	}
	r.Looked = len(page)
	if len(page) == max(1, limit) {
		r.Next = page[len(page)-1].id
	}
	for _, k := range page {
		if !k.wrong {
			continue
		}
		var found bool
		var moves []berth.Transition
		if err := s.write(ctx, "SweepTasks", func(t *tx) error {
			moves = nil
			found, moves, err = t.repair(actor, k.id)
			return err
		}); err != nil {
			return r, err
		}
		if found {
			r.Wrong++
		}
		r.Repaired = append(r.Repaired, moves...)
	}
	return r, nil
}

// repair judges a task again with its places and itself locked, in the order of
// every move, and leaves it in one place.
func (t *tx) repair(actor berth.Actor, id berth.TaskID) (wrong bool, moves []berth.Transition, err error) {
	for _, lock := range []string{
		`SELECT 1 FROM queue WHERE task_id = $1 FOR UPDATE`,
		`SELECT 1 FROM delayed WHERE task_id = $1 FOR UPDATE`,
		`SELECT 1 FROM attempts WHERE task_id = $1 AND ended_at IS NULL FOR NO KEY UPDATE`,
		`SELECT 1 FROM tasks WHERE id = $1 FOR NO KEY UPDATE`,
	} {
		if _, err := t.exec(lock, uid(id)); err != nil {
			return false, nil, err
		}
	}
	var p berth.Places
	var tok token
	var pool berth.PoolID
	var correlation string
	var queueTimeout int64
	var now time.Time
	_, ok, err := first(t, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(nullable(&p.Final), &p.Queued, nullable(&p.Delayed), nullable(&p.Live),
			&tok.class, &tok.rank, &tok.number, &pool, &correlation, &queueTimeout, &now)
	}, `
SELECT p.final_state, q.here IS NOT NULL, d.kind, a.state, p.class_id, p.rank,
       (SELECT COALESCE(max(x.number), 0) + 1 FROM attempts x WHERE x.task_id = p.id), p.pool_id, p.correlation_id, p.queue_timeout_us, berth_now()
FROM tasks p`+placesOf+` WHERE p.id = $1`, uid(id))
	if err != nil || !ok {
		return false, nil, err
	}
	fix, wrong := p.Repair()
	if !wrong || fix == (berth.Repair{}) {
		return wrong, nil, err
	}
	if fix.DropQueued {
		_, err = t.exec(`DELETE FROM queue WHERE task_id = $1`, uid(id))
	}
	if err == nil && fix.DropDelayed {
		_, err = t.exec(`DELETE FROM delayed WHERE task_id = $1`, uid(id))
	}
	if err == nil && fix.Queue {
		tok.task = id
		if queueTimeout > 0 {
			tok.giveUpAt = now.Add(microseconds(queueTimeout))
		}
		err = t.insertTokens([]token{tok})
		t.hint(store.HintWork, string(pool))
	}
	if err != nil {
		return true, nil, err
	}
	t.hint(store.HintTask, string(id))
	moves = []berth.Transition{{
		Event: berth.EventRepaired, Task: id, From: fix.From, To: fix.To, Reason: fix.Reason, Pool: pool, CorrelationID: correlation, At: now,
	}}
	return true, moves, t.audit(actor, moves)
}
