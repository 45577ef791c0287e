package sqlite

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// SyncHost implements store.Agents: the epoch in one transaction, everything
// that is settled under it in the next.
func (s *Store) SyncHost(ctx context.Context, p store.SyncParams) (res store.SyncResult, err error) {
	var epoch berth.Epoch
	err = s.write(ctx, "SyncHost", func(t *tx) error {
		epoch, err = raiseEpoch(t, p)
		return err
	})
	if err != nil {
		return res, err
	}
	p.Epoch = epoch
	err = s.write(ctx, "SyncHost", func(t *tx) error {
		h, err := callingHost(t, p.AgentCall)
		if err != nil {
			return err
		}
		res = store.SyncResult{Epoch: epoch, Pool: h.pool}
		return settle(t, p, h, &res)
	})
	if err != nil {
		return store.SyncResult{}, err
	}
	return res, nil
}

func raiseEpoch(t *tx, p store.SyncParams) (berth.Epoch, error) {
	h, err := loadHostRow(t, p.Host)
	if err != nil {
		return 0, err
	}
	epoch, err := berth.NextEpoch(h.epoch, h.instance, p.Instance, p.Epoch, p.JournalEpoch)
	if err != nil || epoch == h.epoch {
		return epoch, err
	}
	if err := t.execOne("UPDATE hosts SET epoch = ?2, instance = ?3 WHERE id = ?1", h.id, epoch, p.Instance); err != nil {
		return 0, err
	}
	return epoch, auditChange(t, p.Actor, berth.AuditHostSynced, "host", string(h.id),
		berth.NumberFacts("epoch", h.epoch), berth.NumberFacts("epoch", epoch))
}

// settle is the second transaction of a sync.
func settle(t *tx, p store.SyncParams, h hostRow, res *store.SyncResult) error {
	if err := t.execOne("UPDATE hosts SET state = ?2, last_seen_at = ?3, agent_version = ?4, draining = ?5, protocol = ?6 WHERE id = ?1",
		h.id, berth.HostOnline, micros(t.now), p.AgentVersion, p.Draining, max(p.Protocol, 1)); err != nil {
		return err
	}
	if err := syncPlugins(t, p, h.id, res); err != nil {
		return err
	}
	clean, err := syncDevices(t, p, h, res)
	if err != nil {
		return err
	}
	if err := syncAttempts(t, p, h, clean, res); err != nil {
		return err
	}
	hintOf(t, store.HintWork, h.pool)
	hintOf(t, store.HintAssigned, h.id)
	return judgePlaceable(t, h.id)
}

// syncPlugins stores what the host provides and says what of it may not be served,
// by name and version. What nobody has approved is kept as the host reports it, for
// whoever decides.
func syncPlugins(t *tx, p store.SyncParams, host berth.HostID, res *store.SyncResult) error {
	differed, err := queryAll(t, scanPluginVersion, "SELECT name, version FROM host_plugins WHERE host_id = ?1 AND differs = 1", host)
	if err != nil {
		return err
	}
	if _, err := t.exec("DELETE FROM host_plugins WHERE host_id = ?1", host); err != nil {
		return err
	}
	for _, plugin := range p.Plugins {
		differs, err := syncPlugin(t, p, plugin.AsReported(p.ApprovePlugins))
		if err != nil {
			return err
		}
		if _, err := t.exec("INSERT INTO host_plugins (host_id, name, version, differs) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
			host, plugin.Name, plugin.Version, differs); err != nil {
			return err
		}
		if !differs {
			continue
		}
		res.DifferingPlugins = append(res.DifferingPlugins, plugin.PluginVersion)
		if slices.Contains(differed, plugin.PluginVersion) {
			continue
		}
		if err := auditEvent(t, berth.AuditEvent{
			Actor: p.Actor, Action: berth.AuditPluginDiffers, TargetKind: "plugin", TargetID: plugin.Name + "@" + plugin.Version, Host: host,
		}); err != nil {
			return err
		}
	}
	slices.SortFunc(res.DifferingPlugins, func(a, b berth.PluginVersion) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
	})
	res.DisabledPlugins, err = queryAll(t, scanPluginVersion, `SELECT h.name, h.version FROM host_plugins h
		JOIN plugins p ON p.name = h.name AND p.version = h.version WHERE h.host_id = ?1 AND p.enabled = 0
		ORDER BY h.name, h.version`, host)
	return err
}

