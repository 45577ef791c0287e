package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// PlacementRound is documented at store.Scheduling. A round that met a deadlock
// is not run again here: the caller's plan was made of what the round read.
func (s *Store) PlacementRound(ctx context.Context, actor berth.Actor, pool berth.PoolID, fn func(ctx context.Context, round store.Round) error) ([]berth.Transition, error) {
	r := &round{actor: actor, pool: pool}
	err := s.once(ctx, "PlacementRound", func(t *tx) error {
		r.tx = t
		defer func() { r.tx = nil }()
		if err := r.begin(); err != nil {
			return err
		}
		return fn(ctx, r)
	})
	if sqlState(err) == deadlockDetected {
		s.deadlocks.Add(1)
	}
	if err != nil {
		return nil, err
	}
	return r.moves, nil
}

// round is one placement round. It is of no use after its end.
type round struct {
	tx    *tx
	actor berth.Actor
	pool  berth.PoolID
	moves []berth.Transition
}

var errRoundOver = errors.New("the placement round is over")

// begin becomes the pool's active scheduler, or berth.ErrNotActive, and pins
// the shape of the plans: every access to the queue is by key or by ctid. Left
// alone, the planner chose a hash join over the whole queue, or a plan that was
// made while the queue was empty, and a round took seconds.
func (r *round) begin() error {
	active, _, err := first(r.tx, column[bool], `SELECT pg_try_advisory_xact_lock(hashtextextended('berth.placement:' || $1, 0))`, string(r.pool))
	if err != nil {
		return err
	}
	if !active {
		return berth.ErrNotActive
	}
	_, err = r.tx.exec(`
SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)`)
	return err
}

// FreeDevices is documented at store.Round.
func (r *round) FreeDevices(_ context.Context, limit int) ([]store.FreeDevice, error) {
	if r.tx == nil {
		return nil, errRoundOver
	}
	var most pgtype.Int8
	if limit > 0 {
		most = pgtype.Int8{Int64: int64(limit), Valid: true}
	}
	devices, err := collect(r.tx, scanFreeDevice, freeDevices+`
  AND l.placeable = 2 ORDER BY l.device_id LIMIT $3`, uid(r.pool), r.tx.s.timings.HostOfflineAfter.Seconds(), most)
	if err != nil || len(devices) == 0 {
		return devices, err
	}
	return devices, r.addPlugins(devices)
}

// freeDevices are a pool's free devices on fresh hosts.
const freeDevices = `
SELECT d.id, d.host_id, d.labels, d.admin_labels, h.protocol, d.health = 'suspect'
FROM leases l JOIN devices d ON d.id = l.device_id JOIN hosts h ON h.id = l.host_id, (SELECT berth_now() AS now OFFSET 0) n
WHERE l.pool_id = $1 AND l.attempt_id IS NULL AND h.state = 'online' AND NOT h.draining AND h.drain_requested_at IS NULL
  AND h.last_seen_at >= n.now - make_interval(secs => $2)`

// ProbeDevices is documented at store.Round.
func (r *round) ProbeDevices(_ context.Context, ids []berth.DeviceID) ([]store.FreeDevice, error) {
	if r.tx == nil {
		return nil, errRoundOver
	}
	if len(ids) == 0 {
		return nil, nil
	}
	devices, err := collect(r.tx, scanFreeDevice, freeDevices+`
  AND l.placeable >= 1 AND l.device_id = ANY ($3) ORDER BY l.device_id`,
		uid(r.pool), r.tx.s.timings.HostOfflineAfter.Seconds(), uids(ids))
	if err != nil || len(devices) == 0 {
		return devices, err
	}
	return devices, r.addPlugins(devices)
}

func scanFreeDevice(row pgx.CollectableRow) (d store.FreeDevice, err error) {
	var reported, admin map[string]string
	var protocol int
	err = row.Scan(&d.ID, &d.Host, &reported, &admin, &protocol, &d.Suspect)
	d.Labels = berth.MergeLabels(d.ID, reported, admin, protocol)
	return d, err
}

// addPlugins gives devices the enabled plugins of their hosts.
func (r *round) addPlugins(devices []store.FreeDevice) error {
	type row struct {
		host berth.HostID
		berth.PluginVersion
	}
	hosts := unique(mapped(devices, func(d store.FreeDevice) berth.HostID { return d.Host }))
	rows, err := collect(r.tx, func(c pgx.CollectableRow) (p row, err error) {
		return p, c.Scan(&p.host, &p.Name, &p.Version)
	}, `
SELECT h.host_id, h.name, h.version FROM host_plugins h JOIN plugins p ON p.name = h.name AND p.version = h.version
WHERE h.host_id = ANY ($1) AND p.enabled AND NOT h.differs ORDER BY h.host_id, h.name, h.version`, uids(hosts))
	provided := map[berth.HostID][]berth.PluginVersion{}
	for _, p := range rows {
		provided[p.host] = append(provided[p.host], p.PluginVersion)
	}
	for i := range devices {
		devices[i].Plugins = provided[devices[i].Host]
	}
	return err
}

