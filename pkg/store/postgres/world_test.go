package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/pgtest/runtimedb"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

// installation is a pool with one online host and what a test does with it.
type installation struct {
	t     *testing.T
	dsn   string
	clock *storetest.Clock
	s     *postgres.Store
	hook  atomic.Pointer[func(ctx context.Context, op string, n int) error]

	pool    berth.Pool
	host    berth.HostID
	epoch   berth.Epoch
	devices []berth.DeviceID
	actor   berth.Actor
}

func id[T ~string]() T { return T(uuid.Must(uuid.NewV7()).String()) }

// install opens dsn with a hook that on sets, and enrols a host with n devices.
func install(t *testing.T, dsn string, n int) *installation {
	t.Helper()
	w := &installation{t: t, dsn: dsn, clock: storetest.NewClock(), actor: berth.Daemon(berth.ActorScheduler, "test")}
	w.s = w.open(dsn, func(ctx context.Context, op string, n int) error {
		if f := w.hook.Load(); f != nil {
			return (*f)(ctx, op, n)
		}
		return nil
	})
	ctx := t.Context()
	var err error
	w.pool, err = w.s.GetPool(ctx, berth.DefaultPool)
	w.must(err)
	hash := [32]byte{1}
	_, err = w.s.CreateEnrolment(ctx, store.CreateEnrolmentParams{
		Actor: w.actor, ID: id[berth.EnrolmentID](), Pool: w.pool.ID, Pattern: "*", TokenHash: hash, TTL: time.Hour,
	})
	w.must(err)
	w.host = id[berth.HostID]()
	_, err = w.s.Enrol(ctx, store.EnrolParams{Actor: w.actor, TokenHash: hash, Host: w.host, Name: "h", PublicKey: make([]byte, 32)})
	w.must(err)
	res, err := w.s.SyncHost(ctx, w.sync(n))
	w.must(err)
	w.epoch, w.devices = res.Epoch, res.Devices
	return w
}

func (w *installation) open(dsn string, hook func(context.Context, string, int) error) *postgres.Store {
	w.t.Helper()
	s, err := postgres.Open(context.Background(), runtimedb.As(w.t, dsn), store.Options{Clock: w.clock, BeforeStatement: hook})
	w.must(err)
	w.t.Cleanup(func() {
		w.must(s.Close())
		if n := s.Deadlocks(); n > 0 {
			w.t.Errorf("I13: %d deadlocks", n)
		}
	})
	return s
}

// on calls f before each statement of a transaction, until the next on.
func (w *installation) on(f func(ctx context.Context, op string, n int) error) {
	if f == nil {
		w.hook.Store(nil)
		return
	}
	w.hook.Store(&f)
}

func (w *installation) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *installation) sync(devices int) store.SyncParams {
	p := store.SyncParams{
		AgentCall: w.call(), Instance: "one", AgentVersion: "1", ApprovePlugins: true,
		Plugins: []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "noop", Version: "1.0.0"}}},
	}
	for i := range devices {
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: id[berth.DeviceID](), Driver: "process", HardwareID: fmt.Sprint(i), Name: fmt.Sprint(i), Health: berth.HealthGood, Clean: true,
		})
	}
	return p
}

func (w *installation) call() store.AgentCall {
	return store.AgentCall{Actor: w.actor, Host: w.host, Epoch: w.epoch}
}

func (w *installation) submit(change ...func(*berth.NewTask)) berth.Task {
	w.t.Helper()
	k := berth.NewTask{
		ID: id[berth.TaskID](), Pool: w.pool.ID, Requirement: berth.Requirement{Plugin: "noop"}, Payload: redact.NewBytes([]byte(`{}`)),
		RunTimeout: time.Hour, Retry: berth.DefaultRetryPolicy(),
	}
	for _, c := range change {
		c(&k)
	}
	r, err := w.s.SubmitTasks(w.t.Context(), store.SubmitParams{
		Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "u"}}, Tasks: []berth.NewTask{k}, CorrelationID: "c",
	})
	w.must(err)
	return r.Tasks[0]
}

// place puts what waits on what is free, and returns how much.
func (w *installation) place() int {
	w.t.Helper()
	moves, err := placeOn(w.t.Context(), w.s, w.actor, w.pool.ID)
	w.must(err)
	return len(moves)
}

func placeOn(ctx context.Context, s *postgres.Store, actor berth.Actor, pool berth.PoolID) ([]berth.Transition, error) {
	return s.PlacementRound(ctx, actor, pool, func(ctx context.Context, r store.Round) error {
		devices, err := r.FreeDevices(ctx, 0)
		if err != nil || len(devices) == 0 {
			return err
		}
		classes, err := r.WaitingClasses(ctx)
		if err != nil || len(classes) == 0 {
			return err
		}
		heads, err := r.Heads(ctx, []store.HeadsAsk{{Class: classes[0].ID, PerClass: len(devices)}})
		if err != nil {
			return err
		}
		var plan []store.Placement
		for i, h := range heads {
			plan = append(plan, store.Placement{
				Head: h, Attempt: id[berth.AttemptID](), Device: devices[i].ID, Host: devices[i].Host, Version: "1.0.0",
			})
		}
		_, err = r.Apply(ctx, plan)
		return err
	})
}

func (w *installation) claim() []store.Assignment {
	w.t.Helper()
	got, _, err := w.s.ClaimAttempts(w.t.Context(), store.ClaimParams{AgentCall: w.call(), ClaimID: id[string](), Max: 100})
	w.must(err)
	return got
}

// running brings a new task to run.
func (w *installation) running(change ...func(*berth.NewTask)) store.Holder {
	w.t.Helper()
	w.submit(change...)
	w.place()
	a := w.claim()
	if len(a) != 1 {
		w.t.Fatalf("%d attempts claimed, want 1", len(a))
	}
	h := store.Holder{Attempt: a[0].Attempt, Fence: a[0].Fence}
	_, _, err := w.s.StartAttempts(w.t.Context(), store.StartParams{AgentCall: w.call(), Items: []store.Holder{h}})
	w.must(err)
	return h
}

func (w *installation) task(k berth.TaskID) berth.Task {
	w.t.Helper()
	got, err := w.s.GetTask(w.t.Context(), berth.Scope{All: true}, k)
	w.must(err)
	return got
}

// conn is a connection beside the store, for what another process may do.
func (w *installation) conn() *pgx.Conn {
	w.t.Helper()
	c, err := pgx.Connect(w.t.Context(), w.dsn)
	w.must(err)
	w.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// lockWaiters waits until n sessions of the store wait for a lock.
func (w *installation) lockWaiters(c *pgx.Conn, n int) {
	w.t.Helper()
	eventually(w.t, "a statement waits for a lock", func() bool {
		var waiting int
		w.must(c.QueryRow(w.t.Context(), `
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'berth' AND wait_event_type = 'Lock'`).Scan(&waiting))
		return waiting == n
	})
}
