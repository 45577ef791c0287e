package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const bulkColumns = `
SELECT b.id, b.act, b.filter, b.params, b.state, b.owner_kind, b.owner_id, b.request_id, b.position, b.position_cause, b.upper,
       b.looked, b.changed, b.refused, b.created_at, b.updated_at, b.finished_at,
       COALESCE((SELECT p.name FROM pools p WHERE p.id = (b.filter ->> 'pool')::uuid), '')
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

func scanBulk(row pgx.CollectableRow) (b bulkRow, err error) {
	var filter, params []byte
	err = row.Scan(&b.ID, &b.Act, &filter, &params, &b.State, &b.Owner.Kind, &b.Owner.ID, &b.RequestID, nullable(&b.at), &b.atCause, &b.upper,
		&b.Looked, &b.Changed, &b.Refused, &b.CreatedAt, &b.UpdatedAt, instant(&b.FinishedAt), &b.PoolName)
	if err != nil {
		return b, err
	}
	var p bulkParams
	if err := json.Unmarshal(params, &p); err != nil {
		return b, err
	}
	b.Priority, b.AddTries = p.Priority, p.AddTries
	return b, json.Unmarshal(filter, &b.Filter)
}

// StartBulk is documented at store.Bulk.
func (s *Store) StartBulk(ctx context.Context, p store.StartBulkParams) (job store.BulkJob, err error) {
	if _, _, err := berth.CheckBulk(p.Spec.Act, p.Spec.Filter.States, p.Spec.Filter.Cause != ""); err != nil {
		return job, err
	}
	filter, params, err := bulkTexts(p.Spec)
	if err != nil {
		return job, err
	}
	err = s.write(ctx, "StartBulk", func(t *tx) error {
		ids, replayed, err := t.once(p.Actor, p.Once, []pgtype.UUID{uid(berth.TaskID(p.ID))})
		if err != nil {
			return err
		}
		id := p.ID
		if replayed {
			id = ids[0]
		} else {
			now, err := t.now()
			if err != nil {
				return err
			}
			if _, err := t.exec(`
INSERT INTO bulk_jobs (id, act, filter, params, state, owner_kind, owner_id, request_id, upper, created_at, updated_at)
VALUES ($1, $2, $3, $4, 'running', $5, $6, $7,
        COALESCE((SELECT id FROM tasks ORDER BY id DESC LIMIT 1), '00000000-0000-0000-0000-000000000000'), $8, $8)`,
				uid(berth.TaskID(id)), string(p.Spec.Act), filter, params, string(p.Actor.Kind), p.Actor.ID, clean(p.Actor.RequestID), now); err != nil {
				return err
			}
			if err := t.auditChange(p.Actor, now, berth.AuditBulkStarted, "bulk_job", id, "", p.Spec.Facts(filter)); err != nil {
				return err
			}
		}
		job, err = t.bulk(id)
		return err
	})
	return only(job, err)
}

func bulkTexts(spec store.BulkSpec) (filter, params string, err error) {
	f, err := json.Marshal(spec.Filter)
	if err != nil {
		return "", "", err
	}
	b, err := json.Marshal(bulkParams{Priority: spec.Priority, AddTries: spec.AddTries})
	return clean(string(f)), string(b), err
}

func (t *tx) bulk(id string) (store.BulkJob, error) {
	b, err := found(t, "bulk job", scanBulk, bulkColumns+` WHERE b.id = $1`, uid(berth.TaskID(id)))
	return b.BulkJob, err
}

// GetBulk is documented at store.Bulk.
func (s *Store) GetBulk(ctx context.Context, id string) (job store.BulkJob, err error) {
	err = s.read(ctx, "GetBulk", func(t *tx) error {
		job, err = t.bulk(id)
		return err
	})
	return job, err
}

// ListBulk is documented at store.Bulk.
func (s *Store) ListBulk(ctx context.Context, page store.Page) (jobs []store.BulkJob, next string, err error) {
	err = s.read(ctx, "ListBulk", func(t *tx) error {
		rows, err := collect(t, scanBulk, bulkColumns+` WHERE $1::uuid IS NULL OR b.id < $1 ORDER BY b.id DESC LIMIT $2`,
			uid(berth.TaskID(page.After)), page.Limit()+1)
		jobs = mapped(rows, func(b bulkRow) store.BulkJob { return b.BulkJob })
		return err
	})
	jobs, next = cut(jobs, page, func(j store.BulkJob) string { return j.ID })
	return jobs, next, err
}

// StopBulk is documented at store.Bulk.
func (s *Store) StopBulk(ctx context.Context, actor berth.Actor, id string) (job store.BulkJob, err error) {
	err = s.write(ctx, "StopBulk", func(t *tx) error {
		n, err := t.exec(`
