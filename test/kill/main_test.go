// Package kill takes away, while work is going on, what Berth runs on: its
// processes, its database, a host, an hour of what the database knew. Real
// processes on real databases; what happened is read from the database, the
// audit trail, the agents' journals, and from what the work itself left behind.
//
// `make test` runs a short form, `make kill-test` the long one. What is random
// comes from a seed that is logged; BERTH_SEED repeats it.
package kill

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/test/harness"
)

// TestMain lets all tests wait at once: time passing is most of what they do.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// long reports whether the long form is asked for.
func long() bool { return os.Getenv("BERTH_LONG_TESTS") != "" }

// randomness gives the test's random numbers.
func randomness(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BERTH_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("BERTH_SEED: %v", err)
		}
	}
	t.Logf("random numbers from BERTH_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// quarter makes leases a quarter as long as they are by default, and all that
// depends on them.
func quarter() map[string]string {
	return map[string]string{
		"BERTH_LEASE_TTL": "15s", "BERTH_RENEW_EVERY": "3750ms", "BERTH_REQUEST_TIMEOUT": "2s", "BERTH_FENCE_MARGIN": "3750ms",
		"BERTH_KILL_MARGIN": "1250ms", "BERTH_REAP_GRACE": "3750ms", "BERTH_CLAIM_WITHIN": "7500ms", "BERTH_HOST_OFFLINE_AFTER": "11250ms",
		"BERTH_HEARTBEAT_EVERY": "2500ms", "BERTH_CANCEL_WITHIN": "7500ms",
		"BERTH_LOOP_REAP_INTERVAL": "1250ms", "BERTH_LOOP_SILENT_HOSTS_INTERVAL": "1250ms",
	}
}

// breakable is a server of the test's own, and the DSN of a database there.
func breakable(t *testing.T) (server *pgtest.Server, dsn string) {
	t.Helper()
	server, err := pgtest.StartServer(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, server.NewDB(t, pgtest.Template{})
}

// onBoth runs a test on both engines at once.
func onBoth(t *testing.T, test func(t *testing.T, engine harness.Engine)) {
	t.Helper()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// pass lets time pass: for an outage of a length that matters, and until an
// instant that is random. Everything else is waited for.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal("the test was ended")
	}
}

func ptr[T any](v T) *T { return &v }

// must is for steps that have to succeed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// touch makes an empty file: a signal to work that waits for it.
func touch(path string) error { return os.WriteFile(path, nil, 0o600) }
