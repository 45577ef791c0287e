package controlplane_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/controlplane"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
)

// pause holds a daemon's transaction before one of its statements.
type pause struct {
	op string
	n  int // of the statement
	// held: until the round's context ends; else until release is closed.
	held    bool
	once    sync.Once
	reached chan struct{}
	release chan struct{}
}

func (p *pause) before(ctx context.Context, op string, n int) error {
	if op != p.op || n != p.n {
		return nil
	}
	p.once.Do(func() { close(p.reached) })
	if p.held {
		<-ctx.Done()
		return ctx.Err()
	}
	<-p.release
	return nil
}

// round is a worker's transaction with work to do.
type round struct {
	op         string
	from, done berth.TaskState
	// make makes the work.
	make func(t *testing.T, db enginetest.DB, s store.Store) berth.TaskID
	// parts runs the one loop.
	parts func(p *controlplane.Process) []daemon.Component
}

func stopRounds() []round {
	quick, off := config.Loop{Interval: 10 * time.Millisecond}, config.Loop{Disabled: true}
	return []round{
		{
			op: "PlacementRound", from: berth.StateQueued, done: berth.StateAssigned,
			make: func(t *testing.T, _ enginetest.DB, s store.Store) berth.TaskID {
				return enginetest.Submit(t, s, 1, nil)[0]
			},
			parts: func(p *controlplane.Process) []daemon.Component {
				return p.Scheduler(config.SchedulerLoops{Place: quick, Promote: off, GiveUp: off, Schedules: off})
			},
		},
		{
			op: "PromoteDue", from: berth.StateScheduled, done: berth.StateQueued,
			make: func(t *testing.T, db enginetest.DB, s store.Store) berth.TaskID {
				id := enginetest.Submit(t, s, 1, func(_ int, n *berth.NewTask) { n.NotBefore = time.Now().Add(time.Hour) })[0]
				db.Exec(t, "UPDATE delayed SET due_at = now()")
				return id
			},
			parts: func(p *controlplane.Process) []daemon.Component {
				return p.Scheduler(config.SchedulerLoops{Place: off, Promote: quick, GiveUp: off, Schedules: off})
			},
		},
		{
			op: "ReapLeases", from: berth.StateAssigned, done: berth.StateQueued,
			make: func(t *testing.T, db enginetest.DB, s store.Store) berth.TaskID {
				id := enginetest.Submit(t, s, 1, nil)[0]
				if err := scheduler.New(scheduler.Config{Store: s}).PlaceOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
				db.Exec(t, "UPDATE leases SET expires_at = now() WHERE attempt_id IS NOT NULL")
				return id
			},
			parts: func(p *controlplane.Process) []daemon.Component {
				return p.Leasekeeper(config.KeeperLoops{Reap: quick, SilentHosts: off})
			},
		},
	}
}

// TestStopWithATransactionPausedAtEachStatement stops scheduler and leasekeeper
// while a transaction stands before each of its statements in turn. Let go, it
// commits; held on, it rolls back by itself. The server never loses a client
// inside a transaction, and the daemon ends in order.
func TestStopWithATransactionPausedAtEachStatement(t *testing.T) {
	server, err := pgtest.StartServer(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	db := enginetest.DB{Dialect: schema.Postgres, Target: server.DSN("postgres")}
	if err := schema.Up(t.Context(), db.Target); err != nil {
		t.Fatal(err)
	}
	s := db.Open(t, store.Options{})
	host := enginetest.NewHost(t, s, "h1", 2)
	for _, r := range stopRounds() {
		t.Run(r.op, func(t *testing.T) {
			n := 1
			for ; n < 60; n++ {
				host.Sync(2) // stays fresh, however slow the machine is
				if !r.stopAt(t, db, s, n, false) {
					break
				}
				r.stopAt(t, db, s, n, true)
			}
			if n < 4 || n == 60 {
				t.Errorf("paused at %d statements", n-1)
			}
			t.Logf("paused at %d statements", n-1)
		})
	}
	const lost = "unexpected EOF on client connection with an open transaction"
	if found, err := server.LogContains(lost); err != nil || found {
		t.Errorf("the server's log says %q: %v, %v", lost, found, err)
	}
}

const stopWithin = 3 * time.Second

// stopAt stops the daemon at statement n; false when there is none: the work
// was done without it.
func (r round) stopAt(t *testing.T, db enginetest.DB, s store.Store, n int, held bool) (reached bool) {
	t.Helper()
	id := r.make(t, db, s)
	what := fmt.Sprintf("statement %d, held %v", n, held)
	p := &pause{op: r.op, n: n, held: held, reached: make(chan struct{}), release: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := r.run(ctx, t, db, p)
	reached = r.waitReached(t, s, p, id)
	stop()
	if reached && !held {
		close(p.release)
	}
	begun := time.Now()
	if err := <-ended; err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if took := time.Since(begun); took > stopWithin {
		t.Errorf("%s: %v to stop", what, took)
	}
	want := r.done
	if held {
		want = r.from
	}
	if got := enginetest.States(t, s, []berth.TaskID{id}); got[want] != 1 {
		t.Errorf("%s: the task is %v, not %s", what, got, want)
	}
	_, _, err := s.CancelTask(t.Context(), store.TaskParams{
		Actor: berth.Daemon(berth.ActorSystem, "test"), Scope: berth.Scope{All: true}, Task: id,
	})
	if err != nil {
		t.Fatal(err)
	}
	return reached
}

func (r round) run(ctx context.Context, t *testing.T, db enginetest.DB, p *pause) <-chan error {
	t.Helper()
	process, err := controlplane.Open(ctx, "test", config.Common{
		DatabaseURL: redact.NewString(db.Target), AdminListen: "127.0.0.1:0", LogLevel: "error", ShutdownWithin: stopWithin,
	}, controlplane.Options{Store: store.Options{BeforeStatement: p.before}}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Run(ctx, process.Ready(), nil, r.parts(process)...) }()
	return ended
}

// waitReached waits until the transaction is paused, or the work is done.
func (r round) waitReached(t *testing.T, s store.Store, p *pause, id berth.TaskID) bool {
	t.Helper()
	deadline, ticker := time.After(30*time.Second), time.NewTicker(10*time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.reached:
			return true
		case <-deadline:
			t.Fatal("neither paused nor done within 30 s")
		case <-ticker.C:
		}
		if enginetest.States(t, s, []berth.TaskID{id})[r.done] == 1 {
			return false
		}
	}
}
