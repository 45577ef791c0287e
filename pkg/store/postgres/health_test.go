package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// TestHealthCostsTheHotPathNoLock: while another process holds the rows of all
// devices, work that tells nothing new of them is completed; while one holds
// their leases, a heartbeat that tells nothing new is taken.
func TestHealthCostsTheHotPathNoLock(t *testing.T) {
	w := install(t, newDB(t), 2)
	blocked := w.conn()
	hold := func(table string, act func(ctx context.Context)) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		tx, err := blocked.Begin(ctx)
		w.must(err)
		_, err = tx.Exec(ctx, "SELECT 1 FROM "+table+" FOR UPDATE")
		w.must(err)
		act(ctx)
		w.must(tx.Rollback(ctx))
	}
	complete := func(ctx context.Context, h store.Holder, outcome berth.Outcome) {
		t.Helper()
		answers, _, err := w.s.CompleteAttempts(ctx, store.CompleteParams{AgentCall: w.call(), Items: []store.CompleteItem{{Holder: h, Outcome: outcome, DeviceClean: true}}})
		w.must(err)
		if answers[0].Status != store.CompleteStored {
			t.Fatalf("%+v", answers[0])
		}
	}
	succeeded, failed := w.running(), w.running()
	hold("devices", func(ctx context.Context) {
		complete(ctx, succeeded, berth.OutcomeSucceeded)
		complete(ctx, failed, berth.OutcomeFailed)
	})
	health := map[berth.DeviceID]berth.Health{w.devices[0]: berth.HealthGood, w.devices[1]: berth.HealthGood}
	for _, table := range []string{"leases", "devices"} {
		hold(table, func(ctx context.Context) {
			_, err := w.s.Heartbeat(ctx, store.HeartbeatParams{AgentCall: w.call(), Health: health})
			w.must(err)
		})
	}
}

// TestWorkIsHeardUnderTheDevicesLock: an operator and the end of an attempt that
// both change a device's health come one after the other.
func TestWorkIsHeardUnderTheDevicesLock(t *testing.T) {
	w := install(t, newDB(t), 1)
	for range berth.FailuresToQuarantine - 1 {
		h := w.running(func(k *berth.NewTask) { k.Retry.MaxAttempts = 1 })
		_, _, err := w.s.CompleteAttempts(t.Context(), store.CompleteParams{
			AgentCall: w.call(), Items: []store.CompleteItem{{Holder: h, Outcome: berth.OutcomeInfraFailed, DeviceClean: true}},
		})
		w.must(err)
	}
	last := w.running(func(k *berth.NewTask) { k.Retry.MaxAttempts = 1 })
	other, reached := w.open(w.dsn, nil), make(chan error, 1)
	w.on(func(ctx context.Context, op string, n int) error {
		if op != "CompleteAttempts" || n != 4 { // its attempt, lease and task are locked
			return nil
		}
		w.on(nil)
		go func() {
			_, err := other.TrustDevice(context.WithoutCancel(ctx), w.actor, w.devices[0])
			reached <- err
		}()
		w.lockWaiters(w.conn(), 1)
		return nil
	})
	_, _, err := w.s.CompleteAttempts(t.Context(), store.CompleteParams{
		AgentCall: w.call(), Items: []store.CompleteItem{{Holder: last, Outcome: berth.OutcomeInfraFailed, DeviceClean: true}},
	})
	w.must(err)
	w.must(<-reached)
	d, err := w.s.GetDevice(t.Context(), w.devices[0])
	w.must(err)
	if !d.HealthRecord.Same(berth.HealthRecord{Health: berth.HealthGood}) {
		t.Errorf("trusted after its quarantine: %+v", d.HealthRecord)
	}
	rows, err := w.s.ListAudit(t.Context(), "device", string(w.devices[0]), 0, 100)
	w.must(err)
	var healths []string
	for _, row := range rows {
		if row.Action == berth.AuditDeviceHealth {
			healths = append(healths, row.Reason)
		}
	}
	if len(healths) != 3 || healths[0] != "suspect" || healths[1] != "quarantined" || healths[2] != "good" {
		t.Errorf("audited %v", healths)
	}
}
