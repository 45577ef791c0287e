package postgres

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// cancelMany is CancelTask for many tasks: those that wait in a few statements,
// those with a live attempt as one by one.
func (t *tx) cancelMany(actor berth.Actor, ids []berth.TaskID) ([]berth.Transition, error) {
	queued, delayed, err := t.lockWaiting(ids)
	if err != nil {
		return nil, err
	}
	waits := slices.Concat(queued, delayed)
	tasks := mapped(waits, taskOf)
	keys, err := t.lockLive(without(ids, tasks))
	if err != nil {
		return nil, err
	}
	if err := t.lockLeases(mapped(keys, func(k lockedKey) berth.DeviceID { return k.device })); err != nil {
		return nil, err
	}
	if err := t.lockTasks(slices.Concat(tasks, mapped(keys, func(k lockedKey) berth.TaskID { return k.task }))); err != nil {
		return nil, err
	}
	loaded, err := t.load(attemptsOf(keys))
	if err != nil {
		return nil, err
	}
	live := slices.DeleteFunc(loaded, (*live).ended)
	if err := t.settled(without(ids, tasks, mapped(live, taskOfLive))); err != nil {
		return nil, err
	}
	now, err := t.clockOf(waits)
	if err != nil {
		return nil, err
	}
	moves, err := t.cancelWaits(actor, now, queued, delayed)
	if err != nil {
		return nil, err
	}
	more, err := t.cancelLives(actor, now, live)
	return append(moves, more...), err
}

func taskOfLive(l *live) berth.TaskID { return l.task }

func (t *tx) cancelWaits(actor berth.Actor, now time.Time, queued, delayed []waiting) ([]berth.Transition, error) {
	waits := slices.Concat(queued, delayed)
	if len(waits) == 0 {
		return nil, nil
	}
	if err := t.dropTokens(queued, delayed); err != nil {
		return nil, err
	}
	if err := t.finishTasks(now, mapped(waits, func(w waiting) finished {
		return finished{task: w.task, state: berth.StateCancelled, reason: berth.ReasonCancelled}
	})); err != nil {
		return nil, err
	}
	moves := mapped(waits, func(w waiting) berth.Transition {
		t.hint(store.HintTask, string(w.task))
		return w.transition(berth.EventCancelled, berth.StateCancelled, berth.ReasonCancelled)
	})
	return moves, t.audit(actor, moves)
}

func (t *tx) cancelLives(actor berth.Actor, now time.Time, attempts []*live) (moves []berth.Transition, err error) {
	var ends []*end
	for _, a := range attempts {
		switch {
		case !a.state.Started():
			ends = append(ends, &end{live: a, outcome: berth.OutcomeCancelled, reason: berth.ReasonCancelled, by: berth.EndedByCancel})
		case a.cancelAt.IsZero():
			asked, err := t.askToStop(actor, a, now)
			if err != nil {
				return nil, err
			}
			moves = append(moves, asked...)
		}
	}
	ended, err := t.endAttempts(actor, now, ends)
	return append(moves, ended...), err
}

// retryMany is RetryTask for many tasks.
func (t *tx) retryMany(b bulkRow, ids []berth.TaskID) ([]berth.Transition, error) {
	if slices.Contains(b.Filter.States, berth.StateFailed) && b.Filter.Cause == "" {
		return t.retryFailed(b.Actor(), ids)
	}
	// Attempts are locked before tasks, also ended ones.
	if _, err := t.exec(`
WITH backs AS MATERIALIZED (
    SELECT task_id, number FROM attempts WHERE task_id = ANY ($1) AND outcome = 'released' AND NOT uncounted
    ORDER BY task_id, number FOR NO KEY UPDATE)
UPDATE attempts a SET uncounted = true FROM backs b WHERE a.task_id = b.task_id AND a.number = b.number`, uids(ids)); err != nil {
		return nil, err
	}
	if err := t.lockTasks(ids); err != nil {
		return nil, err
	}
	dead, err := t.revivable(ids)
	if err != nil || len(dead) == 0 {
		return nil, err
	}
	tokens := make([]token, len(dead))
	for i, d := range dead {
		tokens[i] = d.token
		if d.queueTimeout > 0 {
			tokens[i].giveUpAt = d.now.Add(d.queueTimeout)
		}
		dead[i].after = d.tries + max(1, b.AddTries)
	}
	if _, err := t.exec(`
UPDATE tasks t SET budget = e.budget, final_state = NULL, final_reason = NULL, finished_at = NULL, result = NULL, cause_key = NULL
FROM unnest($1::uuid[], $2::integer[]) AS e (task, budget) WHERE t.id = e.task`,
		mapped(dead, func(d deadRow) pgtype.UUID { return uid(d.task) }), mapped(dead, func(d deadRow) int32 { return int32(d.after) })); err != nil {
		return nil, err
	}
	if err := t.insertTokens(tokens); err != nil {
		return nil, err
	}
	return t.requeuedMany(b.Actor(), dead)
}

