package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// SyncHost is documented at store.Agents. The epoch has a transaction of its
// own: every call of an older agent that is judged after it is refused, so the
// second transaction settles attempts that nobody else starts any more.
func (s *Store) SyncHost(ctx context.Context, p store.SyncParams) (result store.SyncResult, err error) {
	var epoch berth.Epoch
	err = s.write(ctx, "SyncHost", func(t *tx) error {
		epoch, err = t.raiseEpoch(p)
		return err
	})
	if err != nil {
		return store.SyncResult{}, err
	}
	err = s.write(ctx, "SyncHost", func(t *tx) error {
		settling := &settling{tx: t, p: p, epoch: epoch}
		err := settling.run()
		result = settling.result
		return err
	})
	return only(result, err)
}

func (t *tx) raiseEpoch(p store.SyncParams) (berth.Epoch, error) {
	if err := t.lockHost(p.Host); err != nil {
		return 0, err
	}
	h, err := t.host(p.Host)
	if err != nil {
		return 0, err
	}
	epoch, err := berth.NextEpoch(h.epoch, h.instance, p.Instance, p.Epoch, p.JournalEpoch)
	if err != nil || (epoch == h.epoch && p.Instance == h.instance) {
		return epoch, err
	}
	if _, err := t.exec(`UPDATE hosts SET epoch = $2, instance = $3 WHERE id = $1`, uid(p.Host), int64(epoch), clean(p.Instance)); err != nil {
		return 0, err
	}
	return epoch, t.auditChange(p.Actor, h.now, berth.AuditHostSynced, "host", string(p.Host),
		berth.NumberFacts("epoch", h.epoch), berth.NumberFacts("epoch", epoch))
}

// settling is the second transaction of a sync.
type settling struct {
	*tx
	p      store.SyncParams
	epoch  berth.Epoch
	now    time.Time
	result store.SyncResult

	attempts []berth.AttemptID // live ones, locked
	devices  reportedDevices
	differs  map[berth.PluginVersion]bool // from what is registered
}

// run takes the locks in their order (attempts, leases, tasks, devices, host),
// judges the epoch after the last of them, and writes.
func (s *settling) run() error {
	if err := s.registerReported(); err != nil {
		return err
	}
	if err := s.lockAll(); err != nil {
		return err
	}
	h, err := s.judgeCaller(s.p.Host, s.epoch)
	if err != nil {
		return err
	}
	s.now, s.result.Epoch, s.result.Pool = h.now, s.epoch, h.pool
	s.result.Devices, s.result.Conflicts = s.devices.ids, s.devices.conflicts
	if _, err := s.exec(`
UPDATE hosts SET state = 'online', draining = $2, agent_version = $3, last_seen_at = $4, protocol = $5 WHERE id = $1`,
		uid(s.p.Host), s.p.Draining, clean(s.p.AgentVersion), s.now, max(s.p.Protocol, 1)); err != nil {
		return err
	}
	for _, step := range []func() error{s.storePlugins, s.settleAttempts, s.storeDevices, s.storeConflicts, s.raiseFences} {
		if err := step(); err != nil {
			return err
		}
	}
	s.hint(store.HintWork, string(h.pool))
	s.hint(store.HintAssigned, string(s.p.Host))
	all, err := s.devicesOf(s.p.Host)
	if err != nil {
		return err
	}
	return s.writeBits(all)
}

// registerReported makes the plugins known that the host brings, before every
// other lock: nothing waits for a plugin's row while it holds one of those. What
// nobody has approved is kept as the host reports it, for whoever decides.
func (s *settling) registerReported() error {
	s.differs = map[berth.PluginVersion]bool{}
	plugins := mapped(s.p.Plugins, func(pl berth.Plugin) berth.Plugin { return pl.AsReported(s.p.ApprovePlugins) })
	return s.registerPlugins(s.p.Actor, plugins, func(known, pl berth.Plugin) (next berth.Plugin, changed bool) {
		if s.p.ApprovePlugins {
			if next, changed = known.Registered(pl); changed {
				return next, true
			}
		}
		next, changed, s.differs[pl.PluginVersion] = known.Report(pl)
		return next, changed
	})
}

