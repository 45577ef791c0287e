package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// PlacementFacts implements store.Operators.
func (s *Store) PlacementFacts(ctx context.Context, scope berth.Scope, id berth.TaskID) (f store.PlacementFacts, err error) {
	err = s.read(ctx, "PlacementFacts", func(t *tx) error {
		f, err = placementFacts(t, scope, id)
		return err
	})
	return f, err
}

func placementFacts(t *tx, scope berth.Scope, id berth.TaskID) (f store.PlacementFacts, err error) {
	if f.Task, err = loadTask(t, scope, id); err != nil {
		return f, err
	}
	f.Now = t.now
	var ok bool
	if f.Pool, ok, err = queryOne(t, scanPool, poolSelect+" WHERE id = ?1", f.Task.Pool); err != nil || !ok {
		return f, err
	}
	plugin := f.Task.Requirement.Plugin
	if f.Plugins, err = queryAll(t, scanPlugin, pluginSelect+" WHERE name = ?1 ORDER BY version", plugin); err != nil {
		return f, err
	}
	if err := placeInLine(t, &f); err != nil {
		return f, err
	}
	return f, placementDevices(t, &f, plugin)
}

// placeInLine reads where a waiting task stands and what its next try avoids.
func placeInLine(t *tx, f *store.PlacementFacts) error {
	_, _, err := queryOne(t, func(r row) (struct{}, error) {
		return struct{}{}, r.Scan(opt(&f.LastHost), opt(&f.LastDevice), &f.Ahead, &f.HandBacks)
	}, `SELECT w.last_host, w.last_device,
		(SELECT count(*) FROM (
			SELECT 1 FROM queue q WHERE q.class_id = w.class_id AND (q.rank, q.task_id) < (w.rank, w.task_id)
			ORDER BY q.class_id, q.rank, q.task_id LIMIT ?2)),
		(SELECT count(*) FROM attempts x WHERE x.task_id = w.task_id AND x.outcome = 'released' AND x.uncounted = 0 AND x.number > coalesce(
			(SELECT max(y.number) FROM attempts y WHERE y.task_id = w.task_id AND y.outcome <> 'released'), 0))
		FROM (
			SELECT class_id, rank, task_id, last_host, last_device FROM queue WHERE task_id = ?1
			UNION ALL
			SELECT NULL, NULL, task_id, last_host, last_device FROM delayed WHERE task_id = ?1) w`,
		f.Task.ID, store.MaxExplainPosition)
	return err
}

func placementDevices(t *tx, f *store.PlacementFacts, plugin string) error {
	devices, err := queryAll(t, scanDevice, deviceSelect+
		" WHERE d.pool_id = ?1 AND d.admin_state <> 'retired' ORDER BY d.id LIMIT ?2", f.Task.Pool, store.MaxExplainDevices+1)
	if err != nil {
		return err
	}
	if len(devices) > store.MaxExplainDevices {
		devices, f.Truncated = devices[:store.MaxExplainDevices], true
	}
	type hostFacts struct {
		id       berth.HostID
		state    berth.HostState
		draining bool
		seen     time.Time
		versions []string
	}
	rows, err := queryAll(t, func(r row) (h hostFacts, err error) {
		return h, r.Scan(&h.id, &h.state, &h.draining, at(&h.seen), fromJSON(&h.versions))
	}, `SELECT h.id, h.state, h.draining = 1 OR h.drain_requested_at IS NOT NULL, h.last_seen_at,
		(SELECT json_group_array(version) FROM (
			SELECT p.version FROM host_plugins p WHERE p.host_id = h.id AND p.name = ?2 AND p.differs = 0 ORDER BY p.version))
		FROM hosts h WHERE h.id IN (SELECT host_id FROM devices WHERE pool_id = ?1)`, f.Task.Pool, plugin)
	if err != nil {
		return err
	}
	hosts := map[berth.HostID]hostFacts{}
	for _, h := range rows {
		hosts[h.id] = h
	}
	bits := map[berth.DeviceID]berth.Placeable{}
	if _, err := queryAll(t, func(r row) (struct{}, error) {
		var id berth.DeviceID
		var bit berth.Placeable
		err := r.Scan(&id, &bit)
		bits[id] = bit
		return struct{}{}, err
	}, "SELECT device_id, placeable FROM leases WHERE pool_id = ?1", f.Task.Pool); err != nil {
		return err
	}
	for _, d := range devices {
		h := hosts[d.Host]
		fact := store.PlacementDevice{
			Device: d, Placeable: bits[d.ID], HostState: h.state, HostDraining: h.draining,
			HostFresh: t.store.timings.HostFresh(h.seen, t.now),
		}
		for _, v := range h.versions {
			fact.Provides = append(fact.Provides, berth.PluginVersion{Name: plugin, Version: v})
		}
		f.Devices = append(f.Devices, fact)
	}
	return nil
}