UPDATE bulk_jobs SET state = 'stopped', updated_at = n.now, finished_at = n.now FROM (SELECT berth_now() AS now) n WHERE id = $1 AND state = 'running'`,
			uid(berth.TaskID(id)))
		if err != nil {
			return err
		}
		if job, err = t.bulk(id); err != nil || n == 0 {
			return err
		}
		return t.auditChange(actor, job.FinishedAt, berth.AuditBulkStopped, "bulk_job", job.ID, berth.Fact("state", string(berth.BulkRunning)), job.Facts())
	})
	return only(job, err)
}

// PreviewBulk is documented at store.Bulk.
func (s *Store) PreviewBulk(ctx context.Context, spec store.BulkSpec) (p store.BulkPreview, err error) {
	q, err := bulkWalk(bulkRow{BulkJob: store.BulkJob{BulkSpec: spec}}, store.BulkPreviewLooks, store.BulkCounted+1)
	if err != nil {
		return p, err
	}
	err = s.read(ctx, "PreviewBulk", func(t *tx) error {
		walked, err := t.walk(q)
		if err != nil {
			return err
		}
		p = store.BulkPreview{Count: min(len(walked.hits), store.BulkCounted), More: len(walked.hits) > store.BulkCounted || walked.end.n >= store.BulkPreviewLooks}
		sample := mapped(walked.hits[:min(len(walked.hits), store.BulkSample)], func(id berth.TaskID) string { return string(id) })
		p.Sample, err = collect(t, scanTask, taskSelect(false)+`
FROM unnest($1::uuid[]) WITH ORDINALITY AS i (id, n) JOIN tasks t ON t.id = i.id`+taskJoins+` ORDER BY i.n`, mapped(sample, uid[string]))
		return err
	})
	return only(p, err)
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

// highest is above every id.
const highest = berth.TaskID("ffffffff-ffff-ffff-ffff-ffffffffffff")

// bulkWalk reads the next looks tasks of a job's walk, whatever they are, and gives
// the first limit of them that the filter passes: so each page reads no more than
// that, however few pass. Its last row is where it ended.
func bulkWalk(b bulkRow, looks, limit int) (*query, error) {
	states, way, err := berth.CheckBulk(b.Act, b.Filter.States, b.Filter.Cause != "")
	if err != nil {
		return nil, err
	}
	q := &query{}
	at, upper := b.at, b.upper
	if at == "" {
		at = highest
	}
	if upper == "" {
		upper = highest
	}
	below, most, n := q.arg(uid(at)), q.arg(uid(upper)), q.arg(looks)
	id := "task_id"
	part := func(from string) string {
		return `(SELECT ` + id + ` AS id, '' AS cause FROM ` + from + ` AND ` + id + ` < ` + below + ` AND ` + id + ` <= ` + most +
			` ORDER BY ` + id + ` DESC LIMIT ` + n + `)`
	}
	var walk string
	where := []string{"t.id <= " + most}
	switch way {
	case berth.WalkCauses:
		from, atCause := "", b.atCause
		if b.Filter.Cause != "" {
			from, atCause = string(b.Filter.Cause), b.Filter.Cause
		}
		if atCause == "" {
			atCause = "~" // above every key
		}
		walk = `(SELECT id, cause_key AS cause FROM tasks WHERE cause_key >= ` + q.arg(from) + ` AND (cause_key, id) < (` + q.arg(string(atCause)) + `, ` + below +
			`) ORDER BY cause_key DESC, id DESC LIMIT ` + n + `)`
		where = append(where, "t.final_state = 'dead_letter'")
	case berth.WalkTasks:
		id = "id"
		walk = part(`tasks WHERE true`)
		where = append(where, "t.final_state = ANY ("+q.arg(mapped(states, func(s berth.TaskState) string { return string(s) }))+")")
	default:
		var parts []string
		places, _ := places(q, states)
		for _, p := range places {
			_, from, _ := strings.Cut(p, "SELECT task_id FROM ")
			switch {
			case !strings.Contains(from, "WHERE"):
				from += " WHERE true"
			case b.Act == berth.BulkCancel && strings.HasPrefix(from, "attempts"):
				from += " AND cancel_requested_at IS NULL"
			}
			parts = append(parts, part(from))
		}
		walk = strings.Join(parts, " UNION ALL ")
	}
	where = append(where, q.passes(b.Filter)...)
	if b.Act == berth.BulkReprioritise {
		where = append(where, "t.priority <> "+q.arg(b.Priority))
	}
	if !b.CreatedAt.IsZero() {
		where = append(where, "t.submitted_at <= "+q.arg(b.CreatedAt))
	}
	q.sql = `
