package postgres

import (
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
)

// heard is a device's record and what a signal makes of it.
type heard struct {
	device   berth.DeviceID
	was, now berth.HealthRecord
}

// judgeHealth asks the rule what signals make of devices, and returns those whose
// record changes, by id. With a host, only devices of that host are asked.
func (t *tx) judgeHealth(host berth.HostID, signals map[berth.DeviceID]berth.HealthSignal) ([]heard, error) {
	if len(signals) == 0 {
		return nil, nil
	}
	rows, err := collect(t, func(row pgx.CollectableRow) (h heard, err error) {
		var now time.Time
		r := &h.was
		err = row.Scan(&h.device, &r.Health, &r.Failures, &r.GoodProbes, &r.Strikes, instant(&r.QuarantinedUntil), &now)
		h.now = r.Next(signals[h.device], now)
		return h, err
	}, `
SELECT id, health, failures, good_probes, strikes, quarantined_until, n.now
FROM devices, (SELECT berth_now() AS now OFFSET 0) n
WHERE id = ANY ($1) AND ($2::uuid IS NULL OR host_id = $2) ORDER BY id`,
		uids(slices.Sorted(maps.Keys(signals))), uid(host))
	return slices.DeleteFunc(rows, func(h heard) bool { return h.now.Same(h.was) }), err
}

func (t *tx) hear(actor berth.Actor, now time.Time, signals map[berth.DeviceID]berth.HealthSignal) error {
	return t.hearBy(func(berth.DeviceID) berth.Actor { return actor }, now, signals)
}

// hearBy puts signals through the rule and writes what changed. The caller holds
// the leases of the devices and the devices, and judges their bits afterwards.
func (t *tx) hearBy(by actorOf, now time.Time, signals map[berth.DeviceID]berth.HealthSignal) error {
	changed, err := t.judgeHealth("", signals)
	if err != nil || len(changed) == 0 {
		return err
	}
	if _, err := t.exec(`
UPDATE devices d SET health = e.health, failures = e.failures, good_probes = e.good_probes, strikes = e.strikes,
    quarantined_until = e.until, updated_at = $1
FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::integer[], $6::integer[], $7::timestamptz[])
    AS e (id, health, failures, good_probes, strikes, until)
WHERE d.id = e.id`,
		now,
		mapped(changed, func(h heard) pgtype.UUID { return uid(h.device) }),
		mapped(changed, func(h heard) string { return string(h.now.Health) }),
		mapped(changed, func(h heard) int32 { return int32(h.now.Failures) }),
		mapped(changed, func(h heard) int32 { return int32(h.now.GoodProbes) }),
		mapped(changed, func(h heard) int32 { return int32(h.now.Strikes) }),
		mapped(changed, func(h heard) pgtype.Timestamptz { return orNull(h.now.QuarantinedUntil) })); err != nil {
		return err
	}
	var events []berth.AuditEvent
	for _, h := range changed {
		if h.now.Health != h.was.Health {
			events = append(events, berth.AuditEvent{
				At: now, Actor: by(h.device), Action: berth.AuditDeviceHealth, TargetKind: "device", TargetID: string(h.device),
				Reason: string(h.now.Health),
				Before: berth.Fact("health", string(h.was.Health)), After: berth.Fact("health", string(h.now.Health)),
			})
		}
	}
	return t.auditEvents(events)
}