// WaitingClasses is documented at store.Round. The ordered LIMIT 1 keeps each
// class one probe of the queue's key; a plain EXISTS may become a join over it.
func (r *round) WaitingClasses(context.Context) ([]store.Class, error) {
	if r.tx == nil {
		return nil, errRoundOver
	}
	return collect(r.tx, func(c pgx.CollectableRow) (k store.Class, err error) {
		return k, c.Scan(&k.ID, &k.Requirement.Selector, &k.Requirement.Plugin, &k.Requirement.VersionRange)
	}, `
SELECT c.id, c.selector, c.plugin, c.version_range
FROM task_classes c CROSS JOIN LATERAL (
    SELECT 1 FROM queue q WHERE q.class_id = c.id ORDER BY q.class_id, q.rank, q.task_id LIMIT 1) q
WHERE c.pool_id = $1 ORDER BY c.id`, uid(r.pool))
}

// Heads is documented at store.Round.
func (r *round) Heads(_ context.Context, asks []store.HeadsAsk) ([]store.Head, error) {
	if r.tx == nil {
		return nil, errRoundOver
	}
	if len(asks) == 0 {
		return nil, nil
	}
	type ask = store.HeadsAsk
	return collect(r.tx, scanHead, `
SELECT q.class_id, q.rank, q.task_id, q.number, q.ctid::text, q.last_host, q.last_device
FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[]) WITH ORDINALITY AS a (class, rank, task, most, n)
CROSS JOIN LATERAL (
    SELECT q.class_id, q.rank, q.task_id, q.number, q.ctid, q.last_host, q.last_device
    FROM queue q
    WHERE q.class_id = a.class AND (q.rank, q.task_id) > (a.rank, a.task)
    ORDER BY q.class_id, q.rank, q.task_id LIMIT a.most) q
ORDER BY a.n, q.rank, q.task_id`,
		mapped(asks, func(a ask) int64 { return int64(a.Class) }),
		mapped(asks, func(a ask) int64 {
			if a.AfterTask == "" {
				return -1 << 63
			}
			return int64(a.AfterRank)
		}),
		mapped(asks, func(a ask) pgtype.UUID {
			if a.AfterTask == "" {
				return pgtype.UUID{Valid: true} // below every id
			}
			return uid(a.AfterTask)
		}),
		mapped(asks, func(a ask) int64 { return int64(max(0, a.PerClass)) }))
}

func scanHead(row pgx.CollectableRow) (h store.Head, err error) {
	return h, row.Scan(&h.Class, &h.Rank, &h.Task, &h.Number, &h.Ref, nullable(&h.LastHost), nullable(&h.LastDevice))
}

// placed is a placement whose queue row and lease row this round has locked.
type placed struct {
	index       int
	p           store.Placement
	number      int
	fence       berth.Fence // the new one
	giveUpAt    time.Time
	correlation string
	now         time.Time
}

// Apply is documented at store.Round: one statement locks what is still there
// and judges it on the locked rows, one moves exactly that, and the counts must
// agree.
func (r *round) Apply(_ context.Context, placements []store.Placement) ([]int, error) {
	if r.tx == nil {
		return nil, errRoundOver
	}
	rows, err := r.lock(placements)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	if err := r.move(rows); err != nil {
		return nil, err
	}
	moves := make([]berth.Transition, len(rows))
	indexes := make([]int, len(rows))
	for i, row := range rows {
		indexes[i] = row.index
		moves[i] = berth.Transition{
			Event: berth.EventAssigned, Task: row.p.Head.Task, From: berth.StateQueued, To: berth.StateAssigned,
			Attempt: row.p.Attempt, Number: row.number, Device: row.p.Device, Host: row.p.Host, Fence: row.fence,
			Pool: r.pool, CorrelationID: row.correlation, At: row.now,
		}
		r.tx.hint(store.HintAssigned, string(row.p.Host))
		r.tx.hint(store.HintTask, string(row.p.Head.Task))
	}
	if err := r.tx.audit(r.actor, moves); err != nil {
		return nil, err
	}
	r.moves = append(r.moves, moves...)
	return indexes, nil
}