// lockAll locks the live attempts of the host, the leases of its devices, the
// tasks of the attempts that may end, the devices, and the host; new devices
// are made before the host is locked, and judged after. An attempt that is
// placed meanwhile is not looked at: a claim delivers it.
func (s *settling) lockAll() error {
	type row struct {
		lockedKey
		state berth.AttemptState
		fence berth.Fence
	}
	rows, err := collect(s.tx, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.attempt, &r.task, &r.device, &r.state, &r.fence)
	}, `
SELECT id, task_id, device_id, state, fence FROM attempts WHERE host_id = $1 AND ended_at IS NULL
ORDER BY task_id, number FOR NO KEY UPDATE`, uid(s.p.Host))
	if err != nil {
		return err
	}
	var devices []berth.DeviceID
	var tasks []berth.TaskID
	for _, r := range rows {
		s.attempts = append(s.attempts, r.attempt)
		devices = append(devices, r.device)
		if r.state.Started() && !s.holds(r.attempt, r.fence) || !r.state.Started() && !berth.Deliverable(s.p.Protocol, true) {
			tasks = append(tasks, r.task)
		}
	}
	if s.devices, err = s.matchDevices(); err != nil {
		return err
	}
	others := slices.Concat(devices, s.devices.rivals, s.devices.former)
	mine, err := s.lockFleetOf(s.p.Host, others, func() error { return s.lockTasks(tasks) }, s.addDevices)
	if err != nil {
		return err
	}
	for _, id := range s.devices.known {
		if !slices.Contains(mine, id) {
			return errStartOver // an operator moved it meanwhile
		}
	}
	return nil
}

func (s *settling) holds(id berth.AttemptID, fence berth.Fence) bool {
	return slices.Contains(s.p.Held, store.HeldAttempt{Attempt: id, Fence: fence})
}

// settleAttempts gives a verdict on what the agent holds, ends what it lost,
// takes back what its protocol has no words for, and lists what it has still to
// claim.
func (s *settling) settleAttempts() error {
	loaded, err := s.load(s.attempts)
	if err != nil {
		return err
	}
	liveOnes := map[store.HeldAttempt]*live{}
	var ends []*end
	var undelivered []*live
	for _, a := range loaded {
		key := store.HeldAttempt{Attempt: a.id, Fence: a.fence}
		switch {
		case a.ended():
		case !a.state.Started() && !berth.Deliverable(s.p.Protocol, a.brings):
			ends = append(ends, &end{
				live: a, outcome: berth.OutcomeReleased, reason: berth.ReasonAgentDowngraded, by: berth.EndedBySync, uncounted: true,
			})
		case slices.Contains(s.p.Held, key):
			liveOnes[key] = a
		case a.state.Started():
			proved := s.devices.clean[a.device]
			ends = append(ends, &end{
				live: a, outcome: berth.OutcomeLost, reason: berth.ReasonHostLostAttempt, by: berth.EndedBySync,
				dirty: !proved, proved: proved,
			})
		default:
			undelivered = append(undelivered, a)
		}
	}
	s.result.Verdicts = mapped(s.p.Held, func(h store.HeldAttempt) store.Verdict {
		switch a := liveOnes[h]; {
		case a == nil:
			return store.VerdictGone
		case !a.cancelAt.IsZero():
			return store.VerdictCancel
		}
		return store.VerdictKeep
	})
	if s.result.Transitions, err = s.endAttempts(s.p.Actor, s.now, ends); err != nil {
		return err
	}
	return s.deliverAgain(undelivered)
}

