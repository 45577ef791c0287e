package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// act does an operator's act on one device in one transaction: the lease row and
// the device are locked, in this order, and what they say is read after that. fn
// reports whether it wrote anything; if so the bit is judged anew (I14).
func (s *Store) act(ctx context.Context, op string, id berth.DeviceID, fn func(t *tx, d berth.Device, now time.Time) (bool, error)) (d berth.Device, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		devices := []berth.DeviceID{id}
		if err := t.lockLeases(devices); err != nil {
			return err
		}
		if err := t.lockDevices(devices); err != nil {
			return err
		}
		if d, err = t.device(id); err != nil {
			return err
		}
		now, err := t.now()
		if err != nil {
			return err
		}
		changed, err := fn(t, d, now)
		if err != nil || !changed {
			return err
		}
		if err := t.judgeBits(devices); err != nil {
			return err
		}
		d, err = t.device(id)
		return err
	})
	return only(d, err)
}

// SetDeviceAdmin is documented at store.Operators.
func (s *Store) SetDeviceAdmin(ctx context.Context, p store.DeviceAdminParams) (berth.Device, error) {
	if err := berth.CheckAdmin(p.Admin, p.Note); err != nil {
		return berth.Device{}, err
	}
	return s.act(ctx, "SetDeviceAdmin", p.Device, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		return t.setAdmin(p, d, now)
	})
}

func (t *tx) setAdmin(p store.DeviceAdminParams, d berth.Device, now time.Time) (bool, error) {
	if d.Admin == p.Admin && d.AdminNote == p.Note {
		return false, nil
	}
	if _, err := t.exec(`UPDATE devices SET admin_state = $2, admin_note = $3, updated_at = $4 WHERE id = $1`,
		uid(d.ID), string(p.Admin), p.Note, now); err != nil {
		return false, err
	}
	return true, t.auditEvents([]berth.AuditEvent{{
		At: now, Actor: p.Actor, Action: berth.AuditDeviceAdmin, TargetKind: "device", TargetID: string(d.ID), Reason: string(p.Admin),
		Before: berth.AdminFacts(d.Admin, d.AdminNote), After: berth.AdminFacts(p.Admin, p.Note),
	}})
}

// SetDeviceLabels is documented at store.Operators.
func (s *Store) SetDeviceLabels(ctx context.Context, actor berth.Actor, id berth.DeviceID, labels map[string]string) (berth.Device, error) {
	if err := berth.CheckAdminLabels(labels); err != nil {
		return berth.Device{}, err
	}
	return s.act(ctx, "SetDeviceLabels", id, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		n, err := t.exec(`UPDATE devices SET admin_labels = $2, updated_at = $3 WHERE id = $1 AND admin_labels <> $2`,
			uid(id), labelsJSON(labels), now)
		if err != nil || n == 0 {
			return false, err
		}
		t.hint(store.HintWork, string(d.Pool))
		return true, t.auditChange(actor, now, berth.AuditDeviceLabels, "device", string(id), berth.NewFacts(d.AdminLabels), berth.NewFacts(labels))
	})
}

// TrustDevice is documented at store.Operators.
func (s *Store) TrustDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error) {
	return s.act(ctx, "TrustDevice", id, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		if d.HealthRecord.Next(berth.SignalTrusted, now).Same(d.HealthRecord) {
			return false, nil
		}
		return true, t.hear(actor, now, map[berth.DeviceID]berth.HealthSignal{id: berth.SignalTrusted})
	})
}

// MarkDeviceClean is documented at store.Operators.
func (s *Store) MarkDeviceClean(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error) {
	return s.act(ctx, "MarkDeviceClean", id, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		switch {
		case d.Attempt != "":
			return false, &berth.WrongStateError{Thing: "device", State: string(berth.OccupancyHeld), Message: "wait for its attempt's end, or force-release it"}
		case !d.Unclean:
			return false, nil
		}
		return true, t.setUnclean(actor, now, []berth.DeviceID{id}, false)
	})
}

// RetireDevice is documented at store.Operators.
func (s *Store) RetireDevice(ctx context.Context, p store.DeviceAdminParams) (d berth.Device, moves []berth.Transition, err error) {
	if err := berth.CheckNote(p.Note); err != nil {
		return d, nil, err
	}
	p.Admin = berth.AdminRetired
	if _, err = s.act(ctx, "RetireDevice", p.Device, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		return t.setAdmin(p, d, now)
	}); err != nil {
		return d, nil, err
	}
	err = s.write(ctx, "RetireDevice", func(t *tx) error {
		moves = nil
		a, now, err := t.holderOf(p.Device)
		if err != nil {
			return err
		}
		if d, err = t.device(p.Device); err != nil || a == nil || d.Admin != berth.AdminRetired {
			return err
		}
		if moves, err = t.endByOperator(p.Actor, now, []*live{a}, berth.ReasonDeviceRetired); err != nil {
			return err
		}
		d, err = t.device(p.Device)
		return err
	})
	return committed(d, moves, err)
}

