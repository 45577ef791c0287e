package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

const insertAudit = `INSERT INTO audit_events
	(at, actor_kind, actor_id, request_id, action, target_kind, target_id,
	 attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason, client, credential, before, after)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)`

// audit writes the row of a transition, in its own transaction (I12).
func audit(t *tx, actor berth.Actor, tr berth.Transition) error {
	return auditMove(t, actor, tr, "", "")
}

// auditMove is audit of a transition that an act made, with what it changed.
func auditMove(t *tx, actor berth.Actor, tr berth.Transition, before, after berth.Facts) error {
	return auditAt(t, tr.At, berth.AuditEvent{
		Actor: actor, Action: berth.ActionOf(tr.Event), TargetKind: "task", TargetID: string(tr.Task),
		Attempt: tr.Attempt, Number: tr.Number, Device: tr.Device, Host: tr.Host,
		From: tr.From, To: tr.To, Outcome: tr.Outcome, Reason: tr.Reason, Before: before, After: after,
	})
}

// auditChange writes the row of an act that changed before into after.
func auditChange(t *tx, actor berth.Actor, action berth.AuditAction, kind, id string, before, after berth.Facts) error {
	return auditEvent(t, berth.AuditEvent{Actor: actor, Action: action, TargetKind: kind, TargetID: id, Before: before, After: after})
}

// auditAct writes the row of an administrative act that has nothing to compare.
func auditAct(t *tx, actor berth.Actor, action berth.AuditAction, kind, id string) error {
	return auditEvent(t, berth.AuditEvent{Actor: actor, Action: action, TargetKind: kind, TargetID: id})
}

// auditEvent writes the row of an act that has more to say; it happens now.
func auditEvent(t *tx, e berth.AuditEvent) error { return auditAt(t, t.now, e) }

func auditAt(t *tx, when time.Time, e berth.AuditEvent) error {
	var number any
	if e.Number != 0 {
		number = e.Number
	}
	return t.execOne(insertAudit, micros(when), e.Actor.Kind, e.Actor.ID, e.Actor.RequestID, e.Action, e.TargetKind, e.TargetID,
		null(e.Attempt), number, null(e.Device), null(e.Host), null(e.From), null(e.To), null(e.Outcome), null(e.Reason),
		e.Actor.Client, e.Actor.Credential, null(e.Before), null(e.After))
}

const auditColumns = `id, at, actor_kind, actor_id, request_id, action, target_kind, target_id, attempt_id, number,
	device_id, host_id, from_state, to_state, outcome, reason, client, credential, before, after`

const auditSelect = "SELECT " + auditColumns + " FROM audit_events "

// ListAudit implements store.Audit.
func (s *Store) ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) (events []berth.AuditEvent, err error) {
	if limit <= 0 {
		limit = 50
	}
	query, args := auditSelect+"WHERE id > ?1 ORDER BY id LIMIT ?2", []any{after, limit}
	if targetKind != "" {
		query = auditSelect + "WHERE target_id = ?3 AND target_kind = ?4 AND id > ?1 ORDER BY id LIMIT ?2"
		args = append(args, targetID, targetKind)
	}
	err = s.read(ctx, "ListAudit", func(t *tx) error {
		events, err = queryAll(t, scanAudit, query, args...)
		return err
	})
	return events, err
}

func scanAudit(r row) (e berth.AuditEvent, err error) {
	return e, r.Scan(&e.ID, at(&e.At), &e.Actor.Kind, &e.Actor.ID, &e.Actor.RequestID, &e.Action, &e.TargetKind, &e.TargetID,
		opt(&e.Attempt), optInt(&e.Number), opt(&e.Device), opt(&e.Host), opt(&e.From), opt(&e.To), opt(&e.Outcome), opt(&e.Reason),
		&e.Actor.Client, &e.Actor.Credential, opt(&e.Before), opt(&e.After))
}
