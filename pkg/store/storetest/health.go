package storetest

import (
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func healthChecks() []check {
	return []check{
		in("probes are believed by the rules", healthProbes),
		in("infra failures in a row", healthFailures),
		in("only what the agent saw counts", healthHearsay),
		in("what changes nothing writes nothing", healthQuiet),
		in("a probe task ends a quarantine", healthProbeTask),
		in("health survives a restart and a second handle", healthStored),
	}
}

// probes reports a health of the agent's first device, in a heartbeat.
func (a *agent) probes(health berth.Health) {
	a.w.t.Helper()
	_, err := a.store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Health: map[berth.DeviceID]berth.Health{a.ids[0]: health}})
	a.w.must("heartbeat", err)
}

// record asserts what is remembered of a device's health.
func (w *world) record(id berth.DeviceID, want berth.HealthRecord) {
	w.t.Helper()
	d := w.device(id)
	if x := diff(want, d.HealthRecord); x != "" || d.Health != want.Health {
		w.t.Fatalf("health %s, record (-want +got):\n%s", d.Health, x)
	}
	free := len(w.freeIDs()) > 0
	if d.Attempt == "" && free != (d.Health != berth.HealthQuarantined) {
		w.t.Fatalf("a %s device is free for all: %v", d.Health, free)
	}
	if f := w.free(); free && d.Attempt == "" && f[0].Suspect != (d.Health == berth.HealthSuspect) {
		w.t.Fatalf("a %s device is placed on as suspect: %v", d.Health, f[0].Suspect)
	}
}

func healthProbes(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	bySync := func(h berth.Health) {
		a.devices[0].Health = h
		a.sync()
	}
	rows := 0
	changed := func(n int) {
		w.t.Helper()
		if rows += n; w.acted(berth.AuditDeviceHealth, "device", string(id)) != rows {
			w.t.Fatalf("%d audit rows, should be %d", w.acted(berth.AuditDeviceHealth, "device", string(id)), rows)
		}
	}
	for _, report := range []func(berth.Health){a.probes, bySync} {
		report(berth.HealthGood)
		w.record(id, berth.HealthRecord{Health: berth.HealthGood})
		changed(0)
		report(berth.HealthSuspect)
		w.record(id, berth.HealthRecord{Health: berth.HealthSuspect})
		changed(1)
		for i := range berth.GoodProbesToTrust - 1 {
			report(berth.HealthGood)
			w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, GoodProbes: i + 1})
		}
		changed(0)
		report(berth.HealthGood)
		w.record(id, berth.HealthRecord{Health: berth.HealthGood})
		changed(1)

		until := w.Clock.Now().Add(berth.QuarantineFor)
		report(berth.HealthQuarantined)
		w.record(id, berth.HealthRecord{Health: berth.HealthQuarantined, Strikes: 1, QuarantinedUntil: until})
		changed(1)
		for range berth.GoodProbesToTrust + 1 {
			w.Clock.Advance(10 * time.Second)
			report(berth.HealthGood)
		}
		w.record(id, berth.HealthRecord{Health: berth.HealthQuarantined, Strikes: 1, QuarantinedUntil: until, GoodProbes: berth.GoodProbesToTrust})
		changed(0)
		w.Clock.Set(until)
		report(berth.HealthGood)
		w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Strikes: 1, Failures: berth.FailuresToQuarantine - 1})
		changed(1)
		for range 2 * berth.GoodProbesToTrust { // only work makes it good again
			report(berth.HealthGood)
		}
		w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Strikes: 1, Failures: berth.FailuresToQuarantine - 1, GoodProbes: berth.GoodProbesToTrust})
		changed(0)
		a.completed(a.running(), berth.OutcomeFailed)
		w.record(id, berth.HealthRecord{Health: berth.HealthGood})
		changed(1)
	}
	for _, row := range w.audit("device", string(id)) {
		if row.Action == berth.AuditDeviceHealth && (row.Actor != a.actor || !berth.Health(row.Reason).Valid()) {
			w.t.Errorf("audit row %+v", row)
		}
	}
}

func healthFailures(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	fail := func() {
		w.t.Helper()
		a.completed(a.running(maxAttempts(1)), berth.OutcomeInfraFailed)
	}
	fail()
	w.record(id, berth.HealthRecord{Health: berth.HealthGood, Failures: 1})
	a.probes(berth.HealthGood) // a probe does not forget it, work does
	w.record(id, berth.HealthRecord{Health: berth.HealthGood, Failures: 1})
	a.completed(a.running(), berth.OutcomeSucceeded)
	w.record(id, berth.HealthRecord{Health: berth.HealthGood})
	fail()
	fail()
	w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Failures: 2})
	hold := berth.QuarantineFor
	for strike := 1; strike <= 8; strike++ {
		fail()
		until := w.Clock.Now().Add(hold)
		w.record(id, berth.HealthRecord{Health: berth.HealthQuarantined, Failures: 3, Strikes: strike, QuarantinedUntil: until})
		w.Clock.Set(until)
		a.beat()
		for range berth.GoodProbesToTrust {
			a.probes(berth.HealthGood)
		}
		w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Failures: 2, Strikes: strike})
		hold = min(2*hold, berth.MaxQuarantineFor)
	}
	a.completed(a.running(), berth.OutcomeSucceeded)
	w.record(id, berth.HealthRecord{Health: berth.HealthGood})
	// An attempt that could not even start says as much.
	for range 2 {
		as := a.claimed(maxAttempts(1))
		a.completed(as, berth.OutcomeInfraFailed)
	}
	w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Failures: 2})
}

