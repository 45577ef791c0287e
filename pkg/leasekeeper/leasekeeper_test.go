package leasekeeper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func place(t *testing.T, s store.Store) {
	t.Helper()
	if err := scheduler.New(scheduler.Config{Store: s}).PlaceOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAmnestyIsToldOnce: an amnesty is warned of once, also when another keeper
// granted it, and the metric says until when.
func TestAmnestyIsToldOnce(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		clock := storetest.NewClock()
		s := db.Open(t, store.Options{Clock: clock})
		host := enginetest.NewHost(t, s, "h1", 1)
		enginetest.Submit(t, s, 1, nil)
		place(t, s)
		host.Start(host.Claim())
		core, logs := observer.New(zap.WarnLevel)
		registry := prometheus.NewRegistry()
		keeper := leasekeeper.New(leasekeeper.Config{Store: s, Log: zap.New(core), Metrics: leasekeeper.NewMetrics(registry)})
		other := leasekeeper.New(leasekeeper.Config{Store: s})
		reap := func(k *leasekeeper.Keeper) {
			if err := k.ReapOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		reap(keeper)
		until := clock.Advance(2 * time.Minute).Add(berth.DefaultTimings().LeaseTTL)
		reap(other)
		reap(keeper)
		reap(keeper)
		warned := logs.FilterMessageSnippet("amnesty").All()
		if len(warned) != 1 || warned[0].ContextMap()["reason"] != berth.AmnestyBlind {
			t.Errorf("warned: %v", warned)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]float64{}
		for _, f := range families {
			values[f.GetName()] = f.Metric[0].GetCounter().GetValue() + f.Metric[0].GetGauge().GetValue()
		}
		if values["berth_leasekeeper_amnesties_total"] != 1 || values["berth_leasekeeper_amnesty_until_timestamp_seconds"] != float64(until.UnixMicro())/1e6 {
			t.Errorf("metrics: %v", values)
		}
	})
}

// TestLostTasksAreFoundPageByPage: what is wrong is repaired, counted and named;
// the cursor walks on and begins anew.
func TestLostTasksAreFoundPageByPage(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		s := db.Open(t, store.Options{})
		ids := enginetest.Submit(t, s, 1003, nil) // a page has 1000
		core, logs := observer.New(zap.InfoLevel)
		registry := prometheus.NewRegistry()
		keeper := leasekeeper.New(leasekeeper.Config{Store: s, Log: zap.New(core), Metrics: leasekeeper.NewMetrics(registry)})
		for i, id := range []berth.TaskID{ids[1001], ids[3]} { // of the second page, and of the first when it comes again
			db.Exec(t, "DELETE FROM queue WHERE task_id = '"+string(id)+"'")
			for range 2 {
				if err := keeper.LostTasksOnce(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := enginetest.States(t, s, []berth.TaskID{id}); got[berth.StateQueued] != 1 {
				t.Errorf("%d: %v", i, got)
			}
			told := logs.FilterLevelExact(zap.ErrorLevel).All()
			if len(told) != i+1 || !strings.Contains(fmt.Sprint(told[i].ContextMap()), string(id)) {
				t.Errorf("%d: logged %v", i, told)
			}
		}
		families, err := registry.Gather()
		if err != nil || !strings.Contains(fmt.Sprint(families), "berth_leasekeeper_lost_tasks_total") {
			t.Errorf("metrics: %v, %v", families, err)
		}
	})
}

// TestRestartWithExpiredAttempts: everything was down while assigned, claimed
// and running attempts expired, with and without tries left. The keeper settles
// each by policy, whatever its batch, and what has tries left runs again.
func TestRestartWithExpiredAttempts(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		clock := storetest.NewClock()
		before := db.Open(t, store.Options{Clock: clock})
		host := enginetest.NewHost(t, before, "h1", 12)
		oneTry := func(i int, n *berth.NewTask) { n.Retry.MaxAttempts = 1 + 2*(i%2) }
		running := enginetest.Submit(t, before, 4, oneTry)
		place(t, before)
		host.Start(host.Claim())
		claimed := enginetest.Submit(t, before, 4, oneTry)
		place(t, before)
		host.Claim()
		assigned := enginetest.Submit(t, before, 4, oneTry)
		place(t, before)

		// The restart.
		s := db.Open(t, store.Options{Clock: clock})
		clock.Advance(berth.DefaultTimings().LeaseTTL + berth.DefaultTimings().ReapGrace)
		core, logs := observer.New(zap.InfoLevel)
		registry := prometheus.NewRegistry()
		keeper := leasekeeper.New(leasekeeper.Config{Store: s, Instance: "k", Batch: 5, Log: zap.New(core), Metrics: leasekeeper.NewMetrics(registry)})
		if err := keeper.ReapOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := enginetest.States(t, s, running); got[berth.StateQueued] != 2 || got[berth.StateDeadLetter] != 2 {
			t.Errorf("running: %v", got)
		}
		for name, ids := range map[string][]berth.TaskID{"claimed": claimed, "assigned": assigned} {
			if got := enginetest.States(t, s, ids); got[berth.StateQueued] != 4 { // a hand-back spends no try
				t.Errorf("%s: %v", name, got)
			}
		}
		if n := logs.FilterMessage(string(berth.EventRetried)).Len() + logs.FilterMessage(string(berth.EventReleased)).Len() + logs.FilterMessage(string(berth.EventFailed)).Len(); n != 12 {
			t.Errorf("%d of 12 ends logged", n)
		}
		host.Sync(12)
		place(t, s)
		as := host.Claim()
		host.Start(as)
		host.Complete(as)
		all := append(append(running, claimed...), assigned...)
		if got := enginetest.States(t, s, all); got[berth.StateSucceeded] != 10 || got[berth.StateDeadLetter] != 2 {
			t.Errorf("at the end: %v", got)
		}
	})
}

