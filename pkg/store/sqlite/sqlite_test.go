package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// harness gives each test a migrated file of its own.
func harness() storetest.Harness {
	return storetest.Harness{
		Name: "sqlite", Serial: true,
		Fresh: func(tb testing.TB) storetest.Database {
			path := migrated(tb)
			return func(_ testing.TB, opts store.Options) (store.Store, error) {
				return sqlite.Open(context.Background(), path, opts)
			}
		},
	}
}

func migrated(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "berth.db")
	if err := schema.Up(context.Background(), path); err != nil {
		tb.Fatalf("migrate: %v", err)
	}
	return path
}

func TestConformance(t *testing.T) { storetest.Run(t, harness()) }
