package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// SubmitTasks implements store.Tasks.
func (s *Store) SubmitTasks(ctx context.Context, p store.SubmitParams) (res store.SubmitResult, err error) {
	err = s.write(ctx, "SubmitTasks", func(t *tx) error {
		stored, replayed, err := once(t, p.Actor, store.Once{Key: p.IdempotencyKey, BodyDigest: p.BodyDigest}, idsOf(p.Tasks))
		if err != nil {
			return err
		}
		if replayed {
			if res.Tasks, err = loadTasks(t, stored); err != nil {
				return err
			}
			if res.Replayed = len(res.Tasks) > 0; res.Replayed {
				return nil
			}
			// What was made is deleted: the key is free again.
			if err := t.execOne(`UPDATE idempotency_keys SET task_ids = ?4, created_at = ?5
				WHERE principal_kind = ?1 AND principal_id = ?2 AND key = ?3`,
				p.Actor.Kind, p.Actor.ID, p.IdempotencyKey, list(idsOf(p.Tasks)), micros(t.now)); err != nil {
				return err
			}
		}
		if res.Transitions, err = submit(t, p); err != nil {
			return err
		}
		res.Tasks, err = loadTasks(t, idsOf(p.Tasks))
		return err
	})
	if err != nil {
		return store.SubmitResult{}, err
	}
	return res, nil
}

// submit stores tasks. What it refuses it refuses before it writes.
func submit(t *tx, p store.SubmitParams) (trs []berth.Transition, err error) {
	inputs, err := bindInputs(t, p.Scope, p.Tasks)
	if err != nil {
		return nil, err
	}
	if err := checkSecrets(t, p); err != nil {
		return nil, err
	}
	sub := &submission{pools: map[berth.PoolID]time.Duration{}, classes: map[string]berth.ClassID{}}
	for i, n := range p.Tasks {
		n.Inputs = inputs[i]
		tr, err := sub.add(t, p, n)
		if err != nil {
			return nil, err
		}
		trs = append(trs, tr)
	}
	return trs, nil
}

