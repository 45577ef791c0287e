package schema

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
)

// An installation on schema 0001, as its last day left it.

const (
	defaultPool = "00000000-0000-7000-8000-000000000001"
	labPool     = "00000000-0000-7000-8000-000000000002"
	hostA       = "0000000a-0000-7000-8000-000000000001"
	hostB       = "0000000a-0000-7000-8000-000000000002"
)

func deviceID(n int) string  { return fmt.Sprintf("0000000d-0000-7000-8000-%012d", n) }
func taskID(n int) string    { return fmt.Sprintf("0000000e-0000-7000-8000-%012d", n) }
func attemptID(n int) string { return fmt.Sprintf("0000000f-0000-7000-8000-%012d", n) }

// The tasks, by what became of them.
const (
	queuedTask = iota + 1
	scheduledTask
	failedTask
	succeededTask
	deadTask
	assignedTask
	runningTask
	secondOnDevice // a second live attempt on runningTask's device
	onGoneDevice   // a live attempt on a device that is not there
	cancelAsked    // running, with a cancel asked
	noTriesLeft    // running its last try
	labTask
)

// object is a row to insert.
type object map[string]any

type (
	jsonText string
	list     []string
	blob     []byte
)

// value puts a Go value into the dialect's form.
func (d testDB) value(v any) any {
	switch v := v.(type) {
	case time.Time:
		if d.dialect == SQLite {
			return v.UnixMicro()
		}
		return v
	case list:
		if d.dialect == SQLite {
			b, _ := json.Marshal([]string(v))
			return string(b)
		}
		return "{" + strings.Join(v, ",") + "}"
	case jsonText:
		return string(v)
	case blob:
		return []byte(v)
	}
	return v
}

