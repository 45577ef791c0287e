package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// DrainHost implements store.Operators.
func (s *Store) DrainHost(ctx context.Context, actor berth.Actor, id berth.HostID, on bool) (h berth.Host, trs []berth.Transition, err error) {
	err = s.write(ctx, "DrainHost", func(t *tx) error {
		if h, err = loadHost(t, id); err != nil {
			return err
		}
		if h.State == berth.HostRevoked {
			return &berth.WrongStateError{Thing: "host", State: string(h.State), Message: "it gets nothing to do any more"}
		}
		if h.DrainRequestedAt.IsZero() == !on {
			return nil
		}
		action := berth.AuditHostUndrain
		var asked any
		if on {
			action, asked = berth.AuditHostDrain, micros(t.now)
		}
		if err := t.execOne("UPDATE hosts SET drain_requested_at = ?2 WHERE id = ?1", id, asked); err != nil {
			return err
		}
		if err := judgePlaceable(t, id); err != nil {
			return err
		}
		before, after := berth.FlagFacts("drain_requested", on)
		if err := auditChange(t, actor, action, "host", string(id), before, after); err != nil {
			return err
		}
		h, err = loadHost(t, id)
		return err
	})
	if err != nil {
		return berth.Host{}, nil, err
	}
	if !on {
		return h, nil, nil
	}
	return s.endOnHost(ctx, "DrainHost", actor, id, berth.ReasonHostDraining, func(h berth.Host, a attempt) bool {
		return !h.DrainRequestedAt.IsZero() && !a.State.Started()
	})
}

// RevokeHost implements store.Operators.
func (s *Store) RevokeHost(ctx context.Context, actor berth.Actor, id berth.HostID) (h berth.Host, trs []berth.Transition, err error) {
	err = s.write(ctx, "RevokeHost", func(t *tx) error {
		if h, err = loadHost(t, id); err != nil || h.State == berth.HostRevoked {
			return err
		}
		if err := t.execOne("UPDATE hosts SET state = ?2 WHERE id = ?1", id, berth.HostRevoked); err != nil {
			return err
		}
		if err := clearPlaceable(t, id); err != nil {
			return err
		}
		return auditChange(t, actor, berth.AuditHostRevoked, "host", string(id),
			berth.Fact("state", string(h.State)), berth.Fact("state", string(berth.HostRevoked)))
	})
	if err != nil {
		return berth.Host{}, nil, err
	}
	return s.endOnHost(ctx, "RevokeHost", actor, id, berth.ReasonHostRevoked, func(h berth.Host, _ attempt) bool {
		return h.State == berth.HostRevoked
	})
}

// endOnHost is the second transaction of an act on a host: it ends those of its
// live attempts that over names, by task. Nothing is placed on the host any
// more, so none comes to be meanwhile.
func (s *Store) endOnHost(ctx context.Context, op string, actor berth.Actor, id berth.HostID, reason string, over func(berth.Host, attempt) bool) (h berth.Host, trs []berth.Transition, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		if h, err = loadHost(t, id); err != nil {
			return err
		}
		live, err := queryAll(t, scanAttempt, attemptSelect+" WHERE a.host_id = ?1 AND a.ended_at IS NULL ORDER BY a.task_id", id)
		if err != nil {
			return err
		}
		var ending []attempt
		for _, a := range live {
			if over(h, a) {
				ending = append(ending, a)
			}
		}
		if len(ending) == 0 {
			return nil
		}
		if trs, err = endByOperator(t, actor, ending, reason); err != nil {
			return err
		}
		h, err = loadHost(t, id)
		return err
	})
	if err != nil {
		return berth.Host{}, nil, err
	}
	return h, trs, nil
}