// SubmittedTasks implements store.Tasks.
func (s *Store) SubmittedTasks(ctx context.Context, principal berth.Principal, o store.Once) (tasks []berth.Task, err error) {
	err = s.read(ctx, "SubmittedTasks", func(t *tx) error {
		ids, ok, err := storedUnder[berth.TaskID](t, principal, o)
		if err == nil && !ok {
			err = fmt.Errorf("idempotency key: %w", berth.ErrNotFound)
		}
		if err != nil {
			return err
		}
		tasks, err = loadTasks(t, ids)
		if err == nil && len(tasks) == 0 {
			err = notFound("tasks of the idempotency key")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return tasks, nil
}

// once takes the idempotency key for what the ids name, or finds what was
// stored under it. Writers are serial, so a key that is not there now is there
// never before this transaction ends. Without a key there is nothing to do.
func once[ID ~string](t *tx, actor berth.Actor, o store.Once, ids []ID) (stored []ID, replayed bool, err error) {
	if o.Key == "" {
		return nil, false, nil
	}
	stored, replayed, err = storedUnder[ID](t, actor.Principal, o)
	if err != nil || replayed {
		return stored, replayed, err
	}
	return nil, false, t.execOne(`INSERT INTO idempotency_keys (principal_kind, principal_id, key, body_digest, task_ids, created_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6)`, actor.Kind, actor.ID, o.Key, o.BodyDigest[:], list(ids), micros(t.now))
}

// storedUnder is what was stored under an idempotency key; ok is false when that
// is nothing.
func storedUnder[ID ~string](t *tx, principal berth.Principal, o store.Once) (stored []ID, ok bool, err error) {
	type kept struct {
		digest []byte
		ids    []ID
	}
	k, ok, err := queryOne(t, func(r row) (k kept, err error) {
		return k, r.Scan(&k.digest, fromJSON(&k.ids))
	}, "SELECT body_digest, task_ids FROM idempotency_keys WHERE principal_kind = ?1 AND principal_id = ?2 AND key = ?3",
		principal.Kind, principal.ID, o.Key)
	switch {
	case err != nil || !ok:
		return nil, false, err
	case !bytes.Equal(k.digest, o.BodyDigest[:]) || len(k.ids) == 0:
		return nil, false, berth.ErrIdempotencyMismatch
	}
	return k.ids, true, nil
}

func idsOf(tasks []berth.NewTask) []berth.TaskID {
	ids := make([]berth.TaskID, len(tasks))
	for i, n := range tasks {
		ids[i] = n.ID
	}
	return ids
}

// submission remembers what the tasks of one submit share.
type submission struct {
	pools   map[berth.PoolID]time.Duration // ageing steps
	classes map[string]berth.ClassID
}

func (s *submission) ageingStep(t *tx, pool berth.PoolID) (time.Duration, error) {
	if step, ok := s.pools[pool]; ok {
		return step, nil
	}
	step, ok, err := queryOne(t, func(r row) (d time.Duration, err error) {
		return d, r.Scan(span(&d))
	}, "SELECT ageing_step_us FROM pools WHERE id = ?1", pool)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, notFound("pool")
	}
	s.pools[pool] = step
	return step, nil
}

func (s *submission) class(t *tx, pool berth.PoolID, r berth.Requirement) (berth.ClassID, error) {
	key := eligibility.ClassKey(pool, r)
	if id, ok := s.classes[key]; ok {
		return id, nil
	}
	id, ok, err := queryOne(t, scanInt, "SELECT id FROM task_classes WHERE class_key = ?1", key)
	if err == nil && !ok {
		id, _, err = queryOne(t, scanInt, `INSERT INTO task_classes (class_key, pool_id, selector, plugin, version_range)
			VALUES (?1, ?2, ?3, ?4, ?5) RETURNING id`, key, pool, r.Selector, r.Plugin, r.VersionRange)
	}
	s.classes[key] = berth.ClassID(id)
	return berth.ClassID(id), err
}

// add stores one task with its token.
func (s *submission) add(t *tx, p store.SubmitParams, n berth.NewTask) (berth.Transition, error) {
	tr := berth.Transition{
		Event: berth.EventSubmitted, Task: n.ID, To: berth.StateQueued, Pool: n.Pool, CorrelationID: p.CorrelationID, At: t.now,
	}
	step, err := s.ageingStep(t, n.Pool)
	if err != nil {
		return tr, err
	}
	class, err := s.class(t, n.Pool, n.Requirement)
	if err != nil {
		return tr, err
	}
	k := token{task: n.ID, class: class, rank: berth.RankOf(t.now, n.Priority, step), number: 1}
	if n.Payload.IsZero() {
		n.Payload = redact.NewBytes([]byte("{}"))
	}
	if err := insertTask(t, p, n, k); err != nil {
		return tr, fmt.Errorf("task %s: %w", n.ID, err)
	}
	if err := insertTaskInputs(t, n.ID, n.Inputs); err != nil {
		return tr, err
	}
	due := n.NotBefore.UTC().Truncate(time.Microsecond)
	from := t.now
	if due.After(t.now) {
		tr.To, from = berth.StateScheduled, due
	}
	if n.QueueTimeout > 0 {
		k.giveUp = from.Add(n.QueueTimeout)
	}
	if tr.To == berth.StateScheduled {
		err = delay(t, k, berth.StateScheduled, due)
	} else {
		err = enqueue(t, k, n.Pool)
	}
	if err != nil {
		return tr, err
	}
	return tr, audit(t, p.Actor, tr)
}

func insertTask(t *tx, p store.SubmitParams, n berth.NewTask, k token) error {
	return t.execOne(`INSERT INTO tasks (id, pool_id, class_id, rank, name, tags, payload, priority, not_before, run_timeout_us, queue_timeout_us,
		retry_on, backoff_initial_us, backoff_factor, backoff_max_us, backoff_jitter, retry_unsafe, max_attempts, budget,
		submitter_kind, submitter_id, correlation_id, trace_parent, submitted_at, inputs, secrets, schedule_id)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26)`,
		n.ID, n.Pool, k.class, k.rank, n.Name, list(n.Tags), string(n.Payload.Reveal()), n.Priority, micros(n.NotBefore),
		n.RunTimeout.Microseconds(), n.QueueTimeout.Microseconds(),
		list(n.Retry.On), n.Retry.Initial.Microseconds(), n.Retry.Factor, n.Retry.Max.Microseconds(), n.Retry.Jitter, n.Retry.RetryUnsafe,
		n.Retry.MaxAttempts, p.Actor.Kind, p.Actor.ID, p.CorrelationID, p.TraceParent, micros(t.now), list(n.Inputs),
		list(berth.SortedSecrets(n.Secrets)), null(n.Schedule))
}
