package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// hostRow is what agent calls are judged by.
type hostRow struct {
	id    berth.HostID
	pool  berth.PoolID
	state berth.HostState
	// draining: its agent says so; drain: an operator asked for it.
	draining, drain bool
	// rotate: an administrator asked it to change its key.
	rotate   bool
	epoch    berth.Epoch
	instance string
	seen     time.Time
	protocol int // that its agent spoke at its last sync
}

const hostRowSelect = `SELECT id, pool_id, state, draining, drain_requested_at IS NOT NULL, epoch, instance, last_seen_at, protocol,
	key_rotation_requested_at IS NOT NULL FROM hosts`

func scanHostRow(r row) (h hostRow, err error) {
	return h, r.Scan(&h.id, &h.pool, &h.state, &h.draining, &h.drain, &h.epoch, &h.instance, at(&h.seen), &h.protocol, &h.rotate)
}

// loadHostRow reads a host that is not revoked.
func loadHostRow(t *tx, id berth.HostID) (hostRow, error) {
	h, ok, err := queryOne(t, scanHostRow, hostRowSelect+" WHERE id = ?1", id)
	if err == nil && (!ok || h.state == berth.HostRevoked) {
		err = notFound("host")
	}
	return h, err
}

// callingHost reads the host of an agent call and judges its epoch.
func callingHost(t *tx, call store.AgentCall) (hostRow, error) {
	h, err := loadHostRow(t, call.Host)
	if err != nil {
		return h, err
	}
	return h, berth.CheckEpoch(h.epoch, call.Epoch)
}

// markSeen counts a call as a sign of life, at most once a second, of a host that
// need not sync first: an empty claim then writes nothing, and its COMMIT costs no
// sync of the disk.
func markSeen(t *tx, h hostRow) error {
	if d := t.now.Sub(h.seen); d >= 0 && d < time.Second || t.store.timings.MustSync(h.state, h.seen, t.now) {
		return nil
	}
	return t.execOne("UPDATE hosts SET last_seen_at = ?2 WHERE id = ?1", h.id, micros(t.now))
}

// deviceAxes is a device with its lease's placeable number.
type deviceAxes struct {
	id        berth.DeviceID
	present   bool
	health    berth.Health
	admin     berth.AdminState
	unclean   bool
	placeable berth.Placeable
}

func scanAxes(r row) (d deviceAxes, err error) {
	return d, r.Scan(&d.id, &d.present, &d.health, &d.admin, &d.unclean, &d.placeable)
}

// judgePlaceable sets the placeable number of each of the host's devices to
// what its axes and the host now say.
func judgePlaceable(t *tx, id berth.HostID) error {
	h, ok, err := queryOne(t, scanHostRow, hostRowSelect+" WHERE id = ?1", id) // a revoked one too
	if err != nil || !ok {
		return orElse(err, "host %s of a device is not there", id)
	}
	devices, err := queryAll(t, scanAxes, `SELECT d.id, d.present, d.health, d.admin_state, d.unclean, l.placeable
		FROM devices d JOIN leases l ON l.device_id = d.id WHERE d.host_id = ?1 ORDER BY d.id`, id)
	if err != nil {
		return err
	}
	for _, d := range devices {
		want := berth.PlaceableOf(d.present, d.health, d.admin, d.unclean, h.state, h.draining || h.drain)
		if want == d.placeable {
			continue
		}
		if err := t.execOne("UPDATE leases SET placeable = ?2 WHERE device_id = ?1", d.id, want); err != nil {
			return err
		}
		if want > d.placeable {
			hintOf(t, store.HintWork, h.pool)
		}
	}
	return nil
}

// clearPlaceable lets nobody be placed on a host's devices.
func clearPlaceable(t *tx, host berth.HostID) error {
	_, err := t.exec("UPDATE leases SET placeable = ?2 WHERE host_id = ?1 AND placeable <> ?2", host, berth.PlaceNothing)
	return err
}

// Heartbeat implements store.Agents.
func (s *Store) Heartbeat(ctx context.Context, p store.HeartbeatParams) (res store.HeartbeatResult, err error) {
	signals := map[berth.DeviceID]berth.HealthSignal{}
	for id, health := range p.Health {
		if health.Valid() {
			signals[id] = berth.ProbeSignal(health)
		}
	}
	err = s.write(ctx, "Heartbeat", func(t *tx) error {
		h, err := callingHost(t, p.AgentCall)
		if err != nil {
			return err
		}
		res = store.HeartbeatResult{Resync: s.timings.MustSync(h.state, h.seen, t.now), Drain: h.drain, RotateKey: h.rotate}
		seen := t.now
		if res.Resync {
			seen = h.seen
		}
		if err := t.execOne("UPDATE hosts SET last_seen_at = ?2, draining = ?3 WHERE id = ?1", h.id, micros(seen), p.Draining); err != nil {
			return err
		}
		changed, err := hear(t, p.Actor, h.id, signals)
		if err != nil || !changed && p.Draining == h.draining {
			return err
		}
		return judgePlaceable(t, h.id)
	})
	if err != nil {
		return store.HeartbeatResult{}, err
	}
	return res, nil
}

