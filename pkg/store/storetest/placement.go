package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func placementChecks() []check {
	return []check{
		in("free devices are free, placeable and fresh", placeFree),
		in("free devices are limited and in order", placeFreeLimit),
		in("a pool sees its own devices and classes only", placePools),
		in("paused pools are not scheduled", placePaused),
		in("heads come in order after their cursors", placeHeads),
		in("a placement makes an attempt, a lease and a higher fence", placeApply),
		in("what is gone is silently not placed", placeStale),
		in("nothing is placed where the bit went down meanwhile", placeUnfit),
		in("one device and one task are used once", placeOnce),
		in("an error rolls the round back", placeRollback),
		in("two rounds at once place nothing twice", placeAtOnce),
		in("a hand-over raises the fence each time", placeFences),
	}
}

func placeFree(w *world) {
	a, b, c := w.host("h1", 3), w.host("h2", 1), w.host("h3", 1)
	held := a.running()
	b.completed(b.running(withSelector("berth.dev/device="+string(b.ids[0]))), berth.OutcomeFailed, unclean)
	c.sync(func(p *store.SyncParams) { p.Draining = true })
	want := slices.DeleteFunc(slices.Clone(a.ids), func(id berth.DeviceID) bool { return id == held.Device })
	if got := w.freeIDs(); !slices.Equal(got, want) {
		w.t.Errorf("free %v, should be %v", got, want)
	}
	w.Clock.Advance(w.Timings.HostOfflineAfter)
	if got := w.freeIDs(); !slices.Equal(got, want) {
		w.t.Errorf("at the limit of freshness: free %v", got)
	}
	w.Clock.Advance(time.Microsecond)
	if got := w.freeIDs(); len(got) != 0 {
		w.t.Errorf("a silent host's devices are free: %v", got)
	}
	a.beat()
	if got := w.freeIDs(); !slices.Equal(got, want) {
		w.t.Errorf("after a heartbeat: free %v", got)
	}
}

func placeFreeLimit(w *world) {
	w.host("h1", 3)
	w.host("h2", 3)
	every := w.freeIDs()
	if len(every) != 6 || !slices.IsSorted(every) {
		w.t.Fatalf("free %v", every)
	}
	w.round(func(ctx context.Context, r store.Round) error {
		for _, limit := range []int{1, 4, 6, 100, -1} {
			got, err := r.FreeDevices(ctx, limit)
			want := limit
			if limit < 0 || limit > 6 {
				want = 6
			}
			if err != nil || len(got) != want || got[0].ID != every[0] {
				w.t.Errorf("limit %d: %d devices, %v", limit, len(got), err)
			}
		}
		return nil
	})
}

func placePools(w *world) {
	other := w.makePool("other")
	w.host("h1", 1)
	b := w.enrolled("h2", other.ID, 2)
	b.sync()
	mine, theirs := w.submit(), w.submit(withPool(other.ID))
	if free := w.free(); len(free) != 1 {
		w.t.Errorf("free %+v", free)
	}
	if heads := w.heads(); len(heads) != 1 || heads[0].Task != mine.ID {
		w.t.Errorf("heads %+v", heads)
	}
	w.place()
	w.state(theirs.ID, berth.StateQueued)
	w.state(mine.ID, berth.StateAssigned)
}

func placePaused(w *world) {
	paused := w.makePool("paused", func(p *berth.Pool) { p.Paused = true })
	ids, err := w.Store.SchedulablePools(bg())
	w.must("pools", err)
	if !slices.Contains(ids, w.pool.ID) || slices.Contains(ids, paused.ID) || !slices.IsSorted(ids) || len(ids) != 2 {
		w.t.Errorf("schedulable pools %v", ids)
	}
	task := w.submit(withPool(paused.ID))
	w.state(task.ID, berth.StateQueued)
}

func placeHeads(w *world) {
	var low, high []berth.TaskID
	for i := range 5 {
		low = append(low, w.submit(withPriority(0)).ID)
		high = append(high, w.submit(withPriority(9)).ID)
		if i%2 == 0 {
			w.Clock.Advance(time.Second)
		}
	}
	one := w.submit(withSelector("os=linux"))
	class := w.task(low[0]).Class
	want := append(slices.Clone(high), low...)
	w.round(func(ctx context.Context, r store.Round) error {
		var got []berth.TaskID
		ask := store.HeadsAsk{Class: class, PerClass: 3}
		for {
			heads, err := r.Heads(ctx, []store.HeadsAsk{ask})
			if err != nil {
				return err
			}
			if len(heads) > 3 {
				return fmt.Errorf("%d heads, asked for 3", len(heads))
			}
			for _, h := range heads {
				if h.Class != class {
					return fmt.Errorf("head of class %d", h.Class)
				}
				got = append(got, h.Task)
				ask.AfterRank, ask.AfterTask = h.Rank, h.Task
			}
			if len(heads) < 3 {
				break
			}
		}
		if !slices.Equal(got, want) {
			w.t.Errorf("heads %v, should be %v", got, want)
		}
		heads, err := r.Heads(ctx, []store.HeadsAsk{{Class: class, PerClass: 2}, {Class: one.Class, PerClass: 2}, {Class: 1 << 40, PerClass: 2}})
		if err != nil || len(heads) != 3 {
			return fmt.Errorf("%d heads of three classes, %w", len(heads), err)
		}
		none, err := r.Heads(ctx, nil)
		if len(none) != 0 {
			w.t.Errorf("no asks, %d heads", len(none))
		}
		return err
	})
}

