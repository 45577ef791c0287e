package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// taskColumns reads a task with the state that its place gives it, in one
// statement, so that no move between two places is seen half done. The %s are
// payload and result, which lists leave out. Every join is by key.
const taskColumns = `
SELECT t.id, t.pool_id, p.name, t.class_id, t.name, t.tags, c.selector, c.plugin, c.version_range, %s, t.priority,
       t.not_before, t.run_timeout_us, t.queue_timeout_us, t.max_attempts, t.retry_on, t.backoff_initial_us,
       t.backoff_factor, t.backoff_max_us, t.backoff_jitter, t.retry_unsafe, t.budget, n.tries, n.attempts,
       t.submitter_kind, t.submitter_id, t.correlation_id, t.trace_parent, t.submitted_at,
       COALESCE(t.final_state, a.state, w.kind, ''), w.due_at, w.give_up_at, a.cancel_requested_at IS NOT NULL,
       a.id, a.device_id, a.host_id, t.finished_at, t.final_reason, t.cause_key, %s, t.inputs, t.secrets, t.schedule_id`

const taskJoins = `
JOIN pools p ON p.id = t.pool_id
JOIN task_classes c ON c.id = t.class_id
LEFT JOIN LATERAL (SELECT * FROM attempts a WHERE a.task_id = t.id AND a.ended_at IS NULL LIMIT 1) a ON true
LEFT JOIN LATERAL (
    SELECT 'queued' AS kind, NULL::timestamptz AS due_at, q.give_up_at FROM queue q WHERE q.task_id = t.id
    UNION ALL
    SELECT d.kind, d.due_at, d.give_up_at FROM delayed d WHERE d.task_id = t.id
    LIMIT 1) w ON true
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE x.outcome IS DISTINCT FROM 'released') AS tries, count(*) AS attempts
    FROM attempts x WHERE x.task_id = t.id) n`

func taskSelect(content bool) string {
	if content {
		return fmt.Sprintf(taskColumns, "t.payload", "t.result")
	}
	return fmt.Sprintf(taskColumns, "NULL::json", "NULL::json")
}

func scanTask(row pgx.CollectableRow) (k berth.Task, err error) {
	var (
		on, tags, secrets                   []string
		payload, result, inputs             []byte
		initialUS, maxUS, runUS, queueingUS int64
	)
	err = row.Scan(&k.ID, &k.Pool, &k.PoolName, &k.Class, &k.Name, &tags, &k.Requirement.Selector, &k.Requirement.Plugin,
		&k.Requirement.VersionRange, &payload, &k.Priority, instant(&k.NotBefore), &runUS, &queueingUS, &k.Retry.MaxAttempts, &on,
		&initialUS, &k.Retry.Factor, &maxUS, &k.Retry.Jitter, &k.Retry.RetryUnsafe, &k.Budget, &k.Tries, &k.Attempts,
		&k.Submitter.Kind, &k.Submitter.ID, &k.CorrelationID, &k.TraceParent, &k.SubmittedAt,
		&k.State, instant(&k.DueAt), instant(&k.GiveUpAt), &k.CancelRequested,
		nullable(&k.Attempt), nullable(&k.Device), nullable(&k.Host), instant(&k.FinishedAt), nullable(&k.FinalReason), nullable(&k.Cause), &result, &inputs,
		&secrets, nullable(&k.Schedule))
	if err == nil {
		k.Inputs, err = inputRefs(inputs)
	}
	if len(tags) > 0 {
		k.Tags = tags
	}
	if len(secrets) > 0 {
		k.Secrets = secrets
	}
	k.Payload, k.Result = redact.NewBytes(payload), redact.NewBytes(result)
	if len(on) > 0 {
		k.Retry.On = outcomes(on)
	}
	k.Retry.Initial, k.Retry.Max = microseconds(initialUS), microseconds(maxUS)
	k.RunTimeout, k.QueueTimeout = microseconds(runUS), microseconds(queueingUS)
	return k, err
}