// deliverAgain makes unstarted attempts that the agent does not hold free for
// any claim of the new epoch, and gives those whose fence the agent would
// refuse (the database was restored) one above all that it has seen.
func (s *settling) deliverAgain(attempts []*live) error {
	if len(attempts) == 0 {
		return nil
	}
	slices.SortFunc(attempts, func(a, b *live) int {
		if c := a.assignedAt.Compare(b.assignedAt); c != 0 {
			return c
		}
		return compareText(a.id, b.id)
	})
	for _, a := range attempts {
		s.result.Undelivered = append(s.result.Undelivered, a.id)
	}
	_, err := s.exec(`
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::uuid[], $4::bigint[]) AS e (task, number, device, fence)
), l AS (
    UPDATE leases l SET fence = e.fence FROM e WHERE l.device_id = e.device AND l.fence < e.fence
)
UPDATE attempts a SET claim_epoch = 0, fence = e.fence FROM e
WHERE a.task_id = e.task AND a.number = e.number AND (a.claim_epoch <> 0 OR a.fence <> e.fence)`,
		mapped(attempts, func(a *live) pgtype.UUID { return uid(a.task) }),
		mapped(attempts, func(a *live) int32 { return int32(a.number) }),
		mapped(attempts, func(a *live) pgtype.UUID { return uid(a.device) }),
		mapped(attempts, func(a *live) int64 {
			if top := s.devices.fences[a.device]; top > a.fence {
				return int64(top) + 1
			}
			return int64(a.fence)
		}))
	return err
}

// raiseFences puts every device's counter at least where its agent has seen it,
// so that the next lease goes above (I10).
func (s *settling) raiseFences() error {
	var devices []berth.DeviceID
	for id, fence := range s.devices.fences {
		if fence > 0 {
			devices = append(devices, id)
		}
	}
	if len(devices) == 0 {
		return nil
	}
	_, err := s.exec(`
UPDATE leases l SET fence = e.fence FROM unnest($1::uuid[], $2::bigint[]) AS e (device, fence)
WHERE l.device_id = e.device AND l.fence < e.fence`,
		uids(devices), mapped(devices, func(d berth.DeviceID) int64 { return int64(s.devices.fences[d]) }))
	return err
}

// storePlugins replaces what the host provides.
func (s *settling) storePlugins() error {
	plugins := inOrder(s.p.Plugins)
	names, versions := namesOf(plugins), versionsOf(plugins)
	if _, err := s.exec(`
DELETE FROM host_plugins h WHERE h.host_id = $1
  AND NOT EXISTS (SELECT 1 FROM unnest($2::text[], $3::text[]) AS e (name, version) WHERE e.name = h.name AND e.version = h.version)`,
		uid(s.p.Host), names, versions); err != nil {
		return err
	}
	if len(plugins) == 0 {
		return nil
	}
	for _, p := range plugins {
		if s.differs[p.PluginVersion] {
			s.result.DifferingPlugins = append(s.result.DifferingPlugins, p.PluginVersion)
		}
	}
	type stored struct {
		berth.PluginVersion
		differs bool
	}
	changed, err := collect(s.tx, func(row pgx.CollectableRow) (v stored, err error) {
		return v, row.Scan(&v.Name, &v.Version, &v.differs)
	}, `
INSERT INTO host_plugins AS h (host_id, name, version, differs)
SELECT $1::uuid, e.name, e.version, e.differs FROM unnest($2::text[], $3::text[], $4::boolean[]) AS e (name, version, differs) ORDER BY 2, 3
ON CONFLICT (host_id, name, version) DO UPDATE SET differs = EXCLUDED.differs WHERE h.differs <> EXCLUDED.differs
RETURNING name, version, differs`,
		uid(s.p.Host), names, versions, mapped(plugins, func(p berth.Plugin) bool { return s.differs[p.PluginVersion] }))
	if err != nil {
		return err
	}
	var events []berth.AuditEvent
	for _, v := range changed {
		if v.differs {
			events = append(events, berth.AuditEvent{
				At: s.now, Actor: s.p.Actor, Action: berth.AuditPluginDiffers, TargetKind: "plugin", TargetID: v.Name + "@" + v.Version, Host: s.p.Host,
			})
		}
	}
	if err := s.auditEvents(events); err != nil {
		return err
	}
	s.result.DisabledPlugins, err = collect(s.tx, scanPluginVersion, `
SELECT h.name, h.version FROM host_plugins h JOIN plugins p ON p.name = h.name AND p.version = h.version
WHERE h.host_id = $1 AND NOT p.enabled ORDER BY h.name COLLATE "C", h.version COLLATE "C"`, uid(s.p.Host))
	return err
}

func scanPluginVersion(row pgx.CollectableRow) (v berth.PluginVersion, err error) {
	return v, row.Scan(&v.Name, &v.Version)
}
