package schema

import (
	"context"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/pgtest"
)

// worker is a daemon's transaction beside a migration. It never gives up first.
func worker(t *testing.T, target string, statements ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, s := range append([]string{"SET deadlock_timeout = '1h'", "BEGIN"}, statements...) {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	return conn
}

// waits returns true when a migration waits for a lock, false when it has ended.
func waits(t *testing.T, d testDB, up <-chan struct{}) bool {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if len(d.rows(t, `SELECT pid FROM pg_stat_activity
			WHERE application_name = 'berth-migrate' AND wait_event_type = 'Lock' AND wait_event = 'relation' AND datname = current_database()`)) > 0 {
			return true
		}
		select {
		case <-up:
			return false
		case <-tick.C:
		}
	}
}

// TestDaemonsWorkOnWhileTheSchemaChanges: a transaction that goes through the
// tables in the order of locks (pkg/store), wherever it has come to, and a
// migration do not wait for each other.
func TestDaemonsWorkOnWhileTheSchemaChanges(t *testing.T) {
	const audited = "INSERT INTO audit_events (at, actor_kind, actor_id, action, target_kind, target_id) VALUES (now(), 'system', 'x', 'y', 'z', 'z')"
	ways := [][]string{
		{
			"UPDATE attempts SET number = number WHERE false", "UPDATE tasks SET name = name WHERE false", "UPDATE devices SET name = name WHERE false",
			"UPDATE hosts SET name = name WHERE false", audited,
		},
		{"UPDATE users SET name = name WHERE false", "UPDATE refresh_tokens SET generation = generation WHERE false", audited},
	}
	for version := uint(4); version <= Latest(); version++ { // those before are in the field
		waited := false
		for _, way := range ways {
			for n := range way {
				waited = workBeside(t, version, way[:n+1], append(slices.Clone(way[n+1:]), "COMMIT")) || waited
			}
		}
		if !waited {
			t.Errorf("version %d waited for nothing: it proves nothing", version)
		}
	}
}

// workBeside begins a migration after some statements of a transaction, and goes
// on with the others when it waits or has ended.
func workBeside(t *testing.T, version uint, before, after []string) (waited bool) {
	t.Helper()
	d := testDB{dialect: Postgres, target: pgtest.NewDB(t, pgtest.Template{})}
	if err := UpTo(t.Context(), d.target, version-1); err != nil {
		t.Fatal(err)
	}
	conn := worker(t, d.target, before...)
	var err error
	up := make(chan struct{})
	go func() {
		defer close(up)
		err = UpTo(t.Context(), d.target, version)
	}()
	waited = waits(t, d, up)
	for _, s := range after {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Errorf("version %d: the work beside it: %s: %v", version, s, err)
		}
	}
	if <-up; err != nil {
		t.Errorf("version %d: %v", version, err)
	}
	if got := d.rows(t, `SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()`)[0][0]; got != "0" {
		t.Errorf("version %d after %q: %s deadlocks", version, before, got)
	}
	return waited
}

// TestAMigrationThatCollidesIsBegunAgain: one that Postgres ended because of a
// deadlock is applied when the work that it collided with is through.
func TestAMigrationThatCollidesIsBegunAgain(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	files := fstest.MapFS{
		"migrations/postgres/0001_a.up.sql":   file("CREATE TABLE a (x integer); CREATE TABLE b (x integer);"),
		"migrations/postgres/0001_a.down.sql": file("DROP TABLE a; DROP TABLE b;"),
		"migrations/postgres/0002_b.up.sql":   file("ALTER TABLE a ADD y integer; ALTER TABLE b ADD y integer;"),
		"migrations/postgres/0002_b.down.sql": file("ALTER TABLE a DROP y; ALTER TABLE b DROP y;"),
	}
	d := testDB{dialect: Postgres, target: pgtest.NewDB(t, pgtest.Template{})}
	if err := upTo(t.Context(), files, d.target, 1); err != nil {
		t.Fatal(err)
	}
	conn := worker(t, d.target, "INSERT INTO b VALUES (1)")
	var err error
	up := make(chan struct{})
	go func() {
		defer close(up)
		err = upTo(t.Context(), files, d.target, 2)
	}()
	if !waits(t, d, up) {
		t.Fatalf("it did not wait: %v", err)
	}
	for _, s := range []string{"INSERT INTO a VALUES (1)", "COMMIT"} { // the first until the migration was ended
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if <-up; err != nil {
		t.Fatal(err)
	}
	if got := status(t, d.target); got.Version != 2 || got.Dirty {
		t.Errorf("%+v", got)
	}
}
