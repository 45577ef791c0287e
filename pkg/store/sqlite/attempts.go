package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// attempt is an attempt with its lease and with what its end needs to know of
// its task.
type attempt struct {
	berth.Attempt
	version    string // of the plugin
	claim      string
	claimEpoch berth.Epoch
	giveUp     time.Time
	endedBy    berth.EndedBy
	digest     []byte // of the complete
	// expires and killBy are the lease's; zero when it no longer holds one.
	expires, killBy time.Time
	task            attemptTask
}

type attemptTask struct {
	pool          berth.PoolID
	class         berth.ClassID
	rank          berth.Rank
	policy        berth.RetryPolicy
	budget        int
	runTimeout    time.Duration
	correlationID string
	brings        bool // it brings inputs or names secrets
}

const attemptSelect = `SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.fence, a.state, a.outcome, a.reason,
	a.assigned_at, a.claimed_at, a.started_at, a.ended_at, a.cancel_requested_at, a.log_bytes,
	a.plugin_version, a.claim_id, a.claim_epoch, a.give_up_at, a.ended_by, a.complete_digest, l.expires_at, l.kill_by,
	t.pool_id, t.class_id, t.rank, t.retry_on, t.backoff_initial_us, t.backoff_factor, t.backoff_max_us, t.backoff_jitter,
	t.retry_unsafe, t.max_attempts, t.budget, t.run_timeout_us, t.correlation_id, t.inputs <> '[]' OR t.secrets <> '[]'
	FROM attempts a JOIN tasks t ON t.id = a.task_id
	LEFT JOIN leases l ON l.device_id = a.device_id AND l.attempt_id = a.id`

func scanAttempt(r row) (a attempt, err error) {
	p := &a.task.policy
	return a, r.Scan(&a.ID, &a.Task, &a.Number, &a.Device, &a.Host, &a.Fence, &a.State, opt(&a.Outcome), opt(&a.Reason),
		at(&a.AssignedAt), at(&a.ClaimedAt), at(&a.StartedAt), at(&a.EndedAt), at(&a.CancelRequestedAt), &a.LogBytes,
		&a.version, opt(&a.claim), &a.claimEpoch, at(&a.giveUp), opt(&a.endedBy), &a.digest, at(&a.expires), at(&a.killBy),
		&a.task.pool, &a.task.class, &a.task.rank, fromJSON(&p.On), span(&p.Initial), &p.Factor, span(&p.Max), &p.Jitter,
		&p.RetryUnsafe, &p.MaxAttempts, &a.task.budget, span(&a.task.runTimeout), &a.task.correlationID, &a.task.brings)
}

// loadAttempt reads an attempt; ok is false when there is none of that id.
func loadAttempt(t *tx, id berth.AttemptID) (attempt, bool, error) {
	return queryOne(t, scanAttempt, attemptSelect+" WHERE a.id = ?1", id)
}

// liveAttempts lists the live attempts of a host, oldest first.
func liveAttempts(t *tx, host berth.HostID) ([]attempt, error) {
	return queryAll(t, scanAttempt, attemptSelect+" WHERE a.host_id = ?1 AND a.ended_at IS NULL ORDER BY a.assigned_at, a.id", host)
}

// ofHolder reports whether the attempt is the one that host names by h.
func (a attempt) ofHolder(host berth.HostID, h store.Holder) bool {
	return a.Host == host && a.Fence == h.Fence
}

// alive reports whether the attempt's lease may still be acted under.
func (a attempt) alive(t *tx) bool { return a.Live() && berth.LeaseAlive(a.expires, t.now) }

// transition is a step of the live attempt that does not end it.
func (a attempt) transition(t *tx, event berth.Event, from berth.TaskState) berth.Transition {
	return berth.Transition{
		Event: event, Task: a.Task, From: from, To: a.State.TaskState(),
		Attempt: a.ID, Number: a.Number, Device: a.Device, Host: a.Host, Fence: a.Fence,
		Pool: a.task.pool, CorrelationID: a.task.correlationID, At: t.now,
	}
}

// ending is how an attempt ends.
type ending struct {
	outcome berth.Outcome
	reason  string
	by      berth.EndedBy
	// unclean: the work may still touch the device; proved: nothing does.
	unclean, proved bool
	// uncounted: a hand-back that does not count against the task.
	uncounted bool
	message   redact.String
	result    redact.Bytes
	digest    []byte
}

