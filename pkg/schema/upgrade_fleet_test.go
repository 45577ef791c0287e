package schema

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestFleetUpgradeKeepsEverything: a populated 0002 becomes 0003 and back, with
// every row as it was; what 0003 adds starts at its zero, at the second way up
// too; and the release before goes on writing its rows into the new schema.
func TestFleetUpgradeKeepsEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		ctx, now := t.Context(), time.Now().Truncate(time.Microsecond)
		if err := UpTo(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		populate(t, d, now)
		if err := UpTo(ctx, d.target, 2); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE hosts SET epoch = 7, instance = 'old', draining = true WHERE name = 'host-0'`)
		d.exec(t, `UPDATE devices SET health = 'quarantined', admin_state = 'cordoned', unclean = true, admin_labels = '{"rack": "7"}' WHERE name = 'slot-1'`)
		d.exec(t, `UPDATE leases SET fence = 41, placeable = 1 WHERE attempt_id IS NULL`)
		columns := d.columns(t)
		before := d.contents(t, columns)
		zero := func() {
			t.Helper()
			if diff := cmp.Diff(before, d.contents(t, columns)); diff != "" {
				t.Errorf("the upgrade changed:\n%s", diff)
			}
			for query, want := range map[string]string{
				`SELECT CAST(count(*) AS text) FROM hosts WHERE drain_requested_at IS NULL AND protocol = 1`:                                      "2",
				`SELECT CAST(count(*) AS text) FROM devices WHERE failures = 0 AND good_probes = 0 AND strikes = 0 AND quarantined_until IS NULL`: "5",
				`SELECT CAST(count(*) AS text) FROM devices WHERE admin_note = '' AND conflict_host_id IS NULL`:                                   "5",
				`SELECT CAST(count(*) AS text) FROM tasks WHERE CAST(inputs AS text) = '[]'`:                                                      "12",
				`SELECT CAST(count(*) AS text) FROM marks WHERE at IS NULL`:                                                                       "2",
			} {
				if got := d.rows(t, query); got[0][0] != want {
					t.Errorf("%s: %s, should be %s", query, got[0][0], want)
				}
			}
		}
		if err := UpTo(ctx, d.target, 3); err != nil {
			t.Fatal(err)
		}
		zero()

		// What the new release writes, the way down drops, and only that.
		d.exec(t, `UPDATE hosts SET protocol = 2, drain_requested_at = last_seen_at`)
		d.exec(t, `UPDATE devices SET failures = 3, good_probes = 1, strikes = 2, quarantined_until = created_at, admin_note = 'glass', conflict_host_id = '`+hostB+`' WHERE name = 'slot-1'`)
		d.exec(t, `UPDATE tasks SET inputs = '[{"name":"a","digest":"00","size":1}]'`)
		if err := Down(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, d.contents(t, columns)); diff != "" {
			t.Errorf("the way down changed:\n%s", diff)
		}
		if diff := cmp.Diff(columns, d.columns(t)); diff != "" {
			t.Errorf("columns after the way down:\n%s", diff)
		}
		if err := UpTo(ctx, d.target, 3); err != nil {
			t.Fatal(err)
		}
		zero()

		// A process of the release before names the columns that it knows.
		pool := d.open(t)
		defer pool.Close()
		d.insert(t, pool, "hosts", object{
			"id": attemptID(950), "name": "late", "pool_id": defaultPool, "public_key": blob("k"), "state": "enrolled", "enrolled_at": now,
		})
		d.insert(t, pool, "devices", object{
			"id": deviceID(950), "host_id": attemptID(950), "pool_id": defaultPool, "driver": "process", "hardware_id": "s", "hardware_unique": true,
			"name": "s", "labels": jsonText(`{}`), "created_at": now, "updated_at": now,
		})
		d.insert(t, pool, "leases", object{"device_id": deviceID(950), "host_id": attemptID(950), "pool_id": defaultPool})
		row := taskRow(queuedTask, now)
		row["id"] = taskID(950)
		d.insert(t, pool, "tasks", row)
		d.insert(t, pool, "queue", object{"task_id": taskID(950), "class_id": 1, "rank": 10, "number": 1})
		d.exec(t, `UPDATE devices SET admin_state = 'active', health = 'good' WHERE name = 'slot-1'`)
		if err := Up(ctx, d.target); err != nil {
			t.Fatal(err)
		}
		d.runEverything(t)
	})
}
