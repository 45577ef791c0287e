package sqlite

import (
	"context"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// auditPath is a way through the trail, newest first, between the ids ?1
// (inclusive) and ?2 (exclusive), by one index.
type auditPath struct {
	from, where string
	key         string // ?3, when the path is that of one target or actor
}

func auditPathOf(f store.AuditFilter, person bool) auditPath {
	const ids = `id >= ?1 AND id < ?2`
	switch {
	case f.TargetID != "":
		return auditPath{`audit_events INDEXED BY audit_events_target`, `target_id = ?3 AND ` + ids, f.TargetID}
	case person:
		return auditPath{`audit_events INDEXED BY audit_events_users`, `actor_kind = 'user' AND actor_id = ?3 AND ` + ids, f.ActorID}
	case f.Action != "" && !strings.HasPrefix(f.Action, "task."), f.TargetKind != "" && f.TargetKind != "task":
		return auditPath{`audit_events INDEXED BY audit_events_acts`, `?3 = '' AND target_kind <> 'task' AND ` + ids, ""}
	}
	return auditPath{`audit_events NOT INDEXED`, `?3 = '' AND ` + ids, ""}
}

const auditFilters = `
	AND (?4 = '' OR actor_kind = ?4) AND (?5 = '' OR actor_id = ?5)
	AND (?6 = '' OR action = ?6 OR substr(?6, -1) = '.' AND substr(action, 1, length(?6)) = ?6)
	AND (?7 = '' OR target_kind = ?7)
	AND (?8 = '' OR host_id = ?8 OR target_kind = 'host' AND target_id = ?8)
	AND (?9 = '' OR device_id = ?9 OR target_kind = 'device' AND target_id = ?9)
	AND (?10 = '' OR request_id = ?10)
	AND (?11 IS NULL OR at >= ?11) AND (?12 IS NULL OR at < ?12)`

// SearchAudit implements store.Audit.
func (s *Store) SearchAudit(ctx context.Context, f store.AuditFilter, below int64, limit int) (rows []store.AuditRow, next int64, err error) {
	if limit <= 0 {
		limit = 50
	}
	err = s.read(ctx, "SearchAudit", func(t *tx) error {
		from, to, err := auditWindow(t, f, below)
		if err != nil || from >= to {
			return err
		}
		person := int64(0)
		if f.ActorID != "" && f.TargetID == "" {
			if person, _, err = queryOne(t, scanInt, "SELECT count(*) FROM users WHERE id = ?1", f.ActorID); err != nil {
				return err
			}
		}
		path := auditPathOf(f, person > 0)
		type scan struct{ rows, last int64 }
		seen, _, err := queryOne(t, func(r row) (sc scan, err error) { return sc, r.Scan(&sc.rows, &sc.last) },
			`SELECT count(*), coalesce(min(id), 0) FROM (SELECT id FROM `+path.from+` WHERE `+path.where+` ORDER BY id DESC LIMIT ?4)`,
			from, to, path.key, store.AuditScan)
		if err != nil || seen.rows == 0 {
			return err
		}
		rows, err = queryAll(t, func(r row) (a store.AuditRow, err error) {
			a.AuditEvent, err = scanAudit(r)
			return a, err
		}, `SELECT `+auditColumns+` FROM `+path.from+` WHERE `+path.where+auditFilters+` ORDER BY id DESC LIMIT ?13`,
			seen.last, to, path.key, f.ActorKind, f.ActorID, f.Action, f.TargetKind, f.Host, f.Device, f.RequestID,
			micros(f.From), micros(f.To), limit+1)
		if err != nil {
			return err
		}
		switch {
		case len(rows) > limit:
			rows = rows[:limit]
			next = rows[limit-1].ID
		case seen.rows == store.AuditScan:
			next = seen.last
		}
		return nameActors(t, rows)
	})
	if err != nil {
		return nil, 0, err
	}
	return rows, next, nil
}

func auditWindow(t *tx, f store.AuditFilter, below int64) (from, to int64, err error) {
	newest, _, err := queryOne(t, scanInt, "SELECT coalesce(max(id), 0) FROM audit_events")
	if err != nil {
		return 0, 0, err
	}
	return store.AuditWindow(f, below, newest, func(id int64) (time.Time, bool, error) {
		return queryOne(t, func(r row) (when time.Time, err error) { return when, r.Scan(at(&when)) },
			"SELECT at FROM audit_events WHERE id >= ?1 ORDER BY id LIMIT 1", id)
	})
}

// nameActors fills in the names of users and hosts.
func nameActors(t *tx, rows []store.AuditRow) error {
	tables := map[berth.ActorKind]string{berth.ActorUser: "users", berth.ActorHost: "hosts"}
	known := map[berth.Principal]string{}
	for i, r := range rows {
		table := tables[r.Actor.Kind]
		if table == "" {
			continue
		}
		name, ok := known[r.Actor.Principal]
		if !ok {
			var err error
			if name, _, err = queryOne(t, scanText, "SELECT name FROM "+table+" WHERE id = ?1", r.Actor.ID); err != nil {
				return err
			}
			known[r.Actor.Principal] = name
		}
		rows[i].ActorName = name
	}
	return nil
}

// RecordRead implements store.Audit.
func (s *Store) RecordRead(ctx context.Context, actor berth.Actor, e berth.AuditEvent) error {
	return s.write(ctx, "RecordRead", func(t *tx) error {
		e.Actor = actor
		return auditEvent(t, e)
	})
}
