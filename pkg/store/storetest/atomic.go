package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// operation is one call of the contract on a world that it prepared.
type operation struct {
	// name of the Go method, as BeforeStatement is told.
	name, about string
	prepare     func(w *world) func(ctx context.Context, s store.Store) error
	// twoStep: the first of two transactions may be committed when it fails later.
	twoStep bool
	// beside is the table that a transaction before the operation's may change.
	beside string
}

// of are the rows that the operation changes in one transaction.
func (op operation) of(rows []string) []string {
	if op.beside == "" {
		return rows
	}
	return slices.DeleteFunc(rows, func(row string) bool { return strings.HasPrefix(row, op.beside+" ") })
}

// errInjected is what a statement fails with.
var errInjected = errors.New("injected")

// atomicChecks: each operation is broken off at each of its statements, by an
// error and by the end of its context. It commits whole or not at all, and the
// same call works afterwards. What it left is looked for in every row of every
// table, and when it is through, it has changed some.
func atomicChecks() []check {
	out := []check{{"every operation that changes something", everyWriterIsBrokenOff}}
	for _, op := range operations() {
		out = append(out, check{strings.TrimSpace(op.name + " " + op.about), func(t *testing.T, h Harness) {
			w := newWorld(t, h)
			s, hk := w.hooked()
			call := op.prepare(w)
			before, rows := w.snapshot(), op.of(w.rows())
			for at := 1; !w.brokenOff(op, call, s, hk, at); at++ {
				if at > 200 {
					t.Fatal("the operation has no end")
				}
				if op.twoStep {
					continue
				}
				if d := diff(rows, op.of(w.rows())); d != "" {
					t.Fatalf("the operation failed at statement %d and left something:\n%s", at, d)
				}
				if d := diff(before, w.snapshot()); d != "" {
					t.Fatalf("the operation failed at statement %d and left something:\n%s", at, d)
				}
			}
			if diff(rows, op.of(w.rows())) == "" {
				t.Error("the operation changes nothing: it shows nothing here")
			}
		}})
	}
	return out
}

// brokenOff runs the operation with faults before statement number at. It
// reports whether the operation was through before.
func (w *world) brokenOff(op operation, call func(context.Context, store.Store) error, s store.Store, hk *hook, at int) (through bool) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(bg())
	defer cancel()
	for _, fault := range []struct {
		name string
		act  func(context.Context) error
	}{
		{"error", func(context.Context) error { return errInjected }},
		{"end of context", func(context.Context) error { cancel(); return nil }},
	} {
		hk.arm(at, fault.act)
		err := call(ctx, s)
		acted, ops := hk.disarm()
		for name := range ops {
			if name != op.name {
				w.t.Errorf("BeforeStatement was told of %q, not of %s", name, op.name)
			}
		}
		if !acted {
			w.must("without a fault", err)
			if at == 1 {
				w.t.Errorf("BeforeStatement was never called")
			}
			return true
		}
		if err == nil && fault.name == "end of context" {
			return true // its commit had begun
		}
		if err == nil {
			w.t.Fatalf("statement %d failed, the operation did not", at)
		}
		if fault.name == "end of context" && !errors.Is(err, context.Canceled) {
			w.t.Errorf("statement %d: the context ended, the error is %v", at, err)
		}
	}
	return false
}

type callFunc = func(ctx context.Context, s store.Store) error

func operations() []operation {
	return slices.Concat(taskOperations(), agentOperations(), manyOperations(), otherOperations(), inputOperations(), operatorOperations(), guardOperations(), secretOperations(), scheduleOperations(),
		accountOperations(), fleetOperations(), bulkOperations())
}