// syncPlugin makes a version known that a host reports.
func syncPlugin(t *tx, p store.SyncParams, plugin berth.Plugin) (differs bool, err error) {
	err = registerPlugin(t, p.Actor, plugin, func(known, pl berth.Plugin) (next berth.Plugin, changed bool) {
		if p.ApprovePlugins {
			if next, changed = known.Registered(pl); changed {
				return next, true
			}
		}
		next, changed, differs = known.Report(pl)
		return next, changed
	})
	return differs, err
}

func scanPluginVersion(r row) (v berth.PluginVersion, err error) {
	return v, r.Scan(&v.Name, &v.Version)
}

// syncDevices stores what the host reports of its devices and returns those
// that are proved clean.
func syncDevices(t *tx, p store.SyncParams, h hostRow, res *store.SyncResult) (clean map[berth.DeviceID]bool, err error) {
	clean = map[berth.DeviceID]bool{}
	seen := make([]berth.DeviceID, 0, len(p.Devices))
	signals := map[berth.DeviceID]berth.HealthSignal{}
	var rivals []berth.DeviceID
	for i, d := range p.Devices {
		rival, err := rivalOf(t, h, d)
		if err != nil {
			return nil, err
		}
		if rival != "" {
			rivals = append(rivals, rival)
			res.Devices, res.Conflicts = append(res.Devices, ""), append(res.Conflicts, i)
			continue
		}
		id, err := syncDevice(t, p, h, d)
		if err != nil {
			return nil, err
		}
		res.Devices = append(res.Devices, id)
		seen = append(seen, id)
		clean[id] = d.Clean
		if d.Health.Valid() {
			signals[id] = berth.ProbeSignal(d.Health)
		}
	}
	if _, err := hear(t, p.Actor, h.id, signals); err != nil {
		return nil, err
	}
	if _, err := t.exec(`UPDATE devices SET present = 0, updated_at = ?3
		WHERE host_id = ?1 AND present = 1 AND id NOT IN (SELECT value FROM json_each(?2))`, h.id, list(seen), micros(t.now)); err != nil {
		return nil, err
	}
	return clean, syncConflicts(t, p.Actor, h.id, rivals)
}

// rivalOf is another host's device of the same unique hardware, "" for none.
func rivalOf(t *tx, h hostRow, d store.ReportedDevice) (berth.DeviceID, error) {
	if !d.HardwareUnique {
		return "", nil
	}
	id, _, err := queryOne(t, scanText, `SELECT id FROM devices
		WHERE driver = ?1 AND hardware_id = ?2 AND hardware_unique = 1 AND host_id <> ?3`, d.Driver, d.HardwareID, h.id)
	return berth.DeviceID(id), err
}

// syncConflicts lets the devices of other hosts that this one reports too
// remember it, and those that it reports no more forget it.
func syncConflicts(t *tx, actor berth.Actor, host berth.HostID, rivals []berth.DeviceID) error {
	if _, err := t.exec(`UPDATE devices SET conflict_host_id = NULL, updated_at = ?3
		WHERE conflict_host_id = ?1 AND id NOT IN (SELECT value FROM json_each(?2))`, host, list(rivals), micros(t.now)); err != nil {
		return err
	}
	slices.Sort(rivals)
	for _, id := range slices.Compact(rivals) {
		n, err := t.exec("UPDATE devices SET conflict_host_id = ?2, updated_at = ?3 WHERE id = ?1 AND conflict_host_id IS NULL", id, host, micros(t.now))
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		if err := auditEvent(t, berth.AuditEvent{
			Actor: actor, Action: berth.AuditDeviceConflict, TargetKind: "device", TargetID: string(id), Host: host,
			After: berth.Fact("conflict_host", string(host)),
		}); err != nil {
			return err
		}
	}
	return nil
}