func TestSilentHostsGoOffline(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		clock := storetest.NewClock()
		s := db.Open(t, store.Options{Clock: clock})
		for i := range 5 {
			enginetest.NewHost(t, s, fmt.Sprintf("h%d", i), 1)
		}
		keeper := leasekeeper.New(leasekeeper.Config{Store: s, Batch: 2})
		if err := keeper.SilentHostsOnce(t.Context()); err != nil || offline(t, s) != 0 {
			t.Fatalf("%v, %d hosts offline at once", err, offline(t, s))
		}
		clock.Advance(berth.DefaultTimings().HostOfflineAfter + time.Second)
		if err := keeper.SilentHostsOnce(t.Context()); err != nil || offline(t, s) != 5 {
			t.Fatalf("%v, %d hosts offline", err, offline(t, s))
		}
		ids := enginetest.Submit(t, s, 1, nil)
		place(t, s)
		if got := enginetest.States(t, s, ids); got[berth.StateQueued] != 1 {
			t.Errorf("placed on a silent host: %v", got)
		}
	})
}

func offline(t *testing.T, s store.Store) (n int) {
	t.Helper()
	hosts, _, err := s.ListHosts(t.Context(), "", store.Page{})
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if h.State == berth.HostOffline {
			n++
		}
	}
	return n
}

type fault struct {
	mu    sync.Mutex
	op    string
	panic bool
}

func (f *fault) before(_ context.Context, op string, _ int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op != f.op {
		return nil
	}
	f.op = ""
	if f.panic {
		panic("injected panic")
	}
	return errors.New("injected error")
}

func (f *fault) arm(op string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.op = op
}

func TestEachLoopGoesOnAfterAnErrorAndAPanic(t *testing.T) {
	for loop, op := range map[string]string{"reap": "ReapLeases", "silent_hosts": "MarkSilentHosts", "lost_tasks": "SweepTasks"} {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/panic=%v", loop, panics), func(t *testing.T) {
				enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) { breakLoop(t, db, loop, op, panics) })
			})
		}
	}
}

func breakLoop(t *testing.T, db enginetest.DB, loop, op string, panics bool) {
	clock := storetest.NewClock()
	f := &fault{panic: panics}
	s := db.Open(t, store.Options{Clock: clock, BeforeStatement: f.before})
	host := enginetest.NewHost(t, s, "h1", 1)
	ids := enginetest.Submit(t, s, 1, nil)
	place(t, s)
	host.Start(host.Claim())
	clock.Advance(2 * time.Minute)
	lost := enginetest.Submit(t, s, 1, nil)

	f.arm(op)
	registry := prometheus.NewRegistry()
	core, logs := observer.New(zap.InfoLevel)
	keeper := leasekeeper.New(leasekeeper.Config{Store: s, Log: zap.New(core)})
	tick := 10 * time.Millisecond
	parts := keeper.Components(leasekeeper.LoopsConfig{ReapInterval: tick, HostsInterval: tick, LostTasksInterval: tick, Metrics: daemon.NewLoopMetrics(registry)})
	for _, p := range parts {
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	deadline, ticker := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer ticker.Stop()
	db.Exec(t, "DELETE FROM queue WHERE task_id = '"+string(lost[0])+"'")
	for enginetest.States(t, s, ids)[berth.StateQueued] != 1 || offline(t, s) != 1 || enginetest.States(t, s, lost)[berth.StateQueued] != 1 {
		select {
		case <-deadline:
			t.Fatalf("the loops did not go on: %v", logs.All())
		case <-ticker.C:
		}
	}
	for _, p := range parts {
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	result, message := "error", "round failed"
	if panics {
		result, message = "panic", "round panicked"
	}
	if logs.FilterMessage(message).FilterField(zap.String("loop", loop)).Len() != 1 {
		t.Errorf("logged: %v", logs.All())
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(families); !strings.Contains(text, result) || !strings.Contains(text, "ok") {
		t.Errorf("counted: %s", text)
	}
}
