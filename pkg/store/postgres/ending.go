package postgres

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// end is the end of one attempt, decided on its locked rows.
type end struct {
	*live
	actor   berth.Actor
	outcome berth.Outcome
	reason  string
	by      berth.EndedBy
	// uncounted: a hand-back that drain or revoke caused.
	uncounted bool
	// dirty marks the device unclean; proved ends such a mark.
	dirty, proved bool
	message       string
	result        []byte
	digest        []byte
	next          berth.Next
}

// decide asks the domain what follows.
func (e *end) decide() {
	handBacks := e.handBacks
	if e.outcome == berth.OutcomeReleased && !e.uncounted {
		handBacks++
	}
	e.next = berth.After(berth.Ended{
		Attempt: e.id, Outcome: e.outcome, Reason: e.reason, By: e.by, Started: e.state.Started(),
		CancelRequested: !e.cancelAt.IsZero(), Policy: e.policy, Budget: e.budget, Tries: e.tries, HandBacks: handBacks,
	})
}

// avoid reports whether the next try should prefer another host and device.
func (e *end) avoid() bool {
	switch e.outcome {
	case berth.OutcomeInfraFailed, berth.OutcomeLost, berth.OutcomeTimedOut, berth.OutcomeReleased:
		return true
	}
	return false
}

// endAttempts is endAll for ends that have one actor.
func (t *tx) endAttempts(actor berth.Actor, now time.Time, ends []*end) ([]berth.Transition, error) {
	for _, e := range ends {
		e.actor = actor
	}
	return t.endAll(now, ends)
}

// endAll is the one way an attempt ends. The caller holds the attempts, their
// leases and their tasks, has read them after that, and found them live.
// It writes the outcomes, frees the leases, moves the tokens, finishes the
// tasks, marks the devices and writes the audit rows. The ends' next fields
// are set when it returns; the transitions are in the order of the ends.
func (t *tx) endAll(now time.Time, ends []*end) ([]berth.Transition, error) {
	if len(ends) == 0 {
		return nil, nil
	}
	moves := make([]berth.Transition, len(ends))
	var waiting, over []*end
	for i, e := range ends {
		e.decide()
		m := e.transition(berth.EndEvent(e.outcome, e.next), e.state.TaskState(), e.next.State, now)
		m.Outcome, m.Reason = e.outcome, e.next.Reason
		moves[i] = m
		if e.next.Retried() {
			waiting = append(waiting, e)
		} else {
			over = append(over, e)
		}
		t.hint(store.HintWork, string(e.pool))
		t.hint(store.HintTask, string(e.task))
	}
	if err := t.writeEnds(now, ends); err != nil {
		return nil, err
	}
	if err := t.requeue(now, waiting); err != nil {
		return nil, err
	}
	if err := t.finish(now, over); err != nil {
		return nil, err
	}
	if err := t.markDevices(now, ends); err != nil {
		return nil, err
	}
	events := make([]berth.AuditEvent, len(ends))
	for i, e := range ends {
		events[i] = auditOf(e.actor, moves[i])
	}
	return moves, t.auditEvents(events)
}

// writeEnds ends the attempts and frees their leases. A device that is to be
// marked unclean loses its placeable bit with the hold.
func (t *tx) writeEnds(now time.Time, ends []*end) error {
	holds := 0
	for _, e := range ends {
		if e.holds {
			holds++
		}
	}
	type counts struct{ attempts, leases int }
	got, _, err := first(t, func(row pgx.CollectableRow) (c counts, err error) {
		return c, row.Scan(&c.attempts, &c.leases)
	}, `
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($2::uuid[], $3::integer[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::text[],
                         $9::text[], $10::text[], $11::bytea[], $12::boolean[], $13::boolean[])
        AS e (task, number, attempt, device, outcome, ended_by, reason, message, result, digest, uncounted, dirty)
), a AS (
    UPDATE attempts a
    SET ended_at = $1, outcome = e.outcome, ended_by = e.ended_by, reason = e.reason, message = e.message,
        result = e.result::json, complete_digest = e.digest, uncounted = e.uncounted
    FROM e WHERE a.task_id = e.task AND a.number = e.number AND a.ended_at IS NULL
    RETURNING 1
), l AS (
    UPDATE leases l
    SET attempt_id = NULL, task_id = NULL, number = NULL, expires_at = NULL, kill_by = NULL,
        placeable = CASE WHEN e.dirty THEN 0 ELSE l.placeable END
    FROM e WHERE l.device_id = e.device AND l.attempt_id = e.attempt
    RETURNING 1
)
SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM l)`,
		now,
		mapped(ends, func(e *end) pgtype.UUID { return uid(e.task) }),
		mapped(ends, func(e *end) int32 { return int32(e.number) }),
		mapped(ends, func(e *end) pgtype.UUID { return uid(e.id) }),
		mapped(ends, func(e *end) pgtype.UUID { return uid(e.device) }),
		mapped(ends, func(e *end) string { return string(e.outcome) }),
		mapped(ends, func(e *end) string { return string(e.by) }),
		mapped(ends, func(e *end) pgtype.Text { return textOrNull(e.reason) }),
		mapped(ends, func(e *end) pgtype.Text { return textOrNull(clean(e.message)) }),
		mapped(ends, func(e *end) pgtype.Text { return textOrNull(cleanJSON(e.result)) }),
		mapped(ends, func(e *end) []byte { return e.digest }),
		mapped(ends, func(e *end) bool { return e.uncounted }),
		mapped(ends, func(e *end) bool { return e.dirty }))
	if err != nil {
		return err
	}
	if got.attempts != len(ends) || got.leases != holds {
		return &dbError{op: t.op, what: "an attempt that was locked and live could not be ended"}
	}
	return nil
}

