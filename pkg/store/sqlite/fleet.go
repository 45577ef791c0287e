package sqlite

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func scanPool(r row) (p berth.Pool, err error) {
	return p, r.Scan(&p.ID, &p.Name, &p.Paused, span(&p.AgeingStep), at(&p.CreatedAt))
}

const poolSelect = "SELECT id, name, paused, ageing_step_us, created_at FROM pools"

// CreatePool implements store.Fleet.
func (s *Store) CreatePool(ctx context.Context, p store.CreatePoolParams) (pool berth.Pool, err error) {
	pool = p.Pool
	if pool.AgeingStep == 0 {
		pool.AgeingStep = berth.DefaultAgeingStep
	}
	err = s.write(ctx, "CreatePool", func(t *tx) error {
		ids, replayed, err := once(t, p.Actor, p.Once, []berth.PoolID{pool.ID})
		if err != nil {
			return err
		}
		if replayed {
			var ok bool
			if pool, ok, err = queryOne(t, scanPool, poolSelect+" WHERE id = ?1", ids[0]); err == nil && !ok {
				err = notFound("pool")
			}
			return err
		}
		err = t.execOne("INSERT INTO pools (id, name, paused, ageing_step_us, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
			pool.ID, pool.Name, pool.Paused, pool.AgeingStep.Microseconds(), micros(t.now))
		if errors.Is(err, berth.ErrExists) {
			return &berth.ExistsError{What: "a pool named " + pool.Name}
		}
		if err != nil {
			return err
		}
		pool.CreatedAt = t.now
		return auditChange(t, p.Actor, berth.AuditPoolCreated, "pool", string(pool.ID), "", berth.PoolFacts(pool))
	})
	if err != nil {
		return berth.Pool{}, err
	}
	return pool, nil
}

// GetPool implements store.Fleet.
func (s *Store) GetPool(ctx context.Context, name string) (pool berth.Pool, err error) {
	err = s.read(ctx, "GetPool", func(t *tx) error {
		var ok bool
		pool, ok, err = queryOne(t, scanPool, poolSelect+" WHERE name = ?1", name)
		if err == nil && !ok {
			err = notFound("pool")
		}
		return err
	})
	return pool, err
}

// ListPools implements store.Fleet.
func (s *Store) ListPools(ctx context.Context, p store.Page) (pools []berth.Pool, next string, err error) {
	err = s.read(ctx, "ListPools", func(t *tx) error {
		pools, err = queryAll(t, scanPool, poolSelect+" WHERE name > ?1 ORDER BY name LIMIT ?2", p.After, p.Limit()+1)
		return err
	})
	pools, next = page(pools, p.Limit(), func(p berth.Pool) string { return p.Name })
	return pools, next, err
}

const deviceSelect = `SELECT d.id, d.host_id, h.name, d.pool_id, p.name, d.driver, d.hardware_id, d.hardware_unique, d.name,
	d.labels, d.admin_labels, d.present, d.health, d.admin_state, d.unclean, l.fence, l.attempt_id, l.task_id, d.created_at, d.updated_at, h.protocol,
	d.failures, d.good_probes, d.strikes, d.quarantined_until, d.admin_note, d.conflict_host_id
	FROM devices d JOIN hosts h ON h.id = d.host_id JOIN pools p ON p.id = d.pool_id JOIN leases l ON l.device_id = d.id`

func scanDevice(r row) (d berth.Device, err error) {
	var reported, admin map[string]string
	var protocol int
	record := &d.HealthRecord
	err = r.Scan(&d.ID, &d.Host, &d.HostName, &d.Pool, &d.PoolName, &d.Driver, &d.HardwareID, &d.HardwareUnique, &d.Name,
		fromJSON(&reported), fromJSON(&admin), &d.Present, &d.Health, &d.Admin, &d.Unclean, &d.Fence, opt(&d.Attempt), opt(&d.Task),
		at(&d.CreatedAt), at(&d.UpdatedAt), &protocol, &record.Failures, &record.GoodProbes, &record.Strikes, at(&record.QuarantinedUntil),
		&d.AdminNote, opt(&d.ConflictHost))
	record.Health = d.Health
	d.Labels, d.AdminLabels = berth.MergeLabels(d.ID, reported, admin, protocol), admin
	d.Occupancy = berth.OccupancyOf(d.Attempt, d.Unclean)
	return d, err
}

// GetDevice implements store.Fleet.
func (s *Store) GetDevice(ctx context.Context, id berth.DeviceID) (device berth.Device, err error) {
	err = s.read(ctx, "GetDevice", func(t *tx) error {
		device, err = loadDevice(t, id)
		return err
	})
	return device, err
}

func loadDevice(t *tx, id berth.DeviceID) (berth.Device, error) {
	d, ok, err := queryOne(t, scanDevice, deviceSelect+" WHERE d.id = ?1", id)
	if err == nil && !ok {
		err = notFound("device")
	}
	return d, err
}

// ListDevices implements store.Fleet.
func (s *Store) ListDevices(ctx context.Context, filter store.DeviceFilter, p store.Page) (devices []berth.Device, next string, err error) {
	err = s.read(ctx, "ListDevices", func(t *tx) error {
		devices, err = queryAll(t, scanDevice, deviceSelect+` WHERE d.id > ?1 AND (?2 = '' OR d.pool_id = ?2) AND (?3 = '' OR d.host_id = ?3)
			AND (?5 = '' OR d.driver = ?5) AND (?6 = '' OR d.health = ?6) AND (?7 = '' OR d.admin_state = ?7)
			AND (?8 = '' OR ?8 = CASE WHEN l.attempt_id IS NOT NULL THEN 'held' WHEN d.unclean THEN 'unclean' ELSE 'free' END)
			ORDER BY d.id LIMIT ?4`, p.After, filter.Pool, filter.Host, p.Limit()+1, filter.Driver, filter.Health, filter.Admin, filter.Occupancy)
		return err
	})
	devices, next = page(devices, p.Limit(), func(d berth.Device) string { return string(d.ID) })
	return devices, next, err
}
