package postgres

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// SubmitTasks is documented at store.Tasks.
func (s *Store) SubmitTasks(ctx context.Context, p store.SubmitParams) (result store.SubmitResult, err error) {
	err = s.write(ctx, "SubmitTasks", func(t *tx) error {
		result = store.SubmitResult{}
		result.Tasks, result.Replayed, err = t.replay(p)
		if err != nil || result.Replayed {
			return err
		}
		result.Tasks, result.Transitions, err = t.submit(p)
		return err
	})
	if sqlState(err) == uniqueViolation {
		err = fmt.Errorf("a task of that id: %w", berth.ErrExists)
	}
	return only(result, err)
}

// replay takes the idempotency key, or finds the tasks stored under it.
func (t *tx) replay(p store.SubmitParams) (tasks []berth.Task, replayed bool, err error) {
	ids, replayed, err := t.once(p.Actor, store.Once{Key: p.IdempotencyKey, BodyDigest: p.BodyDigest},
		mapped(p.Tasks, func(k berth.NewTask) pgtype.UUID { return uid(k.ID) }))
	if err != nil || !replayed {
		return nil, false, err
	}
	tasks, err = t.tasksInOrder(ids)
	if err != nil || len(tasks) > 0 {
		return tasks, true, err
	}
	// What was made is deleted: the key is free again, for the first that takes it.
	n, err := t.exec(`
UPDATE idempotency_keys SET task_ids = $4, created_at = berth_now()
WHERE principal_kind = $1 AND principal_id = $2 AND key = $3 AND task_ids = $5`,
		string(p.Actor.Kind), p.Actor.ID, p.IdempotencyKey, mapped(p.Tasks, func(k berth.NewTask) pgtype.UUID { return uid(k.ID) }), mapped(ids, uid[string]))
	if err == nil && n == 0 {
		err = errStartOver
	}
	return nil, false, err
}

func (t *tx) tasksInOrder(ids []string) ([]berth.Task, error) {
	return collect(t, scanTask, taskSelect(true)+`
FROM unnest($1::uuid[]) WITH ORDINALITY AS i (id, n) JOIN tasks t ON t.id = i.id`+taskJoins+` ORDER BY i.n`,
		mapped(ids, uid[string]))
}

// SubmittedTasks is documented at store.Tasks.
func (s *Store) SubmittedTasks(ctx context.Context, principal berth.Principal, o store.Once) (tasks []berth.Task, err error) {
	err = s.read(ctx, "SubmittedTasks", func(t *tx) error {
		ids, ok, err := t.storedUnder(principal, o)
		if err == nil && !ok {
			err = fmt.Errorf("idempotency key: %w", berth.ErrNotFound)
		}
		if err != nil {
			return err
		}
		tasks, err = t.tasksInOrder(ids)
		if err == nil && len(tasks) == 0 {
			err = fmt.Errorf("tasks of the idempotency key: %w", berth.ErrNotFound)
		}
		return err
	})
	return only(tasks, err)
}

// once takes the idempotency key for what the ids name, or finds what was stored
// under it. Where another transaction is taking it just now, the insert waits
// for its end. Without a key there is nothing to do.
func (t *tx) once(actor berth.Actor, o store.Once, ids []pgtype.UUID) (stored []string, replayed bool, err error) {
	if o.Key == "" {
		return nil, false, nil
	}
	n, err := t.exec(`
INSERT INTO idempotency_keys (principal_kind, principal_id, key, body_digest, task_ids, created_at)
VALUES ($1, $2, $3, $4, $5, berth_now()) ON CONFLICT DO NOTHING`,
		string(actor.Kind), actor.ID, o.Key, o.BodyDigest[:], ids)
	if err != nil || n == 1 {
		return nil, false, err
	}
	stored, replayed, err = t.storedUnder(actor.Principal, o)
	if err == nil && !replayed {
		err = errStartOver // retention removed it meanwhile
	}
	return stored, replayed, err
}

// storedUnder is what was stored under an idempotency key; ok is false when that
// is nothing.
func (t *tx) storedUnder(principal berth.Principal, o store.Once) (stored []string, ok bool, err error) {
	type kept struct {
		digest []byte
		ids    []string
	}
	old, ok, err := first(t, func(row pgx.CollectableRow) (r kept, err error) {
		return r, row.Scan(&r.digest, &r.ids)
	}, `SELECT body_digest, task_ids::text[] FROM idempotency_keys WHERE principal_kind = $1 AND principal_id = $2 AND key = $3`,
		string(principal.Kind), principal.ID, o.Key)
	switch {
	case err != nil || !ok:
		return nil, false, err
	case !bytes.Equal(old.digest, o.BodyDigest[:]) || len(old.ids) == 0:
		return nil, false, berth.ErrIdempotencyMismatch
	}
	return old.ids, true, nil
}

type poolRow struct {
	id   berth.PoolID
	name string
	step time.Duration
	now  time.Time
}

