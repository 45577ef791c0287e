package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func operatorChecks() []check {
	return []check{
		in("admin states decide who may be placed", operatorAdmin),
		in("bad input changes nothing", operatorInvalid),
		in("labels of operators override reported ones", operatorLabels),
		in("trust ends a doubt", operatorTrust),
		in("a device is declared clean", operatorClean),
		in("retire a free device", operatorRetireFree),
		in("retire under an attempt", operatorRetireHeld),
		in("force-release", operatorForce),
		in("hand-backs that operators cause do not count", operatorUncounted),
		in("an act that was broken off is finished by its repeat", operatorBrokenOff),
		in("what a broken-off act left live ends by itself", operatorNobodyRepeats),
		in("drain and undrain", operatorDrain),
		in("revoke", operatorRevoke),
		in("a hardware conflict is remembered until it is over", operatorConflict),
		in("move a device", operatorMove),
		in("a device becomes unique", operatorUnique),
		in("probes reach what is kept from others", operatorProbes),
	}
}

func (w *world) admin(id berth.DeviceID, state berth.AdminState, note string) berth.Device {
	w.t.Helper()
	d, err := w.Store.SetDeviceAdmin(bg(), store.DeviceAdminParams{Actor: w.operator, Device: id, Admin: state, Note: note})
	w.must("set admin", err)
	return d
}

func (w *world) retire(id berth.DeviceID) (berth.Device, []berth.Transition) {
	w.t.Helper()
	d, trs, err := w.Store.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: id, Note: "broken glass"})
	w.must("retire", err)
	return d, trs
}

func (w *world) drain(a *agent, on bool) (berth.Host, []berth.Transition) {
	w.t.Helper()
	h, trs, err := w.Store.DrainHost(bg(), w.operator, a.id, on)
	w.must("drain", err)
	return h, trs
}

func (w *world) revoke(a *agent) (berth.Host, []berth.Transition) {
	w.t.Helper()
	h, trs, err := w.Store.RevokeHost(bg(), w.operator, a.id)
	w.must("revoke", err)
	return h, trs
}

func (w *world) probe(ids ...berth.DeviceID) []store.FreeDevice {
	w.t.Helper()
	var out []store.FreeDevice
	w.round(func(ctx context.Context, r store.Round) (err error) {
		out, err = r.ProbeDevices(ctx, ids)
		return err
	})
	return out
}

func pinned(id berth.DeviceID) func(*berth.NewTask) {
	return withSelector(berth.LabelDevice + "=" + string(id))
}

func probing(id berth.DeviceID) func(*berth.NewTask) {
	return withSelector(berth.LabelProbe + "=" + string(id))
}

func operatorAdmin(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	other := a.ids[0]
	if other == as.Device {
		other = a.ids[1]
	}
	rows := 0
	for _, tc := range []struct {
		state          berth.AdminState
		placed, probed bool
	}{
		{berth.AdminCordoned, false, true},
		{berth.AdminMaintenance, false, false},
		{berth.AdminActive, true, true},
	} {
		for _, id := range a.ids {
			w.Clock.Advance(time.Second)
			d := w.admin(id, tc.state, "because "+string(tc.state))
			if d.Admin != tc.state || d.AdminNote != "because "+string(tc.state) || !d.UpdatedAt.Equal(w.Clock.Now()) || diff(d, w.device(id)) != "" {
				w.t.Fatalf("%s: %+v", tc.state, d)
			}
			w.Clock.Advance(time.Second)
			if again := w.admin(id, tc.state, d.AdminNote); diff(again, d) != "" {
				w.t.Errorf("a repeat changed %+v to %+v", d, again)
			}
		}
		rows++
		if got := slices.Contains(w.freeIDs(), other); got != tc.placed {
			w.t.Errorf("%s: free for all: %v", tc.state, got)
		}
		if got := len(w.probe(a.ids...)) == 1; got != tc.probed {
			w.t.Errorf("%s: free for probes: %v", tc.state, got)
		}
		if n := w.acted(berth.AuditDeviceAdmin, "device", string(other)); n != rows {
			w.t.Errorf("%d audit rows after %d acts", n, rows)
		}
		w.state(as.Task, berth.StateRunning)
	}
	w.admin(as.Device, berth.AdminCordoned, "")
	a.completed(as, berth.OutcomeSucceeded)
	if slices.Contains(w.freeIDs(), as.Device) {
		w.t.Errorf("a device that was cordoned while held is free after its attempt")
	}
	last := w.audit("device", string(as.Device))
	if row := last[len(last)-1]; row.Actor != w.operator || row.Reason != string(berth.AdminCordoned) {
		w.t.Errorf("audit row %+v", row)
	}
}

