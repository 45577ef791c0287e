package schema

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/pkg/berth"
)

// TestOperationsUpgradeKeepsEverything: a populated 0004 becomes 0005 and back,
// with every row as it was; what 0005 adds starts at its zero, at the second way
// up too; and the release before goes on writing its rows into the new schema.
func TestOperationsUpgradeKeepsEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		ctx, now := t.Context(), time.Now().Truncate(time.Microsecond)
		if err := UpTo(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		populate(t, d, now)
		if err := UpTo(ctx, d.target, 4); err != nil {
			t.Fatal(err)
		}
		columns := d.columns(t)
		before := d.contents(t, columns)
		zero := func() {
			t.Helper()
			if diff := cmp.Diff(before, d.contents(t, columns)); diff != "" {
				t.Errorf("the upgrade changed:\n%s", diff)
			}
			for query, want := range map[string]string{
				`SELECT CAST(count(*) AS text) FROM tasks WHERE schedule_id IS NULL`:                                                                          "12",
				`SELECT CAST(count(*) AS text) FROM tasks WHERE cause_key = '` + string(berth.UnknownCause) + `' AND final_state = 'dead_letter'`:             "1",
				`SELECT CAST(count(*) AS text) FROM tasks WHERE (cause_key IS NULL) = (COALESCE(final_state, '') = 'dead_letter')`:                            "0",
				`SELECT CAST(count(*) AS text) FROM causes WHERE cause_key = '` + string(berth.UnknownCause) + `'`:                                            "1",
				`SELECT CAST(count(*) AS text) FROM hosts WHERE drain_deadline IS NULL AND note = ''`:                                                         "2",
				`SELECT CAST(count(*) AS text) FROM devices WHERE maintenance_until IS NOT NULL`:                                                              "0",
				`SELECT CAST(count(*) AS text) FROM plugins WHERE revision <> 1 OR CAST(defaults AS text) <> '{}' OR CAST(result_schema AS text) IS NOT NULL`: "0",
				`SELECT CAST(count(*) AS text) FROM plugins WHERE enabled AND decided_at IS NULL`:                                                             "0",
				`SELECT CAST((SELECT count(*) FROM schedules) + (SELECT count(*) FROM bulk_jobs) + (SELECT count(*) FROM webhooks) AS text)`:                  "0",
			} {
				if got := d.rows(t, query); got[0][0] != want {
					t.Errorf("%s: %s, should be %s", query, got[0][0], want)
				}
			}
		}
		if err := UpTo(ctx, d.target, 5); err != nil {
			t.Fatal(err)
		}
		zero()

		// What the new release writes, the way down drops, and only that.
		d.exec(t, `UPDATE hosts SET drain_deadline = enrolled_at, note = 'n'`)
		d.exec(t, `UPDATE plugins SET note = 'n', revision = 7`)
		d.exec(t, `UPDATE tasks SET cause_key = 'k' WHERE final_state = 'dead_letter'`)
		pool := d.open(t)
		defer pool.Close()
		d.insert(t, pool, "schedules", object{
			"id": attemptID(962), "name": "nightly", "pool_id": "00000000-0000-7000-8000-000000000001", "cron": "0 2 * * *", "time_zone": "UTC", "template": "{}",
			"catch_up": "latest", "catch_up_window_us": 1, "catch_up_limit": 1, "overlap": "skip", "owner_kind": "user", "owner_id": "u",
			"owner_roles": list{"operator"}, "decided_to": now, "created_at": now, "updated_at": now,
		})
		d.insert(t, pool, "fires", object{"schedule_id": attemptID(962), "revision": 1, "slot_key": "k", "slot_at": now, "last_slot_at": now, "decided_at": now, "reason": "overlap"})
		d.insert(t, pool, "bulk_jobs", object{
			"id": attemptID(963), "act": "cancel", "filter": "{}", "params": "{}", "state": "running", "owner_kind": "user", "owner_id": "u",
			"upper": attemptID(963), "created_at": now, "updated_at": now,
		})
		if err := Down(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, d.contents(t, columns)); diff != "" {
			t.Errorf("the way down changed:\n%s", diff)
		}
		if diff := cmp.Diff(columns, d.columns(t)); diff != "" {
			t.Errorf("columns after the way down:\n%s", diff)
		}
		if err := UpTo(ctx, d.target, 5); err != nil {
			t.Fatal(err)
		}
		zero()

		// A process of the release before names the columns that it knows.
		d.insert(t, pool, "plugins", object{"name": "late", "version": "1.0.0", "enabled": false, "created_at": now})
		row := taskRow(queuedTask, now)
		row["id"] = taskID(960)
		d.insert(t, pool, "tasks", row)
		d.insert(t, pool, "queue", object{"task_id": taskID(960), "class_id": 1, "rank": 10, "number": 1})
		d.runEverything(t)
	})
}