// lock takes the queue rows and the leases of placements, passing over those
// that others hold. A row is found by its ctid and known by its task: the place
// of a row that is gone may be another's.
func (r *round) lock(placements []store.Placement) ([]placed, error) {
	tried := distinct(placements)
	at := func(i int) store.Placement { return placements[i] }
	rows, err := collect(r.tx, func(c pgx.CollectableRow) (k placed, err error) {
		return k, c.Scan(&k.index, &k.number, instant(&k.giveUpAt), &k.fence, &k.correlation, &k.now)
	}, `
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($2::integer[], $3::tid[], $4::uuid[], $5::bigint[], $6::uuid[], $7::uuid[], $8::smallint[])
        AS a (i, ref, task, class, device, host, bit)
), tokens AS MATERIALIZED (
    SELECT a.i, a.task, a.device, a.host, a.bit, q.number, q.give_up_at
    FROM asked a JOIN queue q ON q.ctid = a.ref
    WHERE q.task_id = a.task AND q.class_id = a.class
    FOR NO KEY UPDATE OF q SKIP LOCKED
), held AS MATERIALIZED (
    SELECT k.i, k.task, k.number, k.give_up_at, l.fence
    FROM tokens k JOIN leases l ON l.device_id = k.device
    WHERE l.attempt_id IS NULL AND l.placeable >= k.bit AND l.pool_id = $1 AND l.host_id = k.host
    FOR NO KEY UPDATE OF l SKIP LOCKED
)
SELECT h.i, h.number, h.give_up_at, h.fence + 1, t.correlation_id, n.now
FROM held h JOIN tasks t ON t.id = h.task, (SELECT berth_now() AS now OFFSET 0) n ORDER BY h.i`,
		uid(r.pool),
		mapped(tried, func(i int) int32 { return int32(i) }),
		mapped(tried, func(i int) string { return at(i).Head.Ref }),
		mapped(tried, func(i int) pgtype.UUID { return uid(at(i).Head.Task) }),
		mapped(tried, func(i int) int64 { return int64(at(i).Head.Class) }),
		mapped(tried, func(i int) pgtype.UUID { return uid(at(i).Device) }),
		mapped(tried, func(i int) pgtype.UUID { return uid(at(i).Host) }),
		mapped(tried, func(i int) int16 {
			if at(i).Probe {
				return int16(berth.PlaceProbes)
			}
			return int16(berth.PlaceAll)
		}))
	for i := range rows {
		rows[i].p = placements[rows[i].index]
	}
	return rows, err
}

// distinct drops placements that name a task or a device again.
func distinct(placements []store.Placement) []int {
	tasks, devices := map[berth.TaskID]bool{}, map[berth.DeviceID]bool{}
	var out []int
	for i, p := range placements {
		if !tasks[p.Head.Task] && !devices[p.Device] {
			tasks[p.Head.Task], devices[p.Device] = true, true
			out = append(out, i)
		}
	}
	return out
}

// move turns locked tokens and leases into attempts.
func (r *round) move(rows []placed) error {
	now := rows[0].now
	type counts struct{ deleted, leased, made int }
	got, _, err := first(r.tx, func(c pgx.CollectableRow) (n counts, err error) {
		return n, c.Scan(&n.deleted, &n.leased, &n.made)
	}, `
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::tid[], $2::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::integer[], $7::bigint[], $8::text[], $9::timestamptz[])
        AS e (ref, task, attempt, device, host, number, fence, version, give_up_at)
), d AS (
    DELETE FROM queue q USING e WHERE q.ctid = e.ref AND q.task_id = e.task RETURNING 1
), l AS (
    UPDATE leases l SET attempt_id = e.attempt, task_id = e.task, number = e.number, fence = e.fence, expires_at = $11, kill_by = NULL
    FROM e WHERE l.device_id = e.device AND l.attempt_id IS NULL RETURNING 1
), m AS (
    INSERT INTO attempts (task_id, number, id, device_id, host_id, state, plugin_version, fence, assigned_at, give_up_at)
    SELECT e.task, e.number, e.attempt, e.device, e.host, 'assigned', e.version, e.fence, $10, e.give_up_at FROM e RETURNING 1
)
SELECT (SELECT count(*) FROM d), (SELECT count(*) FROM l), (SELECT count(*) FROM m)`,
		mapped(rows, func(k placed) string { return k.p.Head.Ref }),
		mapped(rows, func(k placed) pgtype.UUID { return uid(k.p.Head.Task) }),
		mapped(rows, func(k placed) pgtype.UUID { return uid(k.p.Attempt) }),
		mapped(rows, func(k placed) pgtype.UUID { return uid(k.p.Device) }),
		mapped(rows, func(k placed) pgtype.UUID { return uid(k.p.Host) }),
		mapped(rows, func(k placed) int32 { return int32(k.number) }),
		mapped(rows, func(k placed) int64 { return int64(k.fence) }),
		mapped(rows, func(k placed) string { return k.p.Version }),
		mapped(rows, func(k placed) pgtype.Timestamptz { return orNull(k.giveUpAt) }),
		now, now.Add(r.tx.s.timings.ClaimWithin))
	if err != nil {
		return err
	}
	if n := len(rows); got.deleted != n || got.leased != n || got.made != n {
		return &dbError{op: r.tx.op, what: "the rows of a placement do not agree"}
	}
	return nil
}
