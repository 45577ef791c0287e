package postgres

import (
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// lockedKey is what a lock on an attempt tells: columns that never change.
type lockedKey struct {
	attempt berth.AttemptID
	task    berth.TaskID
	device  berth.DeviceID
}

func scanKey(row pgx.CollectableRow) (k lockedKey, err error) {
	return k, row.Scan(&k.attempt, &k.task, &k.device)
}

// lockAttempts locks attempts by id, ascending by (task, number); with hosts
// ("" is none), only those of these hosts. Unknown ids are left out.
func (t *tx) lockAttempts(ids []berth.AttemptID, hosts ...berth.HostID) ([]lockedKey, error) {
	hosts = slices.DeleteFunc(unique(hosts), func(h berth.HostID) bool { return h == "" })
	return collect(t, scanKey, `
SELECT id, task_id, device_id FROM attempts
WHERE id = ANY ($1) AND (cardinality($2::uuid[]) = 0 OR host_id = ANY ($2))
ORDER BY task_id, number
FOR NO KEY UPDATE`, uids(ids), uids(hosts))
}

// lockLeases locks lease rows ascending by device.
func (t *tx) lockLeases(devices []berth.DeviceID) error {
	if len(devices) == 0 {
		return nil
	}
	_, err := t.exec(`SELECT 1 FROM leases WHERE device_id = ANY ($1) ORDER BY device_id FOR NO KEY UPDATE`, uids(unique(devices)))
	return err
}

// lockTasks locks tasks ascending.
func (t *tx) lockTasks(tasks []berth.TaskID) error {
	if len(tasks) == 0 {
		return nil
	}
	_, err := t.exec(`SELECT 1 FROM tasks WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`, uids(unique(tasks)))
	return err
}

// lockDevices locks devices ascending.
func (t *tx) lockDevices(devices []berth.DeviceID) error {
	if len(devices) == 0 {
		return nil
	}
	_, err := t.exec(`SELECT 1 FROM devices WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`, uids(unique(devices)))
	return err
}

// lockHost locks a host's row for writing.
func (t *tx) lockHost(host berth.HostID) error {
	_, err := t.exec(`SELECT 1 FROM hosts WHERE id = $1 FOR NO KEY UPDATE`, uid(host))
	return err
}

// lockForEnd takes the three locks of an attempt's end: attempts, their leases,
// their tasks.
func (t *tx) lockForEnd(ids []berth.AttemptID, hosts ...berth.HostID) ([]lockedKey, error) {
	keys, err := t.lockAttempts(ids, hosts...)
	if err != nil {
		return nil, err
	}
	if err := t.lockLeases(mapped(keys, func(k lockedKey) berth.DeviceID { return k.device })); err != nil {
		return nil, err
	}
	return keys, t.lockTasks(mapped(keys, func(k lockedKey) berth.TaskID { return k.task }))
}

func attemptsOf(keys []lockedKey) []berth.AttemptID {
	return mapped(keys, func(k lockedKey) berth.AttemptID { return k.attempt })
}

// live is an attempt with its lease and its task, read after they were locked.
type live struct {
	id         berth.AttemptID
	task       berth.TaskID
	number     int
	device     berth.DeviceID
	host       berth.HostID
	fence      berth.Fence
	state      berth.AttemptState
	outcome    berth.Outcome
	digest     []byte
	logBytes   int64
	claim      string
	claimEpoch berth.Epoch

	assignedAt, startedAt, cancelAt, endedAt, giveUpAt time.Time

	// holds: the device's lease is this attempt's.
	holds             bool
	expiresAt, killBy time.Time
	unclean           bool // the device
	health            berth.HealthRecord

	pool        berth.PoolID
	class       berth.ClassID
	rank        berth.Rank
	budget      int
	policy      berth.RetryPolicy
	runTimeout  time.Duration
	correlation string
	brings      bool // the task brings inputs or names secrets
	// tries and handBacks count the task's attempts without judging this one's
	// own end: a live one is a try.
	tries, handBacks int
}

func (l *live) ended() bool { return !l.endedAt.IsZero() }

// transition with the attempt's coordinates.
func (l *live) transition(event berth.Event, from, to berth.TaskState, at time.Time) berth.Transition {
	return berth.Transition{
		Event: event, Task: l.task, From: from, To: to, Attempt: l.id, Number: l.number,
		Device: l.device, Host: l.host, Fence: l.fence, Pool: l.pool, CorrelationID: l.correlation, At: at,
	}
}

// load reads attempts by id, ascending by (task, number).
func (t *tx) load(ids []berth.AttemptID) ([]*live, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return collect(t, scanLive, `
SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.fence, a.state, a.outcome, a.complete_digest, a.log_bytes,
       a.claim_id, a.claim_epoch, a.assigned_at, a.started_at, a.cancel_requested_at, a.ended_at, a.give_up_at,
       COALESCE(l.attempt_id = a.id, false), l.expires_at, l.kill_by, COALESCE(d.unclean, false),
       COALESCE(d.health, ''), COALESCE(d.failures, 0), COALESCE(d.good_probes, 0), COALESCE(d.strikes, 0), d.quarantined_until,
       t.pool_id, t.class_id, t.rank, t.budget, t.max_attempts, t.retry_on, t.backoff_initial_us, t.backoff_factor,
       t.backoff_max_us, t.backoff_jitter, t.retry_unsafe, t.run_timeout_us, t.correlation_id, t.inputs::text <> '[]' OR t.secrets <> '{}', c.tries, c.hand_backs
FROM attempts a
JOIN tasks t ON t.id = a.task_id
LEFT JOIN leases l ON l.device_id = a.device_id
LEFT JOIN devices d ON d.id = a.device_id
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.outcome IS DISTINCT FROM 'released') AS tries,
           count(*) FILTER (WHERE x.outcome = 'released' AND NOT x.uncounted AND x.number > COALESCE(
               (SELECT max(y.number) FROM attempts y
                WHERE y.task_id = a.task_id AND y.outcome <> 'released'), 0)) AS hand_backs
    FROM attempts x WHERE x.task_id = a.task_id) c
WHERE a.id = ANY ($1)
ORDER BY a.task_id, a.number`, uids(ids))
}

func scanLive(row pgx.CollectableRow) (*live, error) {
	l := &live{}
	var (
		on                       []string
		initialUS, maxUS, limits int64
	)
	err := row.Scan(&l.id, &l.task, &l.number, &l.device, &l.host, &l.fence, &l.state, nullable(&l.outcome), &l.digest, &l.logBytes,
		nullable(&l.claim), &l.claimEpoch, &l.assignedAt, instant(&l.startedAt), instant(&l.cancelAt), instant(&l.endedAt),
		instant(&l.giveUpAt), &l.holds, instant(&l.expiresAt), instant(&l.killBy), &l.unclean,
		&l.health.Health, &l.health.Failures, &l.health.GoodProbes, &l.health.Strikes, instant(&l.health.QuarantinedUntil),
		&l.pool, &l.class, &l.rank, &l.budget, &l.policy.MaxAttempts, &on, &initialUS, &l.policy.Factor,
		&maxUS, &l.policy.Jitter, &l.policy.RetryUnsafe, &limits, &l.correlation, &l.brings, &l.tries, &l.handBacks)
	l.policy.On = outcomes(on)
	l.policy.Initial, l.policy.Max, l.runTimeout = microseconds(initialUS), microseconds(maxUS), microseconds(limits)
	return l, err
}

func outcomes(words []string) []berth.Outcome {
	return mapped(words, func(s string) berth.Outcome { return berth.Outcome(s) })
}

// host is what a statement after the locks reads of a host.
type hostRow struct {
	id    berth.HostID
	epoch berth.Epoch
	state berth.HostState
	// protocol that its agent spoke at its last sync.
	protocol int
	// draining: its agent says so; drain: an operator asked for it.
	draining, drain bool
	// rotate: an administrator asked it to change its key.
	rotate   bool
	instance string
	pool     berth.PoolID
	seen     time.Time
	now      time.Time
}

func (t *tx) host(id berth.HostID) (hostRow, error) {
	all, err := t.hosts([]berth.HostID{id})
	if err != nil {
		return hostRow{}, err
	}
	for canonical := range all {
		id = canonical
	}
	return all.of(id)
}

// hostRows are hosts by id, read in one statement at one time.
type hostRows map[berth.HostID]hostRow

func (t *tx) hosts(ids []berth.HostID) (hostRows, error) {
	rows, err := collect(t, func(row pgx.CollectableRow) (h hostRow, err error) {
		return h, row.Scan(&h.id, &h.epoch, &h.state, &h.protocol, &h.draining, &h.drain, &h.rotate, &h.instance, &h.pool, instant(&h.seen), &h.now)
	}, `
SELECT id, epoch, state, protocol, draining, drain_requested_at IS NOT NULL, key_rotation_requested_at IS NOT NULL, instance, pool_id, last_seen_at, n.now
FROM hosts, (SELECT berth_now() AS now OFFSET 0) n WHERE id = ANY ($1)`, uids(unique(ids)))
	all := make(hostRows, len(rows))
	for _, h := range rows {
		all[h.id] = h
	}
	return all, err
}

// of is the host of this id; one that is unknown or revoked is
// berth.ErrNotFound.
func (r hostRows) of(id berth.HostID) (hostRow, error) {
	h, ok := r[id]
	if !ok || h.state == berth.HostRevoked {
		return h, fmt.Errorf("host: %w", berth.ErrNotFound)
	}
	return h, nil
}

// caller is the host of an agent's call; another epoch than its own is refused.
func (r hostRows) caller(c store.AgentCall) (hostRow, error) {
	h, err := r.of(c.Host)
	if err != nil {
		return h, err
	}
	return h, berth.CheckEpoch(h.epoch, c.Epoch)
}

// judgeCaller reads the host of an agent's call, in a statement after the
// locks, and refuses another epoch than its own.
func (t *tx) judgeCaller(host berth.HostID, epoch berth.Epoch) (hostRow, error) {
	h, err := t.host(host)
	if err != nil {
		return h, err
	}
	return h, berth.CheckEpoch(h.epoch, epoch)
}

// seen counts the call as a sign of life, at most once a second, of a host that
// need not sync first.
func (t *tx) seen(host berth.HostID, h hostRow) error {
	if d := h.now.Sub(h.seen); d >= 0 && d < time.Second || t.s.timings.MustSync(h.state, h.seen, h.now) {
		return nil
	}
	_, err := t.exec(`UPDATE hosts SET last_seen_at = $2 WHERE id = $1`, uid(host), h.now)
	return err
}
