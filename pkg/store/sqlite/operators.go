package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// act does an operator's act on one device. fn reports whether it wrote anything;
// if so placeable is judged anew (I14).
func (s *Store) act(ctx context.Context, op string, id berth.DeviceID, fn func(t *tx, d berth.Device) (bool, error)) (d berth.Device, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		if d, err = loadDevice(t, id); err != nil {
			return err
		}
		changed, err := fn(t, d)
		if err != nil || !changed {
			return err
		}
		if d, err = loadDevice(t, id); err != nil {
			return err
		}
		return judgePlaceable(t, d.Host)
	})
	if err != nil {
		return berth.Device{}, err
	}
	return d, nil
}

// SetDeviceAdmin implements store.Operators.
func (s *Store) SetDeviceAdmin(ctx context.Context, p store.DeviceAdminParams) (berth.Device, error) {
	if err := berth.CheckAdmin(p.Admin, p.Note); err != nil {
		return berth.Device{}, err
	}
	return s.act(ctx, "SetDeviceAdmin", p.Device, func(t *tx, d berth.Device) (bool, error) { return setAdmin(t, p, d) })
}

func setAdmin(t *tx, p store.DeviceAdminParams, d berth.Device) (bool, error) {
	if d.Admin == p.Admin && d.AdminNote == p.Note {
		return false, nil
	}
	if err := t.execOne("UPDATE devices SET admin_state = ?2, admin_note = ?3, updated_at = ?4 WHERE id = ?1",
		d.ID, p.Admin, p.Note, micros(t.now)); err != nil {
		return false, err
	}
	return true, auditEvent(t, berth.AuditEvent{
		Actor: p.Actor, Action: berth.AuditDeviceAdmin, TargetKind: "device", TargetID: string(d.ID), Reason: string(p.Admin),
		Before: berth.AdminFacts(d.Admin, d.AdminNote), After: berth.AdminFacts(p.Admin, p.Note),
	})
}

// SetDeviceLabels implements store.Operators.
func (s *Store) SetDeviceLabels(ctx context.Context, actor berth.Actor, id berth.DeviceID, labels map[string]string) (berth.Device, error) {
	if err := berth.CheckAdminLabels(labels); err != nil {
		return berth.Device{}, err
	}
	if labels == nil {
		labels = map[string]string{}
	}
	return s.act(ctx, "SetDeviceLabels", id, func(t *tx, d berth.Device) (bool, error) {
		n, err := t.exec("UPDATE devices SET admin_labels = ?2, updated_at = ?3 WHERE id = ?1 AND admin_labels <> ?2",
			id, jsonText(labels), micros(t.now))
		if err != nil || n == 0 {
			return false, err
		}
		hintOf(t, store.HintWork, d.Pool)
		return true, auditChange(t, actor, berth.AuditDeviceLabels, "device", string(id), berth.NewFacts(d.AdminLabels), berth.NewFacts(labels))
	})
}

// TrustDevice implements store.Operators.
func (s *Store) TrustDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error) {
	return s.act(ctx, "TrustDevice", id, func(t *tx, d berth.Device) (bool, error) {
		if d.HealthRecord.Next(berth.SignalTrusted, t.now).Same(d.HealthRecord) {
			return false, nil
		}
		_, err := hear(t, actor, d.Host, map[berth.DeviceID]berth.HealthSignal{id: berth.SignalTrusted})
		return true, err
	})
}

// MarkDeviceClean implements store.Operators.
func (s *Store) MarkDeviceClean(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error) {
	return s.act(ctx, "MarkDeviceClean", id, func(t *tx, d berth.Device) (bool, error) {
		if d.Attempt != "" {
			return false, &berth.WrongStateError{Thing: "device", State: string(berth.OccupancyHeld), Message: "wait for its attempt's end, or force-release it"}
		}
		return markClean(t, actor, id)
	})
}

// RetireDevice implements store.Operators.
func (s *Store) RetireDevice(ctx context.Context, p store.DeviceAdminParams) (d berth.Device, trs []berth.Transition, err error) {
	if err := berth.CheckNote(p.Note); err != nil {
		return d, nil, err
	}
	p.Admin = berth.AdminRetired
	if _, err = s.act(ctx, "RetireDevice", p.Device, func(t *tx, d berth.Device) (bool, error) { return setAdmin(t, p, d) }); err != nil {
		return d, nil, err
	}
	err = s.write(ctx, "RetireDevice", func(t *tx) error {
		if d, err = loadDevice(t, p.Device); err != nil || d.Attempt == "" || d.Admin != berth.AdminRetired {
			return err
		}
		a, err := holderOf(t, d)
		if err != nil {
			return err
		}
		if trs, err = endByOperator(t, p.Actor, []attempt{a}, berth.ReasonDeviceRetired); err != nil {
			return err
		}
		d, err = loadDevice(t, p.Device)
		return err
	})
	if err != nil {
		return berth.Device{}, nil, err
	}
	return d, trs, nil
}

