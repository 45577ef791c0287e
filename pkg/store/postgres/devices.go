package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// markDevices marks devices unclean whose attempts were not seen to end, ends
// the mark of those that were proved clean, and lets their health hear of the
// ends. The lease rows are held; those to be marked have lost their bit. Whoever
// writes a device's health holds its lease row, so what was read of it since
// then is so; where it does not change, the device is not even locked.
func (t *tx) markDevices(now time.Time, ends []*end) error {
	var dirty, proved, touched []berth.DeviceID
	signals := map[berth.DeviceID]berth.HealthSignal{}
	actors := map[berth.DeviceID]berth.Actor{}
	for _, e := range ends {
		actors[e.device] = e.actor
		switch {
		case e.dirty:
			dirty = append(dirty, e.device)
		case e.proved && e.unclean:
			proved = append(proved, e.device)
		}
		signal, ok := berth.SignalOf(e.outcome, e.reason, e.by, e.state.Started())
		if ok && !e.health.Next(signal, now).Same(e.health) {
			signals[e.device] = signal
			touched = append(touched, e.device)
		}
	}
	judged := slices.Concat(proved, touched)
	if len(dirty)+len(judged) == 0 {
		return nil
	}
	if err := t.lockDevices(slices.Concat(dirty, judged)); err != nil {
		return err
	}
	by := func(id berth.DeviceID) berth.Actor { return actors[id] }
	if err := t.setUncleanBy(by, now, dirty, true); err != nil {
		return err
	}
	if err := t.setUncleanBy(by, now, proved, false); err != nil {
		return err
	}
	if err := t.hearBy(by, now, signals); err != nil {
		return err
	}
	return t.judgeBits(judged)
}

// actorOf tells whose act changes a device.
type actorOf func(berth.DeviceID) berth.Actor

func (t *tx) setUnclean(actor berth.Actor, now time.Time, devices []berth.DeviceID, unclean bool) error {
	return t.setUncleanBy(func(berth.DeviceID) berth.Actor { return actor }, now, devices, unclean)
}

// setUncleanBy writes the mark of locked devices, with an audit row for each
// that changed.
func (t *tx) setUncleanBy(by actorOf, now time.Time, devices []berth.DeviceID, unclean bool) error {
	if len(devices) == 0 {
		return nil
	}
	changed, err := collect(t, column[berth.DeviceID], `
UPDATE devices SET unclean = $2, updated_at = $3 WHERE id = ANY ($1) AND unclean <> $2 RETURNING id`,
		uids(devices), unclean, now)
	if err != nil {
		return err
	}
	action := berth.AuditDeviceCleaned
	if unclean {
		action = berth.AuditDeviceUnclean
	}
	before, after := berth.FlagFacts("unclean", unclean)
	return t.auditEvents(mapped(unique(changed), func(id berth.DeviceID) berth.AuditEvent {
		return berth.AuditEvent{At: now, Actor: by(id), Action: action, TargetKind: "device", TargetID: string(id), Before: before, After: after}
	}))
}

// judgeBits sets the placeable bits of devices anew. The caller holds their
// lease rows and the devices; the hosts are locked FOR SHARE here (or held by
// the caller) and judged in the statement after, so that no bit is raised past
// the commit of a drain or a revocation (I14).
func (t *tx) judgeBits(devices []berth.DeviceID) error {
	if len(devices) == 0 {
		return nil
	}
	if _, err := t.exec(`
SELECT 1 FROM hosts WHERE id IN (SELECT host_id FROM devices WHERE id = ANY ($1)) ORDER BY id FOR SHARE`, uids(devices)); err != nil {
		return err
	}
	return t.writeBits(devices)
}

type bitRow struct {
	device   berth.DeviceID
	pool     berth.PoolID
	was      berth.Placeable
	present  bool
	health   berth.Health
	admin    berth.AdminState
	unclean  bool
	state    berth.HostState
	draining bool
}

func (b bitRow) placeable() berth.Placeable {
	return berth.PlaceableOf(b.present, b.health, b.admin, b.unclean, b.state, b.draining)
}

// writeBits is judgeBits for a caller that holds the hosts too.
func (t *tx) writeBits(devices []berth.DeviceID) error {
	rows, err := collect(t, func(row pgx.CollectableRow) (b bitRow, err error) {
		return b, row.Scan(&b.device, &b.pool, &b.was, &b.present, &b.health, &b.admin, &b.unclean, &b.state, &b.draining)
	}, `
SELECT d.id, d.pool_id, l.placeable, d.present, d.health, d.admin_state, d.unclean, h.state,
       h.draining OR h.drain_requested_at IS NOT NULL
FROM devices d JOIN leases l ON l.device_id = d.id JOIN hosts h ON h.id = d.host_id
WHERE d.id = ANY ($1)`, uids(devices))
	if err != nil {
		return err
	}
	var changed []bitRow
	for _, b := range rows {
		if b.placeable() != b.was {
			changed = append(changed, b)
		}
		if b.placeable() > b.was {
			t.hint(store.HintWork, string(b.pool))
		}
	}
	if len(changed) == 0 {
		return nil
	}
	_, err = t.exec(`
UPDATE leases l SET placeable = e.bit FROM unnest($1::uuid[], $2::smallint[]) AS e (device, bit) WHERE l.device_id = e.device`,
		mapped(changed, func(b bitRow) pgtype.UUID { return uid(b.device) }),
		mapped(changed, func(b bitRow) int16 { return int16(b.placeable()) }))
	return err
}

