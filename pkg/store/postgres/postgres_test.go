package postgres_test

import (
	"context"
	"flag"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/pgtest/runtimedb"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

// TestMain lets more tests run at once than there are processors: in races most
// of their time is waiting for locks.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// newDB clones a migrated database.
func newDB(tb testing.TB) string {
	tb.Helper()
	return pgtest.NewDB(tb, template())
}

// template is one that every store here opens as the daemons' role, so that what
// passes needs no more rights than that has.
func template() pgtest.Template { return runtimedb.Template() }

// recycled are databases that subtests hand on, emptied: a clone for each of
// the suite's many hundred subtests would take longer than the suite.
type recycled struct {
	parent testing.TB
	mu     sync.Mutex
	free   []string
}

func (r *recycled) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		dsn := r.free[n-1]
		r.free = r.free[:n-1]
		return dsn
	}
	return newDB(r.parent)
}

// giveBack empties a database to what the migrations left in it. The order is
// that of the foreign keys.
func (r *recycled) giveBack(tb testing.TB, dsn string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		tb.Errorf("database to hand on: %v", err)
		return
	}
	defer conn.Close(ctx)
	var sql strings.Builder
	sql.WriteString("ALTER TABLE audit_events DISABLE TRIGGER USER;")
	for _, table := range []string{
		"schedule_inputs", "fires", "schedules", "login_failures", "used_assertions", "secrets", "signing_keys", "refresh_tokens", "users", "audit_events", "idempotency_keys", "artifacts", "log_chunks", "leases", "attempts",
		"task_inputs", "input_owners", "inputs", "input_parts", "input_uploads",
		"bulk_jobs", "causes", "delayed", "queue", "tasks", "task_classes", "devices", "host_plugins", "plugins", "enrolment_tokens", "hosts",
	} {
		sql.WriteString("DELETE FROM " + table + ";")
	}
	sql.WriteString("ALTER TABLE audit_events ENABLE TRIGGER USER;")
	sql.WriteString("DELETE FROM amnesties; UPDATE marks SET at = NULL, gap_from = NULL, gap_to = NULL;")
	sql.WriteString("DELETE FROM pools WHERE name <> 'default'")
	if _, err := conn.Exec(ctx, sql.String()); err != nil {
		tb.Errorf("database to hand on: %v", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, dsn)
}

func execute(dsn, statement string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

// everyRow reads all tables, in one statement.
func everyRow(dsn string) ([]string, error) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var all string
	if err := conn.QueryRow(ctx, `
SELECT string_agg(format('SELECT %L || t::text COLLATE "C" AS row FROM %I t', table_name || ' ', table_name), ' UNION ALL ') || ' ORDER BY 1'
FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'`).Scan(&all); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, all)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func harness(t *testing.T) storetest.Harness {
	databases := &recycled{parent: t}
	return storetest.Harness{
		Name: "postgres",
		Fresh: func(tb testing.TB) storetest.Database {
			dsn := databases.take()
			tb.Cleanup(func() { databases.giveBack(tb, dsn) })
			return storetest.Database{
				Open: func(tb testing.TB, opts store.Options) (store.Store, error) {
					s, err := postgres.Open(context.Background(), runtimedb.As(tb, dsn), opts)
					if err != nil {
						return nil, err
					}
					tb.Cleanup(func() {
						if n := s.Deadlocks(); n > 0 {
							tb.Errorf("I13: %d deadlocks", n)
						}
					})
					return s, nil
				},
				Exec: func(statement string) error { return execute(dsn, statement) },
				Rows: func() ([]string, error) { return everyRow(dsn) },
			}
		},
	}
}

func TestConformance(t *testing.T) { storetest.Run(t, harness(t)) }

func TestMachine(t *testing.T) { storetest.RunMachine(t, harness(t)) }
