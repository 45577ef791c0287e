package kill

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// bulkTasks makes N queued tasks with the tag bulk and 100 without.
const bulkTasks = `
CREATE TEMP TABLE w AS
SELECT ('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid AS id, i::bigint AS rank, i > 100 AS bulk
FROM generate_series(1, %[1]d + 100) i;
INSERT INTO task_classes (class_key, pool_id, selector, plugin, version_range)
VALUES ('bulk', '00000000-0000-7000-8000-000000000001', 'no=where', 'process.run', '');
INSERT INTO tasks (id, pool_id, class_id, rank, tags, payload, priority, run_timeout_us, retry_on, backoff_initial_us, backoff_factor,
                   backoff_max_us, backoff_jitter, retry_unsafe, max_attempts, budget, submitter_kind, submitter_id, correlation_id, submitted_at)
SELECT w.id, c.pool_id, c.id, rank, CASE WHEN bulk THEN '{bulk}'::text[] ELSE '{}' END, '{}', 0, 3600000000, '{failed}', 1, 2, 1, 0, false, 3, 3,
       'user', 'u', 'c', now()
FROM w, task_classes c WHERE c.class_key = 'bulk';
INSERT INTO queue (class_id, rank, task_id, number) SELECT c.id, rank, w.id, 1 FROM w, task_classes c WHERE c.class_key = 'bulk';
DROP TABLE w`

// TestBulkCancelGoesOn: a job that cancels N queued tasks by filter goes on where
// it was when the API and the leasekeeper are killed in the middle, and cancels
// each task once. Lists are measured before it and meanwhile. `make bench-bulk`
// runs it with a million tasks, and holds the lists' p99 to three times that of
// the idle system.
func TestBulkCancelGoesOn(t *testing.T) {
	n, bench := 20_000, os.Getenv("BERTH_BULK_TASKS")
	if bench == "" {
		t.Parallel()
	} else {
		var err error
		n, err = strconv.Atoi(bench)
		must(t, err)
	}
	c := harness.NewCluster(t, harness.Options{Env: map[string]string{"BERTH_PRINCIPAL_RATE": "0", "BERTH_ADDRESS_RATE": "0", "BERTH_LOG_LEVEL": "info"}})
	fill(t, c, n)
	lists := newLists(t, c)
	for range 300 {
		lists.measure()
	}
	idle := lists.take()

	job, err := c.Client.StartBulkJob(t.Context(), client.BulkSpec{Act: client.BulkActCancel, Filter: client.BulkFilter{Tag: "bulk"}})
	must(t, err)
	began := time.Now()
	stop := make(chan struct{})
	var measuring sync.WaitGroup
	measuring.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				lists.measure()
			}
		}
	})
	changed := func() int { return number(t, c, "SELECT changed FROM bulk_jobs") }
	harness.Eventually(t, 10*time.Minute, "a quarter of the tasks is cancelled", func() bool { return changed() >= n/4 })
	c.Leasekeepers[0].Kill()
	c.APIs[0].Kill()
	at := changed()
	if at >= n {
		t.Fatalf("the job had ended before the kill")
	}
	t.Logf("killed the API and the leasekeeper with kill -9 at %d of %d", at, n)
	c.APIs[0].Start(t)
	c.Leasekeepers[0].Start(t)
	c.APIs[0].AwaitReady(t)
	harness.Eventually(t, 30*time.Minute, "the job has ended", func() bool {
		job, err = c.Client.GetBulkJob(t.Context(), job.ID)
		return err == nil && job.State != client.BulkRunning
	})
	took := time.Since(began)
	close(stop)
	measuring.Wait()
	during := lists.take()

	if job.State != "done" || job.Changed != int64(n) || job.Refused != 0 {
		t.Errorf("the job is %s: changed %d of %d, refused %d", job.State, job.Changed, n, job.Refused)
	}
	for query, want := range map[string]int{
		`SELECT count(*) FROM tasks WHERE final_state = 'cancelled'`:                         n,
		`SELECT count(*) FROM tasks WHERE final_state = 'cancelled' AND 'bulk' = ANY (tags)`: n,
		`SELECT count(*) FROM queue`:                                                                                    100,
		`SELECT count(*) FROM audit_events WHERE action = 'task.cancelled'`:                                             n,
		`SELECT count(DISTINCT target_id) FROM audit_events WHERE action = 'task.cancelled'`:                            n,
		`SELECT count(*) FROM audit_events WHERE action = 'bulk_job.finished' AND target_id = '` + job.ID + `'`:         1,
		`SELECT count(*) FROM audit_events WHERE action = 'task.cancelled' AND credential <> 'bulk-job:` + job.ID + `'`: 0,
	} {
		if got := number(t, c, query); got != want {
			t.Errorf("%s: %d, should be %d", query, got, want)
		}
	}
	t.Logf("cancelled %d tasks in %v, with the restart: %.0f a second", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	for path, before := range idle {
		after := during[path]
		ratio := after.p99.Seconds() / before.p99.Seconds()
		t.Logf("GET %-28s idle p50 %8v p99 %8v (%d); during p50 %8v p99 %8v (%d); p99 ratio %.2f",
			path, round(before.p50), round(before.p99), before.n, round(after.p50), round(after.p99), after.n, ratio)
		if bench != "" && ratio > 3 {
			t.Errorf("GET %s: p99 is %.2f times that of the idle system, should be at most 3", path, ratio)
		}
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func fill(t *testing.T, c *harness.Cluster, n int) {
	t.Helper()
	db, err := sql.Open("pgx", c.OwnerURL)
	must(t, err)
	defer func() { _ = db.Close() }()
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.ExecContext(t.Context(), fmt.Sprintf(bulkTasks, n))
	must(t, err)
	_, err = conn.ExecContext(t.Context(), "VACUUM ANALYZE")
	must(t, err)
}

func number(t *testing.T, c *harness.Cluster, query string) int {
	t.Helper()
	n, err := strconv.Atoi(c.Query(t, query)[0][0])
	must(t, err)
	return n
}

// lists measures how long lists take.
type lists struct {
	c    *harness.Cluster
	http *http.Client
	took map[string][]time.Duration
}

func newLists(t *testing.T, c *harness.Cluster) *lists {
	h := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{}}
	t.Cleanup(h.CloseIdleConnections)
	return &lists{c: c, http: h, took: map[string][]time.Duration{}}
}

// measure reads each list once. A call that the killed API did not answer is none.
func (l *lists) measure() {
	for _, path := range []string{"/tasks", "/tasks?state=queued"} {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, l.c.APIs[0].URL()+"/api/v1"+path, nil)
		if err != nil {
			continue
		}
		req.Header.Set("Authorization", "Bearer "+l.c.Tokens.AccessToken)
		began := time.Now()
		res, err := l.http.Do(req)
		if err != nil {
			continue
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if err == nil && res.StatusCode == http.StatusOK {
			l.took[path] = append(l.took[path], time.Since(began))
		}
	}
}

type percentiles struct {
	p50, p99 time.Duration
	n        int
}

// take gives what was measured, and begins anew.
func (l *lists) take() map[string]percentiles {
	out := map[string]percentiles{}
	for path, took := range l.took {
		slices.Sort(took)
		out[path] = percentiles{took[len(took)/2], took[len(took)*99/100], len(took)}
	}
	l.took = map[string][]time.Duration{}
	return out
}
