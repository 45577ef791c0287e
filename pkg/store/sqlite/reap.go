package sqlite

import (
	"context"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// ReapLeases implements store.Keeping.
func (s *Store) ReapLeases(ctx context.Context, actor berth.Actor, limit int) (trs []berth.Transition, err error) {
	held, err := s.judgeAmnesty(ctx, actor, "ReapLeases")
	if err != nil {
		return nil, err
	}
	over, err := s.overdue(ctx, limit, held)
	if err != nil {
		return nil, err
	}
	var first error
	for _, id := range over {
		tr, err := s.reap(ctx, actor, id)
		s.aside.Note(id, err)
		if err != nil && first == nil {
			first = err
		}
		if err == nil && tr.Event != "" {
			trs = append(trs, tr)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return trs, first
}

func (s *Store) verdict(t *tx, a attempt) (berth.ReapVerdict, bool) {
	return s.timings.Reap(berth.Reaping{
		State: a.State, ExpiresAt: a.expires, KillBy: a.killBy, Cancel: !a.CancelRequestedAt.IsZero(),
	}, t.now)
}

// overdue lists attempts that may be ended now, the longest overdue first, but
// last what could not be ended before, and what runs only while no amnesty holds
// it. Each is judged again in its own transaction.
func (s *Store) overdue(ctx context.Context, limit int, held bool) (ids []berth.AttemptID, err error) {
	err = s.read(ctx, "ReapLeases", func(t *tx) error {
		candidates, err := queryAll(t, scanAttempt, attemptSelect+
			" WHERE a.ended_at IS NULL AND (l.expires_at <= ?1 OR l.kill_by <= ?1) ORDER BY min(l.expires_at, coalesce(l.kill_by, l.expires_at)), a.id", micros(t.now))
		if err != nil {
			return err
		}
		aside := s.aside.IDs()
		var last []berth.AttemptID
		for _, a := range candidates {
			if _, ok := s.verdict(t, a); !ok || held && a.State.Started() {
				continue
			}
			if slices.Contains(aside, a.ID) {
				last = append(last, a.ID)
			} else {
				ids = append(ids, a.ID)
			}
		}
		ids = append(ids, last...)
		ids = ids[:min(len(ids), max(0, limit))]
		return nil
	})
	return ids, err
}

func (s *Store) reap(ctx context.Context, actor berth.Actor, id berth.AttemptID) (tr berth.Transition, err error) {
	err = s.write(ctx, "ReapLeases", func(t *tx) error {
		a, ok, err := loadAttempt(t, id)
		if err != nil || !ok || !a.Live() || a.expires.IsZero() {
			return err
		}
		v, ok := s.verdict(t, a)
		if !ok {
			return nil
		}
		if a.State.Started() {
			if may, err := mayEnd(t); err != nil || !may {
				return err
			}
		}
		hintOf(t, store.HintAssigned, a.Host)
		tr, err = endAttempt(t, actor, a, ending{outcome: v.Outcome, reason: v.Reason, by: v.By, unclean: v.Unclean})
		return err
	})
	if err != nil {
		return berth.Transition{}, err
	}
	return tr, nil
}

// MarkSilentHosts implements store.Keeping.
func (s *Store) MarkSilentHosts(ctx context.Context, actor berth.Actor, limit int) (silent []berth.HostID, err error) {
	err = s.write(ctx, "MarkSilentHosts", func(t *tx) error {
		if may, err := mayEnd(t); err != nil || !may {
			return err
		}
		online, err := queryAll(t, scanHostRow, hostRowSelect+" WHERE state = 'online' ORDER BY last_seen_at, id")
		if err != nil {
			return err
		}
		for _, h := range online {
			if len(silent) >= limit || s.timings.HostFresh(h.seen, t.now) {
				continue
			}
			if err := takeOffline(t, actor, h.id); err != nil {
				return err
			}
			silent = append(silent, h.id)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return silent, nil
}

func takeOffline(t *tx, actor berth.Actor, host berth.HostID) error {
	if err := clearPlaceable(t, host); err != nil {
		return err
	}
	if err := t.execOne("UPDATE hosts SET state = ?2 WHERE id = ?1", host, berth.HostOffline); err != nil {
		return err
	}
	return auditChange(t, actor, berth.AuditHostOffline, "host", string(host),
		berth.Fact("state", string(berth.HostOnline)), berth.Fact("state", string(berth.HostOffline)))
}
