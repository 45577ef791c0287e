package postgres_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// A renewal that waited for its lease row until the lease was over must not
// revive it: what was compared before the wait is worth nothing.
func TestRenewalThatWaitedPastTheExpiryIsGone(t *testing.T) {
	w := install(t, newDB(t), 1)
	h := w.running()
	other := w.conn()
	lock, err := other.Begin(t.Context())
	w.must(err)
	_, err = lock.Exec(t.Context(), `SELECT 1 FROM leases WHERE attempt_id = $1 FOR NO KEY UPDATE`, string(h.Attempt))
	w.must(err)

	answer := make(chan store.LeaseAnswer, 1)
	go func() {
		got, _, err := w.s.RenewAttempts(t.Context(), store.RenewParams{
			AgentCall: w.call(), Items: []store.RenewItem{{Holder: h, Progress: -1}},
		})
		if err != nil {
			t.Error(err)
			got = []store.LeaseAnswer{{}}
		}
		answer <- got[0]
	}()
	w.lockWaiters(w.conn(), 1)
	w.clock.Advance(berth.DefaultTimings().LeaseTTL)
	w.must(lock.Rollback(t.Context()))
	if got := <-answer; got.Status != store.LeaseGone {
		t.Errorf("the renewal got %q after the expiry, want %q", got.Status, store.LeaseGone)
	}
}

// Moving due rows takes no more than the limit, whatever plan is chosen: the
// planner must not run the locking subquery again.
func TestLimitsHoldUnderEveryPlan(t *testing.T) {
	dsn := newDB(t)
	w := install(t, dsn, 1)
	for range 30 {
		w.submit(func(k *berth.NewTask) { k.NotBefore, k.QueueTimeout = w.clock.Now().Add(time.Minute), time.Minute })
	}
	w.clock.Advance(time.Hour)
	promoted := 0
	for i, plan := range []string{"", "&enable_hashjoin=off", "&enable_hashjoin=off&enable_mergejoin=off", "&enable_nestloop=off", "&enable_seqscan=off&enable_indexscan=off"} {
		s := w.open(dsn+plan, nil)
		moves, err := s.PromoteDue(t.Context(), w.actor, 4)
		w.must(err)
		if len(moves) != 4 {
			t.Errorf("plan %d: %d rows promoted, want 4", i, len(moves))
		}
		if promoted += 4; count(w, "queue")+count(w, "delayed") != 30-2*i || count(w, "delayed") != 30-promoted {
			t.Errorf("plan %d: %d queued, %d delayed", i, count(w, "queue"), count(w, "delayed"))
		}
		moves, err = s.GiveUp(t.Context(), w.actor, 2)
		w.must(err)
		if len(moves) != 2 {
			t.Errorf("plan %d: %d rows given up, want 2", i, len(moves))
		}
	}
}