func healthHearsay(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	a.completed(a.running(maxAttempts(1)), berth.OutcomeInfraFailed)
	want := berth.HealthRecord{Health: berth.HealthGood, Failures: 1}
	w.record(id, want)
	// An outage is no fault of the device's.
	a.completed(a.running(maxAttempts(1)), berth.OutcomeInfraFailed, func(it *store.CompleteItem) { it.Reason = berth.ReasonFenced })
	w.record(id, want)
	a.completed(a.running(maxAttempts(1)), berth.OutcomeTimedOut)
	w.record(id, want)
	cancelled := a.running()
	w.cancel(cancelled.Task)
	a.completed(cancelled, berth.OutcomeCancelled)
	w.record(id, want)
	a.release(false, a.claimed())
	w.record(id, want)
	w.cancel(w.allTasks(store.TaskFilter{States: []berth.TaskState{berth.StateQueued}})[0].ID)
	lost := a.running(maxAttempts(1))
	a.restart()
	w.state(lost.Task, berth.StateDeadLetter)
	w.record(id, want)
	forced := a.running(maxAttempts(1))
	w.must("force", err3(w.Store.ForceRelease(bg(), store.ForceReleaseParams{Actor: w.operator, Device: id, Attempt: forced.Attempt})))
	a.sync()
	w.record(id, want)
	// A task that was asked to stop tells of its device all the same.
	stopped := a.running()
	w.cancel(stopped.Task)
	a.completed(stopped, berth.OutcomeInfraFailed)
	w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Failures: 2})
	// A repeat of a completion is no second word.
	answers, _ := a.completeItems(item(stopped, berth.OutcomeInfraFailed))
	if answers[0].Status != store.CompleteStored {
		w.t.Errorf("repeat: %+v", answers[0])
	}
	w.record(id, berth.HealthRecord{Health: berth.HealthSuspect, Failures: 2})
}

func healthQuiet(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	before := w.device(id)
	rows := len(w.audit("device", string(id)))
	w.Clock.Advance(time.Second)
	a.probes(berth.HealthGood)
	a.probes("fine") // no health at all
	a.sync()
	a.completed(a.running(), berth.OutcomeSucceeded)
	a.completed(a.running(maxAttempts(1)), berth.OutcomeFailed)
	after := w.device(id)
	before.Fence = after.Fence
	if d := diff(before, after); d != "" || len(w.audit("device", string(id))) != rows {
		w.t.Errorf("the device was written (-before +after):\n%s", d)
	}
	if h := w.hostOf(a); !h.LastSeenAt.Equal(w.Clock.Now()) {
		w.t.Errorf("the host was seen at %v", h.LastSeenAt)
	}
}

func healthProbeTask(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	a.probes(berth.HealthQuarantined)
	normal, task := w.submit(pinned(id)), w.submit(probing(id))
	w.place()
	w.state(normal.ID, berth.StateQueued)
	w.state(task.ID, berth.StateAssigned)
	as := a.one(task.ID)
	a.start(as)
	a.completed(as, berth.OutcomeSucceeded)
	w.record(id, berth.HealthRecord{Health: berth.HealthGood})
	w.placed(normal.ID)
}

func healthStored(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	a.probes(berth.HealthQuarantined)
	want := w.device(id)
	d, err := w.second().GetDevice(bg(), id)
	if err != nil || diff(want, d) != "" {
		w.t.Errorf("%+v, %v", d, err)
	}
	a.devices[0].Health = "" // nothing is said of it
	if a.restart(); diff(want.HealthRecord, w.device(id).HealthRecord) != "" {
		w.t.Errorf("after a restart of the agent: %+v", w.device(id).HealthRecord)
	}
	// What is new comes as it is reported.
	a.devices = append(a.devices, a.reported("slot-1"), a.reported("slot-2"))
	a.devices[1].Health, a.devices[2].Health = berth.HealthSuspect, berth.HealthQuarantined
	a.sync()
	for i, want := range []berth.Health{berth.HealthQuarantined, berth.HealthSuspect, berth.HealthQuarantined} {
		if d := w.device(a.ids[i]); d.Health != want {
			w.t.Errorf("device %d is %s, should be %s", i, d.Health, want)
		}
	}
}