func (t *tx) submit(p store.SubmitParams) ([]berth.Task, []berth.Transition, error) {
	pools, err := t.poolsOf(p.Tasks)
	if err != nil {
		return nil, nil, err
	}
	inputs, err := t.bindInputs(p.Scope, p.Tasks)
	if err != nil {
		return nil, nil, err
	}
	if err := t.checkSecrets(p); err != nil {
		return nil, nil, err
	}
	classes, err := t.classesOf(p.Tasks)
	if err != nil {
		return nil, nil, err
	}
	tasks := make([]berth.Task, len(p.Tasks))
	moves := make([]berth.Transition, len(p.Tasks))
	tokens := make([]token, len(p.Tasks))
	for i, n := range p.Tasks {
		pool := pools[n.Pool]
		k := submitted(n, p, pool)
		k.Inputs = inputs[i]
		k.Class = classes[eligibility.ClassKey(n.Pool, n.Requirement)]
		tokens[i] = token{
			task: k.ID, class: k.Class, rank: berth.RankOf(pool.now, n.Priority, pool.step), number: 1, giveUpAt: k.GiveUpAt,
		}
		if k.State == berth.StateScheduled {
			tokens[i].kind, tokens[i].dueAt = berth.StateScheduled, k.DueAt
		} else {
			t.hint(store.HintWork, string(k.Pool))
		}
		t.hint(store.HintTask, string(k.ID))
		tasks[i] = k
		moves[i] = berth.Transition{
			Event: berth.EventSubmitted, Task: k.ID, To: k.State, Pool: k.Pool, CorrelationID: k.CorrelationID, At: pool.now,
		}
	}
	if err := t.insertTasks(tasks, tokens); err != nil {
		return nil, nil, err
	}
	if err := t.insertTaskInputs(tasks); err != nil {
		return nil, nil, err
	}
	if err := t.insertTokens(tokens); err != nil {
		return nil, nil, err
	}
	return tasks, moves, t.audit(p.Actor, moves)
}

// submitted is a new task as it will be read.
func submitted(n berth.NewTask, p store.SubmitParams, pool poolRow) berth.Task {
	k := berth.Task{
		ID: n.ID, Pool: n.Pool, PoolName: pool.name, Name: n.Name, Tags: n.Tags, Requirement: n.Requirement, Payload: n.Payload,
		Priority: n.Priority, NotBefore: instantOf(n.NotBefore), RunTimeout: n.RunTimeout.Truncate(time.Microsecond),
		QueueTimeout: n.QueueTimeout.Truncate(time.Microsecond), Retry: n.Retry, Budget: n.Retry.MaxAttempts, Submitter: p.Actor.Principal,
		CorrelationID: p.CorrelationID, TraceParent: p.TraceParent, SubmittedAt: pool.now, State: berth.StateQueued,
		Secrets: berth.SortedSecrets(n.Secrets), Schedule: n.Schedule,
	}
	if n.Payload.IsZero() {
		k.Payload = redact.NewBytes([]byte("{}"))
	}
	from := pool.now
	if k.NotBefore.After(from) {
		from = k.NotBefore
		k.State, k.DueAt = berth.StateScheduled, k.NotBefore
	}
	if k.QueueTimeout > 0 {
		k.GiveUpAt = from.Add(k.QueueTimeout)
	}
	return k
}

func instantOf(at time.Time) time.Time {
	if at.IsZero() {
		return at
	}
	return at.UTC().Truncate(time.Microsecond)
}

// poolsOf reads the tasks' pools and the time of the submit.
func (t *tx) poolsOf(tasks []berth.NewTask) (map[berth.PoolID]poolRow, error) {
	ids := unique(mapped(tasks, func(k berth.NewTask) berth.PoolID { return k.Pool }))
	rows, err := collect(t, func(row pgx.CollectableRow) (r poolRow, err error) {
		var us int64
		err = row.Scan(&r.id, &r.name, &us, &r.now)
		r.step = microseconds(us)
		return r, err
	}, `SELECT p.id, p.name, p.ageing_step_us, n.now FROM (SELECT berth_now() AS now OFFSET 0) n, pools p WHERE p.id = ANY ($1)`, uids(ids))
	if err != nil {
		return nil, err
	}
	if len(rows) != len(ids) {
		return nil, fmt.Errorf("pool: %w", berth.ErrNotFound)
	}
	pools := make(map[berth.PoolID]poolRow, len(rows))
	for _, r := range rows {
		r.now = rows[0].now
		pools[r.id] = r
	}
	return pools, nil
}

