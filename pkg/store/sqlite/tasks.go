package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// taskState derives a task's state from its place (I15).
const taskState = `CASE
	WHEN t.final_state IS NOT NULL THEN t.final_state
	WHEN a.state IS NOT NULL THEN a.state
	WHEN q.task_id IS NOT NULL THEN 'queued'
	WHEN d.kind IS NOT NULL THEN d.kind
	ELSE '' END`

// taskSelect reads whole tasks in one statement; payload and result are the
// columns that a list leaves out.
func taskSelect(payload, result string) string {
	return `SELECT t.id, t.pool_id, p.name, t.class_id, t.name, t.tags, c.selector, c.plugin, c.version_range, ` + payload + `,
	t.priority, t.not_before, t.run_timeout_us, t.queue_timeout_us,
	t.max_attempts, t.retry_on, t.backoff_initial_us, t.backoff_factor, t.backoff_max_us, t.backoff_jitter, t.retry_unsafe, t.budget,
	(SELECT count(*) FROM attempts n WHERE n.task_id = t.id AND n.outcome IS NOT 'released'),
	(SELECT count(*) FROM attempts n WHERE n.task_id = t.id),
	t.submitter_kind, t.submitter_id, t.correlation_id, t.trace_parent, t.submitted_at,
	` + taskState + ` AS state, d.due_at, coalesce(q.give_up_at, d.give_up_at), a.cancel_requested_at, a.id, a.device_id, a.host_id,
	t.finished_at, t.final_reason, t.cause_key, ` + result + `, t.inputs, t.secrets, t.schedule_id
	FROM tasks t
	JOIN pools p ON p.id = t.pool_id
	JOIN task_classes c ON c.id = t.class_id
	LEFT JOIN queue q ON q.task_id = t.id
	LEFT JOIN delayed d ON d.task_id = t.id
	LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL`
}

func scanTask(r row) (task berth.Task, err error) {
	var cancelAt time.Time
	err = r.Scan(&task.ID, &task.Pool, &task.PoolName, &task.Class, &task.Name, fromJSON(&task.Tags),
		&task.Requirement.Selector, &task.Requirement.Plugin, &task.Requirement.VersionRange, hidden(&task.Payload),
		&task.Priority, at(&task.NotBefore), span(&task.RunTimeout), span(&task.QueueTimeout),
		&task.Retry.MaxAttempts, fromJSON(&task.Retry.On), span(&task.Retry.Initial), &task.Retry.Factor, span(&task.Retry.Max),
		&task.Retry.Jitter, &task.Retry.RetryUnsafe, &task.Budget, &task.Tries, &task.Attempts,
		&task.Submitter.Kind, &task.Submitter.ID, &task.CorrelationID, &task.TraceParent, at(&task.SubmittedAt),
		&task.State, at(&task.DueAt), at(&task.GiveUpAt), at(&cancelAt), opt(&task.Attempt), opt(&task.Device), opt(&task.Host),
		at(&task.FinishedAt), opt(&task.FinalReason), opt(&task.Cause), hidden(&task.Result), fromJSON(&task.Inputs), fromJSON(&task.Secrets), opt(&task.Schedule))
	if len(task.Inputs) == 0 {
		task.Inputs = nil
	}
	if len(task.Secrets) == 0 {
		task.Secrets = nil
	}
	if len(task.Tags) == 0 {
		task.Tags = nil
	}
	if len(task.Retry.On) == 0 {
		task.Retry.On = nil
	}
	task.CancelRequested = !cancelAt.IsZero()
	return task, err
}

// loadTask reads a task as it is; what scope does not see is not found.
func loadTask(t *tx, scope berth.Scope, id berth.TaskID) (berth.Task, error) {
	task, ok, err := queryOne(t, scanTask, taskSelect("t.payload", "t.result")+" WHERE t.id = ?1", id)
	if err != nil {
		return berth.Task{}, err
	}
	if !ok || !scope.Sees(task.Submitter) {
		return berth.Task{}, notFound("task")
	}
	return task, nil
}

// loadTasks reads tasks in the order of ids; those that are gone are left out.
func loadTasks(t *tx, ids []berth.TaskID) ([]berth.Task, error) {
	return queryAll(t, scanTask, taskSelect("t.payload", "t.result")+
		" JOIN json_each(?1) j ON j.value = t.id ORDER BY j.key", list(ids))
}

