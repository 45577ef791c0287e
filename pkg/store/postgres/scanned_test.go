package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
)

const (
	queuedTasks  = 1_000_000
	freeDevices  = 1_000
	rareClasses  = 20
	rareTasks    = 400 // each, on top of all others
	commonTasks  = queuedTasks - rareClasses*rareTasks
	commonKinds  = 10
	perPlacement = 2.0
)

// fleet makes one host with free devices of ten kinds.
const fleet = `
INSERT INTO plugins (name, version, enabled, created_at) VALUES ('noop', '1.0.0', true, now());
INSERT INTO hosts (id, name, pool_id, public_key, state, last_seen_at, enrolled_at, epoch)
VALUES ('00000000-0000-7000-8000-00000000000a', 'h', '00000000-0000-7000-8000-000000000001', '', 'online', now() + interval '1 day', now(), 1);
INSERT INTO host_plugins VALUES ('00000000-0000-7000-8000-00000000000a', 'noop', '1.0.0');
INSERT INTO devices (id, host_id, pool_id, driver, hardware_id, hardware_unique, name, labels, created_at, updated_at)
SELECT ('00000000-0000-7000-8000-1' || lpad(i::text, 11, '0'))::uuid, '00000000-0000-7000-8000-00000000000a',
       '00000000-0000-7000-8000-000000000001', 'process', i::text, false, i::text, jsonb_build_object('kind', 'k' || i %% %[1]d), now(), now()
FROM generate_series(1, %[2]d) i;
INSERT INTO leases (device_id, host_id, pool_id, placeable) SELECT id, host_id, pool_id, 2 FROM devices;
INSERT INTO task_classes (class_key, pool_id, selector, plugin, version_range)
SELECT 'common' || i, '00000000-0000-7000-8000-000000000001', 'kind=k' || i, 'noop', '' FROM generate_series(0, %[1]d - 1) i;
INSERT INTO task_classes (class_key, pool_id, selector, plugin, version_range)
SELECT 'rare' || i, '00000000-0000-7000-8000-000000000001', 'gpu=g' || i, 'noop', '' FROM generate_series(1, %[3]d) i;`

// waiting makes queued tasks: those that nothing fits come first in the order.
const waiting = `
CREATE TEMP TABLE w AS
SELECT ('00000000-0000-7000-8000-2' || lpad(i::text, 11, '0'))::uuid AS id, i::bigint AS rank,
       (SELECT min(id) FROM task_classes WHERE class_key LIKE 'rare%%') + i %% %[1]d AS class
FROM generate_series(1, %[2]d) i
UNION ALL
SELECT ('00000000-0000-7000-8000-3' || lpad(i::text, 11, '0'))::uuid, 1000000000 + i::bigint,
       (SELECT min(id) FROM task_classes WHERE class_key LIKE 'common%%') + i %% %[3]d
FROM generate_series(1, %[4]d) i;
INSERT INTO tasks (id, pool_id, class_id, rank, payload, priority, run_timeout_us, retry_on, backoff_initial_us, backoff_factor,
                   backoff_max_us, backoff_jitter, retry_unsafe, max_attempts, budget, submitter_kind, submitter_id, correlation_id, submitted_at)
SELECT id, '00000000-0000-7000-8000-000000000001', class, rank, '{}', 0, 3600000000, '{failed}', 1, 2, 1, 0, false, 3, 3, 'user', 'u', 'c', now() FROM w;
INSERT INTO queue (class_id, rank, task_id, number) SELECT class, rank, id, 1 FROM w;
DROP TABLE w`

// TestRowsScannedAPlacement holds the line that the work of placement does not
// grow with the queue: at a million queued tasks, with thousands on top that
// no device fits, PostgreSQL itself counts at most two rows of the queue read
// for each task placed. The statements are prepared while the queue is empty,
// and run with the planner's statistics of then, and again with fresh ones.
func TestRowsScannedAPlacement(t *testing.T) {
	dsn := newDB(t)
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := admin.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	run("ALTER TABLE queue SET (autovacuum_enabled = off); ALTER TABLE tasks SET (autovacuum_enabled = off)")
	run(fmt.Sprintf(fleet, commonKinds, freeDevices, rareClasses))
	run("ANALYZE")
	// A handle that has described every statement on the empty queue.
	s, err := postgres.Open(ctx, dsn+"&pool_max_conns=1", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	place(t, s)
	run(fmt.Sprintf(waiting, rareClasses, rareClasses*rareTasks, commonKinds, commonTasks))
	run("SELECT pg_stat_force_next_flush()")

	measure := func(name string) {
		before := scanned(t, admin)
		start := time.Now()
		place(t, s)
		elapsed := time.Since(start)
		if err := s.Close(); err != nil { // its sessions report what they counted at their end
			t.Fatal(err)
		}
		waitSessions(t, admin)
		after := scanned(t, admin)
		placed := after["attempts inserted"] - before["attempts inserted"]
		if placed != freeDevices {
			t.Fatalf("%s: %d tasks placed, want %d", name, placed, freeDevices)
		}
		for _, table := range []string{"queue", "leases", "tasks", "devices", "task_classes", "hosts"} {
			t.Logf("%s: %-12s %.2f rows scanned a placement", name, table, float64(after[table]-before[table])/float64(placed))
		}
		t.Logf("%s: %v for %d placements", name, elapsed.Round(time.Millisecond), placed)
		if got := float64(after["queue"]-before["queue"]) / float64(placed); got > perPlacement {
			t.Errorf("%s: %.2f rows of the queue scanned a placement, want at most %.0f", name, got, perPlacement)
		}
	}
	measure("statistics of the empty queue")

	run("UPDATE leases SET attempt_id = NULL, task_id = NULL, number = NULL, expires_at = NULL; UPDATE attempts SET ended_at = now(), outcome = 'lost'")
	run("ANALYZE")
	if s, err = postgres.Open(ctx, dsn+"&pool_max_conns=1", store.Options{}); err != nil {
		t.Fatal(err)
	}
	measure("fresh statistics")
}

func place(t *testing.T, s *postgres.Store) {
	t.Helper()
	if err := scheduler.New(scheduler.Config{Store: s, Instance: "test"}).PlaceOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// scanned reads what the server has counted: rows read by table, by whatever
// way, and attempts made.
func scanned(t *testing.T, admin *pgx.Conn) map[string]int64 {
	t.Helper()
	rows, err := admin.Query(t.Context(), `SELECT relname, seq_tup_read + COALESCE(idx_tup_fetch, 0), n_tup_ins FROM pg_stat_user_tables`)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	var table string
	var read, inserted int64
	if _, err := pgx.ForEachRow(rows, []any{&table, &read, &inserted}, func() error {
		out[table] = read
		out[table+" inserted"] = inserted
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// waitSessions waits until the store's sessions are gone from the server.
func waitSessions(t *testing.T, admin *pgx.Conn) {
	t.Helper()
	eventually(t, "the store's sessions end", func() bool {
		var n int
		if err := admin.QueryRow(t.Context(), `
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'berth'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

// eventually polls a condition until it holds, or fails the test.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited until %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
