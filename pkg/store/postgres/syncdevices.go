package postgres

import (
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// hardware is how an agent names a device.
type hardware struct{ driver, id string }

func hardwareOf(d store.ReportedDevice) hardware { return hardware{d.Driver, d.HardwareID} }

// reportedDevices are the devices of a sync, matched with those that are stored.
type reportedDevices struct {
	ids       []berth.DeviceID // by index of the report; "" for a conflict
	conflicts []int
	added     []int // indexes of those that are new
	known     []berth.DeviceID
	// rivals are devices of other hosts that this one reports too and that do not
	// remember it yet; former ones remember it without reason.
	rivals, former []berth.DeviceID
	// clean and fences are what the agent knows of each device.
	clean  map[berth.DeviceID]bool
	fences map[berth.DeviceID]berth.Fence
}

// matchDevices finds the stored devices of a report: the host's own by driver
// and hardware id; those with an id that is unique by itself on any host; and
// those that remember this host as their rival.
func (s *settling) matchDevices() (m reportedDevices, err error) {
	type row struct {
		id          berth.DeviceID
		host, rival berth.HostID
		name        hardware
		unique      bool
	}
	rows, err := collect(s.tx, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.id, &r.host, nullable(&r.rival), &r.name.driver, &r.name.id, &r.unique)
	}, `
SELECT d.id, d.host_id, d.conflict_host_id, d.driver, d.hardware_id, d.hardware_unique
FROM devices d JOIN (SELECT DISTINCT * FROM unnest($1::text[], $2::text[]) AS e (driver, hardware_id)) e
     ON e.driver = d.driver AND e.hardware_id = d.hardware_id
WHERE d.host_id = $3 OR d.hardware_unique
UNION
SELECT d.id, d.host_id, d.conflict_host_id, d.driver, d.hardware_id, d.hardware_unique FROM devices d WHERE d.conflict_host_id = $3`,
		mapped(s.p.Devices, func(d store.ReportedDevice) string { return d.Driver }),
		mapped(s.p.Devices, func(d store.ReportedDevice) string { return d.HardwareID }), uid(s.p.Host))
	if err != nil {
		return m, err
	}
	own, elsewhere := map[hardware]berth.DeviceID{}, map[hardware]row{}
	for _, r := range rows {
		switch {
		case r.host == s.p.Host:
			own[r.name] = r.id
		case r.unique:
			elsewhere[r.name] = r
		}
	}
	rivals := map[berth.DeviceID]bool{}
	m.clean, m.fences = map[berth.DeviceID]bool{}, map[berth.DeviceID]berth.Fence{}
	m.ids = make([]berth.DeviceID, len(s.p.Devices))
	for i, d := range s.p.Devices {
		id, known := own[hardwareOf(d)]
		rival, taken := elsewhere[hardwareOf(d)]
		switch {
		case d.HardwareUnique && taken:
			if rivals[rival.id] = true; rival.rival == "" {
				m.rivals = append(m.rivals, rival.id)
			}
			m.conflicts = append(m.conflicts, i)
			continue
		case known:
			m.known = append(m.known, id)
		default:
			id = d.ID
			own[hardwareOf(d)] = id
			m.added = append(m.added, i)
		}
		m.ids[i] = id
		m.clean[id] = d.Clean
		m.fences[id] = max(m.fences[id], d.HighestFence)
	}
	for _, r := range rows {
		if r.rival == s.p.Host && !rivals[r.id] {
			m.former = append(m.former, r.id)
		}
	}
	// What this report adds itself is new to everybody.
	added := mapped(m.added, func(i int) berth.DeviceID { return m.ids[i] })
	m.known = slices.DeleteFunc(m.known, func(id berth.DeviceID) bool { return slices.Contains(added, id) })
	return m, nil
}

// addDevices makes the rows of new devices and their leases, with nothing
// placeable until the host is judged. It starts over when one of them has come
// to be meanwhile, on this host or on another; an id that another device has is
// taken for good.
func (s *settling) addDevices() error {
	if len(s.devices.added) == 0 {
		return nil
	}
	added := mapped(s.devices.added, func(i int) store.ReportedDevice { return s.p.Devices[i] })
	ids := mapped(added, func(d store.ReportedDevice) pgtype.UUID { return uid(d.ID) })
	n, err := s.exec(`
INSERT INTO devices (id, host_id, pool_id, driver, hardware_id, hardware_unique, name, created_at, updated_at)
SELECT e.id, h.id, h.pool_id, e.driver, e.hardware_id, e.hardware_unique, e.name, n.now, n.now
FROM hosts h, (SELECT berth_now() AS now OFFSET 0) n,
     unnest($2::uuid[], $3::text[], $4::text[], $5::boolean[], $6::text[]) AS e (id, driver, hardware_id, hardware_unique, name)
WHERE h.id = $1
ORDER BY e.driver, e.hardware_id
ON CONFLICT DO NOTHING`, uid(s.p.Host), ids,
		mapped(added, func(d store.ReportedDevice) string { return d.Driver }),
		mapped(added, func(d store.ReportedDevice) string { return d.HardwareID }),
		mapped(added, func(d store.ReportedDevice) bool { return d.HardwareUnique }),
		mapped(added, func(d store.ReportedDevice) string { return clean(d.Name) }))
	if err != nil {
		return err
	}
	if n != int64(len(added)) {
		if _, err := s.host(s.p.Host); err != nil {
			return err
		}
		_, taken, err := first(s.tx, column[berth.DeviceID], `
SELECT d.id FROM devices d JOIN unnest($2::uuid[], $3::text[], $4::text[]) AS e (id, driver, hardware_id) ON e.id = d.id
WHERE (d.host_id, d.driver, d.hardware_id) <> ($1, e.driver, e.hardware_id) LIMIT 1`, uid(s.p.Host), ids,
			mapped(added, func(d store.ReportedDevice) string { return d.Driver }),
			mapped(added, func(d store.ReportedDevice) string { return d.HardwareID }))
		switch {
		case err != nil:
			return err
		case taken:
			return &berth.ExistsError{What: "a device of the id for a new one"}
		}
		return errStartOver
	}
	_, err = s.exec(`
INSERT INTO leases (device_id, host_id, pool_id) SELECT id, host_id, pool_id FROM devices WHERE id = ANY ($1)`, ids)
	return err
}

