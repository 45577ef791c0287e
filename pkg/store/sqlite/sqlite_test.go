package sqlite_test

import (
	"context"
	"database/sql"
	"net/url"
	"os"
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
			}
		},
	}
}

func execute(path, statement string) error {
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_busy_timeout=5000")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(context.Background(), statement)
	return err
}

func TestConformance(t *testing.T) { storetest.Run(t, harness()) }

func TestMachine(t *testing.T) { storetest.RunMachine(t, harness()) }
