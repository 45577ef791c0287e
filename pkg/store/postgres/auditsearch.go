package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// auditPath is a way through the trail, newest first, between the ids $1
// (inclusive) and $2 (exclusive). Each is written so that one index alone gives its
// order: what the planner believes of a table that grows by the second must not
// decide how much a page costs.
type auditPath struct {
	where, order string
	key          string // $3, when the path is that of one target or actor
	acts         bool
}

func auditPathOf(f store.AuditFilter, person bool) auditPath {
	const one = ` AND (%[1]s, id) >= ($3, $1) AND (%[1]s, id) < ($3, $2)`
	switch {
	case f.TargetID != "":
		return auditPath{`$3 <> ''` + fmt.Sprintf(one, "target_id"), `target_id DESC, id DESC`, clean(f.TargetID), false}
	case person:
		return auditPath{`actor_kind = 'user'` + fmt.Sprintf(one, "actor_id"), `actor_id DESC, id DESC`, clean(f.ActorID), false}
	case f.Action != "" && !strings.HasPrefix(f.Action, "task."), f.TargetKind != "" && f.TargetKind != "task":
		return auditPath{`$3 = '' AND target_kind <> 'task' AND -id <= -$1::bigint AND -id > -$2::bigint`, `-id`, "", true}
	}
	return auditPath{`$3 = '' AND id >= $1 AND id < $2`, `id DESC`, "", false}
}

const auditFilters = `
  AND ($4 = '' OR actor_kind = $4) AND ($5 = '' OR actor_id = $5)
  AND ($6 = '' OR action = $6 OR right($6, 1) = '.' AND starts_with(action, $6))
  AND ($7 = '' OR target_kind = $7)
  AND ($8 = '' OR host_id = $9 OR target_kind = 'host' AND target_id = $8)
  AND ($10 = '' OR device_id = $11 OR target_kind = 'device' AND target_id = $10)
  AND ($12 = '' OR request_id = $12)
  AND ($13::timestamptz IS NULL OR at >= $13) AND ($14::timestamptz IS NULL OR at < $14)`

// SearchAudit is documented at store.Audit.
func (s *Store) SearchAudit(ctx context.Context, f store.AuditFilter, below int64, limit int) (rows []store.AuditRow, next int64, err error) {
	if limit <= 0 {
		limit = 50
	}
	err = s.read(ctx, "SearchAudit", func(t *tx) error {
		from, to, err := t.auditWindow(f, below)
		if err != nil || from >= to {
			return err
		}
		person := false
		if f.ActorID != "" && f.TargetID == "" {
			if person, _, err = first(t, column[bool], `SELECT EXISTS (SELECT FROM users WHERE id = $1)`, uid(berth.UserID(f.ActorID))); err != nil {
				return err
			}
		}
		path := auditPathOf(f, person)
		lowest := from
		if path.key == "" && !path.acts {
			// Of ids without an index of their own a page takes a range: a plan made
			// before the first statistics would sort the whole table.
			from = max(from, to-store.AuditScan)
		}
		type scan struct{ rows, last int64 }
		seen, _, err := first(t, func(row pgx.CollectableRow) (sc scan, err error) {
			return sc, row.Scan(&sc.rows, &sc.last)
		}, `SELECT count(*), COALESCE(min(id), 0) FROM (
    SELECT id FROM audit_events WHERE `+path.where+` ORDER BY `+path.order+` LIMIT $4) s`, from, to, path.key, store.AuditScan)
		if err != nil {
			return err
		}
		rows, err = collect(t, func(row pgx.CollectableRow) (r store.AuditRow, err error) {
			r.AuditEvent, err = scanAudit(row)
			return r, err
		}, `SELECT `+auditColumns+` FROM audit_events WHERE `+path.where+auditFilters+` ORDER BY `+path.order+` LIMIT $15`,
			max(from, seen.last), to, path.key, string(f.ActorKind), clean(f.ActorID), clean(f.Action), clean(f.TargetKind),
			string(f.Host), uid(f.Host), string(f.Device), uid(f.Device), clean(f.RequestID), orNull(f.From), orNull(f.To), limit+1)
		if err != nil {
			return err
		}
		switch {
		case len(rows) > limit:
			rows = rows[:limit]
			next = rows[limit-1].ID
		case seen.rows == store.AuditScan:
			next = seen.last
		case from > lowest:
			next = from
		}
		return t.nameActors(rows)
	})
	if err != nil {
		return nil, 0, err
	}
	return rows, next, nil
}

func (t *tx) auditWindow(f store.AuditFilter, below int64) (from, to int64, err error) {
	type ends struct{ oldest, newest int64 }
	e, _, err := first(t, func(row pgx.CollectableRow) (e ends, err error) {
		return e, row.Scan(&e.oldest, &e.newest)
	}, `SELECT COALESCE(min(id), 0), COALESCE(max(id), 0) FROM audit_events`)
	if err != nil {
		return 0, 0, err
	}
	from, to, err = store.AuditWindow(f, below, e.newest, func(id int64) (time.Time, bool, error) {
		return first(t, column[time.Time], `SELECT at FROM audit_events WHERE id >= $1 ORDER BY id LIMIT 1`, id)
	})
	return max(from, e.oldest), to, err
}

// nameActors fills in the names of users and hosts.
func (t *tx) nameActors(rows []store.AuditRow) error {
	ids := map[berth.ActorKind][]string{}
	for _, r := range rows {
		ids[r.Actor.Kind] = append(ids[r.Actor.Kind], r.Actor.ID)
	}
	for kind, table := range map[berth.ActorKind]string{berth.ActorUser: "users", berth.ActorHost: "hosts"} {
		if len(ids[kind]) == 0 {
			continue
		}
		type named struct{ id, name string }
		names, err := collect(t, func(row pgx.CollectableRow) (n named, err error) { return n, row.Scan(&n.id, &n.name) },
			`SELECT id::text, name FROM `+table+` WHERE id = ANY ($1)`, uids(unique(ids[kind])))
		if err != nil {
			return err
		}
		for i, r := range rows {
			if n := slices.IndexFunc(names, func(n named) bool { return n.id == r.Actor.ID }); n >= 0 && r.Actor.Kind == kind {
				rows[i].ActorName = names[n].name
			}
		}
	}
	return nil
}

// RecordRead is documented at store.Audit.
func (s *Store) RecordRead(ctx context.Context, actor berth.Actor, e berth.AuditEvent) error {
	return s.write(ctx, "RecordRead", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		e.At, e.Actor = now, actor
		return t.auditEvents([]berth.AuditEvent{e})
	})
}