func (d testDB) insert(t *testing.T, pool *sql.DB, table string, rows ...object) {
	t.Helper()
	for _, row := range rows {
		var columns, places []string
		var values []any
		for c := range row {
			columns = append(columns, c)
		}
		slices.Sort(columns)
		for i, c := range columns {
			place := fmt.Sprintf("$%d", i+1)
			if d.dialect == SQLite {
				place = fmt.Sprintf("?%d", i+1)
			}
			places = append(places, place)
			values = append(values, d.value(row[c]))
		}
		statement := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(columns, ", "), strings.Join(places, ", "))
		if _, err := pool.Exec(statement, values...); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// populate fills a 0001 database.
func populate(t *testing.T, d testDB, now time.Time) {
	pool := d.open(t)
	defer pool.Close()
	populateFleet(t, d, pool, now)
	for n := queuedTask; n <= labTask; n++ {
		d.insert(t, pool, "tasks", taskRow(n, now))
	}
	token := object{"class_id": 1, "rank": 10, "number": 1}
	with := func(o object, more object) object {
		out := object{}
		for k, v := range o {
			out[k] = v
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	d.insert(t, pool, "queue", with(token, object{"task_id": taskID(queuedTask)}),
		with(token, object{"task_id": taskID(labTask), "class_id": 2}))
	d.insert(t, pool, "delayed",
		with(token, object{"task_id": taskID(scheduledTask), "kind": "scheduled", "due_at": now.Add(time.Hour)}),
		with(token, object{"task_id": taskID(failedTask), "kind": "failed", "due_at": now.Add(-time.Minute), "number": 2, "last_host": hostA}))

	attempt := func(task, device int, state string, more object) object {
		o := object{
			"id": attemptID(task), "task_id": taskID(task), "number": 1, "device_id": deviceID(device), "host_id": hostA,
			"state": state, "plugin_version": "1.0.0", "assigned_at": now.Add(-10 * time.Minute),
		}
		if state == "running" {
			o["started_at"], o["claimed_at"] = now.Add(-9*time.Minute), now.Add(-9*time.Minute)
		}
		return with(o, more)
	}
	ended := func(outcome string) object { return object{"ended_at": now.Add(-time.Minute), "outcome": outcome} }
	d.insert(t, pool, "attempts",
		attempt(failedTask, 3, "running", ended("failed")),
		attempt(succeededTask, 3, "running", ended("succeeded")),
		attempt(assignedTask, 1, "assigned", nil),
		attempt(runningTask, 2, "running", nil),
		attempt(secondOnDevice, 2, "running", object{"assigned_at": now.Add(-5 * time.Minute)}),
		attempt(onGoneDevice, 99, "claimed", nil),
		attempt(cancelAsked, 3, "running", object{"cancel_requested_at": now.Add(-time.Minute)}),
		attempt(noTriesLeft, 4, "running", nil))
}

func populateFleet(t *testing.T, d testDB, pool *sql.DB, now time.Time) {
	d.insert(t, pool, "pools", object{"id": labPool, "name": "lab", "created_at": now, "paused": false})
	for i, id := range []string{hostA, hostB} {
		d.insert(t, pool, "hosts", object{
			"id": id, "name": fmt.Sprintf("host-%d", i), "pool_id": []string{defaultPool, labPool}[i], "public_key": blob(strings.Repeat("k", 32)),
			"state": "online", "last_seen_at": now, "enrolled_at": now,
		})
	}
	d.insert(t, pool, "enrolment_tokens", object{
		"id": attemptID(900), "token_hash": blob("hash"), "pool_id": defaultPool, "pattern": "*", "created_at": now, "expires_at": now,
	})
	d.insert(t, pool, "plugins", object{"name": "demo.work", "version": "1.0.0", "enabled": true, "schema": jsonText(`{}`), "created_at": now})
	for _, host := range []string{hostA, hostB} {
		d.insert(t, pool, "host_plugins", object{"host_id": host, "name": "demo.work", "version": "1.0.0"})
	}
	for n := 1; n <= 5; n++ {
		host, in := hostA, defaultPool
		if n == 5 {
			host, in = hostB, labPool
		}
		d.insert(t, pool, "devices", object{
			"id": deviceID(n), "host_id": host, "pool_id": in, "driver": "process", "hardware_id": fmt.Sprintf("slot-%d", n), "hardware_unique": false,
			"name": fmt.Sprintf("slot-%d", n), "labels": jsonText(`{"os": "linux"}`), "created_at": now, "updated_at": now,
		})
	}
	need := berth.Requirement{Selector: "os=linux", Plugin: "demo.work"}
	for _, in := range []string{defaultPool, labPool} {
		d.insert(t, pool, "task_classes", object{
			"class_key": eligibility.ClassKey(berth.PoolID(in), need), "pool_id": in, "selector": need.Selector, "plugin": need.Plugin, "version_range": "",
		})
	}
	d.insert(t, pool, "users", object{"id": attemptID(901), "name": "ada", "roles": list{"admin"}, "password_hash": "h", "created_at": now})
	d.insert(t, pool, "signing_keys", object{"id": "k1", "algorithm": "EdDSA", "public_key": blob("p"), "private_key": blob("s"), "created_at": now})
	d.insert(t, pool, "audit_events", object{"at": now, "actor_kind": "user", "actor_id": "x", "action": "pool.created", "target_kind": "pool", "target_id": labPool})
	d.insert(t, pool, "artifacts", object{
		"attempt_id": attemptID(succeededTask), "name": "page.png", "task_id": taskID(succeededTask), "number": 1, "class": "screenshot",
		"content_type": "image/png", "size": 3, "sha256": blob("d"), "blob_key": "artifacts/x", "created_at": now,
	})
}

func taskRow(n int, now time.Time) object {
	row := object{
		"id": taskID(n), "pool_id": defaultPool, "class_id": 1, "rank": 10, "name": fmt.Sprintf("task %d", n), "tags": list{"a", "b"},
		"payload": jsonText(`{"n":1}`), "priority": 3, "run_timeout_us": int64(time.Hour / time.Microsecond),
		"retry_on": list{"failed", "infra_failed", "lost", "timed_out"}, "backoff_initial_us": 0, "backoff_factor": 2.0, "backoff_max_us": 0,
		"backoff_jitter": 0.0, "retry_unsafe": false, "max_attempts": 3, "budget": 3, "submitter_kind": "user", "submitter_id": attemptID(901),
		"correlation_id": fmt.Sprintf("c-%d", n), "submitted_at": now.Add(-time.Hour),
	}
	switch n {
	case succeededTask:
		row["final_state"], row["final_reason"], row["finished_at"], row["result"] = "succeeded", "succeeded", now, jsonText(`{"ok":true}`)
	case deadTask:
		row["final_state"], row["final_reason"], row["finished_at"] = "dead_letter", "queue_timeout", now
	case noTriesLeft:
		row["max_attempts"], row["budget"] = 1, 1
	case labTask:
		row["pool_id"], row["class_id"] = labPool, 2
	}
	return row
}

// contents reads whole tables, restricted to columns when given.
func (d testDB) contents(t *testing.T, columns map[string][]string) map[string][][]string {
	t.Helper()
	out := map[string][][]string{}
	for table, names := range columns {
		quoted := make([]string, len(names))
		for i, name := range names {
			quoted[i] = "CAST(" + name + " AS text)"
		}
		out[table] = d.rows(t, "SELECT "+strings.Join(quoted, ", ")+" FROM "+table)
		slices.SortFunc(out[table], slices.Compare)
	}
	return out
}

// columns lists every table with its columns.
func (d testDB) columns(t *testing.T) map[string][]string {
	t.Helper()
	query := `SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2`
	if d.dialect == SQLite {
		query = `SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY 1, 2`
	}
	out := map[string][]string{}
	for _, row := range d.rows(t, query) {
		if row[0] != "schema_migrations" {
			out[row[0]] = append(out[row[0]], row[1])
		}
	}
	return out
}

func TestPopulatedUpgradeKeepsEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		ctx, now := t.Context(), time.Now().Truncate(time.Microsecond)
		if err := UpTo(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		populate(t, d, now)
		columns := d.columns(t)
		before := d.contents(t, columns)
		if len(before["attempts"]) != 8 || len(before["tasks"]) != labTask {
			t.Fatalf("populated %d attempts and %d tasks", len(before["attempts"]), len(before["tasks"]))
		}

		if err := Up(ctx, d.target); err != nil {
			t.Fatal(err)
		}
		upgraded := d.contents(t, columns)
		for table := range columns {
			if table != "attempts" && table != "queue" && table != "audit_events" {
				if diff := cmp.Diff(before[table], upgraded[table]); diff != "" {
					t.Errorf("%s changed:\n%s", table, diff)
				}
			}
		}
		d.checkLeases(t)

		if err := Down(ctx, d.target, int(Latest())-1); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(upgraded, d.contents(t, columns)); diff != "" {
			t.Errorf("the way down changed:\n%s", diff)
		}
		if diff := cmp.Diff(columns, d.columns(t)); diff != "" {
			t.Errorf("columns after the way down:\n%s", diff)
		}
		if err := Up(ctx, d.target); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(upgraded, d.contents(t, columns)); diff != "" {
			t.Errorf("the second way up changed:\n%s", diff)
		}
		d.checkLeases(t)
		d.runEverything(t)
	})
}

// A live attempt that can hold no lease ends as its task's policy says.
func TestAttemptsWithoutALeaseEndByPolicy(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		ctx, now := t.Context(), time.Now().Truncate(time.Microsecond)
		if err := UpTo(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		cases := []struct {
			task, attempt object
			place, reason string
		}{
			{nil, nil, "queued", ""},
			{nil, object{"cancel_requested_at": now}, "cancelled", "cancelled"},
			{object{"retry_unsafe": true}, nil, "dead_letter", "not_retry_safe"},
			{object{"retry_unsafe": true}, object{"state": "claimed"}, "queued", ""},
			{object{"retry_on": list{"failed"}}, nil, "dead_letter", "not_retryable"},
			{object{"max_attempts": 1, "budget": 1}, nil, "dead_letter", "no_tries_left"},
		}
		pool := d.open(t)
		populateFleet(t, d, pool, now)
		for i, c := range cases {
			task := taskRow(queuedTask, now)
			task["id"] = taskID(100 + i)
			maps.Copy(task, c.task)
			attempt := object{
				"id": attemptID(100 + i), "task_id": taskID(100 + i), "number": 1, "device_id": deviceID(90 + i), "host_id": hostA,
				"state": "running", "plugin_version": "1.0.0", "assigned_at": now,
			}
			maps.Copy(attempt, c.attempt)
			d.insert(t, pool, "tasks", task)
			d.insert(t, pool, "attempts", attempt)
		}
		pool.Close()
		if err := Up(ctx, d.target); err != nil {
			t.Fatal(err)
		}
		for i, c := range cases {
			got := d.rows(t, `SELECT COALESCE(final_state, CASE WHEN EXISTS (SELECT 1 FROM queue q WHERE q.task_id = t.id AND q.number = 2) THEN 'queued' ELSE 'nowhere' END),
				COALESCE(final_reason, ''), (SELECT CAST(count(*) AS text) FROM attempts a WHERE a.task_id = t.id AND a.outcome = 'lost'),
				(SELECT CAST(count(*) AS text) FROM audit_events e WHERE e.target_id = CAST(t.id AS text) AND e.outcome = 'lost')
				FROM tasks t WHERE CAST(id AS text) = '`+taskID(100+i)+`'`)
			if diff := cmp.Diff([][]string{{c.place, c.reason, "1", "1"}}, got); diff != "" {
				t.Errorf("case %d:\n%s", i, diff)
			}
		}
	})
}

