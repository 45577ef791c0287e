package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const bulkSelect = `SELECT b.id, b.act, b.filter, b.params, b.state, b.owner_kind, b.owner_id, b.request_id, b.position, b.position_cause, b.upper,
	b.looked, b.changed, b.refused, b.created_at, b.updated_at, b.finished_at,
	(SELECT p.name FROM pools p WHERE p.id = b.filter ->> 'pool')
	FROM bulk_jobs b`

// bulkRow is a job with its position.
type bulkRow struct {
	store.BulkJob
	at, upper berth.TaskID
	atCause   berth.CauseKey
}

// bulkParams is how params are stored.
type bulkParams struct {
	Priority int `json:"priority,omitempty"`
	AddTries int `json:"add_tries,omitempty"`
}

func scanBulk(r row) (b bulkRow, err error) {
	var p bulkParams
	err = r.Scan(&b.ID, &b.Act, fromJSON(&b.Filter), fromJSON(&p), &b.State, &b.Owner.Kind, &b.Owner.ID, &b.RequestID, opt(&b.at), &b.atCause, &b.upper,
		&b.Looked, &b.Changed, &b.Refused, at(&b.CreatedAt), at(&b.UpdatedAt), at(&b.FinishedAt), opt(&b.PoolName))
	b.Priority, b.AddTries = p.Priority, p.AddTries
	return b, err
}

// StartBulk implements store.Bulk.
func (s *Store) StartBulk(ctx context.Context, p store.StartBulkParams) (job store.BulkJob, err error) {
	if _, _, err := berth.CheckBulk(p.Spec.Act, p.Spec.Filter.States, p.Spec.Filter.Cause != ""); err != nil {
		return job, err
	}
	text, err := json.Marshal(p.Spec.Filter)
	if err != nil {
		return job, err
	}
	err = s.write(ctx, "StartBulk", func(t *tx) error {
		ids, replayed, err := once(t, p.Actor, p.Once, []string{p.ID})
		if err != nil {
			return err
		}
		id := p.ID
		if replayed {
			id = ids[0]
		} else {
			err := t.execOne(`INSERT INTO bulk_jobs (id, act, filter, params, state, owner_kind, owner_id, request_id, upper, created_at, updated_at)
				VALUES (?1, ?2, ?3, ?4, 'running', ?5, ?6, ?7, coalesce((SELECT max(id) FROM tasks), ''), ?8, ?8)`,
				id, p.Spec.Act, string(text), jsonText(bulkParams{Priority: p.Spec.Priority, AddTries: p.Spec.AddTries}),
				p.Actor.Kind, p.Actor.ID, p.Actor.RequestID, micros(t.now))
			if err != nil {
				return err
			}
			if err := auditChange(t, p.Actor, berth.AuditBulkStarted, "bulk_job", id, "", p.Spec.Facts(string(text))); err != nil {
				return err
			}
		}
		job, err = loadBulk(t, id)
		return err
	})
	if err != nil {
		return store.BulkJob{}, err
	}
	return job, nil
}

func loadBulk(t *tx, id string) (store.BulkJob, error) {
	b, ok, err := queryOne(t, scanBulk, bulkSelect+" WHERE b.id = ?1", id)
	if err == nil && !ok {
		err = notFound("bulk job")
	}
	return b.BulkJob, err
}

// GetBulk implements store.Bulk.
func (s *Store) GetBulk(ctx context.Context, id string) (job store.BulkJob, err error) {
	err = s.read(ctx, "GetBulk", func(t *tx) error {
		job, err = loadBulk(t, id)
		return err
	})
	return job, err
}

// ListBulk implements store.Bulk.
func (s *Store) ListBulk(ctx context.Context, p store.Page) (jobs []store.BulkJob, next string, err error) {
	err = s.read(ctx, "ListBulk", func(t *tx) error {
		rows, err := queryAll(t, scanBulk, bulkSelect+" WHERE ?1 = '' OR b.id < ?1 ORDER BY b.id DESC LIMIT ?2", p.After, p.Limit()+1)
		for _, b := range rows {
			jobs = append(jobs, b.BulkJob)
		}
		return err
	})
	jobs, next = page(jobs, p.Limit(), func(j store.BulkJob) string { return j.ID })
	return jobs, next, err
}

// StopBulk implements store.Bulk.
func (s *Store) StopBulk(ctx context.Context, actor berth.Actor, id string) (job store.BulkJob, err error) {
	err = s.write(ctx, "StopBulk", func(t *tx) error {
		n, err := t.exec("UPDATE bulk_jobs SET state = 'stopped', updated_at = ?2, finished_at = ?2 WHERE id = ?1 AND state = 'running'", id, micros(t.now))
		if err != nil {
			return err
		}
		if job, err = loadBulk(t, id); err != nil || n == 0 {
			return err
		}
		return auditChange(t, actor, berth.AuditBulkStopped, "bulk_job", job.ID, berth.Fact("state", string(berth.BulkRunning)), job.Facts())
	})
	if err != nil {
		return store.BulkJob{}, err
	}
	return job, nil
}