// ForceRelease implements store.Operators.
func (s *Store) ForceRelease(ctx context.Context, p store.ForceReleaseParams) (d berth.Device, trs []berth.Transition, err error) {
	err = s.write(ctx, "ForceRelease", func(t *tx) error {
		if d, err = loadDevice(t, p.Device); err != nil {
			return err
		}
		if d.Attempt == "" || p.Attempt != "" && d.Attempt != p.Attempt {
			return releasedBefore(t, p)
		}
		a, err := holderOf(t, d)
		if err != nil {
			return err
		}
		if trs, err = endByOperator(t, p.Actor, []attempt{a}, berth.ReasonForceReleased); err != nil {
			return err
		}
		if err := auditEvent(t, berth.AuditEvent{
			Actor: p.Actor, Action: berth.AuditDeviceReleased, TargetKind: "device", TargetID: string(d.ID),
			Attempt: a.ID, Number: a.Number, Host: a.Host, Before: berth.HeldFacts(a.Task, a.State),
		}); err != nil {
			return err
		}
		d, err = loadDevice(t, p.Device)
		return err
	})
	if err != nil {
		return berth.Device{}, nil, err
	}
	return d, trs, nil
}

// releasedBefore judges a force-release whose attempt does not hold the device.
func releasedBefore(t *tx, p store.ForceReleaseParams) error {
	if p.Attempt == "" {
		return &berth.WrongStateError{Thing: "device", State: string(berth.OccupancyFree), Message: "only a held device can be released"}
	}
	n, _, err := queryOne(t, scanInt, "SELECT count(*) FROM attempts WHERE id = ?1 AND device_id = ?2", p.Attempt, p.Device)
	if err == nil && n == 0 {
		err = notFound("attempt")
	}
	return err
}

func holderOf(t *tx, d berth.Device) (attempt, error) {
	a, ok, err := loadAttempt(t, d.Attempt)
	if err == nil && !ok {
		err = fmt.Errorf("%s: the attempt that holds device %s is not there", t.op, d.ID)
	}
	return a, err
}

// endByOperator ends live attempts: what was started is infra_failed and its
// device unclean until it is proved clean; the rest is handed back uncounted.
// Their devices' fences go up, so that no write of the holders is current any
// more.
func endByOperator(t *tx, actor berth.Actor, attempts []attempt, reason string) (trs []berth.Transition, err error) {
	for _, a := range attempts {
		e := ending{outcome: berth.OutcomeReleased, reason: reason, by: berth.EndedByOperator, uncounted: true}
		if a.State.Started() {
			e.outcome, e.uncounted, e.unclean = berth.OutcomeInfraFailed, false, true
		}
		tr, err := endAttempt(t, actor, a, e)
		if err != nil {
			return nil, err
		}
		if err := t.execOne("UPDATE leases SET fence = fence + 1 WHERE device_id = ?1", a.Device); err != nil {
			return nil, err
		}
		hintOf(t, store.HintAssigned, a.Host)
		trs = append(trs, tr)
	}
	return trs, nil
}

// MoveDevice implements store.Operators.
func (s *Store) MoveDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID, to berth.HostID) (berth.Device, error) {
	return s.act(ctx, "MoveDevice", id, func(t *tx, d berth.Device) (bool, error) {
		h, err := loadHostRow(t, to)
		if err != nil || d.Host == to {
			return false, err
		}
		if err := berth.CheckMove(d); err != nil {
			return false, err
		}
		err = t.execOne("UPDATE devices SET host_id = ?2, pool_id = ?3, present = 0, conflict_host_id = NULL, updated_at = ?4 WHERE id = ?1",
			id, to, h.pool, micros(t.now))
		if errors.Is(err, berth.ErrExists) {
			return false, &berth.ExistsError{What: "a device of that driver and hardware id on the host"}
		}
		if err != nil {
			return false, err
		}
		if err := t.execOne("UPDATE leases SET host_id = ?2, pool_id = ?3 WHERE device_id = ?1", id, to, h.pool); err != nil {
			return false, err
		}
		return true, auditEvent(t, berth.AuditEvent{
			Actor: actor, Action: berth.AuditDeviceMoved, TargetKind: "device", TargetID: string(id), Host: to,
			Before: berth.MoveFacts(d.Host, d.Pool), After: berth.MoveFacts(to, h.pool),
		})
	})
}