// requeue puts the tokens of tasks that are tried again in their next place.
func (t *tx) requeue(now time.Time, ends []*end) error {
	var tokens []token
	for _, e := range ends {
		k := token{
			task: e.task, class: e.class, rank: e.rank, number: e.number + 1,
			giveUpAt: berth.MovedGiveUp(e.giveUpAt, e.assignedAt, now),
		}
		if e.avoid() {
			k.lastHost, k.lastDevice = e.host, e.device
		}
		if e.next.State == berth.StateFailed {
			k.kind, k.dueAt = berth.StateFailed, now.Add(e.next.Delay)
		}
		tokens = append(tokens, k)
	}
	return t.insertTokens(tokens)
}

// finish writes the final state of tasks, once.
func (t *tx) finish(now time.Time, ends []*end) error {
	if len(ends) == 0 {
		return nil
	}
	final := make([]finished, len(ends))
	for i, e := range ends {
		final[i] = finished{
			task: e.task, class: e.class, state: e.next.State, reason: e.next.Reason,
			ended: berth.DeadLetterReason(e.next.Reason, e.reason), message: e.message,
		}
		if e.next.State == berth.StateSucceeded {
			final[i].result = e.result
		}
	}
	return t.finishTasks(now, final)
}

type finished struct {
	task   berth.TaskID
	state  berth.TaskState
	reason string
	result []byte
	// Of a dead letter: its class, the reason of its cause, and what was said.
	class          berth.ClassID
	ended, message string
	cause          berth.CauseKey // is set when it is written
}

// finishTasks writes the final state of locked, unfinished tasks, and the causes
// of those that are dead-lettered: it is the one place where that happens.
func (t *tx) finishTasks(now time.Time, rows []finished) error {
	if err := t.findCauses(now, rows); err != nil {
		return err
	}
	n, err := t.exec(`
UPDATE tasks t SET final_state = e.state, final_reason = e.reason, finished_at = $1, result = e.result::json, cause_key = e.cause
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[]) AS e (task, state, reason, result, cause)
WHERE t.id = e.task AND t.final_state IS NULL`,
		now,
		mapped(rows, func(r finished) pgtype.UUID { return uid(r.task) }),
		mapped(rows, func(r finished) string { return string(r.state) }),
		mapped(rows, func(r finished) string { return r.reason }),
		mapped(rows, func(r finished) pgtype.Text { return textOrNull(cleanJSON(r.result)) }),
		mapped(rows, func(r finished) pgtype.Text { return textOrNull(r.cause) }))
	if err != nil {
		return err
	}
	if n != int64(len(rows)) {
		return &dbError{op: t.op, what: "a task was finished already"}
	}
	return nil
}

// token is a waiting task's row: in delayed when kind says so, else in queue.
type token struct {
	task       berth.TaskID
	class      berth.ClassID
	rank       berth.Rank
	number     int
	giveUpAt   time.Time
	lastHost   berth.HostID
	lastDevice berth.DeviceID
	kind       berth.TaskState // scheduled or failed, "" for queue
	dueAt      time.Time
}

// insertTokens puts tasks in their waiting places. The caller holds what the
// tokens are made of: the tasks, or the tokens that were before.
func (t *tx) insertTokens(tokens []token) error {
	var queued, delayed []token
	for _, k := range tokens {
		if k.kind == "" {
			queued = append(queued, k)
		} else {
			delayed = append(delayed, k)
		}
	}
	if len(queued) > 0 {
		if _, err := t.exec(`
INSERT INTO queue (task_id, class_id, rank, number, give_up_at, last_host, last_device)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::uuid[], $7::uuid[])`,
			tokenColumns(queued)...); err != nil {
			return err
		}
	}
	if len(delayed) == 0 {
		return nil
	}
	_, err := t.exec(`
INSERT INTO delayed (task_id, class_id, rank, number, give_up_at, last_host, last_device, kind, due_at)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::integer[], $5::timestamptz[], $6::uuid[], $7::uuid[],
                     $8::text[], $9::timestamptz[])`,
		append(tokenColumns(delayed),
			mapped(delayed, func(k token) string { return string(k.kind) }),
			mapped(delayed, func(k token) time.Time { return k.dueAt }))...)
	return err
}

func tokenColumns(tokens []token) []any {
	return []any{
		mapped(tokens, func(k token) pgtype.UUID { return uid(k.task) }),
		mapped(tokens, func(k token) int64 { return int64(k.class) }),
		mapped(tokens, func(k token) int64 { return int64(k.rank) }),
		mapped(tokens, func(k token) int32 { return int32(k.number) }),
		mapped(tokens, func(k token) pgtype.Timestamptz { return orNull(k.giveUpAt) }),
		mapped(tokens, func(k token) pgtype.UUID { return uid(k.lastHost) }),
		mapped(tokens, func(k token) pgtype.UUID { return uid(k.lastDevice) }),
	}
}
