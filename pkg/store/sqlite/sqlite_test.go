package sqlite_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(submitterEnv); path != "" {
		submitForEver(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// harness gives each test a migrated file of its own.
func harness() storetest.Harness {
	return storetest.Harness{
		Name: "sqlite", Serial: true,
		Fresh: func(tb testing.TB) storetest.Database {
			path := migrated(tb)
			return storetest.Database{
				Open: func(_ testing.TB, opts store.Options) (store.Store, error) {
					return sqlite.Open(context.Background(), path, opts)
				},
				Exec: func(statement string) error { return execute(path, statement) },
				Rows: func() ([]string, error) { return everyRow(path) },
			}
		},
	}
}

// everyRow reads all tables.
func everyRow(path string) (all []string, err error) {
	db, err := beside(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	tables, err := linesOf(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		columns, err := linesOf(db, "SELECT group_concat('quote(\"' || name || '\")', ' || '','' || ') FROM pragma_table_info('"+table+"')")
		if err != nil {
			return nil, err
		}
		rows, err := linesOf(db, "SELECT '"+table+" ' || "+columns[0]+` FROM "`+table+`"`)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	slices.Sort(all)
	return all, nil
}

func linesOf(db *sql.DB, query string) (out []string, err error) {
	rows, err := db.QueryContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}

// beside opens the file beside the engine.
func beside(path string) (*sql.DB, error) {
	return sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_busy_timeout=5000")
}

func execute(path, statement string) error {
	db, err := beside(path)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(context.Background(), statement)
	return err
}

func TestConformance(t *testing.T) { storetest.Run(t, harness()) }

func TestMachine(t *testing.T) { storetest.RunMachine(t, harness()) }