// checkLeases: every device has its row with the bit down; a live attempt holds
// its device with an expired lease; those that could not are queued again.
func (d testDB) checkLeases(t *testing.T) {
	t.Helper()
	got := d.rows(t, `SELECT CAST(device_id AS text), CAST(placeable AS text), CAST(fence AS text), COALESCE(CAST(attempt_id AS text), ''),
		CASE WHEN expires_at IS NULL THEN 'free' ELSE 'held' END FROM leases ORDER BY 1`)
	want := [][]string{
		{deviceID(1), "0", "1", attemptID(assignedTask), "held"},
		{deviceID(2), "0", "1", attemptID(runningTask), "held"},
		{deviceID(3), "0", "1", attemptID(cancelAsked), "held"},
		{deviceID(4), "0", "1", attemptID(noTriesLeft), "held"},
		{deviceID(5), "0", "1", "", "free"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("leases:\n%s", diff)
	}
	ended := d.rows(t, `SELECT CAST(task_id AS text), outcome, CAST(number AS text) FROM attempts WHERE reason = 'host_lost_attempt' ORDER BY 1`)
	if diff := cmp.Diff([][]string{{taskID(secondOnDevice), "lost", "1"}, {taskID(onGoneDevice), "lost", "1"}}, ended); diff != "" {
		t.Errorf("attempts without a lease:\n%s", diff)
	}
	tokens := d.rows(t, `SELECT CAST(task_id AS text), CAST(number AS text) FROM queue ORDER BY 1`)
	if diff := cmp.Diff([][]string{
		{taskID(queuedTask), "1"}, {taskID(secondOnDevice), "2"}, {taskID(onGoneDevice), "2"}, {taskID(labTask), "1"},
	}, tokens); diff != "" {
		t.Errorf("queue:\n%s", diff)
	}
	places := d.rows(t, `SELECT CAST(id AS text) FROM tasks t WHERE final_state IS NULL AND 1 <> (SELECT count(*) FROM queue q WHERE q.task_id = t.id)
		+ (SELECT count(*) FROM delayed q WHERE q.task_id = t.id) + (SELECT count(*) FROM attempts a WHERE a.task_id = t.id AND ended_at IS NULL)`)
	if len(places) > 0 {
		t.Errorf("not in exactly one place: %v", places)
	}
}