// classesOf returns the ids of the tasks' classes by their key and makes those
// that are missing, ascending by key, so that two submits with classes in
// common do not wait for each other crosswise.
func (t *tx) classesOf(tasks []berth.NewTask) (map[string]berth.ClassID, error) {
	needs := map[string]berth.NewTask{}
	for _, k := range tasks {
		needs[eligibility.ClassKey(k.Pool, k.Requirement)] = k
	}
	var keys []string
	for key := range needs {
		keys = append(keys, key)
	}
	keys = unique(keys)
	classes, err := t.findClasses(keys)
	if err != nil || len(classes) == len(keys) {
		return classes, err
	}
	var missing []string
	for _, key := range keys {
		if _, ok := classes[key]; !ok {
			missing = append(missing, key)
		}
	}
	if _, err := t.exec(`
INSERT INTO task_classes (class_key, pool_id, selector, plugin, version_range)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::text[])
ON CONFLICT (class_key) DO NOTHING`,
		missing,
		mapped(missing, func(k string) pgtype.UUID { return uid(needs[k].Pool) }),
		mapped(missing, func(k string) string { return needs[k].Requirement.Selector }),
		mapped(missing, func(k string) string { return needs[k].Requirement.Plugin }),
		mapped(missing, func(k string) string { return needs[k].Requirement.VersionRange })); err != nil {
		return nil, err
	}
	classes, err = t.findClasses(keys)
	if err == nil && len(classes) != len(keys) {
		err = &dbError{op: t.op, what: "a class that was made is not there"}
	}
	return classes, err
}

func (t *tx) findClasses(keys []string) (map[string]berth.ClassID, error) {
	type class struct {
		id  berth.ClassID
		key string
	}
	rows, err := collect(t, func(row pgx.CollectableRow) (c class, err error) {
		return c, row.Scan(&c.id, &c.key)
	}, `SELECT id, class_key FROM task_classes WHERE class_key = ANY ($1)`, keys)
	classes := make(map[string]berth.ClassID, len(rows))
	for _, c := range rows {
		classes[c.key] = c.id
	}
	return classes, err
}

func (t *tx) insertTasks(tasks []berth.Task, tokens []token) error {
	_, err := t.exec(`
INSERT INTO tasks (id, pool_id, class_id, rank, name, tags, payload, priority, not_before, run_timeout_us, queue_timeout_us,
                   retry_on, backoff_initial_us, backoff_factor, backoff_max_us, backoff_jitter, retry_unsafe, max_attempts, budget,
                   submitted_at, submitter_kind, submitter_id, correlation_id, trace_parent, inputs, secrets, schedule_id)
SELECT e.id, e.pool, e.class, e.rank, e.name, e.tags::text[], e.payload::json, e.priority, e.not_before, e.run, e.queueing,
       e.retry_on::text[], e.initial, e.factor, e.most, e.jitter, e.unsafe, e.tries, e.tries,
       e.at, $19, $20, $21, $22, e.inputs::json, e.secrets::text[], e.schedule
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::smallint[],
            $9::timestamptz[], $10::bigint[], $11::bigint[], $12::text[], $13::bigint[], $14::double precision[], $15::bigint[],
            $16::double precision[], $17::boolean[], $18::integer[], $23::timestamptz[], $24::text[], $25::text[], $26::uuid[])
    AS e (id, pool, class, rank, name, tags, payload, priority, not_before, run, queueing, retry_on, initial, factor, most, jitter,
          unsafe, tries, at, inputs, secrets, schedule)`, taskParameters(tasks, tokens)...)
	return err
}

func taskParameters(tasks []berth.Task, tokens []token) []any {
	type k = berth.Task
	one := tasks[0]
	return []any{
		mapped(tasks, func(t k) pgtype.UUID { return uid(t.ID) }),
		mapped(tasks, func(t k) pgtype.UUID { return uid(t.Pool) }),
		mapped(tasks, func(t k) int64 { return int64(t.Class) }),
		mapped(tokens, func(t token) int64 { return int64(t.rank) }),
		mapped(tasks, func(t k) string { return clean(t.Name) }),
		mapped(tasks, func(t k) string { return arrayLiteral(t.Tags) }),
		mapped(tasks, func(t k) string { return cleanJSON(t.Payload.Reveal()) }),
		mapped(tasks, func(t k) int16 { return int16(t.Priority) }),
		mapped(tasks, func(t k) pgtype.Timestamptz { return orNull(t.NotBefore) }),
		mapped(tasks, func(t k) int64 { return t.RunTimeout.Microseconds() }),
		mapped(tasks, func(t k) int64 { return t.QueueTimeout.Microseconds() }),
		mapped(tasks, func(t k) string { return arrayLiteral(t.Retry.On) }),
		mapped(tasks, func(t k) int64 { return t.Retry.Initial.Microseconds() }),
		mapped(tasks, func(t k) float64 { return t.Retry.Factor }),
		mapped(tasks, func(t k) int64 { return t.Retry.Max.Microseconds() }),
		mapped(tasks, func(t k) float64 { return t.Retry.Jitter }),
		mapped(tasks, func(t k) bool { return t.Retry.RetryUnsafe }),
		mapped(tasks, func(t k) int32 { return int32(t.Budget) }),
		string(one.Submitter.Kind), one.Submitter.ID, clean(one.CorrelationID), clean(one.TraceParent),
		mapped(tasks, func(t k) time.Time { return t.SubmittedAt }),
		mapped(tasks, func(t k) string { return inputsJSON(t.Inputs) }),
		mapped(tasks, func(t k) string { return arrayLiteral(t.Secrets) }),
		mapped(tasks, func(t k) pgtype.UUID { return uid(t.Schedule) }),
	}
}
