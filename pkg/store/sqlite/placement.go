package sqlite

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// roundWait bounds how long a round waits for another process's transaction,
// which may be a round of the same pool, before it leaves the pool to that one.
const roundWait = 250 * time.Millisecond

// roundSet names the pools that have an active round in this handle.
type roundSet struct {
	mu     sync.Mutex
	active map[berth.PoolID]bool
}

func (r *roundSet) enter(pool berth.PoolID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.active[pool] {
		return false
	}
	if r.active == nil {
		r.active = map[berth.PoolID]bool{}
	}
	r.active[pool] = true
	return true
}

func (r *roundSet) leave(pool berth.PoolID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, pool)
}

// PlacementRound implements store.Scheduling. The round is the writing
// transaction, so whatever else writes waits for it. A writing operation of
// this store that gets fn's context inside fn is refused; one with another
// context would wait for the round, and the round for it.
func (s *Store) PlacementRound(ctx context.Context, actor berth.Actor, pool berth.PoolID, fn func(ctx context.Context, round store.Round) error) ([]berth.Transition, error) {
	if !s.rounds.enter(pool) {
		return nil, berth.ErrNotActive
	}
	defer s.rounds.leave(pool)
	var r *round
	err := s.writeWithin(ctx, "PlacementRound", roundWait, func(t *tx) error {
		r = &round{tx: t, actor: actor, pool: pool}
		defer func() { r.tx = nil }()
		return fn(context.WithValue(ctx, inRound{s}, true), r)
	})
	if r == nil && errors.Is(err, errBusy) {
		return nil, berth.ErrNotActive
	}
	if err != nil {
		return nil, err
	}
	return r.placed, nil
}

// SchedulablePools implements store.Scheduling.
func (s *Store) SchedulablePools(ctx context.Context) (pools []berth.PoolID, err error) {
	err = s.read(ctx, "SchedulablePools", func(t *tx) error {
		pools, err = queryAll(t, func(r row) (id berth.PoolID, err error) {
			return id, r.Scan(&id)
		}, "SELECT id FROM pools WHERE paused = 0 ORDER BY id")
		return err
	})
	return pools, err
}

// errRoundOver: the round was used after its function had returned, when its
// transaction is somebody else's.
var errRoundOver = errors.New("the placement round is over")

// in is asked by every method: the round goes on, and so does its caller.
func (r *round) in(ctx context.Context) error {
	if r.tx == nil {
		return errRoundOver
	}
	return ctx.Err()
}

// round is store.Round on the writing transaction.
type round struct {
	tx     *tx
	actor  berth.Actor
	pool   berth.PoolID
	placed []berth.Transition
}

// FreeDevices implements store.Round.
func (r *round) FreeDevices(ctx context.Context, limit int) ([]store.FreeDevice, error) {
	if err := r.in(ctx); err != nil {
		return nil, err
	}
	hosts, err := r.freshHosts()
	if err != nil || len(hosts) == 0 {
		return nil, err
	}
	if limit <= 0 {
		limit = -1 // SQLite's word for no limit
	}
	return r.freeDevices(hosts, `l.pool_id = ?1 AND l.attempt_id IS NULL AND l.placeable = ?2 AND d.host_id IN (SELECT value FROM json_each(?3))
		ORDER BY l.device_id LIMIT ?4`, r.pool, berth.PlaceAll, list(hosts), limit)
}

// ProbeDevices implements store.Round.
func (r *round) ProbeDevices(ctx context.Context, ids []berth.DeviceID) ([]store.FreeDevice, error) {
	if err := r.in(ctx); err != nil || len(ids) == 0 {
		return nil, err
	}
	hosts, err := r.freshHosts()
	if err != nil || len(hosts) == 0 {
		return nil, err
	}
	return r.freeDevices(hosts, `l.pool_id = ?1 AND l.attempt_id IS NULL AND l.placeable >= ?2 AND d.host_id IN (SELECT value FROM json_each(?3))
		AND l.device_id IN (SELECT value FROM json_each(?4)) ORDER BY l.device_id`, r.pool, berth.PlaceProbes, list(hosts), list(ids))
}