func placeApply(w *world) {
	a := w.host("h1", 2)
	task := w.submit(queueTimeout(time.Hour))
	before := w.device(a.ids[0]).Fence
	now := w.Clock.Advance(time.Second)
	tr := w.oneTransition(w.place())
	at := w.attempt(task.ID)
	want := berth.Transition{
		Event: berth.EventAssigned, Task: task.ID, From: berth.StateQueued, To: berth.StateAssigned, Attempt: at.ID, Number: 1, Device: a.ids[0],
		Host: a.id, Fence: at.Fence, Pool: w.pool.ID, CorrelationID: "corr-1", At: now,
	}
	if d := diff(want, clearReason([]berth.Transition{tr})[0]); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	d := w.device(a.ids[0])
	if at.Fence <= before || d.Fence != at.Fence || d.Attempt != at.ID || d.Task != task.ID || d.Occupancy != berth.OccupancyHeld {
		w.t.Errorf("fence %d after %d, device %+v", at.Fence, before, d)
	}
	if at.State != berth.AttemptAssigned || !at.AssignedAt.Equal(now) || len(w.heads()) != 0 {
		w.t.Errorf("attempt %+v", at)
	}
	if got := w.state(task.ID, berth.StateAssigned); got.Attempt != at.ID || got.Device != a.ids[0] || got.Host != a.id || got.Tries != 1 {
		w.t.Errorf("task %+v", got)
	}
	w.Clock.Advance(w.Timings.ClaimWithin - time.Microsecond)
	if trs := w.reap(); len(trs) != 0 {
		w.t.Errorf("reaped early")
	}
	a.one(task.ID)
}

// planned plans a round and applies nothing.
func (w *world) planned() []store.Placement {
	w.t.Helper()
	var plan []store.Placement
	w.round(func(ctx context.Context, r store.Round) (err error) {
		plan, err = w.plan(ctx, r)
		return err
	})
	return plan
}

func (w *world) apply(plan []store.Placement) []int {
	w.t.Helper()
	var placed []int
	w.round(func(ctx context.Context, r store.Round) (err error) {
		placed, err = r.Apply(ctx, plan)
		return err
	})
	return placed
}

func placeStale(w *world) {
	a := w.host("h1", 6)
	var tasks []berth.TaskID
	for range 6 {
		tasks = append(tasks, w.submit().ID)
	}
	plan := w.planned()
	if len(plan) != 6 {
		w.t.Fatalf("planned %d", len(plan))
	}
	w.cancel(plan[1].Head.Task)
	pinned := w.submit(withSelector("berth.dev/device=" + string(plan[3].Device)))
	w.apply([]store.Placement{{Head: w.headOf(pinned.ID), Attempt: newID[berth.AttemptID](w.Env), Device: plan[3].Device, Host: a.id, Version: pluginVersion}})
	w.state(pinned.ID, berth.StateAssigned)
	_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Health: map[berth.DeviceID]berth.Health{plan[4].Device: berth.HealthQuarantined}})
	w.must("heartbeat", err)
	plan = append(plan, store.Placement{Head: plan[5].Head, Attempt: newID[berth.AttemptID](w.Env), Device: newID[berth.DeviceID](w.Env), Host: a.id, Version: pluginVersion})
	if placed := w.apply(plan); !slices.Equal(placed, []int{0, 2, 5}) {
		w.t.Fatalf("placed %v, should be 0, 2 and 5", placed)
	}
	for i, id := range tasks {
		want := []berth.TaskState{berth.StateAssigned, berth.StateCancelled, berth.StateAssigned, berth.StateQueued, berth.StateQueued, berth.StateAssigned}[i]
		w.state(id, want)
	}
	if placed := w.apply(plan); len(placed) != 0 {
		w.t.Errorf("the same plan again placed %v", placed)
	}
	if placed := w.apply(nil); len(placed) != 0 {
		w.t.Errorf("no plan placed %v", placed)
	}
}

