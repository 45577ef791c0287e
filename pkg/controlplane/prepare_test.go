package controlplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/controlplane"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/store"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The loop that prepares the database for the API goes on after a round that
// failed or panicked, and the API is ready after the next.
func TestPreparationGoesOnAfterAnErrorAndAPanic(t *testing.T) {
	for _, panics := range []bool{false, true} {
		t.Run(fmt.Sprintf("panic=%v", panics), func(t *testing.T) {
			db := enginetest.SQLite(t)
			c, err := config.LoadAPI(nil, []string{
				"BERTH_DATABASE_URL=" + db.Target, "BERTH_LISTEN=127.0.0.1:0", "BERTH_ADMIN_LISTEN=127.0.0.1:0",
				"BERTH_MASTER_KEY=" + strings.Repeat("0f", 32), "BERTH_BLOB_DIR=" + filepath.Join(t.TempDir(), "blobs"),
			}, &lines{})
			if err != nil {
				t.Fatal(err)
			}
			var broken atomic.Bool
			before := func(_ context.Context, op string, _ int) error {
				if op != "RegisterPlugins" || !broken.CompareAndSwap(false, true) {
					return nil
				}
				if panics {
					panic("injected")
				}
				return errors.New("injected")
			}
			log := &lines{}
			p, err := controlplane.Open(t.Context(), "api", c.Common, controlplane.Options{Store: store.Options{BeforeStatement: before}}, log)
			if err != nil {
				t.Fatal(err)
			}
			api, err := p.API(c, "test")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx, api.Ready(), nil, api.Components(nil)...) }()
			deadline := time.After(20 * time.Second)
			for code := "starting"; code != ""; code = api.Ready().Code(ctx) {
				select {
				case <-deadline:
					t.Fatalf("never ready: %s\n%s", code, log)
				case <-time.After(20 * time.Millisecond):
				}
			}
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			message, result := "round failed", "error"
			if panics {
				message, result = "round panicked", "panic"
			}
			if !broken.Load() || strings.Count(log.String(), message) != 1 {
				t.Errorf("the broken round is not recorded once:\n%s", log)
			}
			families, err := p.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			counted := false
			for _, f := range families {
				for _, m := range f.GetMetric() {
					text := m.String()
					counted = counted || f.GetName() == "berth_loop_rounds_total" && strings.Contains(text, `"prepare"`) && strings.Contains(text, `"`+result+`"`)
				}
			}
			if !counted {
				t.Errorf("the round is not counted as %s", result)
			}
		})
	}
}
