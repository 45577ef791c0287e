package postgres

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// DrainHost is documented at store.Operators.
func (s *Store) DrainHost(ctx context.Context, actor berth.Actor, id berth.HostID, on bool) (h berth.Host, moves []berth.Transition, err error) {
	err = s.write(ctx, "DrainHost", func(t *tx) error {
		devices, err := t.lockFleetOf(id, nil, nil, nil)
		if err != nil {
			return err
		}
		if h, err = t.shownHost(id); err != nil {
			return err
		}
		if h.State == berth.HostRevoked {
			return &berth.WrongStateError{Thing: "host", State: string(h.State), Message: "it gets nothing to do any more"}
		}
		if h.DrainRequestedAt.IsZero() == !on {
			return nil
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE hosts SET drain_requested_at = CASE WHEN $2 THEN $3::timestamptz END WHERE id = $1`, uid(id), on, now); err != nil {
			return err
		}
		if err := t.writeBits(devices); err != nil {
			return err
		}
		action := berth.AuditHostUndrain
		if on {
			action = berth.AuditHostDrain
		}
		before, after := berth.FlagFacts("drain_requested", on)
		if err := t.auditChange(actor, now, action, "host", string(id), before, after); err != nil {
			return err
		}
		h, err = t.shownHost(id)
		return err
	})
	if err != nil || !on {
		return committed(h, moves, err)
	}
	return s.endOnHost(ctx, "DrainHost", actor, id, berth.ReasonHostDraining, func(h berth.Host, a *live) bool {
		return !h.DrainRequestedAt.IsZero() && !a.state.Started()
	})
}

// RevokeHost is documented at store.Operators.
func (s *Store) RevokeHost(ctx context.Context, actor berth.Actor, id berth.HostID) (h berth.Host, moves []berth.Transition, err error) {
	err = s.write(ctx, "RevokeHost", func(t *tx) error {
		devices, err := t.lockFleetOf(id, nil, nil, nil)
		if err != nil {
			return err
		}
		if h, err = t.shownHost(id); err != nil || h.State == berth.HostRevoked {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE hosts SET state = 'revoked' WHERE id = $1`, uid(id)); err != nil {
			return err
		}
		if err := t.writeBits(devices); err != nil {
			return err
		}
		return t.auditChange(actor, now, berth.AuditHostRevoked, "host", string(id),
			berth.Fact("state", string(h.State)), berth.Fact("state", string(berth.HostRevoked)))
	})
	if err != nil {
		return berth.Host{}, nil, err
	}
	return s.endOnHost(ctx, "RevokeHost", actor, id, berth.ReasonHostRevoked, func(h berth.Host, _ *live) bool {
		return h.State == berth.HostRevoked
	})
}

// endOnHost is the second transaction of an act on a host: it ends those of its
// live attempts that over names, asked once they are locked. Nothing is placed
// on the host any more, so none comes to be meanwhile.
func (s *Store) endOnHost(ctx context.Context, op string, actor berth.Actor, id berth.HostID, reason string, over func(berth.Host, *live) bool) (h berth.Host, moves []berth.Transition, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		moves = nil
		ids, err := collect(t, column[berth.AttemptID], `SELECT id FROM attempts WHERE host_id = $1 AND ended_at IS NULL`, uid(id))
		if err != nil {
			return err
		}
		var keys []lockedKey
		if len(ids) > 0 {
			if keys, err = t.lockForEnd(ids, id); err != nil {
				return err
			}
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		if h, err = t.shownHost(id); err != nil {
			return err
		}
		loaded, err := t.load(attemptsOf(keys))
		if err != nil {
			return err
		}
		var ending []*live
		for _, a := range loaded {
			if !a.ended() && over(h, a) {
				ending = append(ending, a)
			}
		}
		if len(ending) == 0 {
			return nil
		}
		if moves, err = t.endByOperator(actor, now, ending, reason); err != nil {
			return err
		}
		h, err = t.shownHost(id)
		return err
	})
	return committed(h, moves, err)
}