WITH walk AS MATERIALIZED (
    SELECT id, cause, row_number() OVER (ORDER BY cause DESC, id DESC) AS n FROM (` + walk + `) w ORDER BY n LIMIT ` + n + `
), hit AS MATERIALIZED (
    SELECT w.id, w.cause, w.n FROM walk w CROSS JOIN LATERAL (SELECT * FROM tasks t WHERE t.id = w.id OFFSET 0) t WHERE ` + strings.Join(where, " AND ") + ` ORDER BY w.n LIMIT ` + q.arg(limit) + `
)
SELECT id, cause, n, true FROM hit
UNION ALL
(SELECT id, cause, n, false FROM walk ORDER BY n DESC LIMIT 1)
ORDER BY 4 DESC, 3`
	return q, nil
}

func (t *tx) walk(q *query) (w walked, err error) {
	type row struct {
		step
		hit bool
	}
	rows, err := collect(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.id, &r.cause, &r.n, &r.hit)
	}, q.sql, q.args...)
	for _, r := range rows {
		if r.hit {
			w.hits, w.steps = append(w.hits, r.id), append(w.steps, r.step)
		}
		w.end = r.step
	}
	return w, err
}

// walkOn is the next page of a job: the tasks to change, and where it is then.
func (t *tx) walkOn(b *bulkRow, limit int) (hits []berth.TaskID, over bool, err error) {
	looks := limit * store.BulkLooks
	q, err := bulkWalk(*b, looks, limit+1)
	if err != nil {
		return nil, false, err
	}
	w, err := t.walk(q)
	if err != nil {
		return nil, false, err
	}
	over = w.end.n < looks
	if len(w.hits) > limit {
		// The page ends at its last task; what lies below comes next.
		w.hits, w.end, over = w.hits[:limit], w.steps[limit-1], false
	}
	if w.end.n > 0 {
		b.at, b.atCause = w.end.id, w.end.cause
	}
	b.Looked += int64(w.end.n)
	return w.hits, over, nil
}

// RunBulkPage is documented at store.Bulk.
func (s *Store) RunBulkPage(ctx context.Context, limit int) (page store.BulkPage, err error) {
	err = s.write(ctx, "RunBulkPage", func(t *tx) error {
		page = store.BulkPage{}
		b, ok, err := first(t, scanBulk, bulkColumns+` WHERE b.finished_at IS NULL ORDER BY b.updated_at, b.id LIMIT 1 FOR NO KEY UPDATE OF b SKIP LOCKED`)
		if err != nil || !ok {
			return err
		}
		hits, over, err := t.walkOn(&b, max(1, limit))
		if err != nil {
			return err
		}
		if len(hits) > 0 {
			if page.Transitions, err = t.bulkAct(b, hits); err != nil {
				return err
			}
		}
		b.Changed += int64(len(page.Transitions))
		b.Refused += int64(len(hits) - len(page.Transitions))
		if err := t.bulkMoved(&b, over); err != nil {
			return err
		}
		page.Job = b.BulkJob
		return nil
	})
	return only(page, err)
}

// bulkMoved writes how far a job is.
func (t *tx) bulkMoved(b *bulkRow, over bool) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	b.UpdatedAt = now
	if over {
		b.State, b.FinishedAt = berth.BulkDone, now
	}
	if _, err := t.exec(`
