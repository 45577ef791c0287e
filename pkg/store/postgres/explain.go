package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// PlacementFacts is documented at store.Operators. Each of its statements sees
// the database as it is then: an explanation may be a moment out of date.
func (s *Store) PlacementFacts(ctx context.Context, scope berth.Scope, id berth.TaskID) (f store.PlacementFacts, err error) {
	err = s.read(ctx, "PlacementFacts", func(t *tx) error {
		f, err = t.placementFacts(scope, id)
		return err
	})
	return f, err
}

func (t *tx) placementFacts(scope berth.Scope, id berth.TaskID) (f store.PlacementFacts, err error) {
	if f.Task, err = t.task(scope, id); err != nil {
		return f, err
	}
	if f.Now, err = t.now(); err != nil {
		return f, err
	}
	if f.Pool, err = found(t, "pool", scanPool, poolColumns+` WHERE id = $1`, uid(f.Task.Pool)); err != nil {
		return f, err
	}
	plugin := f.Task.Requirement.Plugin
	if f.Plugins, err = collect(t, scanPlugin, pluginColumns+` WHERE name = $1 ORDER BY version COLLATE "C"`, plugin); err != nil {
		return f, err
	}
	if err := t.placeInLine(&f); err != nil {
		return f, err
	}
	return f, t.placementDevices(&f, plugin)
}

// placeInLine reads where a waiting task stands and what its next try avoids.
func (t *tx) placeInLine(f *store.PlacementFacts) error {
	_, _, err := first(t, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(nullable(&f.LastHost), nullable(&f.LastDevice), &f.Ahead, &f.HandBacks)
	}, `
SELECT w.last_host, w.last_device, n.ahead, b.hand_backs
FROM (
    SELECT q.class_id, q.rank, q.task_id, q.last_host, q.last_device FROM queue q WHERE q.task_id = $1
    UNION ALL
    SELECT NULL, NULL, d.task_id, d.last_host, d.last_device FROM delayed d WHERE d.task_id = $1) w
CROSS JOIN LATERAL (
    SELECT count(*) AS ahead FROM (
        SELECT 1 FROM queue q WHERE q.class_id = w.class_id AND (q.rank, q.task_id) < (w.rank, w.task_id)
        ORDER BY q.class_id, q.rank, q.task_id LIMIT $2) q) n
CROSS JOIN LATERAL (
    SELECT count(*) AS hand_backs FROM attempts x
    WHERE x.task_id = w.task_id AND x.outcome = 'released' AND NOT x.uncounted AND x.number > COALESCE(
        (SELECT max(y.number) FROM attempts y WHERE y.task_id = w.task_id AND y.outcome <> 'released'), 0)) b`,
		uid(f.Task.ID), store.MaxExplainPosition)
	return err
}

func (t *tx) placementDevices(f *store.PlacementFacts, plugin string) error {
	devices, err := collect(t, scanDevice, deviceColumns+`
WHERE d.pool_id = $1 AND d.admin_state <> 'retired' ORDER BY d.id LIMIT $2`, uid(f.Task.Pool), store.MaxExplainDevices+1)
	if err != nil {
		return err
	}
	if len(devices) > store.MaxExplainDevices {
		devices, f.Truncated = devices[:store.MaxExplainDevices], true
	}
	type hostFacts struct {
		id       berth.HostID
		state    berth.HostState
		fresh    bool
		draining bool
		versions []string
	}
	hosts := map[berth.HostID]hostFacts{}
	rows, err := collect(t, func(row pgx.CollectableRow) (h hostFacts, err error) {
		return h, row.Scan(&h.id, &h.state, &h.fresh, &h.draining, &h.versions)
	}, `
SELECT h.id, h.state, COALESCE(h.last_seen_at >= n.now - make_interval(secs => $3), false),
       h.draining OR h.drain_requested_at IS NOT NULL,
       ARRAY(SELECT p.version FROM host_plugins p WHERE p.host_id = h.id AND p.name = $2 AND NOT p.differs ORDER BY p.version COLLATE "C")
FROM hosts h, (SELECT berth_now() AS now OFFSET 0) n WHERE h.id = ANY ($1)`,
		uids(unique(mapped(devices, func(d berth.Device) berth.HostID { return d.Host }))), plugin, t.s.timings.HostOfflineAfter.Seconds())
	if err != nil {
		return err
	}
	for _, h := range rows {
		hosts[h.id] = h
	}
	bits := map[berth.DeviceID]berth.Placeable{}
	if _, err := collect(t, func(row pgx.CollectableRow) (struct{}, error) {
		var id berth.DeviceID
		var bit berth.Placeable
		err := row.Scan(&id, &bit)
		bits[id] = bit
		return struct{}{}, err
	}, `SELECT device_id, placeable FROM leases WHERE device_id = ANY ($1)`,
		uids(mapped(devices, func(d berth.Device) berth.DeviceID { return d.ID }))); err != nil {
		return err
	}
	f.Devices = mapped(devices, func(d berth.Device) store.PlacementDevice {
		h := hosts[d.Host]
		return store.PlacementDevice{
			Device: d, Placeable: bits[d.ID], HostState: h.state, HostFresh: h.fresh, HostDraining: h.draining,
			Provides: provided(plugin, h.versions),
		}
	})
	return nil
}

func provided(plugin string, versions []string) []berth.PluginVersion {
	return mapped(versions, func(v string) berth.PluginVersion { return berth.PluginVersion{Name: plugin, Version: v} })
}