// CleanDevice is documented at store.Agents.
func (s *Store) CleanDevice(ctx context.Context, p store.CleanParams) error {
	return s.write(ctx, "CleanDevice", func(t *tx) error {
		devices := []berth.DeviceID{p.Device}
		if err := t.lockLeases(devices); err != nil {
			return err
		}
		if err := t.lockDevices(devices); err != nil {
			return err
		}
		h, err := t.judgeCaller(p.Host, p.Epoch)
		if err != nil {
			return err
		}
		type row struct {
			fence   berth.Fence
			unclean bool
		}
		d, ok, err := first(t, func(c pgx.CollectableRow) (r row, err error) {
			return r, c.Scan(&r.fence, &r.unclean)
		}, `SELECT l.fence, d.unclean FROM devices d JOIN leases l ON l.device_id = d.id WHERE d.id = $1 AND d.host_id = $2`,
			uid(p.Device), uid(p.Host))
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("device: %w", berth.ErrNotFound)
		case d.fence != p.Fence:
			return fmt.Errorf("the device's fence is %d: %w", d.fence, berth.ErrLeaseLost)
		case !d.unclean:
			return nil
		}
		if err := t.setUnclean(p.Actor, h.now, devices, false); err != nil {
			return err
		}
		return t.judgeBits(devices)
	})
}

const deviceColumns = `
SELECT d.id, d.host_id, h.name, d.pool_id, p.name, d.driver, d.hardware_id, d.hardware_unique, d.name,
       d.labels, d.admin_labels, d.present, d.health, d.admin_state, d.unclean, l.fence, l.attempt_id, l.task_id,
       d.created_at, d.updated_at, h.protocol, d.failures, d.good_probes, d.strikes, d.quarantined_until, d.admin_note, d.conflict_host_id
FROM devices d JOIN hosts h ON h.id = d.host_id JOIN pools p ON p.id = d.pool_id JOIN leases l ON l.device_id = d.id`

func scanDevice(row pgx.CollectableRow) (d berth.Device, err error) {
	var reported, admin map[string]string
	var protocol int
	r := &d.HealthRecord
	err = row.Scan(&d.ID, &d.Host, &d.HostName, &d.Pool, &d.PoolName, &d.Driver, &d.HardwareID, &d.HardwareUnique, &d.Name,
		&reported, &admin, &d.Present, &d.Health, &d.Admin, &d.Unclean, &d.Fence, nullable(&d.Attempt), nullable(&d.Task),
		&d.CreatedAt, &d.UpdatedAt, &protocol, &r.Failures, &r.GoodProbes, &r.Strikes, instant(&r.QuarantinedUntil),
		&d.AdminNote, nullable(&d.ConflictHost))
	r.Health = d.Health
	d.Labels, d.AdminLabels = berth.MergeLabels(d.ID, reported, admin, protocol), admin
	d.Occupancy = berth.OccupancyOf(d.Attempt, d.Unclean)
	return d, err
}

// GetDevice is documented at store.Fleet.
func (s *Store) GetDevice(ctx context.Context, id berth.DeviceID) (d berth.Device, err error) {
	err = s.read(ctx, "GetDevice", func(t *tx) error {
		d, err = t.device(id)
		return err
	})
	return d, err
}

func (t *tx) device(id berth.DeviceID) (berth.Device, error) {
	return found(t, "device", scanDevice, deviceColumns+` WHERE d.id = $1`, uid(id))
}

// ListDevices is documented at store.Fleet.
func (s *Store) ListDevices(ctx context.Context, filter store.DeviceFilter, page store.Page) (devices []berth.Device, next string, err error) {
	err = s.read(ctx, "ListDevices", func(t *tx) error {
		devices, err = collect(t, scanDevice, deviceColumns+`
WHERE ($1::uuid IS NULL OR d.id > $1) AND ($2 = '' OR d.pool_id = $3) AND ($4 = '' OR d.host_id = $5)
  AND ($7 = '' OR d.driver = $7) AND ($8 = '' OR d.health = $8) AND ($9 = '' OR d.admin_state = $9)
  AND ($10 = '' OR $10 = CASE WHEN l.attempt_id IS NOT NULL THEN 'held' WHEN d.unclean THEN 'unclean' ELSE 'free' END)
ORDER BY d.id LIMIT $6`,
			uid(berth.DeviceID(page.After)), string(filter.Pool), uid(filter.Pool), string(filter.Host), uid(filter.Host), page.Limit()+1,
			filter.Driver, string(filter.Health), string(filter.Admin), string(filter.Occupancy))
		return err
	})
	devices, next = cut(devices, page, func(d berth.Device) string { return string(d.ID) })
	return devices, next, err
}

// found is first with the domain's error for none.
func found[T any](t *tx, thing string, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	one, ok, err := first(t, scan, sql, args...)
	if err == nil && !ok {
		err = fmt.Errorf("%s: %w", thing, berth.ErrNotFound)
	}
	return one, err
}

// cut ends a page: a list that was read one row too long has a next page,
// whose cursor is the last row that is shown.
func cut[T any](rows []T, page store.Page, id func(T) string) ([]T, string) {
	if n := page.Limit(); len(rows) > n {
		return rows[:n], id(rows[n-1])
	}
	return rows, ""
}
