package enginetest

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/pgtest/runtimedb"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func onPostgres() storetest.Harness {
	return storetest.Harness{
		Name: "postgres",
		Fresh: func(tb testing.TB) storetest.Database {
			dsn, _ := runtimedb.New(tb)
			return storetest.Database{Open: func(_ testing.TB, opts store.Options) (store.Store, error) {
				return postgres.Open(context.Background(), dsn, opts)
			}}
		},
	}
}

func onSQLite() storetest.Harness {
	return storetest.Harness{
		Name: "sqlite", Serial: true,
		Fresh: func(tb testing.TB) storetest.Database {
			path := filepath.Join(tb.TempDir(), "berth.db")
			if err := schema.Up(context.Background(), path); err != nil {
				tb.Fatalf("migrate: %v", err)
			}
			return storetest.Database{Open: func(_ testing.TB, opts store.Options) (store.Store, error) {
				return sqlite.Open(context.Background(), path, opts)
			}}
		},
	}
}

func TestEnginesAgree(t *testing.T) { storetest.Compare(t, onPostgres(), onSQLite()) }