// deadRow is a task that is put back in the queue by hand.
type deadRow struct {
	waiting
	queueTimeout  time.Duration
	tries, budget int
	after         int // its budget then
}

// revivable reads those of locked tasks that are dead letters.
func (t *tx) revivable(ids []berth.TaskID) ([]deadRow, error) {
	return collect(t, func(row pgx.CollectableRow) (d deadRow, err error) {
		var us int64
		d.from = berth.StateDeadLetter
		err = row.Scan(&d.task, &d.class, &d.rank, &d.budget, &us, &d.pool, &d.correlation, &d.tries, &d.number, &d.now)
		d.queueTimeout = microseconds(us)
		return d, err
	}, `
SELECT t.id, t.class_id, t.rank, t.budget, t.queue_timeout_us, t.pool_id, t.correlation_id, n.tries, n.last + 1, c.now
FROM tasks t CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.outcome IS DISTINCT FROM 'released') AS tries, COALESCE(max(x.number), 0) AS last
    FROM attempts x WHERE x.task_id = t.id) n, (SELECT berth_now() AS now OFFSET 0) c
WHERE t.id = ANY ($1) AND t.final_state = 'dead_letter' ORDER BY t.id`, uids(ids))
}

// retryFailed moves tasks from their backoff to the queue.
func (t *tx) retryFailed(actor berth.Actor, ids []berth.TaskID) ([]berth.Transition, error) {
	failed, err := collect(t, func(row pgx.CollectableRow) (d deadRow, err error) {
		err = row.Scan(&d.task, &d.from, &d.class, &d.rank, &d.number, instant(&d.giveUpAt), nullable(&d.lastHost),
			nullable(&d.lastDevice), &d.pool, &d.correlation, &d.now, &d.budget)
		d.after = d.budget
		return d, err
	}, `
WITH due AS MATERIALIZED (SELECT * FROM delayed WHERE task_id = ANY ($1) AND kind = 'failed' ORDER BY task_id FOR NO KEY UPDATE)
SELECT d.task_id, d.kind, d.class_id, d.rank, d.number, d.give_up_at, d.last_host, d.last_device, t.pool_id, t.correlation_id, n.now, t.budget
FROM due d JOIN tasks t ON t.id = d.task_id, (SELECT berth_now() AS now OFFSET 0) n
ORDER BY d.task_id`, uids(ids))
	if err != nil || len(failed) == 0 {
		return nil, err
	}
	if err := t.dropTokens(nil, mapped(failed, func(d deadRow) waiting { return d.waiting })); err != nil {
		return nil, err
	}
	if err := t.insertTokens(mapped(failed, func(d deadRow) token { return d.token })); err != nil {
		return nil, err
	}
	return t.requeuedMany(actor, failed)
}

func (t *tx) requeuedMany(actor berth.Actor, rows []deadRow) ([]berth.Transition, error) {
	moves, events := make([]berth.Transition, len(rows)), make([]berth.AuditEvent, len(rows))
	for i, d := range rows {
		moves[i] = d.transition(berth.EventRetriedByHand, berth.StateQueued, "")
		events[i] = auditOf(actor, moves[i])
		events[i].Before, events[i].After = berth.NumberFacts("budget", d.budget), berth.NumberFacts("budget", d.after)
		t.hint(store.HintWork, string(d.pool))
		t.hint(store.HintTask, string(d.task))
	}
	return moves, t.auditEvents(events)
}

// ranked is a task that gets another priority.
type ranked struct {
	waiting
	priority int
	next     berth.Rank
}

// prioritiseMany is SetTaskPriority for many tasks.
func (t *tx) prioritiseMany(b bulkRow, ids []berth.TaskID) ([]berth.Transition, error) {
	queued, delayed, err := t.lockWaiting(ids)
	if err != nil {
		return nil, err
	}
	states := map[berth.TaskID]berth.TaskState{}
	for _, w := range slices.Concat(queued, delayed) {
		states[w.task] = w.from
	}
	if err := t.holdLives(without(ids, mapped(queued, taskOf), mapped(delayed, taskOf)), states); err != nil {
		return nil, err
	}
	held := slices.DeleteFunc(slices.Clone(ids), func(id berth.TaskID) bool { return states[id] == "" })
	if err := t.settled(without(ids, held)); err != nil || len(held) == 0 {
		return nil, err
	}
	rows, err := t.ranked(held, b.Priority)
	if err != nil {
		return nil, err
	}
	next := map[berth.TaskID]berth.Rank{}
	for i, r := range rows {
		next[r.task], rows[i].from = r.next, states[r.task]
	}
	if err := t.rerank(queued, delayed, next); err != nil {
		return nil, err
	}
	if err := t.lockTasks(held); err != nil {
		return nil, err
	}
	if _, err := t.exec(`
UPDATE tasks t SET priority = $1, rank = e.rank FROM unnest($2::uuid[], $3::bigint[]) AS e (task, rank) WHERE t.id = e.task`,
		b.Priority, mapped(rows, func(r ranked) pgtype.UUID { return uid(r.task) }), mapped(rows, func(r ranked) int64 { return int64(r.next) })); err != nil {
		return nil, err
	}
	actor := b.Actor()
	moves, events := make([]berth.Transition, len(rows)), make([]berth.AuditEvent, len(rows))
	for i, r := range rows {
		moves[i] = r.transition(berth.EventReprioritised, r.from, berth.PriorityReason(b.Priority))
		events[i] = auditOf(actor, moves[i])
		events[i].Before, events[i].After = berth.NumberFacts("priority", r.priority), berth.NumberFacts("priority", b.Priority)
		t.hint(store.HintWork, string(r.pool))
		t.hint(store.HintTask, string(r.task))
	}
	return moves, t.auditEvents(events)
}