func taskOperations() []operation {
	cancel := func(id berth.TaskID, w *world) callFunc {
		return func(ctx context.Context, s store.Store) error {
			return err3(s.CancelTask(ctx, w.params(id)))
		}
	}
	retry := func(id berth.TaskID, w *world) callFunc {
		return func(ctx context.Context, s store.Store) error {
			return err3(s.RetryTask(ctx, store.RetryParams{TaskParams: w.params(id), AddTries: 1}))
		}
	}
	return []operation{
		{name: "SubmitTasks", about: "with a key", prepare: func(w *world) callFunc {
			p := w.keyed("k", "body", w.user, w.newTask(), w.newTask(withSelector("a=b"), notBefore(w.Clock.Now().Add(time.Hour))))
			return func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
		}},
		{name: "CancelTask", about: "queued", prepare: func(w *world) callFunc { return cancel(w.submit().ID, w) }},
		{name: "CancelTask", about: "scheduled", prepare: func(w *world) callFunc { return cancel(w.submit(notBefore(w.Clock.Now().Add(time.Hour))).ID, w) }},
		{name: "CancelTask", about: "claimed", prepare: func(w *world) callFunc { return cancel(w.host("h1", 1).claimed().Task, w) }},
		{name: "CancelTask", about: "running", prepare: func(w *world) callFunc { return cancel(w.host("h1", 1).running().Task, w) }},
		{name: "RetryTask", about: "dead-lettered", prepare: func(w *world) callFunc { return retry(w.host("h1", 1).deadLettered(), w) }},
		{name: "RetryTask", about: "failed", prepare: func(w *world) callFunc { return retry(w.host("h1", 1).failed(), w) }},
	}
}

func agentOperations() []operation {
	return []operation{
		{name: "Enrol", prepare: func(w *world) callFunc {
			w.token("secret", "*", w.pool.ID)
			p := w.enrolParams("secret", "h1", "k")
			return func(ctx context.Context, s store.Store) error { return err2(s.Enrol(ctx, p)) }
		}},
		{name: "SyncHost", about: "first", twoStep: true, prepare: func(w *world) callFunc {
			p := w.enrolled("h1", w.pool.ID, 2).syncParams()
			return func(ctx context.Context, s store.Store) error { return err2(s.SyncHost(ctx, p)) }
		}},
		{name: "SyncHost", about: "with a lost and a held attempt", twoStep: true, prepare: func(w *world) callFunc {
			a := w.host("h1", 3)
			a.running()
			p := a.syncParams(holding(a.running()))
			p.Instance, p.Epoch, p.Devices = "another", 0, p.Devices[:2]
			return func(ctx context.Context, s store.Store) error { return err2(s.SyncHost(ctx, p)) }
		}},
		{name: "Heartbeat", about: "draining", prepare: func(w *world) callFunc {
			a := w.host("h1", 2)
			p := store.HeartbeatParams{AgentCall: a.call(), Draining: true, Health: map[berth.DeviceID]berth.Health{a.ids[0]: berth.HealthSuspect}}
			return func(ctx context.Context, s store.Store) error { return err2(s.Heartbeat(ctx, p)) }
		}},
		{name: "ClaimAttempts", prepare: func(w *world) callFunc {
			a := w.host("h1", 2)
			w.submit()
			w.submit()
			w.place()
			p := store.ClaimParams{AgentCall: a.call(), ClaimID: newID[string](w.Env), Max: 10}
			return func(ctx context.Context, s store.Store) error { return err3(s.ClaimAttempts(ctx, p)) }
		}},
		{name: "StartAttempts", prepare: func(w *world) callFunc {
			a := w.host("h1", 2)
			p := store.StartParams{AgentCall: a.call(), Items: []store.Holder{holder(a.claimed()), holder(a.claimed())}}
			return func(ctx context.Context, s store.Store) error { return err3(s.StartAttempts(ctx, p)) }
		}},
		{name: "RenewAttempts", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			p := store.RenewParams{AgentCall: a.call(), Items: []store.RenewItem{{Holder: holder(a.running()), Progress: 0.5, Note: redact.NewString(marker)}}}
			return func(ctx context.Context, s store.Store) error { return err3(s.RenewAttempts(ctx, p)) }
		}},
		{name: "CompleteAttempts", prepare: func(w *world) callFunc {
			a := w.host("h1", 3)
			p := store.CompleteParams{AgentCall: a.call(), Items: []store.CompleteItem{
				item(a.running(), berth.OutcomeSucceeded), item(a.running(), berth.OutcomeFailed), item(a.running(), berth.OutcomeInfraFailed, unclean),
			}}
			return func(ctx context.Context, s store.Store) error { return err3(s.CompleteAttempts(ctx, p)) }
		}},
		{name: "ReleaseAttempts", prepare: func(w *world) callFunc {
			a := w.host("h1", 2)
			p := store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(a.claimed()), holder(a.claimed())}}
			return func(ctx context.Context, s store.Store) error { return err3(s.ReleaseAttempts(ctx, p)) }
		}},
		{name: "CleanDevice", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			as := a.running()
			a.completed(as, berth.OutcomeFailed, unclean)
			p := store.CleanParams{AgentCall: a.call(), Device: as.Device, Fence: as.Fence}
			return func(ctx context.Context, s store.Store) error { return s.CleanDevice(ctx, p) }
		}},
		{name: "AppendLog", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			p := a.chunk(a.running(), 0, "x")
			return func(ctx context.Context, s store.Store) error { return err3(s.AppendLog(ctx, p)) }
		}},
		{name: "AddArtifact", prepare: func(w *world) callFunc {
			a := w.host("h1", 1)
			p := a.artifact(a.running(), "x.png", "x")
			return func(ctx context.Context, s store.Store) error { return err2(s.AddArtifact(ctx, p)) }
		}},
	}
}