// CleanDevice implements store.Agents.
func (s *Store) CleanDevice(ctx context.Context, p store.CleanParams) error {
	return s.write(ctx, "CleanDevice", func(t *tx) error {
		h, err := callingHost(t, p.AgentCall)
		if err != nil {
			return err
		}
		fence, ok, err := queryOne(t, scanInt,
			"SELECT l.fence FROM devices d JOIN leases l ON l.device_id = d.id WHERE d.id = ?1 AND d.host_id = ?2", p.Device, h.id)
		if err != nil {
			return err
		}
		if !ok {
			return notFound("device")
		}
		if berth.Fence(fence) != p.Fence {
			return berth.ErrLeaseLost
		}
		if changed, err := markClean(t, p.Actor, p.Device); err != nil || !changed {
			return err
		}
		return judgePlaceable(t, h.id)
	})
}

// markClean ends unclean and reports whether it was. The caller judges
// placeable.
func markClean(t *tx, actor berth.Actor, device berth.DeviceID) (bool, error) {
	n, err := t.exec("UPDATE devices SET unclean = 0, updated_at = ?2 WHERE id = ?1 AND unclean = 1", device, micros(t.now))
	if err != nil || n == 0 {
		return false, err
	}
	before, after := berth.FlagFacts("unclean", false)
	return true, auditChange(t, actor, berth.AuditDeviceCleaned, "device", string(device), before, after)
}

const hostSelect = `SELECT h.id, h.name, h.pool_id, p.name, h.state, h.draining, h.epoch, h.agent_version, h.last_seen_at, h.enrolled_at,
	h.drain_requested_at, h.protocol, h.key_changed_at, h.key_rotation_requested_at,
	(SELECT json_group_array(json_object('name', x.name, 'version', x.version)) FROM
		(SELECT name, version FROM host_plugins WHERE host_id = h.id ORDER BY name, version) x),
	(SELECT count(*) FROM devices d WHERE d.host_id = h.id),
	(SELECT count(*) FROM devices d JOIN leases l ON l.device_id = d.id WHERE d.host_id = h.id AND l.attempt_id IS NOT NULL)
	FROM hosts h JOIN pools p ON p.id = h.pool_id`

func scanHost(r row) (h berth.Host, err error) {
	err = r.Scan(&h.ID, &h.Name, &h.Pool, &h.PoolName, &h.State, &h.Draining, &h.Epoch, &h.AgentVersion, at(&h.LastSeenAt), at(&h.EnrolledAt),
		at(&h.DrainRequestedAt), &h.Protocol, at(&h.KeyChangedAt), at(&h.KeyRotationRequestedAt), fromJSON(&h.Plugins), &h.Devices, &h.Held)
	if len(h.Plugins) == 0 {
		h.Plugins = nil
	}
	return h, err
}

// GetHost implements store.Fleet.
func (s *Store) GetHost(ctx context.Context, id berth.HostID) (host berth.Host, err error) {
	err = s.read(ctx, "GetHost", func(t *tx) error {
		host, err = loadHost(t, id)
		return err
	})
	return host, err
}

func loadHost(t *tx, id berth.HostID) (berth.Host, error) {
	h, ok, err := queryOne(t, scanHost, hostSelect+" WHERE h.id = ?1", id)
	if err == nil && !ok {
		err = notFound("host")
	}
	return h, err
}

// ListHosts implements store.Fleet.
func (s *Store) ListHosts(ctx context.Context, pool berth.PoolID, p store.Page) (hosts []berth.Host, next string, err error) {
	err = s.read(ctx, "ListHosts", func(t *tx) error {
		hosts, err = queryAll(t, scanHost, hostSelect+" WHERE h.id > ?1 AND (?2 = '' OR h.pool_id = ?2) ORDER BY h.id LIMIT ?3",
			p.After, pool, p.Limit()+1)
		return err
	})
	hosts, next = page(hosts, p.Limit(), func(h berth.Host) string { return string(h.ID) })
	return hosts, next, err
}