// seeTask fails when scope does not see the task.
func seeTask(t *tx, scope berth.Scope, id berth.TaskID) error {
	owner, ok, err := queryOne(t, func(r row) (p berth.Principal, err error) {
		return p, r.Scan(&p.Kind, &p.ID)
	}, "SELECT submitter_kind, submitter_id FROM tasks WHERE id = ?1", id)
	if err != nil {
		return err
	}
	if !ok || !scope.Sees(owner) {
		return notFound("task")
	}
	return nil
}

// GetTask implements store.Tasks.
func (s *Store) GetTask(ctx context.Context, scope berth.Scope, id berth.TaskID) (task berth.Task, err error) {
	err = s.read(ctx, "GetTask", func(t *tx) error {
		task, err = loadTask(t, scope, id)
		return err
	})
	return task, err
}

// conditions builds a WHERE clause with numbered parameters.
type conditions struct {
	terms []string
	args  []any
}

// add joins a term; each $ in it is the one argument.
func (c *conditions) add(term string, arg any) {
	c.args = append(c.args, arg)
	c.terms = append(c.terms, strings.ReplaceAll(term, "$", "?"+strconv.Itoa(len(c.args))))
}

func (c *conditions) where() string {
	if len(c.terms) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(c.terms, " AND ")
}

func taskConditions(scope berth.Scope, f store.TaskFilter, after string) *conditions {
	c := &conditions{}
	if !scope.All {
		c.add("t.submitter_kind = $", scope.Owner.Kind)
		c.add("t.submitter_id = $", scope.Owner.ID)
	}
	if after != "" {
		c.add("t.id < $", after)
	}
	if len(f.States) > 0 {
		c.add("("+taskState+") IN (SELECT value FROM json_each($))", list(f.States))
	}
	if places := placesOf(f.States); len(places) > 0 {
		// These hold all that passes: no walk over what is finished.
		c.terms = append(c.terms, "t.id IN ("+strings.Join(places, " UNION ALL ")+")")
	}
	if f.Cause != "" {
		c.add("t.cause_key = $", f.Cause)
	}
	if f.Pool != "" {
		c.add("t.pool_id = $", f.Pool)
	}
	if f.Plugin != "" {
		c.add("c.plugin = $", f.Plugin)
	}
	if f.Tag != "" {
		c.add("EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value = $)", f.Tag)
	}
	if f.NamePrefix != "" {
		// Not LIKE: it ignores case and takes % and _ for more than they are.
		c.add("substr(t.name, 1, length($)) = $", f.NamePrefix)
	}
	if f.Submitter != "" {
		c.add("t.submitter_id = $", f.Submitter)
	}
	if f.Schedule != "" {
		c.add("t.schedule_id = $", f.Schedule)
	}
	if f.Device != "" {
		c.add("EXISTS (SELECT 1 FROM attempts x WHERE x.task_id = t.id AND x.device_id = $)", f.Device)
	}
	if !f.SubmittedFrom.IsZero() {
		c.add("t.submitted_at >= $", micros(f.SubmittedFrom))
	}
	if !f.SubmittedTo.IsZero() {
		c.add("t.submitted_at < $", micros(f.SubmittedTo))
	}
	return c
}

// placesOf names the places that tasks in one of the states are in; none when
// some of them are finished, which is no place of its own.
func placesOf(states []berth.TaskState) (places []string) {
	for _, s := range states {
		place := "SELECT task_id FROM delayed"
		switch {
		case s.Finished():
			return nil
		case s.Live():
			place = "SELECT task_id FROM attempts WHERE ended_at IS NULL"
		case s == berth.StateQueued:
			place = "SELECT task_id FROM queue"
		}
		if !slices.Contains(places, place) {
			places = append(places, place)
		}
	}
	return places
}

// ListTasks implements store.Tasks.
func (s *Store) ListTasks(ctx context.Context, scope berth.Scope, filter store.TaskFilter, p store.Page) (tasks []berth.Task, next string, err error) {
	if !scope.All && scope.Owner.ID == "" {
		return nil, "", ctx.Err()
	}
	c := taskConditions(scope, filter, p.After)
	query := taskSelect("NULL", "NULL")
	if filter.Cause != "" {
		query = strings.Replace(query, "FROM tasks t", "FROM tasks t INDEXED BY tasks_cause", 1)
	}
	query += c.where() + " ORDER BY t.id DESC LIMIT " + strconv.Itoa(p.Limit()+1)
	err = s.read(ctx, "ListTasks", func(t *tx) error {
		tasks, err = queryAll(t, scanTask, query, c.args...)
		return err
	})
	tasks, next = page(tasks, p.Limit(), func(task berth.Task) string { return string(task.ID) })
	return tasks, next, err
}

