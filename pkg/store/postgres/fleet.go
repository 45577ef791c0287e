package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const poolColumns = `SELECT id, name, paused, ageing_step_us, created_at FROM pools`

func scanPool(row pgx.CollectableRow) (p berth.Pool, err error) {
	var us int64
	err = row.Scan(&p.ID, &p.Name, &p.Paused, &us, &p.CreatedAt)
	p.AgeingStep = microseconds(us)
	return p, err
}

// CreatePool is documented at store.Fleet.
func (s *Store) CreatePool(ctx context.Context, c store.CreatePoolParams) (made berth.Pool, err error) {
	pool, step := c.Pool, c.Pool.AgeingStep
	if step == 0 {
		step = berth.DefaultAgeingStep
	}
	err = s.write(ctx, "CreatePool", func(t *tx) error {
		ids, replayed, err := t.once(c.Actor, c.Once, []pgtype.UUID{uid(pool.ID)})
		if err != nil {
			return err
		}
		if replayed {
			made, err = found(t, "pool", scanPool, poolColumns+` WHERE id = $1`, uid(ids[0]))
			return err
		}
		p, ok, err := first(t, scanPool, `
INSERT INTO pools (id, name, paused, ageing_step_us, created_at) VALUES ($1, $2, $3, $4, berth_now())
ON CONFLICT DO NOTHING RETURNING id, name, paused, ageing_step_us, created_at`,
			uid(pool.ID), pool.Name, pool.Paused, step.Microseconds())
		if err != nil {
			return err
		}
		if !ok {
			return &berth.ExistsError{What: "a pool named " + pool.Name}
		}
		made = p
		return t.auditChange(c.Actor, p.CreatedAt, berth.AuditPoolCreated, "pool", string(p.ID), "", berth.PoolFacts(p))
	})
	return only(made, err)
}

// GetPool is documented at store.Fleet.
func (s *Store) GetPool(ctx context.Context, name string) (p berth.Pool, err error) {
	err = s.read(ctx, "GetPool", func(t *tx) error {
		p, err = found(t, "pool", scanPool, poolColumns+` WHERE name = $1`, clean(name))
		return err
	})
	return p, err
}

// ListPools is documented at store.Fleet.
func (s *Store) ListPools(ctx context.Context, page store.Page) (pools []berth.Pool, next string, err error) {
	err = s.read(ctx, "ListPools", func(t *tx) error {
		pools, err = collect(t, scanPool, poolColumns+` WHERE name COLLATE "C" > $1 ORDER BY name COLLATE "C" LIMIT $2`, page.After, page.Limit()+1)
		return err
	})
	pools, next = cut(pools, page, func(p berth.Pool) string { return p.Name })
	return pools, next, err
}

const hostColumns = `
SELECT h.id, h.name, h.pool_id, p.name, h.state, h.draining, h.epoch, h.agent_version, h.last_seen_at, h.enrolled_at,
       n.devices, n.held, COALESCE(v.names, '{}'), COALESCE(v.versions, '{}'), h.drain_requested_at, h.protocol,
       h.key_changed_at, h.key_rotation_requested_at
FROM hosts h JOIN pools p ON p.id = h.pool_id
CROSS JOIN LATERAL (
    SELECT count(*) AS devices, count(l.attempt_id) AS held
    FROM devices d JOIN leases l ON l.device_id = d.id WHERE d.host_id = h.id) n
CROSS JOIN LATERAL (
    SELECT array_agg(x.name ORDER BY x.name COLLATE "C", x.version COLLATE "C") AS names,
           array_agg(x.version ORDER BY x.name COLLATE "C", x.version COLLATE "C") AS versions
    FROM host_plugins x WHERE x.host_id = h.id) v`

func scanHost(row pgx.CollectableRow) (h berth.Host, err error) {
	var names, versions []string
	err = row.Scan(&h.ID, &h.Name, &h.Pool, &h.PoolName, &h.State, &h.Draining, &h.Epoch, &h.AgentVersion, instant(&h.LastSeenAt),
		&h.EnrolledAt, &h.Devices, &h.Held, &names, &versions, instant(&h.DrainRequestedAt), &h.Protocol,
		instant(&h.KeyChangedAt), instant(&h.KeyRotationRequestedAt))
	for i := range names {
		h.Plugins = append(h.Plugins, berth.PluginVersion{Name: names[i], Version: versions[i]})
	}
	return h, err
}

// GetHost is documented at store.Fleet.
func (s *Store) GetHost(ctx context.Context, id berth.HostID) (h berth.Host, err error) {
	err = s.read(ctx, "GetHost", func(t *tx) error {
		h, err = t.shownHost(id)
		return err
	})
	return h, err
}

// shownHost is a host as people see it, revoked ones too.
func (t *tx) shownHost(id berth.HostID) (berth.Host, error) {
	return found(t, "host", scanHost, hostColumns+` WHERE h.id = $1`, uid(id))
}

// ListHosts is documented at store.Fleet.
func (s *Store) ListHosts(ctx context.Context, pool berth.PoolID, page store.Page) (hosts []berth.Host, next string, err error) {
	err = s.read(ctx, "ListHosts", func(t *tx) error {
		hosts, err = collect(t, scanHost, hostColumns+`
WHERE ($1::uuid IS NULL OR h.id > $1) AND ($2 = '' OR h.pool_id = $3) ORDER BY h.id LIMIT $4`,
			uid(berth.HostID(page.After)), string(pool), uid(pool), page.Limit()+1)
		return err
	})
	hosts, next = cut(hosts, page, func(h berth.Host) string { return string(h.ID) })
	return hosts, next, err
}