// task reads one task that scope sees.
func (t *tx) task(scope berth.Scope, id berth.TaskID) (berth.Task, error) {
	k, err := found(t, "task", scanTask, taskSelect(true)+` FROM tasks t `+taskJoins+` WHERE t.id = $1`, uid(id))
	if err == nil && !scope.Sees(k.Submitter) {
		return berth.Task{}, fmt.Errorf("task: %w", berth.ErrNotFound)
	}
	return k, err
}

// visible is nil when scope sees the task.
func (t *tx) visible(scope berth.Scope, id berth.TaskID) error {
	owner, err := found(t, "task", func(row pgx.CollectableRow) (p berth.Principal, err error) {
		return p, row.Scan(&p.Kind, &p.ID)
	}, `SELECT submitter_kind, submitter_id FROM tasks WHERE id = $1`, uid(id))
	if err == nil && !scope.Sees(owner) {
		return fmt.Errorf("task: %w", berth.ErrNotFound)
	}
	return err
}

// GetTask is documented at store.Tasks.
func (s *Store) GetTask(ctx context.Context, scope berth.Scope, id berth.TaskID) (k berth.Task, err error) {
	err = s.read(ctx, "GetTask", func(t *tx) error {
		k, err = t.task(scope, id)
		return err
	})
	return k, err
}

// ListTasks is documented at store.Tasks.
func (s *Store) ListTasks(ctx context.Context, scope berth.Scope, filter store.TaskFilter, page store.Page) (tasks []berth.Task, next string, err error) {
	if !scope.All && scope.Owner.ID == "" {
		return nil, "", nil
	}
	q := listQuery(scope, filter, page)
	err = s.read(ctx, "ListTasks", func(t *tx) error {
		tasks, err = collect(t, scanTask, q.sql, q.args...)
		return err
	})
	tasks, next = cut(tasks, page, func(k berth.Task) string { return string(k.ID) })
	return tasks, next, err
}

// query is a statement in the making; arg numbers its parameters.
type query struct {
	sql  string
	args []any
}

func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return fmt.Sprintf("$%d", len(q.args))
}

// listQuery walks tasks by descending id, or, when only unfinished ones are
// wanted, the small places they are in: with ten million finished tasks those
// hold all that passes.
func listQuery(scope berth.Scope, f store.TaskFilter, page store.Page) *query {
	q := &query{}
	var where []string
	and := func(format string, v any) { where = append(where, fmt.Sprintf(format, q.arg(v))) }
	order := "t.id DESC"
	if f.Cause != "" {
		// As a range, so that only the index of causes has this order: walking all
		// tasks by id for those of one cause could read all of them for one page.
		order = "t.cause_key DESC, t.id DESC"
		and("t.cause_key >= %s", string(f.Cause))
		and("t.cause_key <= %s", string(f.Cause))
		if page.After != "" {
			where = append(where, "(t.cause_key, t.id) < ("+q.arg(string(f.Cause))+", "+q.arg(uid(berth.TaskID(page.After)))+")")
		}
	}
	if page.After != "" {
		and("t.id < %s", uid(berth.TaskID(page.After)))
	}
	if !scope.All {
		and("t.submitter_kind = %s", string(scope.Owner.Kind))
		and("t.submitter_id = %s", scope.Owner.ID)
	}
	where = append(where, q.passes(f)...)
	from := "tasks t"
	if len(f.States) > 0 {
		places, final := places(q, f.States)
		switch {
		case len(final) == 0:
			// OFFSET 0 keeps the places outermost: the planner would rather walk all
			// tasks by id, and come by every one that is finished.
			from = "(" + strings.Join(places, " UNION ALL ") + ") s CROSS JOIN LATERAL (SELECT * FROM tasks t WHERE t.id = s.task_id OFFSET 0) t"
			order = "s.task_id DESC"
			if page.After != "" {
				and("s.task_id < %s", uid(berth.TaskID(page.After)))
			}
		case len(places) == 0:
			and("t.final_state = ANY (%s)", final)
		default:
			for i, p := range places {
				places[i] = "EXISTS (SELECT 1 FROM (" + p + ") s WHERE s.task_id = t.id)"
			}
			and("(t.final_state = ANY (%s) OR "+strings.Join(places, " OR ")+")", final)
		}
	}
	page1 := `SELECT t.* FROM ` + from
	if len(where) > 0 {
		page1 += ` WHERE ` + strings.Join(where, " AND ")
	}
	page1 += ` ORDER BY ` + order + ` LIMIT ` + q.arg(page.Limit()+1)
	q.sql = taskSelect(false) + ` FROM (` + page1 + `) t ` + taskJoins + ` ORDER BY t.id DESC`
	return q
}