UPDATE bulk_jobs SET position = $2, position_cause = $3, looked = $4, changed = $5, refused = $6, updated_at = $7, state = $8, finished_at = $9 WHERE id = $1`,
		uid(berth.TaskID(b.ID)), uid(b.at), string(b.atCause), b.Looked, b.Changed, b.Refused, now, string(b.State), orNull(b.FinishedAt)); err != nil {
		return err
	}
	if !over {
		return nil
	}
	return t.auditChange(b.Actor(), now, berth.AuditBulkFinished, "bulk_job", b.ID, berth.Fact("state", string(berth.BulkRunning)), b.Facts())
}

// bulkAct changes the tasks of a page; each that it changes has one transition.
func (t *tx) bulkAct(b bulkRow, ids []berth.TaskID) ([]berth.Transition, error) {
	switch b.Act {
	case berth.BulkCancel:
		return t.cancelMany(b.Actor(), ids)
	case berth.BulkRetry:
		return t.retryMany(b, ids)
	case berth.BulkReprioritise:
		return t.prioritiseMany(b, ids)
	}
	return t.deleteMany(b.Actor(), ids)
}

// without are those of ids that are not in any of the lists.
func without(ids []berth.TaskID, lists ...[]berth.TaskID) []berth.TaskID {
	seen := map[berth.TaskID]bool{}
	for _, list := range lists {
		for _, id := range list {
			seen[id] = true
		}
	}
	var out []berth.TaskID
	for _, id := range ids {
		if !seen[id] {
			out = append(out, id)
		}
	}
	return out
}

// lockWaiting locks the tokens of those of the tasks that wait.
func (t *tx) lockWaiting(ids []berth.TaskID) (queued, delayed []waiting, err error) {
	lock := func(from string, ids []berth.TaskID) ([]waiting, error) {
		return collect(t, scanWaiting, `
WITH due AS MATERIALIZED (`+from+` WHERE task_id = ANY ($1) ORDER BY task_id FOR NO KEY UPDATE)
SELECT d.task_id, d.kind, d.class_id, d.rank, d.number, d.give_up_at, d.last_host, d.last_device, t.pool_id, t.correlation_id, n.now
FROM due d JOIN tasks t ON t.id = d.task_id, (SELECT berth_now() AS now OFFSET 0) n
ORDER BY d.task_id`, uids(ids))
	}
	if queued, err = lock(`SELECT *, 'queued' AS kind FROM queue`, ids); err != nil {
		return nil, nil, err
	}
	delayed, err = lock(`SELECT * FROM delayed`, without(ids, mapped(queued, taskOf)))
	return queued, delayed, err
}

func taskOf(w waiting) berth.TaskID { return w.task }

// lockLive locks the live attempts of tasks.
func (t *tx) lockLive(tasks []berth.TaskID) ([]lockedKey, error) {
	if len(tasks) == 0 {
		return nil, nil
	}
	ids, err := collect(t, column[berth.AttemptID], `SELECT id FROM attempts WHERE task_id = ANY ($1) AND ended_at IS NULL`, uids(tasks))
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return t.lockAttempts(ids)
}

// settled starts over where one of the tasks, which was not where it was seen, is
// not finished either: it moves, and is found where it went.
func (t *tx) settled(tasks []berth.TaskID) error {
	if len(tasks) == 0 {
		return nil
	}
	moving, _, err := first(t, column[bool], `SELECT true FROM tasks WHERE id = ANY ($1) AND final_state IS NULL LIMIT 1`, uids(tasks))
	if err == nil && moving {
		err = errStartOver
	}
	return err
}

func (t *tx) dropTokens(queued, delayed []waiting) error {
	if len(queued) > 0 {
		if err := t.removeTokens(`DELETE FROM queue WHERE task_id = ANY ($1)`, queued); err != nil {
			return err
		}
	}
	if len(delayed) == 0 {
		return nil
	}
	return t.removeTokens(`DELETE FROM delayed WHERE task_id = ANY ($1)`, delayed)
}

// clockOf is the time of the first that has one.
func (t *tx) clockOf(rows []waiting) (time.Time, error) {
	if len(rows) > 0 {
		return rows[0].now, nil
	}
	return t.now()
}
