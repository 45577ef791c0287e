package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/pgtest"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/mattn/go-sqlite3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testDB is an empty database of one dialect to break.
type testDB struct {
	dialect Dialect
	target  string
}

// onBoth runs a test on an empty database of each dialect.
func onBoth(t *testing.T, test func(t *testing.T, db testDB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		test(t, testDB{dialect: SQLite, target: "sqlite://" + filepath.Join(t.TempDir(), "berth 1%.db")})
	})
	t.Run("postgres", func(t *testing.T) {
		test(t, testDB{dialect: Postgres, target: pgtest.NewDB(t, pgtest.Template{})})
	})
}

func (d testDB) open(t *testing.T) *sql.DB {
	t.Helper()
	driver, dsn := "pgx", d.target
	if d.dialect == SQLite {
		driver, dsn = "sqlite3", sqliteEngine{path: strings.TrimPrefix(d.target, "sqlite://")}.dsn("rw")
	}
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

func (d testDB) exec(t *testing.T, statements ...string) {
	t.Helper()
	pool := d.open(t)
	defer pool.Close()
	for _, s := range statements {
		if _, err := pool.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// rows returns a query's rows as text.
func (d testDB) rows(t *testing.T, query string) [][]string {
	t.Helper()
	pool := d.open(t)
	defer pool.Close()
	rows, err := pool.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	columns, _ := rows.Columns()
	var out [][]string
	for rows.Next() {
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		line := make([]string, len(columns))
		for i, v := range values {
			line[i] = v.String
		}
		out = append(out, line)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// catalog describes every object of the schema but golang-migrate's books.
func (d testDB) catalog(t *testing.T) [][]string {
	if d.dialect == SQLite {
		return d.rows(t, `SELECT type, name, tbl_name, sql FROM sqlite_master
			WHERE tbl_name <> 'schema_migrations' AND name NOT LIKE 'sqlite_%' ORDER BY 1, 2`)
	}
	out := d.rows(t, `SELECT c.relkind::text, c.relname, COALESCE(array_to_string(c.reloptions, ','), ''), ''
		FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE 'schema_migrations%' ORDER BY 1, 2`)
	out = append(out, d.rows(t, `SELECT table_name, column_name, data_type, is_nullable || COALESCE(column_default, '')
		FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'schema_migrations' ORDER BY 1, 2`)...)
	out = append(out, d.rows(t, `SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), '' FROM pg_constraint
		WHERE connamespace = 'public'::regnamespace AND conrelid <> COALESCE(to_regclass('schema_migrations'), 0) ORDER BY 1, 2`)...)
	out = append(out, d.rows(t, `SELECT indexname, indexdef, '', '' FROM pg_indexes
		WHERE schemaname = 'public' AND tablename <> 'schema_migrations' ORDER BY 1`)...)
	return append(out, d.rows(t, `SELECT proname, pg_get_functiondef(oid), '', '' FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1`)...)
}

func status(t *testing.T, target string) Status {
	t.Helper()
	s, err := ReadStatus(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestUpDownUpLeavesNothingBehind(t *testing.T) {
	onBoth(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		if got, want := status(t, db.target), (Status{Latest: Latest(), Code: CodeBehind}); got != want {
			t.Fatalf("status of nothing: %+v, want %+v", got, want)
		}
		if err := Up(ctx, db.target); err != nil {
			t.Fatal(err)
		}
		if got, want := status(t, db.target), (Status{Version: Latest(), Latest: Latest()}); got != want {
			t.Fatalf("status after up: %+v, want %+v", got, want)
		}
		first := db.catalog(t)
		if len(first) < 30 {
			t.Fatalf("only %d objects", len(first))
		}
		if err := Up(ctx, db.target); err != nil {
			t.Fatalf("up again: %v", err)
		}
		for v := Latest(); v > 0; v-- {
			if err := Down(ctx, db.target, 1); err != nil {
				t.Fatal(err)
			}
			if got := status(t, db.target).Version; got != v-1 {
				t.Fatalf("version %d after a step down from %d", got, v)
			}
		}
		if err := Down(ctx, db.target, 5); err != nil {
			t.Fatalf("down of nothing: %v", err)
		}
		if left := db.catalog(t); len(left) > 0 {
			t.Fatalf("left behind: %q", left)
		}
		if err := Up(ctx, db.target); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, db.catalog(t)); diff != "" {
			t.Fatalf("the second up differs:\n%s", diff)
		}
		if err := Down(ctx, db.target, int(Latest())+3); err != nil {
			t.Fatal(err)
		}
		if left := db.catalog(t); len(left) > 0 {
			t.Fatalf("left behind: %q", left)
		}
	})
}

func TestDialectsAgree(t *testing.T) {
	var all [2][]uint
	for i, d := range []Dialect{Postgres, SQLite} {
		v, err := versions(d)
		if err != nil {
			t.Fatal(err)
		}
		all[i] = v
	}
	if diff := cmp.Diff(all[0], all[1]); diff != "" {
		t.Fatal(diff)
	}
	for i, v := range all[0] {
		if v != uint(i)+1 {
			t.Fatalf("migrations are numbered %v: leave no gap, recovery counts on it", all[0])
		}
	}
	if Latest() != uint(len(all[0])) || Latest() == 0 {
		t.Fatalf("Latest is %d", Latest())
	}
	if Digest(Postgres) == Digest(SQLite) || len(Digest(SQLite)) != 64 {
		t.Fatal("the digests do not tell the dialects apart")
	}
}

func TestManyMigratorsAtOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, db testDB) {
		errs := make([]error, 6)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() { errs[i] = Up(t.Context(), db.target) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if got := status(t, db.target); got.Code != CodeOK {
			t.Fatalf("%+v", got)
		}
	})
}

func TestWaitForTheLockEndsWithTheContext(t *testing.T) {
	onBoth(t, func(t *testing.T, db testDB) {
		_, e, err := open(db.target)
		if err != nil {
			t.Fatal(err)
		}
		unlock, err := e.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := Up(ctx, db.target); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("up under a foreign lock: %v", err)
		}
		unlock()
		if err := Up(t.Context(), db.target); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDirtyAndAheadAreRefusedWithTheRemedy(t *testing.T) {
	onBoth(t, func(t *testing.T, db testDB) {
		ctx := t.Context()
		if err := Up(ctx, db.target); err != nil {
			t.Fatal(err)
		}
		before := db.catalog(t)
		db.exec(t, "UPDATE schema_migrations SET version = 999")
		if got := status(t, db.target).Code; got != CodeAhead {
			t.Fatalf("code %q", got)
		}
		for _, err := range []error{Up(ctx, db.target), Down(ctx, db.target, 1)} {
			if !errors.Is(err, ErrAhead) || !strings.Contains(err.Error(), "999") {
				t.Fatalf("ahead: %v", err)
			}
		}
		db.exec(t, fmt.Sprintf("UPDATE schema_migrations SET version = %d, dirty = true", Latest()))
		if got := status(t, db.target).Code; got != CodeDirty {
			t.Fatalf("code %q", got)
		}
		for _, err := range []error{Up(ctx, db.target), Down(ctx, db.target, 1)} {
			if !errors.Is(err, ErrDirty) || !strings.Contains(err.Error(), "berth migrate force") {
				t.Fatalf("dirty: %v", err)
			}
		}
		if err := Force(ctx, db.target, Latest()); err != nil {
			t.Fatal(err)
		}
		if err := Up(ctx, db.target); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, db.catalog(t)); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestFailedMigrationKeepsTheVersionBefore(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	onBoth(t, func(t *testing.T, db testDB) {
		files := fstest.MapFS{}
		folder := db.dialect.folder() + "/"
		files[folder+"0001_a.up.sql"] = file("CREATE TABLE a (x integer);")
		files[folder+"0001_a.down.sql"] = file("DROP TABLE a;")
		files[folder+"0002_b.up.sql"] = file("CREATE TABLE b (x integer);\nINSERT INTO nowhere VALUES (1);")
		files[folder+"0002_b.down.sql"] = file("DROP TABLE b;")
		err := upTo(t.Context(), files, db.target, 2)
		if err == nil || !strings.Contains(err.Error(), "nowhere") || strings.Contains(err.Error(), "CREATE TABLE") {
			t.Fatalf("the error is %v", err)
		}
		if got := status(t, db.target); got.Version != 1 || got.Dirty {
			t.Fatalf("%+v after a failed migration", got)
		}
		files[folder+"0002_b.up.sql"] = file("CREATE TABLE b (x integer);")
		if err := upTo(t.Context(), files, db.target, 2); err != nil {
			t.Fatalf("after the repair: %v", err)
		}
	})
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		version uint
		dirty   bool
		want    Code
	}{{0, false, CodeBehind}, {1, false, CodeBehind}, {2, false, CodeOK}, {3, false, CodeAhead}, {2, true, CodeDirty}, {3, true, CodeDirty}} {
		if got := Check(c.version, c.dirty, 2); got != c.want {
			t.Errorf("Check(%d, %v, 2) = %q, want %q", c.version, c.dirty, got, c.want)
		}
	}
}

func TestParseTarget(t *testing.T) {
	for target, want := range map[string]string{
		"postgres://u:p@h/d": "postgres://u:p@h/d", "postgresql://h:1/d": "postgresql://h:1/d",
		"sqlite:///a/b.db": "/a/b.db", "sqlite://b.db": "b.db", "sqlite3://./x": "./x", "b.db": "b.db", "/a b/c.db": "/a b/c.db",
	} {
		if _, got, err := ParseTarget(target); err != nil || got != want {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
	for _, target := range []string{
		"", ":memory:", "sqlite://:memory:", "file:x.db", "mysql://u:hunter2@h/d", "postgres://u:hunter2@h:port/d",
		"postgres:///", "sqlite://", "sqlite:///tmp/", "sqlite://x?mode=memory",
	} {
		_, _, err := ParseTarget(target)
		if !errors.Is(err, ErrTarget) {
			t.Errorf("%q: %v", target, err)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error holds the password: %v", target, err)
		}
	}
}

func TestErrorsHoldNoPassword(t *testing.T) {
	const password = "hunter2-secret"
	for _, target := range []string{
		"postgres://berth:" + password + "@127.0.0.1:1/berth",
		"postgres://berth:" + password + "@127.0.0.1:1/berth?sslmode=nonsense",
		"postgres://berth:" + password + "@nowhere.invalid/berth?pool_x=" + password,
	} {
		for name, call := range map[string]func() error{
			"up":     func() error { return Up(t.Context(), target) },
			"status": func() error { _, err := ReadStatus(t.Context(), target); return err },
		} {
			err := call()
			if err == nil || strings.Contains(err.Error(), password) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	dsn := pgtest.NewDB(t, pgtest.Template{})
	wrong := strings.Replace(dsn, "@", password+"@", 1)
	if err := Up(t.Context(), wrong); err == nil || strings.Contains(err.Error(), password) {
		t.Errorf("wrong password: %v", err)
	}
}