// passes are the conditions that a task meets which the filter passes, whatever its
// state and its cause.
func (q *query) passes(f store.TaskFilter) (where []string) {
	and := func(format string, v any) { where = append(where, fmt.Sprintf(format, q.arg(v))) }
	if f.Pool != "" {
		and("t.pool_id = %s", uid(f.Pool))
	}
	if f.Plugin != "" {
		and("t.class_id IN (SELECT id FROM task_classes WHERE plugin = %s)", f.Plugin)
	}
	if f.Tag != "" {
		and("%s = ANY (t.tags)", f.Tag)
	}
	if f.NamePrefix != "" {
		and("starts_with(t.name, %s)", f.NamePrefix)
	}
	if f.Submitter != "" {
		and("t.submitter_id = %s", f.Submitter)
	}
	if f.Schedule != "" {
		and("t.schedule_id = %s", uid(f.Schedule))
	}
	if f.Device != "" {
		and("EXISTS (SELECT 1 FROM attempts x WHERE x.task_id = t.id AND x.device_id = %s)", uid(f.Device))
	}
	if !f.SubmittedFrom.IsZero() {
		and("t.submitted_at >= %s", f.SubmittedFrom)
	}
	if !f.SubmittedTo.IsZero() {
		and("t.submitted_at < %s", f.SubmittedTo)
	}
	return where
}

// places gives a subquery of task ids for each place that the unfinished states
// among wanted are in, and the finished ones.
func places(q *query, wanted []berth.TaskState) (subqueries, final []string) {
	var kinds, live []string
	queued := false
	for _, s := range wanted {
		switch {
		case s.Finished():
			final = append(final, string(s))
		case s.Live():
			live = append(live, string(s))
		case s == berth.StateQueued:
			queued = true
		default:
			kinds = append(kinds, string(s))
		}
	}
	if queued {
		subqueries = append(subqueries, `SELECT task_id FROM queue`)
	}
	if len(kinds) > 0 {
		subqueries = append(subqueries, `SELECT task_id FROM delayed WHERE kind = ANY (`+q.arg(kinds)+`)`)
	}
	if len(live) > 0 {
		subqueries = append(subqueries, `SELECT task_id FROM attempts WHERE ended_at IS NULL AND state = ANY (`+q.arg(live)+`)`)
	}
	return subqueries, final
}

// ListAttempts is documented at store.Tasks.
func (s *Store) ListAttempts(ctx context.Context, scope berth.Scope, id berth.TaskID) (attempts []berth.Attempt, err error) {
	err = s.read(ctx, "ListAttempts", func(t *tx) error {
		if err := t.visible(scope, id); err != nil {
			return err
		}
		attempts, err = collect(t, scanAttempt, `
SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.fence, a.state, a.outcome, a.reason, COALESCE(a.message, ''), a.result,
       a.assigned_at, a.claimed_at, a.started_at, a.ended_at, a.cancel_requested_at, a.progress, a.progress_note, a.log_bytes,
       COALESCE(d.name, ''), COALESCE(h.name, '')
FROM attempts a LEFT JOIN devices d ON d.id = a.device_id LEFT JOIN hosts h ON h.id = a.host_id
WHERE a.task_id = $1 ORDER BY a.number`, uid(id))
		return err
	})
	return attempts, err
}