// taskTransition is a step of a task without a live attempt.
func taskTransition(t *tx, task berth.Task, event berth.Event, to berth.TaskState, reason string) berth.Transition {
	return berth.Transition{
		Event: event, Task: task.ID, From: task.State, To: to, Reason: reason,
		Pool: task.Pool, CorrelationID: task.CorrelationID, At: t.now,
	}
}

// CancelTask implements store.Tasks.
func (s *Store) CancelTask(ctx context.Context, p store.TaskParams) (task berth.Task, trs []berth.Transition, err error) {
	err = s.write(ctx, "CancelTask", func(t *tx) error {
		before, err := loadTask(t, p.Scope, p.Task)
		if err != nil {
			return err
		}
		tr, changed, err := cancel(t, p.Actor, before)
		if err != nil {
			return err
		}
		if task = before; !changed {
			return nil
		}
		trs = []berth.Transition{tr}
		task, err = loadTask(t, p.Scope, p.Task)
		return err
	})
	if err != nil {
		return berth.Task{}, nil, err
	}
	return task, trs, nil
}

func cancel(t *tx, actor berth.Actor, task berth.Task) (tr berth.Transition, changed bool, err error) {
	switch {
	case task.State == berth.StateCancelled, task.CancelRequested:
		return tr, false, nil
	case task.State.Finished():
		return tr, false, &berth.WrongStateError{Thing: "task", State: string(task.State), Message: "only an unfinished task can be cancelled"}
	case task.State.Live():
		tr, err = cancelLive(t, actor, task)
	default:
		tr, err = cancelWaiting(t, actor, task)
	}
	return tr, err == nil, err
}

func cancelWaiting(t *tx, actor berth.Actor, task berth.Task) (berth.Transition, error) {
	if _, ok, err := takeToken(t, task.ID); err != nil || !ok {
		return berth.Transition{}, orElse(err, "task %s is in no place", task.ID)
	}
	if err := finishTask(t, task.ID, berth.StateCancelled, berth.ReasonCancelled, nil); err != nil {
		return berth.Transition{}, err
	}
	tr := taskTransition(t, task, berth.EventCancelled, berth.StateCancelled, berth.ReasonCancelled)
	return tr, audit(t, actor, tr)
}

// cancelLive ends an attempt that was not started, and asks one that runs to
// stop.
func cancelLive(t *tx, actor berth.Actor, task berth.Task) (berth.Transition, error) {
	a, ok, err := loadAttempt(t, task.Attempt)
	if err != nil || !ok {
		return berth.Transition{}, orElse(err, "attempt %s is not there", task.Attempt)
	}
	if !a.State.Started() {
		hintOf(t, store.HintAssigned, a.Host)
		return endAttempt(t, actor, a, ending{outcome: berth.OutcomeCancelled, reason: berth.ReasonCancelled, by: berth.EndedByCancel})
	}
	if err := t.execOne("UPDATE attempts SET cancel_requested_at = ?2 WHERE id = ?1", a.ID, micros(t.now)); err != nil {
		return berth.Transition{}, err
	}
	killBy := t.store.timings.KillBy(a.StartedAt, a.task.runTimeout, t.now)
	if err := t.execOne("UPDATE leases SET kill_by = ?3 WHERE device_id = ?1 AND attempt_id = ?2", a.Device, a.ID, micros(killBy)); err != nil {
		return berth.Transition{}, err
	}
	hintOf(t, store.HintAssigned, a.Host)
	hintOf(t, store.HintTask, a.Task)
	tr := a.transition(t, berth.EventCancelRequested, task.State)
	return tr, audit(t, actor, tr)
}

// orElse gives err, or what is wrong without one.
func orElse(err error, format string, args ...any) error {
	if err != nil {
		return err
	}
	return fmt.Errorf(format, args...)
}