func operatorInvalid(w *world) {
	a := w.host("h1", 1)
	before := w.snapshot()
	d, nobody := a.ids[0], newID[berth.DeviceID](w.Env)
	set := func(id berth.DeviceID, admin berth.AdminState, note string) error {
		return err2(w.Store.SetDeviceAdmin(bg(), store.DeviceAdminParams{Actor: w.operator, Device: id, Admin: admin, Note: note}))
	}
	labels := func(id berth.DeviceID, l map[string]string) error {
		return err2(w.Store.SetDeviceLabels(bg(), w.operator, id, l))
	}
	long := strings.Repeat("x", berth.MaxNameLen+1)
	many := map[string]string{}
	for i := range berth.MaxLabels + 1 {
		many[fmt.Sprint("l", i)] = ""
	}
	for _, tc := range []struct {
		name string
		err  error
		want error
	}{
		{"retired by setting", set(d, berth.AdminRetired, ""), berth.ErrInvalid},
		{"no state", set(d, "gone", ""), berth.ErrInvalid},
		{"long note", set(d, berth.AdminCordoned, long), berth.ErrInvalid},
		{"a NUL in the note", set(d, berth.AdminCordoned, "a\x00b"), berth.ErrInvalid},
		{"long note of a retirement", err3(w.Store.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: d, Note: long})), berth.ErrInvalid},
		{"a label of Berth's", labels(d, map[string]string{berth.LabelDevice: string(d)}), berth.ErrInvalid},
		{"the probe's label", labels(d, map[string]string{"a": "b", berth.LabelProbe: "x"}), berth.ErrInvalid},
		{"a label without a name", labels(d, map[string]string{"": "b"}), berth.ErrInvalid},
		{"a NUL in a label", labels(d, map[string]string{"a": "\x00"}), berth.ErrInvalid},
		{"too many labels", labels(d, many), berth.ErrInvalid},
		{"unknown device", set(nobody, berth.AdminCordoned, ""), berth.ErrNotFound},
		{"labels of an unknown device", labels(nobody, nil), berth.ErrNotFound},
		{"trust an unknown device", err2(w.Store.TrustDevice(bg(), w.operator, nobody)), berth.ErrNotFound},
		{"clean an unknown device", err2(w.Store.MarkDeviceClean(bg(), w.operator, nobody)), berth.ErrNotFound},
		{"retire an unknown device", err3(w.Store.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: nobody})), berth.ErrNotFound},
		{"release an unknown device", err3(w.Store.ForceRelease(bg(), store.ForceReleaseParams{Actor: w.operator, Device: nobody})), berth.ErrNotFound},
		{"release a free device", err3(w.Store.ForceRelease(bg(), store.ForceReleaseParams{Actor: w.operator, Device: d})), berth.ErrWrongState},
		{"release a foreign attempt", err3(w.Store.ForceRelease(bg(), store.ForceReleaseParams{Actor: w.operator, Device: d, Attempt: newID[berth.AttemptID](w.Env)})), berth.ErrNotFound},
		{"move an unknown device", err2(w.Store.MoveDevice(bg(), w.operator, nobody, a.id)), berth.ErrNotFound},
		{"move to an unknown host", err2(w.Store.MoveDevice(bg(), w.operator, d, newID[berth.HostID](w.Env))), berth.ErrNotFound},
		{"move a slot", err2(w.Store.MoveDevice(bg(), w.operator, d, w.enrolled("h2", w.pool.ID, 0).id)), berth.ErrInvalid},
		{"drain an unknown host", err3(w.Store.DrainHost(bg(), w.operator, newID[berth.HostID](w.Env), true)), berth.ErrNotFound},
		{"revoke an unknown host", err3(w.Store.RevokeHost(bg(), w.operator, newID[berth.HostID](w.Env))), berth.ErrNotFound},
		{"a device that is no id", set("x", berth.AdminCordoned, ""), berth.ErrNotFound},
	} {
		w.fails(tc.name, tc.err, tc.want)
	}
	after := w.snapshot()
	if d := diff(before.Devices, after.Devices); d != "" {
		w.t.Errorf("a refused act changed a device:\n%s", d)
	}
	if w.device(d).Admin != berth.AdminActive || len(w.freeIDs()) != 1 {
		w.t.Errorf("device %+v, free %v", w.device(d), w.freeIDs())
	}
}

