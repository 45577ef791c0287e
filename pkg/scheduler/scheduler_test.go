package scheduler_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPlacesInRoundsWhileTheyAreFull(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		s := db.Open(t, store.Options{})
		enginetest.NewHost(t, s, "h1", 7)
		ids := enginetest.Submit(t, s, 10, func(i int, n *berth.NewTask) { n.Priority = i % 2 })
		core, logs := observer.New(zap.InfoLevel)
		registry := prometheus.NewRegistry()
		sched := scheduler.New(scheduler.Config{Store: s, Instance: "s", MaxPlacements: 2, Log: zap.New(core), Metrics: scheduler.NewMetrics(registry)})
		if err := sched.PlaceOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		states := enginetest.States(t, s, ids)
		if states[berth.StateAssigned] != 7 || states[berth.StateQueued] != 3 {
			t.Fatalf("%v", states)
		}
		for i := 1; i < 10; i += 2 { // the urgent ones
			if got := enginetest.States(t, s, ids[i:i+1]); got[berth.StateAssigned] != 1 {
				t.Errorf("task %d of priority 1 waits", i)
			}
		}
		if logs.FilterMessage(string(berth.EventAssigned)).Len() != 7 {
			t.Errorf("%d assigned events logged", logs.FilterMessage(string(berth.EventAssigned)).Len())
		}
		if got := metric(t, registry, "berth_scheduler_placements_total"); got != 7 {
			t.Errorf("counted %v placements", got)
		}
	})
}

func TestAnotherActiveSchedulerIsNoError(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		s := db.Open(t, store.Options{})
		enginetest.NewHost(t, s, "h1", 1)
		ids := enginetest.Submit(t, s, 1, nil)
		pool, err := s.GetPool(t.Context(), berth.DefaultPool)
		if err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		standby := scheduler.New(scheduler.Config{Store: s, Metrics: scheduler.NewMetrics(registry)})
		_, err = s.PlacementRound(t.Context(), berth.Daemon(berth.ActorScheduler, "active"), pool.ID, func(context.Context, store.Round) error {
			return standby.PlaceOnce(context.Background())
		})
		if err != nil {
			t.Fatal(err)
		}
		if metric(t, registry, "berth_scheduler_standby_total") != 1 || enginetest.States(t, s, ids)[berth.StateQueued] != 1 {
			t.Error("the standby did not stand by")
		}
		if err := standby.PlaceOnce(t.Context()); err != nil || enginetest.States(t, s, ids)[berth.StateAssigned] != 1 {
			t.Errorf("the standby did not take over: %v", err)
		}
	})
}

// TestOneBrokenTokenStopsNobody: a queue row whose attempt number is already
// taken makes every batch that holds it fail. All others are placed all the same.
func TestOneBrokenTokenStopsNobody(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		s := db.Open(t, store.Options{})
		enginetest.NewHost(t, s, "h1", 20)
		ids := enginetest.Submit(t, s, 16, nil)
		broken := ids[5]
		now := "now()"
		if db.Dialect == "sqlite" {
			now = "1"
		}
		db.Exec(t, fmt.Sprintf(`INSERT INTO attempts (task_id, number, id, device_id, host_id, state, plugin_version, assigned_at, ended_at, outcome)
			VALUES ('%s', 1, '%s', '%s', '%s', 'running', '1.0.0', %s, %s, 'failed')`, broken, enginetest.NewID[string](), enginetest.NewID[string](), enginetest.NewID[string](), now, now))
		core, logs := observer.New(zap.InfoLevel)
		registry := prometheus.NewRegistry()
		sched := scheduler.New(scheduler.Config{Store: s, Log: zap.New(core), Metrics: scheduler.NewMetrics(registry)})
		if err := sched.PlaceOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		states := enginetest.States(t, s, ids)
		if states[berth.StateAssigned] != 15 {
			t.Fatalf("%v", states)
		}
		skipped := logs.FilterMessage("task skipped, its placement fails alone").FilterField(zap.String("task_id", string(broken)))
		if skipped.Len() != 1 || metric(t, registry, "berth_scheduler_skipped_tokens_total") != 1 {
			t.Errorf("the broken task was not told of: %v", logs.FilterLevelExact(zap.ErrorLevel).All())
		}
	})
}