// endAttempt ends a live attempt: its outcome, its lease, its task's next
// place, and the audit row of it. It is the only place that does.
func endAttempt(t *tx, actor berth.Actor, a attempt, e ending) (berth.Transition, error) {
	tries, handBacks, err := countTries(t, a, e)
	if err != nil {
		return berth.Transition{}, err
	}
	next := berth.After(berth.Ended{
		Attempt: a.ID, Outcome: e.outcome, Reason: e.reason, By: e.by, Started: a.State.Started(),
		CancelRequested: !a.CancelRequestedAt.IsZero(), Policy: a.task.policy, Budget: a.task.budget,
		Tries: tries, HandBacks: handBacks,
	})
	err = t.execOne(`UPDATE attempts SET ended_at = ?2, outcome = ?3, ended_by = ?4, reason = ?5, message = ?6, result = ?7,
		complete_digest = ?8, uncounted = ?9 WHERE id = ?1 AND ended_at IS NULL`,
		a.ID, micros(t.now), e.outcome, e.by, null(e.reason), null(e.message.Reveal()), content(e.result), e.digest, e.uncounted)
	if err != nil {
		return berth.Transition{}, err
	}
	if err := freeLease(t, actor, a, e); err != nil {
		return berth.Transition{}, err
	}
	if err := moveOn(t, a, e, next); err != nil {
		return berth.Transition{}, err
	}
	tr := a.transition(t, berth.EndEvent(e.outcome, next), a.State.TaskState())
	tr.To, tr.Outcome, tr.Reason = next.State, e.outcome, next.Reason
	return tr, audit(t, actor, tr)
}

// countTries counts the task's tries and its hand-backs in a row, with the
// ending attempt as the last.
func countTries(t *tx, a attempt, e ending) (tries, handBacks int, err error) {
	type past struct {
		outcome   berth.Outcome
		uncounted bool
	}
	all, err := queryAll(t, func(r row) (p past, err error) {
		return p, r.Scan(opt(&p.outcome), &p.uncounted)
	}, "SELECT outcome, uncounted FROM attempts WHERE task_id = ?1 AND number <> ?2 ORDER BY number DESC", a.Task, a.Number)
	if err != nil {
		return 0, 0, err
	}
	inRow := true
	for _, p := range append([]past{{e.outcome, e.uncounted}}, all...) {
		switch {
		case p.outcome != berth.OutcomeReleased:
			tries++
			inRow = false
		case inRow && !p.uncounted:
			handBacks++
		}
	}
	return tries, handBacks, nil
}

// moveOn puts the task where it goes next.
func moveOn(t *tx, a attempt, e ending, next berth.Next) error {
	k := token{
		task: a.Task, class: a.task.class, rank: a.task.rank, number: a.Number + 1,
		giveUp: berth.MovedGiveUp(a.giveUp, a.AssignedAt, t.now),
	}
	switch e.outcome {
	case berth.OutcomeInfraFailed, berth.OutcomeLost, berth.OutcomeTimedOut, berth.OutcomeReleased:
		k.lastHost, k.lastDevice = a.Host, a.Device
	}
	switch next.State {
	case berth.StateQueued:
		return enqueue(t, k, a.task.pool)
	case berth.StateFailed:
		return delay(t, k, berth.StateFailed, t.now.Add(next.Delay))
	case berth.StateSucceeded:
		return finishTask(t, a.Task, next.State, next.Reason, content(e.result))
	case berth.StateDeadLetter:
		return deadLetter(t, a.Task, a.task.class, next.Reason, berth.DeadLetterReason(next.Reason, e.reason), e.message.Reveal())
	}
	return finishTask(t, a.Task, next.State, next.Reason, nil)
}

// ListAttempts implements store.Tasks.
func (s *Store) ListAttempts(ctx context.Context, scope berth.Scope, id berth.TaskID) (attempts []berth.Attempt, err error) {
	err = s.read(ctx, "ListAttempts", func(t *tx) error {
		if err := seeTask(t, scope, id); err != nil {
			return err
		}
		attempts, err = queryAll(t, scanListed, `SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.fence, a.state,
			a.outcome, a.reason, a.message, a.result, a.assigned_at, a.claimed_at, a.started_at, a.ended_at, a.cancel_requested_at,
			a.progress, a.progress_note, a.log_bytes, d.name, h.name
			FROM attempts a LEFT JOIN devices d ON d.id = a.device_id LEFT JOIN hosts h ON h.id = a.host_id
			WHERE a.task_id = ?1 ORDER BY a.number`, id)
		return err
	})
	return attempts, err
}

func scanListed(r row) (a berth.Attempt, err error) {
	return a, r.Scan(&a.ID, &a.Task, &a.Number, &a.Device, &a.Host, &a.Fence, &a.State,
		opt(&a.Outcome), opt(&a.Reason), hiddenText(&a.Message), hidden(&a.Result), at(&a.AssignedAt), at(&a.ClaimedAt),
		at(&a.StartedAt), at(&a.EndedAt), at(&a.CancelRequestedAt), &a.Progress, hiddenText(&a.ProgressNote), &a.LogBytes,
		opt(&a.DeviceName), opt(&a.HostName))
}
