package schema

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestIdentityUpgradeKeepsEverything: a populated 0003 becomes 0004 and back,
// with every row as it was; what 0004 adds starts at its zero, at the second way
// up too; and the release before goes on writing its rows into the new schema.
func TestIdentityUpgradeKeepsEverything(t *testing.T) {
	onBoth(t, func(t *testing.T, d testDB) {
		ctx, now := t.Context(), time.Now().Truncate(time.Microsecond)
		if err := UpTo(ctx, d.target, 1); err != nil {
			t.Fatal(err)
		}
		populate(t, d, now)
		if err := UpTo(ctx, d.target, 3); err != nil {
			t.Fatal(err)
		}
		d.exec(t, `UPDATE tasks SET inputs = '[{"name":"a","digest":"00","size":1}]' WHERE final_state = 'succeeded'`)
		columns := d.columns(t)
		before := d.contents(t, columns)
		zero := func() {
			t.Helper()
			if diff := cmp.Diff(before, d.contents(t, columns)); diff != "" {
				t.Errorf("the upgrade changed:\n%s", diff)
			}
			for query, want := range map[string]string{
				`SELECT CAST(count(*) AS text) FROM users WHERE version = 1 AND issuer IS NULL AND subject IS NULL`:                                                             "1",
				`SELECT CAST(count(*) AS text) FROM hosts WHERE next_public_key IS NULL AND key_changed_at IS NULL AND key_rotation_requested_at IS NULL`:                       "2",
				`SELECT CAST(count(*) AS text) FROM audit_events WHERE client <> '' OR credential <> '' OR CAST(before AS text) IS NOT NULL OR CAST(after AS text) IS NOT NULL`: "0",
				`SELECT CAST(count(*) AS text) FROM tasks WHERE CAST(secrets AS text) IN ('{}', '[]')`:                                                                          "12",
				`SELECT CAST((SELECT count(*) FROM api_keys) + (SELECT count(*) FROM secrets) + (SELECT count(*) FROM secret_grants) AS text)`:                                  "0",
			} {
				if got := d.rows(t, query); got[0][0] != want {
					t.Errorf("%s: %s, should be %s", query, got[0][0], want)
				}
			}
		}
		if err := UpTo(ctx, d.target, 4); err != nil {
			t.Fatal(err)
		}
		zero()

		// What the new release writes, the way down drops, and only that.
		d.exec(t, `UPDATE users SET version = 7`)
		d.exec(t, `UPDATE hosts SET key_rotation_requested_at = enrolled_at, next_public_key = public_key`)
		pool := d.open(t)
		defer pool.Close()
		d.insert(t, pool, "secrets", object{"name": "a", "sealed": blob("s"), "version": 1, "created_at": now, "updated_at": now})
		d.insert(t, pool, "secret_grants", object{"secret": "a", "kind": "role", "grantee": "submitter"})
		d.insert(t, pool, "api_keys", object{
			"id": attemptID(960), "user_id": attemptID(901), "name": "ci", "prefix": "p", "secret_hash": blob("h"), "roles": list{"viewer"}, "created_at": now,
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
		if err := UpTo(ctx, d.target, 4); err != nil {
			t.Fatal(err)
		}
		zero()

		// A process of the release before names the columns that it knows.
		d.insert(t, pool, "users", object{"id": attemptID(961), "name": "late", "roles": list{"viewer"}, "password_hash": "h", "created_at": now})
		d.insert(t, pool, "audit_events", object{"at": now, "actor_kind": "user", "actor_id": "x", "action": "user.created", "target_kind": "user", "target_id": attemptID(961)})
		row := taskRow(queuedTask, now)
		row["id"] = taskID(960)
		d.insert(t, pool, "tasks", row)
		d.insert(t, pool, "queue", object{"task_id": taskID(960), "class_id": 1, "rank": 10, "number": 1})
		if err := Up(ctx, d.target); err != nil { // this program works on the newest alone
			t.Fatal(err)
		}
		d.runEverything(t)
	})
}