func TestPromoteAndGiveUp(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		clock := storetest.NewClock()
		s := db.Open(t, store.Options{Clock: clock})
		ids := enginetest.Submit(t, s, 3, func(i int, n *berth.NewTask) {
			n.NotBefore = clock.Now().Add(time.Duration(i+1) * time.Minute)
			n.QueueTimeout = time.Hour
		})
		sched := scheduler.New(scheduler.Config{Store: s})
		clock.Advance(2 * time.Minute)
		if err := errors.Join(sched.PromoteOnce(t.Context()), sched.GiveUpOnce(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := enginetest.States(t, s, ids); got[berth.StateQueued] != 2 || got[berth.StateScheduled] != 1 {
			t.Fatalf("%v", got)
		}
		clock.Advance(2 * time.Hour)
		if err := errors.Join(sched.PromoteOnce(t.Context()), sched.GiveUpOnce(t.Context())); err != nil {
			t.Fatal(err)
		}
		if got := enginetest.States(t, s, ids); got[berth.StateDeadLetter] != 3 {
			t.Fatalf("%v", got)
		}
	})
}

// fault injects an error or a panic into the first statement of an operation,
// once, on the real engine.
type fault struct {
	mu    sync.Mutex
	op    string
	panic bool
	hits  int
}

func (f *fault) before(_ context.Context, op string, _ int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if op != f.op {
		return nil
	}
	f.op = ""
	f.hits++
	if f.panic {
		panic("injected panic")
	}
	return errors.New("injected error")
}

// TestEachLoopGoesOnAfterAnErrorAndAPanic runs the real loops on the real
// engines, breaks a round of each, and waits until the work was done by a later
// round.
func TestEachLoopGoesOnAfterAnErrorAndAPanic(t *testing.T) {
	loops := map[string]string{"place": "PlacementRound", "promote": "PromoteDue", "give_up": "GiveUp"}
	for loop, op := range loops {
		for _, panics := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/panic=%v", loop, panics), func(t *testing.T) {
				enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) { breakLoop(t, db, loop, op, panics) })
			})
		}
	}
}

func breakLoop(t *testing.T, db enginetest.DB, loop, op string, panics bool) {
	f := &fault{op: op, panic: panics}
	s := db.Open(t, store.Options{BeforeStatement: f.before})
	enginetest.NewHost(t, s, "h1", 1)
	want := map[string]berth.TaskState{"place": berth.StateAssigned, "promote": berth.StateAssigned, "give_up": berth.StateDeadLetter}[loop]
	ids := enginetest.Submit(t, s, 1, func(_ int, n *berth.NewTask) {
		switch loop {
		case "promote":
			n.NotBefore = time.Now().Add(20 * time.Millisecond)
		case "give_up":
			n.QueueTimeout = time.Millisecond
		}
	})
	registry := prometheus.NewRegistry()
	core, logs := observer.New(zap.InfoLevel)
	sched := scheduler.New(scheduler.Config{Store: s, Log: zap.New(core)})
	tick := 10 * time.Millisecond
	parts := sched.Components(scheduler.LoopsConfig{
		PlaceInterval: tick, PromoteInterval: tick, GiveUpInterval: tick, PlaceDisabled: loop == "give_up",
		Hints: s, Metrics: daemon.NewLoopMetrics(registry),
	})
	for _, p := range parts {
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() bool { return enginetest.States(t, s, ids)[want] == 1 })
	result, message := "error", "round failed"
	if panics {
		result, message = "panic", "round panicked"
	}
	// The batch of a placement is tried again in the same round; only its panic
	// and what comes before it end a round.
	if got := rounds(t, registry, loop, result); got != 1 {
		t.Errorf("counted %v rounds of %s with result %s", got, loop, result)
	}
	if logs.FilterMessage(message).FilterField(zap.String("loop", loop)).Len() != 1 {
		t.Errorf("logged: %v", logs.All())
	}
	eventually(t, func() bool { return rounds(t, registry, loop, "ok") > 0 })
	for _, p := range parts {
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if f.hits != 1 {
		t.Errorf("the fault struck %d times", f.hits)
	}
}

// eventually waits for a condition that real time brings about.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	deadline, ticker := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatal("it did not come about within 20 s")
		case <-ticker.C:
		}
	}
}

func metric(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	return sum(t, g, name, nil)
}

func rounds(t *testing.T, g prometheus.Gatherer, loop, result string) float64 {
	t.Helper()
	return sum(t, g, "berth_loop_rounds_total", map[string]string{"loop": loop, "result": result})
}

func sum(t *testing.T, g prometheus.Gatherer, name string, labels map[string]string) (total float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			matches := f.GetName() == name
			for _, l := range m.GetLabel() {
				if want, asked := labels[l.GetName()]; asked && want != l.GetValue() {
					matches = false
				}
			}
			if matches {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return total
}