// holdLives locks the live attempts of tasks and notes the states of those that
// are live still.
func (t *tx) holdLives(tasks []berth.TaskID, states map[berth.TaskID]berth.TaskState) error {
	keys, err := t.lockLive(tasks)
	if err != nil || len(keys) == 0 {
		return err
	}
	type row struct {
		task  berth.TaskID
		state berth.AttemptState
	}
	rows, err := collect(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.task, &r.state)
	}, `SELECT task_id, state FROM attempts WHERE id = ANY ($1) AND ended_at IS NULL`, uids(attemptsOf(keys)))
	for _, r := range rows {
		states[r.task] = r.state.TaskState()
	}
	return err
}

func (t *tx) ranked(ids []berth.TaskID, priority int) ([]ranked, error) {
	return collect(t, func(row pgx.CollectableRow) (r ranked, err error) {
		var submitted time.Time
		var step int64
		err = row.Scan(&r.task, &r.priority, &submitted, &r.pool, &r.correlation, &step, &r.now)
		r.next = berth.RankOf(submitted, priority, microseconds(step))
		return r, err
	}, `
SELECT t.id, t.priority, t.submitted_at, t.pool_id, t.correlation_id, p.ageing_step_us, n.now
FROM tasks t JOIN pools p ON p.id = t.pool_id, (SELECT berth_now() AS now OFFSET 0) n WHERE t.id = ANY ($1) ORDER BY t.id`, uids(ids))
}

// rerank gives locked tokens their new ranks.
func (t *tx) rerank(queued, delayed []waiting, next map[berth.TaskID]berth.Rank) error {
	if len(queued) > 0 {
		if err := t.dropTokens(queued, nil); err != nil {
			return err
		}
		if err := t.insertTokens(mapped(queued, func(w waiting) token {
			w.rank = next[w.task]
			return w.token
		})); err != nil {
			return err
		}
	}
	if len(delayed) == 0 {
		return nil
	}
	_, err := t.exec(`UPDATE delayed d SET rank = e.rank FROM unnest($1::uuid[], $2::bigint[]) AS e (task, rank) WHERE d.task_id = e.task`,
		mapped(delayed, func(w waiting) pgtype.UUID { return uid(w.task) }), mapped(delayed, func(w waiting) int64 { return int64(next[w.task]) }))
	return err
}

// deleteMany deletes finished tasks and all that they left. Their attempts are
// locked before them, as everywhere.
func (t *tx) deleteMany(actor berth.Actor, ids []berth.TaskID) ([]berth.Transition, error) {
	if _, err := t.exec(`SELECT 1 FROM attempts WHERE task_id = ANY ($1) ORDER BY task_id, number FOR UPDATE`, uids(ids)); err != nil {
		return nil, err
	}
	if _, err := t.exec(`SELECT 1 FROM tasks WHERE id = ANY ($1) ORDER BY id FOR UPDATE`, uids(ids)); err != nil {
		return nil, err
	}
	gone, err := collect(t, func(row pgx.CollectableRow) (w waiting, err error) {
		return w, row.Scan(&w.task, &w.from, &w.pool, &w.correlation, &w.now)
	}, `
SELECT t.id, t.final_state, t.pool_id, t.correlation_id, n.now FROM tasks t, (SELECT berth_now() AS now OFFSET 0) n
WHERE t.id = ANY ($1) AND t.final_state IS NOT NULL ORDER BY t.id`, uids(ids))
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	tasks := uids(mapped(gone, taskOf))
	for _, sql := range []string{
		`DELETE FROM log_chunks WHERE attempt_id IN (SELECT id FROM attempts WHERE task_id = ANY ($1))`,
		`DELETE FROM artifacts WHERE attempt_id IN (SELECT id FROM attempts WHERE task_id = ANY ($1))`,
		`DELETE FROM task_inputs WHERE task_id = ANY ($1)`,
		`DELETE FROM attempts WHERE task_id = ANY ($1)`,
		`DELETE FROM tasks WHERE id = ANY ($1)`,
	} {
		if _, err := t.exec(sql, tasks); err != nil {
			return nil, err
		}
	}
	moves := mapped(gone, func(w waiting) berth.Transition {
		t.hint(store.HintTask, string(w.task))
		return w.transition(berth.EventDeleted, w.from, "")
	})
	return moves, t.audit(actor, moves)
}
