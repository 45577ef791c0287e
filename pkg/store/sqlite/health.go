package sqlite

import (
	"maps"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
)

func scanHealth(r row) (h berth.HealthRecord, err error) {
	return h, r.Scan(&h.Health, &h.Failures, &h.GoodProbes, &h.Strikes, at(&h.QuarantinedUntil))
}

// hear puts signals of a host's devices through the rule, by id, and writes what
// changed; others' devices are passed over. It reports whether a Health changed:
// the caller then judges placeable.
func hear(t *tx, actor berth.Actor, host berth.HostID, signals map[berth.DeviceID]berth.HealthSignal) (changed bool, err error) {
	for _, id := range slices.Sorted(maps.Keys(signals)) {
		was, ok, err := queryOne(t, scanHealth,
			"SELECT health, failures, good_probes, strikes, quarantined_until FROM devices WHERE id = ?1 AND host_id = ?2", id, host)
		if err != nil {
			return false, err
		}
		now := was.Next(signals[id], t.now)
		if !ok || now.Same(was) {
			continue
		}
		if err := t.execOne(`UPDATE devices SET health = ?2, failures = ?3, good_probes = ?4, strikes = ?5, quarantined_until = ?6, updated_at = ?7
			WHERE id = ?1`, id, now.Health, now.Failures, now.GoodProbes, now.Strikes, micros(now.QuarantinedUntil), micros(t.now)); err != nil {
			return false, err
		}
		if now.Health == was.Health {
			continue
		}
		changed = true
		if err := auditEvent(t, berth.AuditEvent{
			Actor: actor, Action: berth.AuditDeviceHealth, TargetKind: "device", TargetID: string(id), Reason: string(now.Health),
			Before: berth.Fact("health", string(was.Health)), After: berth.Fact("health", string(now.Health)),
		}); err != nil {
			return false, err
		}
	}
	return changed, nil
}
