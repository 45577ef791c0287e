package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
)

// audit writes one row for each transition. Every transition of a task passes
// here, in the transaction that makes it (I12).
func (t *tx) audit(actor berth.Actor, moves []berth.Transition) error {
	events := make([]berth.AuditEvent, len(moves))
	for i, m := range moves {
		events[i] = auditOf(actor, m)
	}
	return t.auditEvents(events)
}

// auditMove is audit of one transition that an act made, with what it changed.
func (t *tx) auditMove(actor berth.Actor, m berth.Transition, before, after berth.Facts) error {
	e := auditOf(actor, m)
	e.Before, e.After = before, after
	return t.auditEvents([]berth.AuditEvent{e})
}

func auditOf(actor berth.Actor, m berth.Transition) berth.AuditEvent {
	return berth.AuditEvent{
		At: m.At, Actor: actor, Action: berth.ActionOf(m.Event), TargetKind: "task", TargetID: string(m.Task),
		Attempt: m.Attempt, Number: m.Number, Device: m.Device, Host: m.Host,
		From: m.From, To: m.To, Outcome: m.Outcome, Reason: m.Reason,
	}
}

// auditChange writes the row of an act that changed before into after.
func (t *tx) auditChange(actor berth.Actor, at time.Time, action berth.AuditAction, kind, id string, before, after berth.Facts) error {
	return t.auditEvents([]berth.AuditEvent{{At: at, Actor: actor, Action: action, TargetKind: kind, TargetID: id, Before: before, After: after}})
}

// auditAct writes the row of an administrative act that has nothing to compare.
func (t *tx) auditAct(actor berth.Actor, at time.Time, action berth.AuditAction, kind, id string) error {
	return t.auditEvents([]berth.AuditEvent{{At: at, Actor: actor, Action: action, TargetKind: kind, TargetID: id}})
}

func (t *tx) auditEvents(events []berth.AuditEvent) error {
	if len(events) == 0 {
		return nil
	}
	type row = berth.AuditEvent
	_, err := t.exec(`
INSERT INTO audit_events (at, actor_kind, actor_id, request_id, action, target_kind, target_id,
                          attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason,
                          client, credential, before, after)
SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
                     $8::uuid[], $9::integer[], $10::uuid[], $11::uuid[], $12::text[], $13::text[], $14::text[], $15::text[],
                     $16::text[], $17::text[], $18::text[]::json[], $19::text[]::json[])`,
		mapped(events, func(e row) time.Time { return e.At }),
		mapped(events, func(e row) string { return string(e.Actor.Kind) }),
		mapped(events, func(e row) string { return clean(e.Actor.ID) }),
		mapped(events, func(e row) string { return clean(e.Actor.RequestID) }),
		mapped(events, func(e row) string { return string(e.Action) }),
		mapped(events, func(e row) string { return e.TargetKind }),
		mapped(events, func(e row) string { return clean(e.TargetID) }),
		mapped(events, func(e row) pgtype.UUID { return uid(e.Attempt) }),
		mapped(events, func(e row) pgtype.Int4 { return pgtype.Int4{Int32: int32(e.Number), Valid: e.Number != 0} }),
		mapped(events, func(e row) pgtype.UUID { return uid(e.Device) }),
		mapped(events, func(e row) pgtype.UUID { return uid(e.Host) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.From) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.To) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.Outcome) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.Reason) }),
		mapped(events, func(e row) string { return clean(e.Actor.Client) }),
		mapped(events, func(e row) string { return clean(string(e.Actor.Credential)) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.Before) }),
		mapped(events, func(e row) pgtype.Text { return textOrNull(e.After) }))
	return err
}

const auditColumns = `id, at, actor_kind, actor_id, request_id, action, target_kind, target_id, attempt_id, COALESCE(number, 0),
       device_id, host_id, from_state, to_state, outcome, reason, client, credential, before::text, after::text`

// ListAudit is documented at store.Audit.
func (s *Store) ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) (events []berth.AuditEvent, err error) {
	if limit <= 0 {
		limit = 50
	}
	err = s.read(ctx, "ListAudit", func(t *tx) error {
		events, err = collect(t, scanAudit, `
SELECT `+auditColumns+` FROM audit_events
WHERE id > $1 AND ($2 = '' OR (target_kind = $2 AND target_id = $3))
ORDER BY id LIMIT $4`, after, targetKind, targetID, limit)
		return err
	})
	return events, err
}

func scanAudit(row pgx.CollectableRow) (e berth.AuditEvent, err error) {
	return e, row.Scan(&e.ID, &e.At, &e.Actor.Kind, &e.Actor.ID, &e.Actor.RequestID, &e.Action, &e.TargetKind, &e.TargetID,
		nullable(&e.Attempt), &e.Number, nullable(&e.Device), nullable(&e.Host), nullable(&e.From), nullable(&e.To),
		nullable(&e.Outcome), nullable(&e.Reason), &e.Actor.Client, &e.Actor.Credential, nullable(&e.Before), nullable(&e.After))
}
