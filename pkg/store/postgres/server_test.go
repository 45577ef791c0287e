package postgres_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
)

type (
	ctxType     = context.Context
	storeHandle = *postgres.Store
)

func startServer(t *testing.T) *pgtest.Server {
	t.Helper()
	server, err := pgtest.StartServer(pgtest.Options{Settings: map[string]string{"log_min_messages": "info"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// Whoever is stopped in the midst of a transaction rolls it back himself: the
// server never sees a connection vanish with a transaction open.
func TestCancelledCallersLeaveNoOpenTransaction(t *testing.T) {
	server := startServer(t)
	w := install(t, server.NewDB(t, template()), 2)
	task := w.submit()
	ops := map[string]func(ctx context.Context) error{
		"SubmitTasks": func(ctx context.Context) error {
			_, err := w.s.SubmitTasks(ctx, store.SubmitParams{Actor: w.actor, IdempotencyKey: "k", Tasks: []berth.NewTask{{
				ID: id[berth.TaskID](), Pool: w.pool.ID, Requirement: berth.Requirement{Plugin: "noop"}, RunTimeout: time.Hour, Retry: berth.DefaultRetryPolicy(),
			}}})
			return err
		},
		"PlacementRound": func(ctx context.Context) error {
			_, err := placeOn(ctx, w.s, w.actor, w.pool.ID)
			return err
		},
		"CancelTask": func(ctx context.Context) error {
			_, _, err := w.s.CancelTask(ctx, store.TaskParams{Actor: w.actor, Scope: berth.Scope{All: true}, Task: task.ID})
			return err
		},
		"SyncHost": func(ctx context.Context) error {
			_, err := w.s.SyncHost(ctx, w.sync(2))
			return err
		},
	}
	for name, op := range ops {
		for at := 1; ; at++ {
			ctx, cancel := context.WithCancel(t.Context())
			stopped := false
			w.on(func(_ context.Context, _ string, n int) error {
				if n == at && !stopped {
					stopped = true
					cancel()
				}
				return nil
			})
			err := op(ctx)
			cancel()
			if !stopped {
				w.must(err)
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s stopped at statement %d: %v, want the context's error", name, at, err)
			}
		}
	}
	w.on(nil)
	w.stopInMidStatement()
	w.must(w.s.Close())
	if err := server.Stop(false); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(server.LogPath())
	w.must(err)
	for _, line := range strings.Split(string(log), "\n") {
		if strings.Contains(line, "unexpected EOF") || strings.Contains(line, "open transaction") || strings.Contains(line, "ERROR:") {
			t.Errorf("the server logged: %s", line)
		}
	}
}

// stopInMidStatement ends a caller's context while the server works on its
// statement: the statement is waited for, and what it began rolled back.
func (w *installation) stopInMidStatement() {
	w.t.Helper()
	other := w.conn()
	lock, err := other.Begin(w.t.Context())
	w.must(err)
	_, err = lock.Exec(w.t.Context(), `SELECT 1 FROM hosts FOR NO KEY UPDATE`)
	w.must(err)
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := w.s.Heartbeat(ctx, store.HeartbeatParams{AgentCall: w.call(), Draining: true})
		ended <- err
	}()
	w.lockWaiters(w.conn(), 1)
	cancel()
	w.must(lock.Rollback(w.t.Context()))
	if err := <-ended; !errors.Is(err, context.Canceled) {
		w.t.Errorf("stopped in mid-statement: %v, want the context's error", err)
	}
	if h, err := w.s.GetHost(w.t.Context(), w.host); err != nil || h.Draining {
		w.t.Errorf("what was stopped has left its mark: draining %v, %v", h.Draining, err)
	}
	w.must(other.Close(w.t.Context()))
}

// What leaves the engine is a kind of pkg/berth and a code, never the driver's
// error or a value of a statement.
func TestErrorsKeepTheDriverToThemselves(t *testing.T) {
	server := startServer(t)
	w := install(t, server.NewDB(t, template()), 1)
	const secret = "marked-payload"
	_, err := w.s.SubmitTasks(t.Context(), store.SubmitParams{Actor: w.actor, Tasks: []berth.NewTask{{
		ID: id[berth.TaskID](), Pool: w.pool.ID, Requirement: berth.Requirement{Plugin: "noop"}, RunTimeout: time.Hour,
		Payload: redact.NewBytes([]byte(`{"not json ` + secret)), Retry: berth.DefaultRetryPolicy(),
	}}})
	checkError(t, "a payload that is no JSON", err, nil, secret)

	if err := server.Stop(true); err != nil {
		t.Fatal(err)
	}
	checkError(t, "ping without a server", w.s.Ping(t.Context()), berth.ErrUnavailable, "127.0.0.1", "password")
	_, err = w.s.GetTask(t.Context(), berth.Scope{All: true}, id[berth.TaskID]())
	checkError(t, "read without a server", err, berth.ErrUnavailable, "127.0.0.1", "password", "postgres:")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is back with its server", func() bool { return w.s.Ping(t.Context()) == nil })
}

func checkError(t *testing.T, what string, err, kind error, not ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	var pg *pgconn.PgError
	var connect *pgconn.ConnectError
	if errors.As(err, &pg) || errors.As(err, &connect) {
		t.Errorf("%s: the driver's error is in reach: %T", what, err)
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("%s: %v, want %v", what, err, kind)
	}
	for _, s := range not {
		if strings.Contains(err.Error(), s) {
			t.Errorf("%s: the text holds %q: %v", what, s, err)
		}
	}
}

// A hint of one process wakes another, also after the server was away.
func TestHintsReachOtherProcesses(t *testing.T) {
	server := startServer(t)
	w := install(t, server.NewDB(t, template()), 1)
	other := w.open(w.dsn, nil)
	work, end := other.Subscribe(store.HintWork, string(w.pool.ID))
	defer end()
	received := func() bool {
		w.submit()
		select {
		case <-work:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	}
	eventually(t, "a hint arrives", received)

	if err := server.Stop(true); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is back", func() bool { return w.s.Ping(t.Context()) == nil })
	select { // that of the reconnection, should it be there
	case <-work:
	default:
	}
	eventually(t, "a hint arrives after the server was away", received)
}

// Behind a pooler in transaction mode the time limits are set in each
// transaction, because it refuses them as start-up parameters.
func TestLimitsHoldBehindAPooler(t *testing.T) {
	w := install(t, newDB(t), 1)
	s := w.open(w.dsn+"&pgbouncer=true", func(ctx context.Context, op string, n int) error { return nil })
	other, err := w.conn().Begin(t.Context())
	w.must(err)
	_, err = other.Exec(t.Context(), `SELECT 1 FROM hosts FOR UPDATE`)
	w.must(err)
	_, err = s.Heartbeat(t.Context(), store.HeartbeatParams{AgentCall: w.call()})
	if !errors.Is(err, berth.ErrUnavailable) || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("a heartbeat that waits for a lock ended with %v, want lock_timeout", err)
	}
	w.must(other.Rollback(t.Context()))
	_, err = s.Heartbeat(t.Context(), store.HeartbeatParams{AgentCall: w.call()})
	w.must(err)
}