// PreviewBulk implements store.Bulk.
func (s *Store) PreviewBulk(ctx context.Context, spec store.BulkSpec) (p store.BulkPreview, err error) {
	query, args, err := bulkWalk(bulkRow{BulkJob: store.BulkJob{BulkSpec: spec}}, store.BulkPreviewLooks, store.BulkCounted+1)
	if err != nil {
		return p, err
	}
	err = s.read(ctx, "PreviewBulk", func(t *tx) error {
		w, err := walk(t, query, args)
		if err != nil {
			return err
		}
		p.Count, p.More = min(len(w.hits), store.BulkCounted), len(w.hits) > store.BulkCounted || w.end.n >= store.BulkPreviewLooks
		p.Sample, err = queryAll(t, scanTask, taskSelect("NULL", "NULL")+
			" JOIN json_each(?1) j ON j.value = t.id ORDER BY j.key", list(w.hits[:min(len(w.hits), store.BulkSample)]))
		return err
	})
	if err != nil {
		return store.BulkPreview{}, err
	}
	return p, nil
}

// walked is a stretch of a job's way.
type walked struct {
	// hits that the filter passes, steps where they are.
	hits  []berth.TaskID
	steps []step
	// end of the stretch.
	end step
}

// step is one task of a walk, the n-th of its stretch.
type step struct {
	id    berth.TaskID
	cause berth.CauseKey
	n     int
}

// bulkWalk reads the next looks tasks of a job's walk, whatever they are, and gives
// the first limit of them that the filter passes: so each page reads no more than
// that, however few pass. Its last row is where it ended.
func bulkWalk(b bulkRow, looks, limit int) (query string, args []any, err error) {
	states, way, err := berth.CheckBulk(b.Act, b.Filter.States, b.Filter.Cause != "")
	if err != nil {
		return "", nil, err
	}
	filter := b.Filter
	filter.States, filter.Cause = nil, "" // the walk sees to them
	c := taskConditions(berth.Scope{All: true}, filter, "")
	arg := func(v any) string {
		c.args = append(c.args, v)
		return "?" + strconv.Itoa(len(c.args))
	}
	const highest = "g" // above every id
	from, most := string(b.at), string(b.upper)
	if from == "" {
		from = highest
	}
	if most == "" {
		most = highest
	}
	below, upper, n := arg(from), arg(most), arg(looks)
	c.terms = append(c.terms, "t.id <= "+upper)
	part := func(id, from string) string {
		return "SELECT * FROM (SELECT " + id + " AS id, '' AS cause FROM " + from + " AND " + id + " < " + below + " AND " + id + " <= " + upper +
			" ORDER BY " + id + " DESC LIMIT " + n + ")"
	}
	var ways string
	switch way {
	case berth.WalkCauses:
		first, at := "", b.atCause
		if b.Filter.Cause != "" {
			first, at = string(b.Filter.Cause), b.Filter.Cause
		}
		if at == "" {
			at = highest
		}
		ways = "SELECT * FROM (SELECT id, cause_key AS cause FROM tasks INDEXED BY tasks_cause WHERE cause_key >= " + arg(first) +
			" AND (cause_key, id) < (" + arg(at) + ", " + below + ") ORDER BY cause_key DESC, id DESC LIMIT " + n + ")"
		c.terms = append(c.terms, "t.final_state = 'dead_letter'")
	case berth.WalkTasks:
		ways = part("id", "tasks WHERE true")
		c.add("t.final_state IN (SELECT value FROM json_each($))", list(states))
	default:
		var parts []string
		for _, place := range placesOf(states) {
			_, from, _ := strings.Cut(place, "SELECT task_id FROM ")
			if !strings.Contains(from, "WHERE") {
				from += " WHERE true"
			}
			parts = append(parts, part("task_id", from))
		}
		ways = strings.Join(parts, " UNION ALL ")
		c.add("("+taskState+") IN (SELECT value FROM json_each($))", list(states))
		if b.Act == berth.BulkCancel {
			c.terms = append(c.terms, "a.cancel_requested_at IS NULL")
		}
	}
	if b.Act == berth.BulkReprioritise {
		c.add("t.priority <> $", b.Priority)
	}
	if !b.CreatedAt.IsZero() {
		c.add("t.submitted_at <= $", micros(b.CreatedAt))
	}
	hits := "LIMIT " + arg(limit)
	return `WITH walk AS MATERIALIZED (
		SELECT id, cause, row_number() OVER (ORDER BY cause DESC, id DESC) AS n FROM (` + ways + `) ORDER BY n LIMIT ` + n + `),
	hit AS MATERIALIZED (
		SELECT w.id, w.cause, w.n FROM walk w CROSS JOIN tasks t ON t.id = w.id
		JOIN task_classes c ON c.id = t.class_id
		LEFT JOIN queue q ON q.task_id = t.id
		LEFT JOIN delayed d ON d.task_id = t.id
		LEFT JOIN attempts a ON a.task_id = t.id AND a.ended_at IS NULL` + c.where() + ` ORDER BY w.n ` + hits + `)
	SELECT id, cause, n, 1 AS hit FROM hit
	UNION ALL
	SELECT id, cause, n, 0 FROM (SELECT * FROM walk ORDER BY n DESC LIMIT 1)
	ORDER BY 4 DESC, 3`, c.args, nil
}

