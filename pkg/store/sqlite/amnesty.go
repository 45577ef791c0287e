package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// The names of the marks.
const (
	markSweep   = "sweep"
	markRenewal = "renewal"
)

// LastAmnesty implements store.Keeping.
func (s *Store) LastAmnesty(ctx context.Context) (a berth.Amnesty, err error) {
	err = s.read(ctx, "LastAmnesty", func(t *tx) error {
		a, err = lastAmnesty(t)
		return err
	})
	return a, err
}

func lastAmnesty(t *tx) (berth.Amnesty, error) {
	a, _, err := queryOne(t, func(r row) (a berth.Amnesty, err error) {
		return a, r.Scan(at(&a.GrantedAt), at(&a.Until), &a.Reason)
	}, "SELECT granted_at, until, reason FROM amnesties ORDER BY id DESC LIMIT 1")
	return a, err
}

func readMark(t *tx, name string) (berth.Mark, error) {
	m, _, err := queryOne(t, func(r row) (m berth.Mark, err error) {
		return m, r.Scan(at(&m.At), at(&m.GapFrom), at(&m.GapTo))
	}, "SELECT at, gap_from, gap_to FROM marks WHERE name = ?1", name)
	return m, err
}

func writeMark(t *tx, name string, m berth.Mark) error {
	return t.execOne("UPDATE marks SET at = ?2, gap_from = ?3, gap_to = ?4 WHERE name = ?1", name, micros(m.At), micros(m.GapFrom), micros(m.GapTo))
}

// judgeAmnesty moves the sweep's mark and grants an amnesty when it is due.
// held: one is in force.
func (s *Store) judgeAmnesty(ctx context.Context, actor berth.Actor, op string) (held bool, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		sweep, err := readMark(t, markSweep)
		if err != nil {
			return err
		}
		f := berth.AmnestyFacts{Now: t.now, LastSweep: sweep.At}
		if err := amnestyFacts(t, &f); err != nil {
			return err
		}
		held = f.Last.InForce(t.now)
		if granted, ok := s.timings.JudgeAmnesty(f); ok {
			held = true
			if err := grant(t, actor, granted); err != nil {
				return err
			}
		}
		return writeMark(t, markSweep, sweep.Advance(t.now, s.timings.BlindAfter()))
	})
	if err != nil {
		return false, err
	}
	return held, nil
}

func amnestyFacts(t *tx, f *berth.AmnestyFacts) (err error) {
	if f.Last, err = lastAmnesty(t); err != nil {
		return err
	}
	if f.Renewals, err = readMark(t, markRenewal); err != nil {
		return err
	}
	_, _, err = queryOne(t, func(r row) (struct{}, error) {
		return struct{}{}, r.Scan(&f.Running, &f.Expired, &f.ExpiredHosts)
	}, `SELECT count(*), count(*) FILTER (WHERE over), count(DISTINCT host_id) FILTER (WHERE over) FROM (
		SELECT l.host_id, l.expires_at <= ?1 AND l.expires_at > coalesce(?2, 0) AS over
		FROM leases l JOIN attempts a ON a.id = l.attempt_id WHERE a.state = 'running')`, micros(t.now), micros(f.Last.Until))
	return err
}

func grant(t *tx, actor berth.Actor, a berth.Amnesty) error {
	err := t.execOne("INSERT INTO amnesties (granted_at, until, reason) VALUES (?1, ?2, ?3)", micros(a.GrantedAt), micros(a.Until), a.Reason)
	if err != nil {
		return err
	}
	return auditEvent(t, berth.AuditEvent{Actor: actor, Action: berth.AuditAmnesty, TargetKind: "leases", TargetID: "all", Reason: a.Reason, After: a.Facts()})
}

// markRenewed notes that renewals are stored, every MarkEvery.
func markRenewed(t *tx) error {
	m, err := readMark(t, markRenewal)
	if err != nil || t.now.Sub(m.At) < t.store.timings.MarkEvery() {
		return err
	}
	return writeMark(t, markRenewal, m.Advance(t.now, t.store.timings.BlindAfter()))
}

// mayEnd asks berth.Timings.MayEnd for a running attempt.
func mayEnd(t *tx) (bool, error) {
	last, err := lastAmnesty(t)
	if err != nil {
		return false, err
	}
	sweep, err := readMark(t, markSweep)
	return t.store.timings.MayEnd(last, sweep.At, t.now), err
}