func count(w *installation, table string) (n int) {
	w.t.Helper()
	w.must(w.conn().QueryRow(w.t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// A row that refers to a host holds KEY SHARE on it until its transaction ends.
// What the engine locks must not wait for that.
func TestLocksDoNotWaitForForeignKeys(t *testing.T) {
	w := install(t, newDB(t), 1)
	h := w.running()
	other, err := w.conn().Begin(t.Context())
	w.must(err)
	for _, sql := range []string{
		`SELECT 1 FROM hosts FOR KEY SHARE`, `SELECT 1 FROM devices FOR KEY SHARE`, `SELECT 1 FROM tasks FOR KEY SHARE`,
		`SELECT 1 FROM attempts FOR KEY SHARE`, `SELECT 1 FROM pools FOR KEY SHARE`, `SELECT 1 FROM plugins FOR KEY SHARE`,
	} {
		_, err = other.Exec(t.Context(), sql)
		w.must(err)
	}
	_, err = w.s.Heartbeat(t.Context(), store.HeartbeatParams{AgentCall: w.call(), Draining: true})
	w.must(err)
	p := w.sync(1)
	p.Held = []store.HeldAttempt{{Attempt: h.Attempt, Fence: h.Fence}}
	_, err = w.s.SyncHost(t.Context(), p)
	w.must(err)
	answers, _, err := w.s.CompleteAttempts(t.Context(), store.CompleteParams{AgentCall: w.call(), Items: []store.CompleteItem{{
		Holder: h, Outcome: berth.OutcomeInfraFailed,
	}}})
	w.must(err)
	if answers[0].Status != store.CompleteStored {
		t.Errorf("complete: %s", answers[0].Status)
	}
	w.must(other.Rollback(t.Context()))
}

// A device that comes to be between the locks of its host's leases and that of
// the host is seen: no bit survives a host that went away.
func TestDeviceThatComesBetweenTheLocksIsNotLeftPlaceable(t *testing.T) {
	w := install(t, newDB(t), 2)
	w.clock.Advance(time.Hour)
	added := id[berth.DeviceID]()
	other, once := w.conn(), false
	for at := 1; at < 12 && !once; at++ {
		w.on(nil)
		w.on(func(ctx ctxType, op string, n int) error {
			if op != "MarkSilentHosts" || n != 4 || once {
				return nil
			}
			once = true
			if _, err := other.Exec(ctx, `
INSERT INTO devices (id, host_id, pool_id, driver, hardware_id, hardware_unique, name, created_at, updated_at)
SELECT $1, id, pool_id, 'process', 'late', false, 'late', now(), now() FROM hosts`, string(added)); err != nil {
				return err
			}
			_, err := other.Exec(ctx, `INSERT INTO leases (device_id, host_id, pool_id, placeable) SELECT id, host_id, pool_id, 2 FROM devices WHERE id = $1`, string(added))
			return err
		})
		hosts, err := w.s.MarkSilentHosts(t.Context(), w.actor, 10)
		w.must(err)
		if len(hosts) != 1 {
			t.Fatalf("hosts taken offline: %v", hosts)
		}
	}
	if !once {
		t.Fatal("the statement was not met")
	}
	var placeable int
	w.must(other.QueryRow(t.Context(), `SELECT count(*) FROM leases WHERE placeable > 0`).Scan(&placeable))
	if placeable != 0 {
		t.Errorf("%d devices of an offline host are placeable", placeable)
	}
}

// After a placement has the rows, a cancel of another process waits and then
// finds the attempt; neither loses the task.
func TestCancelThatWaitsForAPlacementFindsTheAttempt(t *testing.T) {
	w := install(t, newDB(t), 1)
	task := w.submit()
	rival := w.open(w.dsn, nil)
	cancelled := make(chan error, 1)
	var begun bool
	watch := w.conn()
	w.on(func(_ ctxType, op string, n int) error {
		// The last statements of the round: its rows are locked and moved.
		if op != "PlacementRound" || n != 8 || begun {
			return nil
		}
		begun = true
		go func() {
			_, _, err := rival.CancelTask(t.Context(), store.TaskParams{Actor: w.actor, Scope: berth.Scope{All: true}, Task: task.ID})
			cancelled <- err
		}()
		w.lockWaiters(watch, 1)
		return nil
	})
	if n := w.place(); n != 1 {
		t.Fatalf("%d placed", n)
	}
	if !begun {
		t.Fatal("the statement was not met")
	}
	w.must(<-cancelled)
	if got := w.task(task.ID); got.State != berth.StateCancelled || got.Attempts != 1 {
		t.Errorf("the task is %s with %d attempts, want cancelled with its attempt ended", got.State, got.Attempts)
	}
	if d, err := w.s.GetDevice(t.Context(), w.devices[0]); err != nil || d.Occupancy != berth.OccupancyFree {
		t.Errorf("the device is %s (%v)", d.Occupancy, err)
	}
}

// Many processes do everything at once, and the database forbids nothing and
// detects no deadlock.
func TestManyHandlesWithoutADeadlock(t *testing.T) {
	w := install(t, newDB(t), 4)
	for i := range 40 {
		w.submit(func(k *berth.NewTask) { k.Priority = i % 10 })
	}
	const rounds = 12
	jobs := map[string]func(s storeHandle) error{
		"place": func(s storeHandle) error {
			_, err := placeOn(t.Context(), s, w.actor, w.pool.ID)
			if errors.Is(err, berth.ErrNotActive) {
				return nil
			}
			return err
		},
		"agent": func(s storeHandle) error { return w.work(s) },
		"cancel": func(s storeHandle) error {
			tasks, _, err := s.ListTasks(t.Context(), berth.Scope{All: true}, store.TaskFilter{States: []berth.TaskState{berth.StateQueued, berth.StateRunning}}, store.Page{Size: 1})
			if err != nil || len(tasks) == 0 {
				return err
			}
			_, _, err = s.CancelTask(t.Context(), store.TaskParams{Actor: w.actor, Scope: berth.Scope{All: true}, Task: tasks[0].ID})
			if errors.Is(err, berth.ErrWrongState) {
				return nil
			}
			return err
		},
		"keeper": func(s storeHandle) error {
			w.clock.Advance(7 * time.Second)
			if _, err := s.ReapLeases(t.Context(), w.actor, 100); err != nil {
				return err
			}
			if _, err := s.PromoteDue(t.Context(), w.actor, 100); err != nil {
				return err
			}
			_, err := s.Heartbeat(t.Context(), store.HeartbeatParams{
				AgentCall: w.call(), Health: map[berth.DeviceID]berth.Health{w.devices[0]: berth.HealthSuspect, w.devices[1]: berth.HealthGood},
			})
			return err
		},
		"operator": func(s storeHandle) error { return w.operate(s) },
		"sync": func(s storeHandle) error {
			p := w.sync(4)
			p.Epoch = w.epoch
			_, err := s.SyncHost(t.Context(), p)
			return err
		},
	}
	done := make(chan error)
	n := 0
	for name, job := range jobs {
		for range 2 {
			s := w.open(w.dsn, nil)
			n++
			go func() {
				for i := range rounds {
					if err := job(s); err != nil {
						done <- fmt.Errorf("%s, round %d: %w", name, i, err)
						return
					}
				}
				done <- nil
			}()
		}
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// operate is one turn of an operator: every act that the devices and the host
// may be used after.
func (w *installation) operate(s storeHandle) error {
	ctx := w.t.Context()
	for i, d := range w.devices {
		p := store.DeviceAdminParams{Actor: w.actor, Device: d, Admin: berth.AdminCordoned}
		if _, err := s.SetDeviceAdmin(ctx, p); err != nil {
			return err
		}
		if _, _, err := s.ForceRelease(ctx, store.ForceReleaseParams{Actor: w.actor, Device: d}); err != nil && !errors.Is(err, berth.ErrWrongState) {
			return err
		}
		if i%2 == 0 {
			if _, _, err := s.RetireDevice(ctx, p); err != nil {
				return err
			}
		}
		if _, err := s.TrustDevice(ctx, w.actor, d); err != nil {
			return err
		}
		if _, err := s.MarkDeviceClean(ctx, w.actor, d); err != nil && !errors.Is(err, berth.ErrWrongState) {
			return err
		}
		p.Admin = berth.AdminActive
		if _, err := s.SetDeviceAdmin(ctx, p); err != nil {
			return err
		}
	}
	for _, on := range []bool{true, false} {
		if _, _, err := s.DrainHost(ctx, w.actor, w.host, on); err != nil {
			return err
		}
	}
	return nil
}

// work is one turn of an agent: claim, start, renew, complete.
func (w *installation) work(s storeHandle) error {
	ctx := w.t.Context()
	got, _, err := s.ClaimAttempts(ctx, store.ClaimParams{AgentCall: w.call(), ClaimID: id[string](), Max: 4})
	if err != nil {
		return err
	}
	var held []store.Holder
	for _, a := range got {
		held = append(held, store.Holder{Attempt: a.Attempt, Fence: a.Fence})
	}
	if _, _, err := s.StartAttempts(ctx, store.StartParams{AgentCall: w.call(), Items: held}); err != nil {
		return err
	}
	var renew []store.RenewItem
	var complete []store.CompleteItem
	outcomes := []berth.Outcome{berth.OutcomeSucceeded, berth.OutcomeFailed, berth.OutcomeInfraFailed}
	for i, h := range held {
		renew = append(renew, store.RenewItem{Holder: h, Progress: 0.5})
		complete = append(complete, store.CompleteItem{Holder: h, Outcome: outcomes[i%3], DeviceClean: true})
	}
	if _, _, err := s.RenewAttempts(ctx, store.RenewParams{AgentCall: w.call(), Items: renew}); err != nil {
		return err
	}
	_, _, err = s.CompleteAttempts(ctx, store.CompleteParams{AgentCall: w.call(), Items: complete})
	return err
}