// freeDevices reads devices of hosts with what is enabled there.
func (r *round) freeDevices(hosts []berth.HostID, where string, args ...any) ([]store.FreeDevice, error) {
	plugins, err := r.enabledPlugins(hosts)
	if err != nil {
		return nil, err
	}
	return queryAll(r.tx, func(row row) (d store.FreeDevice, err error) {
		var reported, admin map[string]string
		var protocol int
		err = row.Scan(&d.ID, &d.Host, fromJSON(&reported), fromJSON(&admin), &protocol, &d.Suspect)
		d.Labels, d.Plugins = berth.MergeLabels(d.ID, reported, admin, protocol), plugins[d.Host]
		return d, err
	}, `SELECT l.device_id, d.host_id, d.labels, d.admin_labels, h.protocol, d.health = 'suspect'
		FROM leases l JOIN devices d ON d.id = l.device_id JOIN hosts h ON h.id = d.host_id WHERE `+where, args...)
}

// freshHosts lists the pool's hosts on which work may be placed now.
func (r *round) freshHosts() (fresh []berth.HostID, err error) {
	hosts, err := queryAll(r.tx, scanHostRow, hostRowSelect+" WHERE pool_id = ?1 AND state = 'online' AND draining = 0 AND drain_requested_at IS NULL", r.pool)
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if r.tx.store.timings.HostFresh(h.seen, r.tx.now) {
			fresh = append(fresh, h.id)
		}
	}
	return fresh, nil
}

func (r *round) enabledPlugins(hosts []berth.HostID) (map[berth.HostID][]berth.PluginVersion, error) {
	type provided struct {
		host berth.HostID
		berth.PluginVersion
	}
	all, err := queryAll(r.tx, func(row row) (p provided, err error) {
		return p, row.Scan(&p.host, &p.Name, &p.Version)
	}, `SELECT h.host_id, h.name, h.version FROM host_plugins h JOIN plugins p ON p.name = h.name AND p.version = h.version
		WHERE p.enabled = 1 AND h.differs = 0 AND h.host_id IN (SELECT value FROM json_each(?1)) ORDER BY h.host_id, h.name, h.version`, list(hosts))
	out := map[berth.HostID][]berth.PluginVersion{}
	for _, p := range all {
		out[p.host] = append(out[p.host], p.PluginVersion)
	}
	return out, err
}

// The statements of the queue's heads: one look into the queue a class, and one
// range of the queue's key an ask, so that no cost grows with its length.
const (
	waitingClasses = `SELECT c.id, c.selector, c.plugin, c.version_range FROM task_classes c
		WHERE c.pool_id = ?1 AND EXISTS (SELECT 1 FROM queue q WHERE q.class_id = c.id) ORDER BY c.id`
	headsFirst = `SELECT class_id, rank, task_id, number, last_host, last_device FROM queue
		WHERE class_id = ?1 ORDER BY rank, task_id LIMIT ?2`
	headsAfter = `SELECT class_id, rank, task_id, number, last_host, last_device FROM queue
		WHERE class_id = ?1 AND (rank, task_id) > (?3, ?4) ORDER BY rank, task_id LIMIT ?2`
)

// WaitingClasses implements store.Round.
func (r *round) WaitingClasses(ctx context.Context) ([]store.Class, error) {
	if err := r.in(ctx); err != nil {
		return nil, err
	}
	return queryAll(r.tx, func(row row) (c store.Class, err error) {
		return c, row.Scan(&c.ID, &c.Requirement.Selector, &c.Requirement.Plugin, &c.Requirement.VersionRange)
	}, waitingClasses, r.pool)
}

