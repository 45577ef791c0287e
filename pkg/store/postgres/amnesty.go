package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
)

// The names of the marks.
const (
	markSweep   = "sweep"
	markRenewal = "renewal"
)

const lastAmnesty = `SELECT granted_at, until, reason FROM amnesties ORDER BY id DESC LIMIT 1`

func scanAmnesty(row pgx.CollectableRow) (a berth.Amnesty, err error) {
	return a, row.Scan(&a.GrantedAt, &a.Until, &a.Reason)
}

func scanMark(row pgx.CollectableRow) (m berth.Mark, err error) {
	return m, row.Scan(instant(&m.At), instant(&m.GapFrom), instant(&m.GapTo))
}

// LastAmnesty is documented at store.Keeping.
func (s *Store) LastAmnesty(ctx context.Context) (a berth.Amnesty, err error) {
	err = s.read(ctx, "LastAmnesty", func(t *tx) error {
		a, _, err = first(t, scanAmnesty, lastAmnesty)
		return err
	})
	return a, err
}

// judgeAmnesty moves the sweep's mark, whose lock keepers take one after the
// other, and grants an amnesty when it is due. held: one is in force.
func (s *Store) judgeAmnesty(ctx context.Context, actor berth.Actor, op string) (held bool, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		sweep, _, err := first(t, scanMark, `SELECT at, gap_from, gap_to FROM marks WHERE name = $1 FOR NO KEY UPDATE`, markSweep)
		if err != nil {
			return err
		}
		f, err := t.amnestyFacts(sweep.At)
		if err != nil {
			return err
		}
		held = f.Last.InForce(f.Now)
		if granted, ok := s.timings.JudgeAmnesty(f); ok {
			held = true
			if err := t.grant(actor, granted); err != nil {
				return err
			}
		}
		return t.writeMark(markSweep, sweep.Advance(f.Now, s.timings.BlindAfter()))
	})
	return only(held, err)
}

func (t *tx) amnestyFacts(lastSweep time.Time) (f berth.AmnestyFacts, err error) {
	if f.Last, _, err = first(t, scanAmnesty, lastAmnesty); err != nil {
		return f, err
	}
	if f.Renewals, _, err = first(t, scanMark, `SELECT at, gap_from, gap_to FROM marks WHERE name = $1`, markRenewal); err != nil {
		return f, err
	}
	f.LastSweep = lastSweep
	_, _, err = first(t, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&f.Now, &f.Running, &f.Expired, &f.ExpiredHosts)
	}, `
WITH n AS MATERIALIZED (SELECT berth_now() AS now), l AS (
    SELECT l.host_id, l.expires_at <= n.now AND l.expires_at > COALESCE($1::timestamptz, '-infinity') AS over
    FROM n, leases l JOIN attempts a ON a.task_id = l.task_id AND a.number = l.number
    WHERE l.attempt_id IS NOT NULL AND a.state = 'running'
)
SELECT now, (SELECT count(*) FROM l), (SELECT count(*) FROM l WHERE over), (SELECT count(DISTINCT host_id) FROM l WHERE over) FROM n`,
		orNull(f.Last.Until))
	return f, err
}

func (t *tx) grant(actor berth.Actor, a berth.Amnesty) error {
	if _, err := t.exec(`INSERT INTO amnesties (granted_at, until, reason) VALUES ($1, $2, $3)`, a.GrantedAt, a.Until, a.Reason); err != nil {
		return err
	}
	return t.auditEvents([]berth.AuditEvent{{
		At: a.GrantedAt, Actor: actor, Action: berth.AuditAmnesty, TargetKind: "leases", TargetID: "all", Reason: a.Reason, After: a.Facts(),
	}})
}

func (t *tx) writeMark(name string, m berth.Mark) error {
	_, err := t.exec(`UPDATE marks SET at = $2, gap_from = $3, gap_to = $4 WHERE name = $1`, name, orNull(m.At), orNull(m.GapFrom), orNull(m.GapTo))
	return err
}

// markRenewed notes that renewals are stored, every MarkEvery, and waits for
// nobody: whoever holds the row notes the same.
func (t *tx) markRenewed(now time.Time) error {
	m, due, err := first(t, scanMark, `
SELECT at, gap_from, gap_to FROM marks WHERE name = $1 AND (at IS NULL OR at <= $2)
FOR NO KEY UPDATE SKIP LOCKED`, markRenewal, now.Add(-t.s.timings.MarkEvery()))
	if err != nil || !due {
		return err
	}
	return t.writeMark(markRenewal, m.Advance(now, t.s.timings.BlindAfter()))
}

// mayEnd asks berth.Timings.MayEnd for an attempt that was locked.
func (t *tx) mayEnd(now time.Time) (bool, error) {
	last, _, err := first(t, scanAmnesty, lastAmnesty)
	if err != nil {
		return false, err
	}
	sweep, _, err := first(t, scanMark, `SELECT at, gap_from, gap_to FROM marks WHERE name = $1`, markSweep)
	return t.s.timings.MayEnd(last, sweep.At, now), err
}