func walk(t *tx, query string, args []any) (w walked, err error) {
	type found struct {
		step
		hit bool
	}
	rows, err := queryAll(t, func(r row) (f found, err error) {
		return f, r.Scan(&f.id, &f.cause, &f.n, &f.hit)
	}, query, args...)
	for _, f := range rows {
		if f.hit {
			w.hits, w.steps = append(w.hits, f.id), append(w.steps, f.step)
		}
		w.end = f.step
	}
	return w, err
}

// RunBulkPage implements store.Bulk.
func (s *Store) RunBulkPage(ctx context.Context, limit int) (page store.BulkPage, err error) {
	limit = max(1, limit)
	err = s.write(ctx, "RunBulkPage", func(t *tx) error {
		b, ok, err := queryOne(t, scanBulk, bulkSelect+" WHERE b.finished_at IS NULL ORDER BY b.updated_at, b.id LIMIT 1")
		if err != nil || !ok {
			return err
		}
		looks := limit * store.BulkLooks
		query, args, err := bulkWalk(b, looks, limit+1)
		if err != nil {
			return err
		}
		w, err := walk(t, query, args)
		if err != nil {
			return err
		}
		over := w.end.n < looks
		if len(w.hits) > limit {
			// The page ends at its last task; what lies below comes next.
			w.hits, w.end, over = w.hits[:limit], w.steps[limit-1], false
		}
		if w.end.n > 0 {
			b.at, b.atCause = w.end.id, w.end.cause
		}
		b.Looked += int64(w.end.n)
		for _, id := range w.hits {
			tr, changed, err := bulkAct(t, b, id)
			switch {
			case errors.Is(err, berth.ErrWrongState), err == nil && !changed:
				b.Refused++
			case err != nil:
				return err
			default:
				b.Changed++
				page.Transitions = append(page.Transitions, tr)
			}
		}
		page.Job, err = bulkMoved(t, b, over)
		return err
	})
	if err != nil {
		return store.BulkPage{}, err
	}
	return page, nil
}

// bulkMoved writes how far a job is.
func bulkMoved(t *tx, b bulkRow, over bool) (store.BulkJob, error) {
	b.UpdatedAt = t.now
	if over {
		b.State, b.FinishedAt = berth.BulkDone, t.now
	}
	if err := t.execOne(`UPDATE bulk_jobs SET position = ?2, position_cause = ?3, looked = ?4, changed = ?5, refused = ?6, updated_at = ?7, state = ?8,
		finished_at = ?9 WHERE id = ?1`, b.ID, null(b.at), b.atCause, b.Looked, b.Changed, b.Refused, micros(t.now), b.State, micros(b.FinishedAt)); err != nil {
		return b.BulkJob, err
	}
	if !over {
		return b.BulkJob, nil
	}
	return b.BulkJob, auditChange(t, b.Actor(), berth.AuditBulkFinished, "bulk_job", b.ID, berth.Fact("state", string(berth.BulkRunning)), b.Facts())
}

// bulkAct does to one task what the job is for.
func bulkAct(t *tx, b bulkRow, id berth.TaskID) (tr berth.Transition, changed bool, err error) {
	task, err := loadTask(t, berth.Scope{All: true}, id)
	if err != nil {
		return tr, false, err
	}
	actor := b.Actor()
	switch b.Act {
	case berth.BulkCancel:
		return cancel(t, actor, task)
	case berth.BulkRetry:
		tr, err = retry(t, actor, task, b.AddTries, redact.Bytes{})
	case berth.BulkReprioritise:
		tr, err = prioritise(t, actor, task, b.Priority)
	default:
		tr, err = deleteTask(t, actor, task)
	}
	return tr, err == nil, err
}

// deleteTask deletes a finished task and all that it left.
func deleteTask(t *tx, actor berth.Actor, task berth.Task) (berth.Transition, error) {
	for _, sql := range []string{
		"DELETE FROM log_chunks WHERE attempt_id IN (SELECT id FROM attempts WHERE task_id = ?1)",
		"DELETE FROM artifacts WHERE attempt_id IN (SELECT id FROM attempts WHERE task_id = ?1)",
		"DELETE FROM task_inputs WHERE task_id = ?1",
		"DELETE FROM attempts WHERE task_id = ?1",
		"DELETE FROM tasks WHERE id = ?1",
	} {
		if _, err := t.exec(sql, task.ID); err != nil {
			return berth.Transition{}, err
		}
	}
	hintOf(t, store.HintTask, task.ID)
	tr := taskTransition(t, task, berth.EventDeleted, task.State, "")
	return tr, audit(t, actor, tr)
}