// Heads implements store.Round.
func (r *round) Heads(ctx context.Context, asks []store.HeadsAsk) (heads []store.Head, err error) {
	if err := r.in(ctx); err != nil {
		return nil, err
	}
	for _, ask := range asks {
		query, args := headsFirst, []any{ask.Class, max(ask.PerClass, 0)}
		if ask.AfterTask != "" {
			query, args = headsAfter, append(args, ask.AfterRank, ask.AfterTask)
		}
		next, err := queryAll(r.tx, func(row row) (h store.Head, err error) {
			return h, row.Scan(&h.Class, &h.Rank, &h.Task, &h.Number, opt(&h.LastHost), opt(&h.LastDevice))
		}, query, args...)
		if err != nil {
			return nil, err
		}
		heads = append(heads, next...)
	}
	return heads, nil
}

// Apply implements store.Round.
func (r *round) Apply(ctx context.Context, placements []store.Placement) (placed []int, err error) {
	if err := r.in(ctx); err != nil {
		return nil, err
	}
	for i, p := range placements {
		tr, ok, err := r.place(p)
		if err != nil {
			return nil, err
		}
		if ok {
			placed = append(placed, i)
			r.placed = append(r.placed, tr)
		}
	}
	return placed, nil
}

// place places one task; ok is false when its token or its device is not to be
// had any more.
func (r *round) place(p store.Placement) (tr berth.Transition, ok bool, err error) {
	t := r.tx
	least := berth.PlaceAll
	if p.Probe {
		least = berth.PlaceProbes
	}
	fence, ok, err := queryOne(t, scanInt, `SELECT fence FROM leases
		WHERE device_id = ?1 AND host_id = ?2 AND pool_id = ?3 AND attempt_id IS NULL AND placeable >= ?4`,
		p.Device, p.Host, r.pool, least)
	if err != nil || !ok {
		return tr, false, err
	}
	k, ok, err := queryOne(t, scanToken, `DELETE FROM queue WHERE class_id = ?1 AND rank = ?2 AND task_id = ?3
		AND EXISTS (SELECT 1 FROM task_classes c WHERE c.id = ?1 AND c.pool_id = ?4) RETURNING `+tokenColumns,
		p.Head.Class, p.Head.Rank, p.Head.Task, r.pool)
	if err != nil || !ok {
		return tr, false, err
	}
	correlation, ok, err := queryOne(t, scanText, "SELECT correlation_id FROM tasks WHERE id = ?1", k.task)
	if err != nil || !ok {
		return tr, false, orElse(err, "queued task %s is not there", k.task)
	}
	a := attempt{Attempt: berth.Attempt{
		ID: p.Attempt, Task: k.task, Number: k.number, Device: p.Device, Host: p.Host, Fence: berth.Fence(fence) + 1,
		State: berth.AttemptAssigned, AssignedAt: t.now,
	}, version: p.Version, giveUp: k.giveUp, task: attemptTask{pool: r.pool, correlationID: correlation}}
	if err := assign(t, a); err != nil {
		return tr, false, err
	}
	tr = a.transition(t, berth.EventAssigned, berth.StateQueued)
	return tr, true, audit(t, r.actor, tr)
}

// assign writes a new attempt and its lease.
func assign(t *tx, a attempt) error {
	err := t.execOne(`INSERT INTO attempts (task_id, number, id, device_id, host_id, state, plugin_version, assigned_at, give_up_at, fence)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`,
		a.Task, a.Number, a.ID, a.Device, a.Host, a.State, a.version, micros(a.AssignedAt), micros(a.giveUp), a.Fence)
	if err != nil {
		return err
	}
	expires := t.now.Add(t.store.timings.ClaimWithin)
	hintOf(t, store.HintAssigned, a.Host)
	hintOf(t, store.HintTask, a.Task)
	return t.execOne(`UPDATE leases SET fence = ?2, attempt_id = ?3, task_id = ?4, number = ?5, expires_at = ?6, kill_by = NULL
		WHERE device_id = ?1 AND attempt_id IS NULL`, a.Device, a.Fence, a.ID, a.Task, a.Number, micros(expires))
}

var _ store.Round = (*round)(nil)