// syncDevice stores one reported device and returns its id.
func syncDevice(t *tx, p store.SyncParams, h hostRow, d store.ReportedDevice) (berth.DeviceID, error) {
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	labels := jsonText(d.Labels)
	known, ok, err := queryOne(t, scanText, "SELECT id FROM devices WHERE host_id = ?1 AND driver = ?2 AND hardware_id = ?3", h.id, d.Driver, d.HardwareID)
	if err != nil {
		return "", err
	}
	id := berth.DeviceID(known)
	if !ok {
		return d.ID, newDevice(t, h, d, labels)
	}
	_, err = t.exec(`UPDATE devices SET name = ?2, labels = ?3, hardware_unique = ?4, present = 1, updated_at = ?5
		WHERE id = ?1 AND (present, name, labels, hardware_unique) <> (1, ?2, ?3, ?4)`,
		id, d.Name, labels, d.HardwareUnique, micros(t.now))
	if err != nil {
		return "", err
	}
	if _, err := t.exec("UPDATE leases SET fence = ?2 WHERE device_id = ?1 AND fence < ?2", id, d.HighestFence); err != nil {
		return "", err
	}
	if !d.Clean {
		return id, nil
	}
	_, err = markClean(t, p.Actor, id)
	return id, err
}

func newDevice(t *tx, h hostRow, d store.ReportedDevice, labels string) error {
	err := t.execOne(`INSERT INTO devices (id, host_id, pool_id, driver, hardware_id, hardware_unique, name, labels, created_at, updated_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9)`,
		d.ID, h.id, h.pool, d.Driver, d.HardwareID, d.HardwareUnique, d.Name, labels, micros(t.now))
	if errors.Is(err, berth.ErrExists) {
		return &berth.ExistsError{What: "a device of the id for a new one"}
	}
	if err != nil {
		return err
	}
	return t.execOne("INSERT INTO leases (device_id, host_id, pool_id, fence) VALUES (?1, ?2, ?3, ?4)", d.ID, h.id, h.pool, d.HighestFence)
}

// syncAttempts gives a verdict on each held attempt and settles the live ones
// that the agent does not hold.
func syncAttempts(t *tx, p store.SyncParams, h hostRow, clean map[berth.DeviceID]bool, res *store.SyncResult) error {
	live, err := liveAttempts(t, h.id)
	if err != nil {
		return err
	}
	known := make(map[store.HeldAttempt]attempt, len(live))
	for _, a := range live {
		known[store.HeldAttempt{Attempt: a.ID, Fence: a.Fence}] = a
	}
	seen := map[berth.DeviceID]berth.Fence{}
	for i, id := range res.Devices {
		seen[id] = p.Devices[i].HighestFence
	}
	held := map[berth.AttemptID]bool{}
	for _, x := range p.Held {
		a, ok := known[x]
		verdict := store.VerdictGone
		if ok && !withdrawn(a, p.Protocol) {
			held[a.ID] = true
			verdict = store.VerdictKeep
			if !a.CancelRequestedAt.IsZero() {
				verdict = store.VerdictCancel
			}
		}
		res.Verdicts = append(res.Verdicts, verdict)
	}
	for _, a := range live {
		e := ending{outcome: berth.OutcomeLost, reason: berth.ReasonHostLostAttempt, by: berth.EndedBySync, unclean: !clean[a.Device]}
		switch {
		case withdrawn(a, p.Protocol):
			e = ending{outcome: berth.OutcomeReleased, reason: berth.ReasonAgentDowngraded, by: berth.EndedBySync, uncounted: true}
		case held[a.ID]:
			continue
		case !a.State.Started():
			if err := redeliver(t, a, seen[a.Device]); err != nil {
				return err
			}
			res.Undelivered = append(res.Undelivered, a.ID)
			continue
		}
		tr, err := endAttempt(t, p.Actor, a, e)
		if err != nil {
			return err
		}
		res.Transitions = append(res.Transitions, tr)
	}
	return nil
}

// withdrawn reports whether an attempt is taken back from an agent whose protocol
// has no words for it.
func withdrawn(a attempt, protocol int) bool {
	return !a.State.Started() && !berth.Deliverable(protocol, a.task.brings)
}

// redeliver lets any claim take an attempt whose claim's answer the agent does
// not have. One whose fence the agent would refuse, because it has seen a higher
// one (the database was restored), gets one above that.
func redeliver(t *tx, a attempt, seen berth.Fence) error {
	fence := a.Fence
	if seen > fence {
		fence = seen + 1
	}
	if _, err := t.exec("UPDATE leases SET fence = ?2 WHERE device_id = ?1 AND fence < ?2", a.Device, fence); err != nil {
		return err
	}
	return t.execOne("UPDATE attempts SET claim_epoch = 0, fence = ?2 WHERE id = ?1", a.ID, fence)
}
