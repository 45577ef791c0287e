package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

const insertAudit = `INSERT INTO audit_events
	(at, actor_kind, actor_id, request_id, action, target_kind, target_id,
	 attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason)
	VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)`

// audit writes the row of a transition, in its own transaction (I12).
func audit(t *tx, actor berth.Actor, tr berth.Transition) error {
	var number any
	if tr.Number != 0 {
		number = tr.Number
	}
	return t.execOne(insertAudit, micros(tr.At), actor.Kind, actor.ID, actor.RequestID, berth.ActionOf(tr.Event), "task", tr.Task,
		null(tr.Attempt), number, null(tr.Device), null(tr.Host), null(tr.From), null(tr.To), null(tr.Outcome), null(tr.Reason))
}

// auditAct writes the row of an administrative act on a thing that is no task.
func auditAct(t *tx, actor berth.Actor, action berth.AuditAction, kind, id string) error {
	return auditEvent(t, berth.AuditEvent{Actor: actor, Action: action, TargetKind: kind, TargetID: id})
}

// auditEvent writes the row of an act that has more to say; it happens now.
func auditEvent(t *tx, e berth.AuditEvent) error {
	var number any
	if e.Number != 0 {
		number = e.Number
	}
	return t.execOne(insertAudit, micros(t.now), e.Actor.Kind, e.Actor.ID, e.Actor.RequestID, e.Action, e.TargetKind, e.TargetID,
		null(e.Attempt), number, null(e.Device), null(e.Host), null(e.From), null(e.To), null(e.Outcome), null(e.Reason))
}

// ListAudit implements store.Fleet.
func (s *Store) ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) (events []berth.AuditEvent, err error) {
	if limit <= 0 {
		limit = 50
	}
	const columns = `SELECT id, at, actor_kind, actor_id, request_id, action, target_kind, target_id,
		attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason FROM audit_events `
	query, args := columns+"WHERE id > ?1 ORDER BY id LIMIT ?2", []any{after, limit}
	if targetKind != "" {
		query = columns + "WHERE target_id = ?3 AND target_kind = ?4 AND id > ?1 ORDER BY id LIMIT ?2"
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
		opt(&e.Attempt), optInt(&e.Number), opt(&e.Device), opt(&e.Host), opt(&e.From), opt(&e.To), opt(&e.Outcome), opt(&e.Reason))
}