func operatorLabels(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	task := w.submit(withSelector("os=beos,rack=7"))
	set := func(l map[string]string) berth.Device {
		w.t.Helper()
		d, err := w.Store.SetDeviceLabels(bg(), w.operator, id, l)
		w.must("set labels", err)
		return d
	}
	d := set(map[string]string{"os": "beos", "rack": "7"})
	want := berth.MergeLabels(id, a.devices[0].Labels, map[string]string{"os": "beos", "rack": "7"}, 1)
	if x := diff(want, d.Labels); x != "" || diff(d.AdminLabels, map[string]string{"os": "beos", "rack": "7"}) != "" {
		w.t.Errorf("labels (-want +got):\n%s, admin %v", x, d.AdminLabels)
	}
	set(map[string]string{"os": "beos", "rack": "7"})
	if n := w.acted(berth.AuditDeviceLabels, "device", string(id)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	a.devices[0].Labels = map[string]string{"os": "darwin", "more": "yes"}
	if a.sync(); w.device(id).Labels["os"] != "beos" || w.device(id).Labels["more"] != "yes" {
		w.t.Errorf("labels after a sync: %v", w.device(id).Labels)
	}
	w.placed(task.ID)
	if d := set(nil); d.Labels["os"] != "darwin" || d.Labels["rack"] != "" || len(d.AdminLabels) != 0 {
		w.t.Errorf("labels after all were taken back: %v", d.Labels)
	}
}

func operatorTrust(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	trust := func() berth.Device {
		w.t.Helper()
		d, err := w.Store.TrustDevice(bg(), w.operator, id)
		w.must("trust", err)
		return d
	}
	trust()
	if n := w.acted(berth.AuditDeviceHealth, "device", string(id)); n != 0 {
		w.t.Errorf("%d audit rows of trusting a good device", n)
	}
	a.probes(berth.HealthQuarantined)
	if len(w.freeIDs()) != 0 {
		w.t.Fatalf("a broken device is free")
	}
	for range 2 {
		if d := trust(); diff(d.HealthRecord, berth.HealthRecord{Health: berth.HealthGood}) != "" || d.Health != berth.HealthGood || len(w.freeIDs()) != 1 {
			w.t.Errorf("trusted: %+v, free %v", d, w.freeIDs())
		}
	}
	rows := w.audit("device", string(id))
	if n := w.acted(berth.AuditDeviceHealth, "device", string(id)); n != 2 || rows[len(rows)-1].Actor != w.operator || rows[len(rows)-1].Reason != "good" {
		w.t.Errorf("%d audit rows, the last %+v", n, rows[len(rows)-1])
	}
}

func operatorClean(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	clean := func() (berth.Device, error) { return w.Store.MarkDeviceClean(bg(), w.operator, id) }
	as := a.running()
	_, err := clean()
	w.fails("clean a held device", err, berth.ErrWrongState)
	a.completed(as, berth.OutcomeFailed, unclean)
	for range 2 {
		d, err := clean()
		if err != nil || d.Unclean || d.Occupancy != berth.OccupancyFree || len(w.freeIDs()) != 1 {
			w.t.Fatalf("clean: %+v, %v, free %v", d, err, w.freeIDs())
		}
	}
	if n := w.acted(berth.AuditDeviceCleaned, "device", string(id)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
}

func operatorRetireFree(w *world) {
	a := w.host("h1", 1)
	id := a.ids[0]
	for range 2 {
		d, trs := w.retire(id)
		if d.Admin != berth.AdminRetired || d.AdminNote != "broken glass" || d.Unclean || len(trs) != 0 || len(w.probe(id)) != 0 {
			w.t.Fatalf("retired %+v, %v", d, trs)
		}
	}
	if n := w.acted(berth.AuditDeviceAdmin, "device", string(id)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	if a.sync(); w.device(id).Admin != berth.AdminRetired || len(w.probe(id)) != 0 {
		w.t.Errorf("a sync brought a retired device back")
	}
	if w.admin(id, berth.AdminActive, ""); len(w.freeIDs()) != 1 {
		w.t.Errorf("a device that was made active again is not free")
	}
}

// gone asserts that nothing of an attempt that an operator ended is taken any
// more.
func (a *agent) gone(as store.Assignment) {
	a.w.t.Helper()
	started, _ := a.startAnswers(as)
	renewed, released := a.renew(as), a.release(false, as)
	if started[0].Status != store.LeaseGone || renewed[0].Status != store.LeaseGone {
		a.w.t.Errorf("start %s, renew %s", started[0].Status, renewed[0].Status)
	}
	if s := released[0].Status; s != store.LeaseGone && (s != store.LeaseReleased || a.w.lastOutcome(as) != berth.OutcomeReleased) {
		a.w.t.Errorf("release %s", s)
	}
	if s := a.complete(as, berth.OutcomeSucceeded).Status; s != store.CompleteGone {
		a.w.t.Errorf("complete %s", s)
	}
	a.w.fails("clean under the old fence", a.store.CleanDevice(bg(), store.CleanParams{AgentCall: a.call(), Device: as.Device, Fence: as.Fence}), berth.ErrLeaseLost)
	if f := a.w.device(as.Device).Fence; f <= as.Fence {
		a.w.t.Errorf("fence %d of the device, %d of the attempt", f, as.Fence)
	}
}

func (w *world) lastOutcome(as store.Assignment) berth.Outcome {
	for _, at := range w.attempts(as.Task) {
		if at.ID == as.Attempt {
			return at.Outcome
		}
	}
	return ""
}

// endedByOperator asserts how an operator's act ended a started attempt.
func (w *world) endedByOperator(as store.Assignment, trs []berth.Transition, reason string) {
	w.t.Helper()
	at := w.attempt(as.Task)
	if at.ID != as.Attempt || at.Outcome != berth.OutcomeInfraFailed || at.Reason != reason || !at.EndedAt.Equal(w.Clock.Now()) {
		w.t.Errorf("attempt %+v, should be infra_failed, %s", at, reason)
	}
	if !slices.ContainsFunc(trs, func(tr berth.Transition) bool {
		return tr.Attempt == as.Attempt && tr.Outcome == berth.OutcomeInfraFailed && tr.Event == berth.EventRetried && tr.To == berth.StateFailed
	}) {
		w.t.Errorf("transitions %+v", trs)
	}
	if task := w.state(as.Task, berth.StateFailed); task.DueAt.IsZero() {
		w.t.Errorf("task %+v", task)
	}
	if d := w.device(as.Device); !d.Unclean || d.Attempt != "" || slices.Contains(w.freeIDs(), as.Device) || diff(d.HealthRecord, berth.HealthRecord{Health: berth.HealthGood}) != "" {
		w.t.Errorf("device %+v", d)
	}
}

// releasedByOperator asserts how an operator's act ended an unstarted one.
func (w *world) releasedByOperator(as store.Assignment, trs []berth.Transition, reason string) {
	w.t.Helper()
	if at := w.attempt(as.Task); at.ID != as.Attempt || at.Outcome != berth.OutcomeReleased || at.Reason != reason {
		w.t.Errorf("attempt %+v, should be released, %s", at, reason)
	}
	if !slices.ContainsFunc(trs, func(tr berth.Transition) bool {
		return tr.Attempt == as.Attempt && tr.Event == berth.EventReleased && tr.To == berth.StateQueued && tr.Reason == reason
	}) {
		w.t.Errorf("transitions %+v", trs)
	}
	w.state(as.Task, berth.StateQueued)
	if d := w.device(as.Device); d.Unclean || d.Attempt != "" {
		w.t.Errorf("device %+v", d)
	}
}

func operatorRetireHeld(w *world) {
	a := w.host("h1", 2)
	running, claimed := a.running(), a.claimed()
	for range 2 {
		_, trs := w.retire(running.Device)
		if len(trs) > 0 {
			w.endedByOperator(running, trs, berth.ReasonDeviceRetired)
		}
	}
	a.gone(running)
	_, trs := w.retire(claimed.Device)
	w.releasedByOperator(claimed, trs, berth.ReasonDeviceRetired)
	a.gone(claimed)
	a.sync()
	if d := w.device(running.Device); d.Unclean || d.Admin != berth.AdminRetired || len(w.freeIDs()) != 0 {
		w.t.Errorf("after a sync: %+v, free %v", d, w.freeIDs())
	}
	w.admin(running.Device, berth.AdminActive, "")
	if next := a.again(running.Task); next.Fence <= running.Fence+1 || next.Device != running.Device {
		w.t.Errorf("the next attempt: %+v", next)
	}
}

func operatorForce(w *world) {
	a := w.host("h1", 2)
	running, claimed := a.running(), a.claimed()
	force := func(d berth.DeviceID, at berth.AttemptID) ([]berth.Transition, error) {
		_, trs, err := w.Store.ForceRelease(bg(), store.ForceReleaseParams{Actor: w.operator, Device: d, Attempt: at})
		return trs, err
	}
	_, err := force(running.Device, claimed.Attempt)
	w.fails("an attempt of another device", err, berth.ErrNotFound)
	trs, err := force(running.Device, running.Attempt)
	w.must("force-release", err)
	w.endedByOperator(running, trs, berth.ReasonForceReleased)
	if d := w.device(running.Device); d.Admin != berth.AdminActive {
		w.t.Errorf("device %+v", d)
	}
	trs, err = force(running.Device, running.Attempt)
	if err != nil || len(trs) != 0 || w.acted(berth.AuditDeviceReleased, "device", string(running.Device)) != 1 {
		w.t.Errorf("a repeat: %v, %v", trs, err)
	}
	_, err = force(running.Device, "")
	w.fails("a free device", err, berth.ErrWrongState)
	a.gone(running)
	trs, err = force(claimed.Device, "")
	w.must("force-release", err)
	w.releasedByOperator(claimed, trs, berth.ReasonForceReleased)
	a.gone(claimed)

	// A late repeat spares whoever holds the device by then.
	next := a.again(claimed.Task)
	if next.Device != claimed.Device {
		w.t.Fatalf("placed on %s", next.Device)
	}
	trs, err = force(claimed.Device, claimed.Attempt)
	if err != nil || len(trs) != 0 {
		w.t.Errorf("a late repeat: %v, %v", trs, err)
	}
	a.completed(next, berth.OutcomeSucceeded)

	// A task that was asked to stop is cancelled, whoever ends its attempt (I6).
	last := a.running()
	w.cancel(last.Task)
	_, err = force(last.Device, last.Attempt)
	w.must("force-release", err)
	w.state(last.Task, berth.StateCancelled)
	if o := w.attempt(last.Task).Outcome; o != berth.OutcomeInfraFailed {
		w.t.Errorf("I6: outcome %s", o)
	}
}

func operatorUncounted(w *world) {
	a := w.host("h1", 1)
	task := w.submit()
	for i := range berth.MaxHandBacks + 3 {
		w.placed(task.ID)
		as := a.one(task.ID)
		if i%2 == 0 {
			_, trs := w.retire(as.Device)
			w.releasedByOperator(as, trs, berth.ReasonDeviceRetired)
			w.admin(as.Device, berth.AdminActive, "")
			continue
		}
		_, trs := w.drain(a, true)
		w.releasedByOperator(as, trs, berth.ReasonHostDraining)
		w.drain(a, false)
	}
	if got := w.state(task.ID, berth.StateQueued); got.Tries != 0 {
		w.t.Errorf("%d tries", got.Tries)
	}
}
