package schema

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

// halfAMinuteLater is a clock by which the leases of the upgrade are over.
type halfAMinuteLater struct{}

func (halfAMinuteLater) Now() time.Time { return time.Now().Add(30 * time.Second) }

func (d testDB) store(t *testing.T) store.Store {
	t.Helper()
	var s store.Store
	var err error
	if d.dialect == SQLite {
		s, err = sqlite.Open(t.Context(), strings.TrimPrefix(d.target, "sqlite://"), store.Options{Clock: halfAMinuteLater{}})
	} else {
		s, err = postgres.Open(t.Context(), d.target, store.Options{Clock: halfAMinuteLater{}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// runEverything lets the keeper, the scheduler and the old hosts' agents work on
// the upgraded database until nothing waits but what is scheduled.
func (d testDB) runEverything(t *testing.T) {
	s := d.store(t)
	defer s.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	keeper := leasekeeper.New(leasekeeper.Config{Store: s, Instance: "keeper"})
	plan := scheduler.New(scheduler.Config{Store: s, Instance: "scheduler"})
	must(keeper.ReapOnce(ctx))
	hosts := []*oldHost{syncOld(t, s, hostA, 1, 4), syncOld(t, s, hostB, 5, 5)}
	for range 5 {
		must(plan.PromoteOnce(ctx))
		must(plan.PlaceOnce(ctx))
		for _, h := range hosts {
			h.work()
		}
	}

	want := map[int]berth.TaskState{
		queuedTask: berth.StateSucceeded, scheduledTask: berth.StateScheduled, failedTask: berth.StateSucceeded,
		succeededTask: berth.StateSucceeded, deadTask: berth.StateDeadLetter, assignedTask: berth.StateSucceeded,
		runningTask: berth.StateSucceeded, secondOnDevice: berth.StateSucceeded, onGoneDevice: berth.StateSucceeded,
		cancelAsked: berth.StateCancelled, noTriesLeft: berth.StateDeadLetter, labTask: berth.StateSucceeded,
	}
	got := map[int]berth.TaskState{}
	for n := range want {
		task, err := s.GetTask(ctx, berth.Scope{All: true}, berth.TaskID(taskID(n)))
		must(err)
		got[n] = task.State
		if task.Name != fmt.Sprintf("task %d", n) || string(task.Payload.Reveal()) != `{"n":1}` || len(task.Tags) != 2 || task.CorrelationID != fmt.Sprintf("c-%d", n) {
			t.Errorf("task %d is not what it was: %+v", n, task)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states at the end:\n%s", diff)
	}
	attempts, err := s.ListAttempts(ctx, berth.Scope{All: true}, berth.TaskID(taskID(runningTask)))
	must(err)
	if len(attempts) != 2 || attempts[0].Outcome != berth.OutcomeTimedOut || attempts[1].Outcome != berth.OutcomeSucceeded || attempts[1].Fence <= 1 {
		t.Errorf("attempts of the running task: %+v", attempts)
	}
}

// oldHost is an agent that comes back after the upgrade.
type oldHost struct {
	t    *testing.T
	s    store.Store
	call store.AgentCall
}

func syncOld(t *testing.T, s store.Store, id string, from, to int) *oldHost {
	t.Helper()
	h := &oldHost{t: t, s: s, call: store.AgentCall{
		Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: id}}, Host: berth.HostID(id),
	}}
	p := store.SyncParams{AgentCall: h.call, Instance: uuid.NewString(), AgentVersion: "new", Plugins: []berth.Plugin{
		{PluginVersion: berth.PluginVersion{Name: "demo.work", Version: "1.0.0"}},
	}}
	for n := from; n <= to; n++ {
		slot := fmt.Sprintf("slot-%d", n)
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: berth.DeviceID(uuid.Must(uuid.NewV7()).String()), Driver: "process", HardwareID: slot, Name: slot,
			Labels: map[string]string{"os": "linux"}, Health: berth.HealthGood, Clean: true,
		})
	}
	r, err := s.SyncHost(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for i, device := range r.Devices {
		if device != berth.DeviceID(deviceID(from+i)) {
			t.Errorf("device %d came back as %s", from+i, device)
		}
	}
	h.call.Epoch = r.Epoch
	return h
}

// work takes what is assigned to the host, and does it.
func (h *oldHost) work() {
	h.t.Helper()
	ctx := context.Background()
	assigned, _, err := h.s.ClaimAttempts(ctx, store.ClaimParams{AgentCall: h.call, ClaimID: uuid.NewString(), Max: 100})
	if err != nil {
		h.t.Fatal(err)
	}
	start, complete := store.StartParams{AgentCall: h.call}, store.CompleteParams{AgentCall: h.call}
	for _, a := range assigned {
		holder := store.Holder{Attempt: a.Attempt, Fence: a.Fence}
		start.Items = append(start.Items, holder)
		complete.Items = append(complete.Items, store.CompleteItem{
			Holder: holder, Outcome: berth.OutcomeSucceeded, DeviceClean: true, Digest: sha256.Sum256([]byte(a.Attempt)),
		})
	}
	if len(assigned) == 0 {
		return
	}
	if _, _, err := h.s.StartAttempts(ctx, start); err != nil {
		h.t.Fatal(err)
	}
	if _, _, err := h.s.CompleteAttempts(ctx, complete); err != nil {
		h.t.Fatal(err)
	}
}