// storeDevices writes what the agent says of its devices and that the others
// are absent. The devices are locked.
func (s *settling) storeDevices() error {
	var here []int
	var proved []berth.DeviceID
	for i, id := range s.devices.ids {
		if id == "" {
			continue
		}
		here = append(here, i)
		if s.devices.clean[id] {
			proved = append(proved, id)
		}
	}
	reported := func(i int) store.ReportedDevice { return s.p.Devices[i] }
	if _, err := s.exec(`
UPDATE devices d SET present = true, name = e.name, labels = e.labels, hardware_unique = e.hardware_unique, updated_at = $1
FROM (SELECT DISTINCT ON (id) * FROM unnest($2::uuid[], $3::text[], $4::jsonb[], $5::boolean[]) WITH ORDINALITY
          AS e (id, name, labels, hardware_unique, n) ORDER BY id, n DESC) e
WHERE d.id = e.id AND (NOT d.present OR d.name <> e.name OR d.labels <> e.labels OR d.hardware_unique <> e.hardware_unique)`,
		s.now,
		mapped(here, func(i int) pgtype.UUID { return uid(s.devices.ids[i]) }),
		mapped(here, func(i int) string { return clean(reported(i).Name) }),
		mapped(here, func(i int) string { return labelsJSON(reported(i).Labels) }),
		mapped(here, func(i int) bool { return reported(i).HardwareUnique })); err != nil {
		if sqlState(err) == uniqueViolation {
			return errStartOver // another host has it as its own by now
		}
		return err
	}
	signals := map[berth.DeviceID]berth.HealthSignal{}
	for _, i := range here {
		if health := reported(i).Health; health.Valid() {
			signals[s.devices.ids[i]] = berth.ProbeSignal(health)
		}
	}
	if err := s.hear(s.p.Actor, s.now, signals); err != nil {
		return err
	}
	if err := s.setUnclean(s.p.Actor, s.now, proved, false); err != nil {
		return err
	}
	_, err := s.exec(`
UPDATE devices SET present = false, updated_at = $3 WHERE host_id = $1 AND present AND id <> ALL ($2)`,
		uid(s.p.Host), mapped(here, func(i int) pgtype.UUID { return uid(s.devices.ids[i]) }), s.now)
	return err
}

// storeConflicts lets the devices of other hosts that this one reports too
// remember it, and those that it reports no more forget it. They are locked.
func (s *settling) storeConflicts() error {
	if len(s.devices.former) > 0 {
		if _, err := s.exec(`
UPDATE devices SET conflict_host_id = NULL, updated_at = $3 WHERE id = ANY ($2) AND conflict_host_id = $1`,
			uid(s.p.Host), uids(s.devices.former), s.now); err != nil {
			return err
		}
	}
	if len(s.devices.rivals) == 0 {
		return nil
	}
	changed, err := collect(s.tx, column[berth.DeviceID], `
UPDATE devices SET conflict_host_id = $1, updated_at = $3
WHERE id = ANY ($2) AND conflict_host_id IS NULL AND host_id <> $1 AND hardware_unique RETURNING id`,
		uid(s.p.Host), uids(s.devices.rivals), s.now)
	if err != nil {
		return err
	}
	return s.auditEvents(mapped(unique(changed), func(id berth.DeviceID) berth.AuditEvent {
		return berth.AuditEvent{
			At: s.now, Actor: s.p.Actor, Action: berth.AuditDeviceConflict, TargetKind: "device", TargetID: string(id), Host: s.p.Host,
			After: berth.Fact("conflict_host", string(s.p.Host)),
		}
	}))
}

// labelsJSON writes labels for a jsonb column, which refuses NUL.
func labelsJSON(labels map[string]string) string {
	out := make(map[string]string, len(labels))
	for k, v := range labels {
		out[clean(k)] = clean(v)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return "{}"
	}
	return string(b)
}