// finishTask writes a task's final state, once. Dead letters are deadLetter's.
func finishTask(t *tx, id berth.TaskID, state berth.TaskState, reason string, result any) error {
	hintOf(t, store.HintTask, id)
	return t.execOne(`UPDATE tasks SET final_state = ?2, final_reason = ?3, finished_at = ?4, result = ?5
		WHERE id = ?1 AND final_state IS NULL`, id, state, reason, micros(t.now), result)
}

// RetryTask implements store.Tasks.
func (s *Store) RetryTask(ctx context.Context, p store.RetryParams) (task berth.Task, trs []berth.Transition, err error) {
	if p.AddTries < 0 || p.AddTries > berth.MaxTries {
		return task, nil, berth.Invalid("add_tries", "out of range", fmt.Sprintf("use 1 to %d", berth.MaxTries))
	}
	err = s.write(ctx, "RetryTask", func(t *tx) error {
		_, replayed, err := once(t, p.Actor, p.Once, []berth.TaskID{p.Task})
		if err != nil {
			return err
		}
		before, err := loadTask(t, p.Scope, p.Task)
		if err != nil {
			return err
		}
		if replayed {
			task = before
			return nil
		}
		tr, err := retry(t, p.Actor, before, p.AddTries, p.Payload)
		if err != nil {
			return err
		}
		trs = []berth.Transition{tr}
		task, err = loadTask(t, p.Scope, p.Task)
		return err
	})
	if err != nil {
		return berth.Task{}, nil, err
	}
	return task, trs, nil
}

// retry puts a task back in the queue; addTries 0 means 1, a zero payload leaves
// that as it is.
func retry(t *tx, actor berth.Actor, task berth.Task, addTries int, payload redact.Bytes) (berth.Transition, error) {
	tok, err := retryToken(t, task, max(addTries, 1))
	if err != nil {
		return berth.Transition{}, err
	}
	edited := !payload.IsZero()
	if edited {
		if err := t.execOne("UPDATE tasks SET payload = ?2 WHERE id = ?1", task.ID, content(payload)); err != nil {
			return berth.Transition{}, err
		}
	}
	if err := enqueue(t, tok, task.Pool); err != nil {
		return berth.Transition{}, err
	}
	tr := taskTransition(t, task, berth.EventRetriedByHand, berth.StateQueued, "")
	budget := task.Budget
	if task.State == berth.StateDeadLetter {
		budget = task.Tries + max(addTries, 1)
	}
	return tr, auditMove(t, actor, tr, berth.RetryFacts(task.Budget, false), berth.RetryFacts(budget, edited))
}

// retryToken takes the token of a task that waits for its retry, or makes a new
// one for a dead-lettered task and opens it again.
func retryToken(t *tx, task berth.Task, addTries int) (token, error) {
	switch task.State {
	case berth.StateFailed:
		tok, ok, err := takeToken(t, task.ID)
		if err != nil || !ok {
			return tok, orElse(err, "task %s is in no place", task.ID)
		}
		return tok, nil
	case berth.StateDeadLetter:
	default:
		return token{}, &berth.WrongStateError{Thing: "task", State: string(task.State), Message: "only a dead-lettered task, or a failed one that waits for its retry, can be retried"}
	}
	tok := token{task: task.ID, class: task.Class}
	if task.QueueTimeout > 0 {
		tok.giveUp = t.now.Add(task.QueueTimeout)
	}
	rank, _, err := queryOne(t, scanInt, "SELECT rank FROM tasks WHERE id = ?1", task.ID)
	if err != nil {
		return tok, err
	}
	tok.rank = berth.Rank(rank)
	last, _, err := queryOne(t, scanInt, "SELECT coalesce(max(number), 0) FROM attempts WHERE task_id = ?1", task.ID)
	if err != nil {
		return tok, err
	}
	tok.number = int(last) + 1
	// Hand-backs count anew.
	if _, err := t.exec("UPDATE attempts SET uncounted = 1 WHERE task_id = ?1 AND outcome = 'released'", task.ID); err != nil {
		return tok, err
	}
	return tok, t.execOne(`UPDATE tasks SET final_state = NULL, final_reason = NULL, finished_at = NULL, result = NULL, cause_key = NULL, budget = ?2
		WHERE id = ?1 AND final_state = 'dead_letter'`, task.ID, task.Tries+addTries)
}