func otherOperations() []operation {
	daemon := func(name, about string, prepare func(w *world), call func(w *world) callFunc) operation {
		return operation{name: name, about: about, prepare: func(w *world) callFunc { prepare(w); return call(w) }}
	}
	sweep := func(about string, prepare func(w *world)) operation {
		op := daemon("ReapLeases", about, prepare, func(w *world) callFunc {
			return func(ctx context.Context, s store.Store) error { return err2(s.ReapLeases(ctx, w.keeper, 10)) }
		})
		op.beside = "marks" // the sweep's own is moved first
		return op
	}
	return []operation{
		daemon("PlacementRound", "", func(w *world) { w.host("h1", 2); w.submit(); w.submit(withSelector("os=linux")) },
			func(w *world) callFunc {
				return func(ctx context.Context, s store.Store) error {
					return err2(s.PlacementRound(ctx, w.scheduler, w.pool.ID, w.placeIn))
				}
			}),
		daemon("PromoteDue", "", func(w *world) { w.submit(notBefore(w.Clock.Now().Add(time.Second))); w.Clock.Advance(time.Minute) },
			func(w *world) callFunc {
				return func(ctx context.Context, s store.Store) error { return err2(s.PromoteDue(ctx, w.scheduler, 10)) }
			}),
		daemon("GiveUp", "", func(w *world) { w.submit(queueTimeout(time.Second)); w.Clock.Advance(time.Minute) },
			func(w *world) callFunc {
				return func(ctx context.Context, s store.Store) error { return err2(s.GiveUp(ctx, w.scheduler, 10)) }
			}),
		sweep("running", func(w *world) { w.host("h1", 1).running(); w.Clock.Advance(time.Hour) }),
		sweep("claimed", func(w *world) { w.host("h1", 1).claimed(); w.Clock.Advance(time.Hour) }),
		daemon("MarkSilentHosts", "", func(w *world) { w.host("h1", 2); w.Clock.Advance(time.Hour) },
			func(w *world) callFunc {
				return func(ctx context.Context, s store.Store) error { return err2(s.MarkSilentHosts(ctx, w.keeper, 10)) }
			}),
		{name: "RegisterPlugins", prepare: func(w *world) callFunc {
			list := []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "a", Version: "1.0.0"}}, {PluginVersion: berth.PluginVersion{Name: "b", Version: "1.0.0"}}}
			return func(ctx context.Context, s store.Store) error { return s.RegisterPlugins(ctx, w.operator, list) }
		}},
		{name: "AddSigningKey", prepare: func(w *world) callFunc {
			return func(ctx context.Context, s store.Store) error {
				return err2(s.AddSigningKey(ctx, w.key("k1"), time.Hour))
			}
		}},
		{name: "CreatePool", prepare: func(w *world) callFunc {
			p := berth.Pool{ID: newID[berth.PoolID](w.Env), Name: "other", AgeingStep: time.Minute}
			return func(ctx context.Context, s store.Store) error {
				return err2(s.CreatePool(ctx, store.CreatePoolParams{Actor: w.operator, Pool: p}))
			}
		}},
	}
}

// placeIn places first fits inside a round.
func (w *world) placeIn(ctx context.Context, r store.Round) error {
	plan, err := w.plan(ctx, r)
	if err == nil {
		_, err = r.Apply(ctx, plan)
	}
	return err
}