// placeUnfit plans, makes the device unfit, and applies the plan: the list of
// free devices does not protect a round that has read it already (I14).
func placeUnfit(w *world) {
	for name, spoil := range map[string]func(a *agent){
		"draining heartbeat": func(a *agent) {
			_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Draining: true})
			w.must("heartbeat", err)
		},
		"draining sync": func(a *agent) { a.sync(func(p *store.SyncParams) { p.Draining = true }) },
		"absent device": func(a *agent) { a.sync(func(p *store.SyncParams) { p.Devices = nil }) },
		"bad health":    func(a *agent) { a.sync(func(p *store.SyncParams) { p.Devices[0].Health = berth.HealthQuarantined }) },
		"silent host": func(*agent) {
			w.Clock.Advance(w.Timings.HostOfflineAfter + time.Second)
			_, err := w.Store.MarkSilentHosts(bg(), w.keeper, 100)
			w.must("silent hosts", err)
		},
		"unclean device": func(a *agent) {
			pinned := w.submit(withSelector("berth.dev/device=" + string(a.ids[0])))
			w.apply([]store.Placement{{Head: w.headOf(pinned.ID), Attempt: newID[berth.AttemptID](w.Env), Device: a.ids[0], Host: a.id, Version: pluginVersion}})
			as := a.one(pinned.ID)
			a.start(as)
			a.completed(as, berth.OutcomeSucceeded, unclean)
		},
	} {
		a := w.host("h-"+strings.ReplaceAll(name, " ", "-"), 1)
		task := w.submit()
		plan := w.planned()
		if len(plan) != 1 || plan[0].Device != a.ids[0] {
			w.t.Fatalf("%s: planned %+v", name, plan)
		}
		spoil(a)
		if placed := w.apply(plan); len(placed) != 0 {
			w.t.Errorf("I14: %s: placed %v", name, placed)
		}
		w.state(task.ID, berth.StateQueued)
		w.cancel(task.ID)
		a.sync(func(p *store.SyncParams) { p.Draining = true })
	}
}

// headOf is the head of one queued task.
func (w *world) headOf(id berth.TaskID) store.Head {
	w.t.Helper()
	heads := w.heads()
	i := slices.IndexFunc(heads, func(h store.Head) bool { return h.Task == id })
	if i < 0 {
		w.t.Fatalf("task %s is in no queue", id)
	}
	return heads[i]
}

func placeOnce(w *world) {
	w.host("h1", 3)
	for range 3 {
		w.submit()
	}
	plan := w.planned()
	plan[1].Device = plan[0].Device // one device twice
	plan[2].Head = plan[0].Head     // one task twice
	placed := w.apply(plan)
	if len(placed) != 1 {
		w.t.Fatalf("placed %v of one task on one device", placed)
	}
}

func placeRollback(w *world) {
	w.host("h1", 1)
	task := w.submit()
	broken := errors.New("broken")
	trs, err := w.Store.PlacementRound(bg(), w.scheduler, w.pool.ID, func(ctx context.Context, r store.Round) error {
		plan, err := w.plan(ctx, r)
		if err == nil {
			_, err = r.Apply(ctx, plan)
		}
		return errors.Join(err, broken)
	})
	if !errors.Is(err, broken) || len(trs) != 0 {
		w.t.Errorf("round: %v, transitions %+v", err, trs)
	}
	w.state(task.ID, berth.StateQueued)
	if len(w.attempts(task.ID)) != 0 || len(w.free()) != 1 {
		w.t.Errorf("the round left something")
	}
	func() {
		defer func() {
			if recover() == nil {
				w.t.Errorf("the panic of a round was swallowed")
			}
		}()
		_, _ = w.Store.PlacementRound(bg(), w.scheduler, w.pool.ID, func(ctx context.Context, r store.Round) error {
			plan, _ := w.plan(ctx, r)
			_, _ = r.Apply(ctx, plan)
			panic("broken")
		})
	}()
	w.state(task.ID, berth.StateQueued)
	w.place()
	w.state(task.ID, berth.StateAssigned)
}

func placeAtOnce(w *world) {
	other := w.second()
	w.host("h1", 4)
	pool := w.makePool("other")
	for range 4 {
		w.submit()
	}
	inside := make(chan error, 1)
	rival := func() {
		_, err := other.PlacementRound(bg(), w.scheduler, w.pool.ID, func(ctx context.Context, r store.Round) error {
			plan, err := w.plan(ctx, r)
			if err == nil {
				_, err = r.Apply(ctx, plan)
			}
			return err
		})
		inside <- err
	}
	w.round(func(ctx context.Context, r store.Round) error {
		plan, err := w.plan(ctx, r)
		if err != nil {
			return err
		}
		go rival()
		if !w.Serial {
			// At once, while this round goes on; and another pool is free.
			if err := <-inside; !errors.Is(err, berth.ErrNotActive) {
				return fmt.Errorf("a second round of the pool: %w", err)
			}
			if _, err := other.PlacementRound(ctx, w.scheduler, pool.ID, func(context.Context, store.Round) error { return nil }); err != nil {
				return fmt.Errorf("a round of another pool: %w", err)
			}
			inside <- nil
		}
		_, err = r.Apply(ctx, plan)
		return err
	})
	if err := <-inside; err != nil && !errors.Is(err, berth.ErrNotActive) {
		w.t.Errorf("the rival: %v", err)
	}
	if n := len(w.allTasks(store.TaskFilter{States: []berth.TaskState{berth.StateAssigned}})); n != 4 {
		w.t.Errorf("%d tasks placed", n)
	}
}

func placeFences(w *world) {
	a := w.host("h1", 1)
	last := berth.Fence(0)
	for range 4 {
		as := a.claimed()
		if as.Fence <= last {
			w.t.Errorf("I10: fence %d after %d", as.Fence, last)
		}
		last = as.Fence
		a.release(true, as)
		w.cancel(as.Task)
	}
}