// ForceRelease is documented at store.Operators.
func (s *Store) ForceRelease(ctx context.Context, p store.ForceReleaseParams) (d berth.Device, moves []berth.Transition, err error) {
	err = s.write(ctx, "ForceRelease", func(t *tx) error {
		moves = nil
		a, now, err := t.holderOf(p.Device)
		if err != nil {
			return err
		}
		if a == nil || p.Attempt != "" && a.id != p.Attempt {
			if err := t.releasedBefore(p); err != nil {
				return err
			}
			d, err = t.device(p.Device)
			return err
		}
		was := a.state
		if moves, err = t.endByOperator(p.Actor, now, []*live{a}, berth.ReasonForceReleased); err != nil {
			return err
		}
		if err := t.auditEvents([]berth.AuditEvent{{
			At: now, Actor: p.Actor, Action: berth.AuditDeviceReleased, TargetKind: "device", TargetID: string(p.Device),
			Attempt: a.id, Number: a.number, Host: a.host, Before: berth.HeldFacts(a.task, was),
		}}); err != nil {
			return err
		}
		d, err = t.device(p.Device)
		return err
	})
	return committed(d, moves, err)
}

// releasedBefore judges a force-release whose attempt does not hold the device.
func (t *tx) releasedBefore(p store.ForceReleaseParams) error {
	if p.Attempt == "" {
		return &berth.WrongStateError{Thing: "device", State: string(berth.OccupancyFree), Message: "only a held device can be released"}
	}
	ended, err := found(t, "attempt", column[bool],
		`SELECT ended_at IS NOT NULL FROM attempts WHERE id = $1 AND device_id = $2`, uid(p.Attempt), uid(p.Device))
	if err == nil && !ended {
		err = errStartOver // it came to be after the lease was read
	}
	return err
}

// holderOf locks the attempt that holds a device, its lease and its task; nil
// without one. An unknown device is berth.ErrNotFound.
func (t *tx) holderOf(id berth.DeviceID) (*live, time.Time, error) {
	var holder berth.AttemptID
	ids, err := collect(t, column[*berth.AttemptID], `SELECT attempt_id FROM leases WHERE device_id = $1`, uid(id))
	if err != nil {
		return nil, time.Time{}, err
	}
	if len(ids) == 0 {
		return nil, time.Time{}, fmt.Errorf("device: %w", berth.ErrNotFound)
	}
	if ids[0] == nil {
		return nil, time.Time{}, nil
	}
	holder = *ids[0]
	keys, err := t.lockForEnd([]berth.AttemptID{holder}, "")
	if err != nil {
		return nil, time.Time{}, err
	}
	now, err := t.now()
	if err != nil {
		return nil, now, err
	}
	loaded, err := t.load(attemptsOf(keys))
	if err != nil {
		return nil, now, err
	}
	if len(loaded) != 1 || loaded[0].ended() || !loaded[0].holds {
		return nil, now, errStartOver
	}
	return loaded[0], now, nil
}

// endByOperator ends attempts that are locked, live and read after that: what
// was started is infra_failed and its device unclean until it is proved clean;
// the rest is handed back uncounted. Their devices' fences go up, so that no
// write of the holders is current any more.
func (t *tx) endByOperator(actor berth.Actor, now time.Time, attempts []*live, reason string) ([]berth.Transition, error) {
	ends := mapped(attempts, func(a *live) *end {
		e := &end{live: a, outcome: berth.OutcomeReleased, reason: reason, by: berth.EndedByOperator, uncounted: true}
		if a.state.Started() {
			e.outcome, e.uncounted, e.dirty = berth.OutcomeInfraFailed, false, true
		}
		t.hint(store.HintAssigned, string(a.host))
		return e
	})
	moves, err := t.endAttempts(actor, now, ends)
	if err != nil || len(ends) == 0 {
		return nil, err
	}
	_, err = t.exec(`UPDATE leases SET fence = fence + 1 WHERE device_id = ANY ($1)`,
		uids(mapped(attempts, func(a *live) berth.DeviceID { return a.device })))
	return moves, err
}

// MoveDevice is documented at store.Operators.
func (s *Store) MoveDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID, to berth.HostID) (berth.Device, error) {
	return s.act(ctx, "MoveDevice", id, func(t *tx, d berth.Device, now time.Time) (bool, error) {
		pool, err := t.judgeMove(d, to)
		if err != nil || d.Host == to {
			return false, err
		}
		if _, err := t.exec(`
UPDATE devices SET host_id = $2, pool_id = $3, present = false, conflict_host_id = NULL, updated_at = $4 WHERE id = $1`,
			uid(id), uid(to), uid(pool), now); err != nil {
			if sqlState(err) == uniqueViolation {
				return false, &berth.ExistsError{What: "a device of that driver and hardware id on the host"}
			}
			return false, err
		}
		if _, err := t.exec(`UPDATE leases SET host_id = $2, pool_id = $3 WHERE device_id = $1`, uid(id), uid(to), uid(pool)); err != nil {
			return false, err
		}
		return true, t.auditEvents([]berth.AuditEvent{{
			At: now, Actor: actor, Action: berth.AuditDeviceMoved, TargetKind: "device", TargetID: string(id), Host: to,
			Before: berth.MoveFacts(d.Host, d.Pool), After: berth.MoveFacts(to, pool),
		}})
	})
}

// judgeMove locks both hosts, judges whether a locked device may be given to the
// other, and returns its pool.
func (t *tx) judgeMove(d berth.Device, to berth.HostID) (berth.PoolID, error) {
	if _, err := t.exec(`SELECT 1 FROM hosts WHERE id = ANY ($1) ORDER BY id FOR SHARE`, uids([]berth.HostID{d.Host, to})); err != nil {
		return "", err
	}
	h, err := t.host(to)
	if err != nil || d.Host == to {
		return h.pool, err
	}
	return h.pool, berth.CheckMove(d)
}