func scanAttempt(row pgx.CollectableRow) (a berth.Attempt, err error) {
	var (
		message, note string
		result        []byte
		progress      float32
	)
	err = row.Scan(&a.ID, &a.Task, &a.Number, &a.Device, &a.Host, &a.Fence, &a.State, nullable(&a.Outcome), nullable(&a.Reason),
		&message, &result, &a.AssignedAt, instant(&a.ClaimedAt), instant(&a.StartedAt), instant(&a.EndedAt),
		instant(&a.CancelRequestedAt), &progress, &note, &a.LogBytes, &a.DeviceName, &a.HostName)
	a.Message, a.ProgressNote, a.Result = redact.NewString(message), redact.NewString(note), redact.NewBytes(result)
	// The column is single precision: 0.1 stays 0.1.
	a.Progress = roundProgress(progress)
	return a, err
}

func roundProgress(p float32) float64 { return float64(int64(float64(p)*1e6+0.5)) / 1e6 }

const artifactColumns = `
SELECT attempt_id, task_id, number, name, class, content_type, size, encode(sha256, 'hex'), blob_key, created_at FROM artifacts`

func scanArtifact(row pgx.CollectableRow) (a berth.Artifact, err error) {
	return a, row.Scan(&a.Attempt, &a.Task, &a.Number, &a.Name, &a.Class, &a.ContentType, &a.Size, &a.SHA256, &a.BlobKey, &a.CreatedAt)
}

// ListArtifacts is documented at store.Tasks.
func (s *Store) ListArtifacts(ctx context.Context, scope berth.Scope, id berth.TaskID) (artifacts []berth.Artifact, err error) {
	err = s.read(ctx, "ListArtifacts", func(t *tx) error {
		if err := t.visible(scope, id); err != nil {
			return err
		}
		artifacts, err = collect(t, scanArtifact, artifactColumns+` WHERE task_id = $1 ORDER BY number, name COLLATE "C"`, uid(id))
		return err
	})
	return artifacts, err
}

// GetArtifact is documented at store.Tasks.
func (s *Store) GetArtifact(ctx context.Context, scope berth.Scope, id berth.TaskID, number int, name string) (a berth.Artifact, err error) {
	err = s.read(ctx, "GetArtifact", func(t *tx) error {
		if err := t.visible(scope, id); err != nil {
			return err
		}
		a, err = found(t, "artifact", scanArtifact, artifactColumns+` WHERE task_id = $1 AND number = $2 AND name = $3`, uid(id), number, name)
		return err
	})
	return a, err
}

// ReadLog is documented at store.Tasks. Whether the attempt is over is read
// before the chunks: once it is, what is read after is all there will be, but
// for late chunks of the upload window.
func (s *Store) ReadLog(ctx context.Context, p store.ReadLogParams) (chunks []berth.LogChunk, ended bool, err error) {
	type row struct {
		id    berth.AttemptID
		ended time.Time
	}
	err = s.read(ctx, "ReadLog", func(t *tx) error {
		if err := t.visible(p.Scope, p.Task); err != nil {
			return err
		}
		a, err := found(t, "attempt", func(c pgx.CollectableRow) (r row, err error) {
			return r, c.Scan(&r.id, instant(&r.ended))
		}, `SELECT id, ended_at FROM attempts WHERE task_id = $1 AND number = $2`, uid(p.Task), p.Number)
		if err != nil {
			return err
		}
		ended = !a.ended.IsZero()
		limit := p.Limit
		if limit <= 0 {
			limit = 100
		}
		chunks, err = collect(t, scanChunk, `
SELECT attempt_id, start_at, size, encode(sha256, 'hex'), blob_key FROM log_chunks
WHERE attempt_id = $1 AND start_at >= COALESCE(
          (SELECT max(start_at) FROM log_chunks WHERE attempt_id = $1 AND start_at <= $2), 0)
  AND start_at + size > $2
ORDER BY start_at LIMIT $3`, uid(a.id), p.Offset, limit)
		return err
	})
	return chunks, ended, err
}

func scanChunk(row pgx.CollectableRow) (c berth.LogChunk, err error) {
	return c, row.Scan(&c.Attempt, &c.Offset, &c.Size, &c.SHA256, &c.BlobKey)
}
