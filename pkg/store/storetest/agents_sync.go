package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func syncChecks() []check {
	return []check{
		in("a first sync brings host and devices online", syncFirst),
		in("a new process gets a higher epoch and the old one is refused for ever", syncNewProcess),
		in("a process that was cut off keeps its epoch", syncSame),
		in("a restored database is passed by", syncRestored),
		in("each held attempt gets its verdict", syncVerdicts),
		in("running and not held is lost and queued at once", syncLost),
		in("lost without tries left is dead-lettered", func(w *world) { syncLostForGood(w, berth.ReasonNoTriesLeft, maxAttempts(1)) }),
		in("lost and not retry safe is dead-lettered", func(w *world) { syncLostForGood(w, berth.ReasonNotRetrySafe, retryUnsafe) }),
		in("lost and not retried by policy is dead-lettered", func(w *world) { syncLostForGood(w, berth.ReasonNotRetryable, retryOn(berth.OutcomeFailed)) }),
		in("lost after a cancel is cancelled", syncLostCancelled),
		in("lost on a device that is not proved clean leaves it unclean", syncLostUnclean),
		in("unstarted attempts are delivered again", syncUndelivered),
		in("absent devices are not placeable, new and returning ones are", syncDevices),
		in("labels are merged", syncLabels),
		in("health and draining decide who may be placed", syncHealth),
		in("fences go above the journal's", syncFences),
		in("a clean report ends unclean, another does not", syncClean),
		in("a plugin that is reported and not approved is not served", syncPlugins),
		in("a plugin is approved in local mode", syncApproves),
		in("one unique hardware id on two hosts is a conflict", syncConflict),
		in("each sync has its audit row", syncAudited),
	}
}

func (w *world) hostOf(a *agent) berth.Host {
	w.t.Helper()
	h, err := w.Store.GetHost(bg(), a.id)
	w.must("get host", err)
	return h
}

func syncFirst(w *world) {
	a := w.enrolled("h1", w.pool.ID, 3)
	w.Clock.Advance(time.Minute)
	res := a.sync()
	if res.Epoch != 1 || res.Pool != w.pool.ID || len(res.Devices) != 3 || len(res.Conflicts)+len(res.Verdicts)+len(res.Undelivered)+len(res.DisabledPlugins)+len(res.Transitions) != 0 {
		w.t.Errorf("sync answered %+v", res)
	}
	h := w.hostOf(a)
	want := berth.Host{
		ID: a.id, Name: "h1", Pool: w.pool.ID, PoolName: w.pool.Name, State: berth.HostOnline, Epoch: 1, AgentVersion: "0.1.0",
		Plugins: []berth.PluginVersion{{Name: pluginName, Version: pluginVersion}}, LastSeenAt: w.Clock.Now(), EnrolledAt: h.EnrolledAt, Devices: 3, Protocol: 1,
	}
	if d := diff(want, h); d != "" {
		w.t.Errorf("host (-want +got):\n%s", d)
	}
	for i, r := range a.devices {
		d := w.device(res.Devices[i])
		want := berth.Device{
			ID: r.ID, Host: a.id, HostName: "h1", Pool: w.pool.ID, PoolName: w.pool.Name, Driver: driverName, HardwareID: r.HardwareID, Name: r.Name,
			Labels: berth.MergeLabels(r.ID, r.Labels, nil, 1), Present: true, Health: berth.HealthGood, Admin: berth.AdminActive,
			HealthRecord: berth.HealthRecord{Health: berth.HealthGood},
			Occupancy:    berth.OccupancyFree, CreatedAt: w.Clock.Now(), UpdatedAt: w.Clock.Now(), Fence: d.Fence,
		}
		if x := diff(want, d); x != "" {
			w.t.Errorf("device (-want +got):\n%s", x)
		}
	}
	free := w.free()
	if len(free) != 3 {
		w.t.Fatalf("%d free devices", len(free))
	}
	for i, f := range free {
		if i > 0 && free[i-1].ID >= f.ID {
			w.t.Errorf("free devices are not in order of id")
		}
		if f.Host != a.id || diff(f.Labels, w.device(f.ID).Labels) != "" || diff(f.Plugins, h.Plugins) != "" {
			w.t.Errorf("free device %+v", f)
		}
	}
}

func syncNewProcess(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	old := *a
	a.restart(holding(as))
	if a.epoch != 2 {
		w.t.Fatalf("the new process has epoch %d, not 2", a.epoch)
	}
	for range 2 {
		for name, err := range old.calls(holder(as)) {
			w.fails("old process: "+name, err, berth.ErrStaleEpoch)
		}
		_, err := w.Store.SyncHost(bg(), old.syncParams())
		w.fails("old process: SyncHost", err, berth.ErrStaleEpoch)
		w.Clock.Advance(5 * time.Second)
		a.beat()
	}
	above := *a
	above.epoch++
	for name, err := range above.calls(holder(as)) {
		w.fails("an epoch above the server's: "+name, err, berth.ErrStaleEpoch)
	}
	w.state(as.Task, berth.StateRunning)
	if got := a.completed(as, berth.OutcomeSucceeded); got != berth.StateSucceeded {
		w.t.Errorf("the new process completed; task is %s", got)
	}
}

func syncSame(w *world) {
	a := w.host("h1", 2)
	first, as := slices.Clone(a.ids), a.running()
	for range 2 {
		res := a.sync(holding(as), func(p *store.SyncParams) {
			for i := range p.Devices {
				p.Devices[i].ID = newID[berth.DeviceID](w.Env) // known devices keep theirs
			}
		})
		if res.Epoch != 1 || !slices.Equal(res.Devices, first) || !slices.Equal(res.Verdicts, []store.Verdict{store.VerdictKeep}) {
			w.t.Fatalf("sync answered %+v", res)
		}
	}
	// A repeat by a process that lost the first answer.
	if res := a.sync(holding(as), func(p *store.SyncParams) { p.Epoch = 0 }); res.Epoch != 1 {
		w.t.Errorf("epoch %d", res.Epoch)
	}
	w.state(as.Task, berth.StateRunning)
	if n := len(w.allDevices()); n != 2 {
		w.t.Errorf("%d devices", n)
	}
}

func syncRestored(w *world) {
	a := w.host("h1", 1)
	if res := a.sync(func(p *store.SyncParams) { p.JournalEpoch = 7 }); res.Epoch != 8 {
		w.t.Errorf("journal at 7: epoch %d, should be 8", res.Epoch)
	}
	if res := a.sync(func(p *store.SyncParams) { p.Epoch, p.JournalEpoch = 20, 20 }); res.Epoch != 21 {
		w.t.Errorf("the process holds 20: epoch %d, should be 21", res.Epoch)
	}
	if h := w.hostOf(a); h.Epoch != 21 {
		w.t.Errorf("host has epoch %d", h.Epoch)
	}
	a.running()
}

func syncVerdicts(w *world) {
	a, b := w.host("h1", 6), w.host("h2", 1)
	foreign := b.running(withSelector("berth.dev/device=" + string(b.ids[0])))
	keep, cancelled, claimed, ended := a.running(), a.running(), a.claimed(), a.running()
	wrongFence := a.running(retryUnsafe)
	w.cancel(cancelled.Task)
	a.completed(ended, berth.OutcomeSucceeded)
	other := wrongFence
	other.Fence++
	unknown := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	res := a.restart(holding(keep, cancelled, claimed, ended, foreign, other, unknown))
	want := []store.Verdict{store.VerdictKeep, store.VerdictCancel, store.VerdictKeep, store.VerdictGone, store.VerdictGone, store.VerdictGone, store.VerdictGone}
	if !slices.Equal(res.Verdicts, want) {
		w.t.Fatalf("verdicts %v, should be %v", res.Verdicts, want)
	}
	w.state(keep.Task, berth.StateRunning)
	w.state(cancelled.Task, berth.StateRunning)
	w.state(claimed.Task, berth.StateClaimed)
	w.state(foreign.Task, berth.StateRunning)
	a.completed(keep, berth.OutcomeInfraFailed)
}

func syncLost(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(time.Second)
	res := a.restart()
	want := berth.Transition{
		Event: berth.EventRetried, Task: as.Task, From: berth.StateRunning, To: berth.StateQueued, Attempt: as.Attempt, Number: 1,
		Device: a.ids[0], Host: a.id, Fence: as.Fence, Outcome: berth.OutcomeLost, Reason: berth.ReasonHostLostAttempt, Pool: w.pool.ID,
		CorrelationID: "corr-1", At: w.Clock.Now(),
	}
	if d := diff(want, w.oneTransition(res.Transitions)); d != "" {
		w.t.Errorf("transition (-want +got):\n%s", d)
	}
	w.state(as.Task, berth.StateQueued)
	if heads := w.heads(); len(heads) != 1 || heads[0].LastHost != a.id || heads[0].LastDevice != a.ids[0] {
		w.t.Errorf("heads %+v do not remember where it was lost", heads)
	}
	if free := w.freeIDs(); !slices.Equal(free, a.ids) {
		w.t.Errorf("free devices %v, the agent proved it clean", free)
	}
	next := a.again(as.Task)
	if next.Fence <= as.Fence {
		w.t.Errorf("I10: fence %d after %d", next.Fence, as.Fence)
	}
	if s := a.complete(as, berth.OutcomeSucceeded).Status; s != store.CompleteGone {
		w.t.Errorf("complete of the lost attempt: %s", s)
	}
	w.state(as.Task, berth.StateRunning)
}

func syncLostForGood(w *world, reason string, mod func(*berth.NewTask)) {
	a := w.host("h1", 1)
	as := a.running(mod)
	res := a.restart()
	if tr := w.oneTransition(res.Transitions); tr.Event != berth.EventFailed || tr.Outcome != berth.OutcomeLost || tr.To != berth.StateDeadLetter {
		w.t.Errorf("transition %+v", tr)
	}
	if task := w.state(as.Task, berth.StateDeadLetter); task.FinalReason != reason {
		w.t.Errorf("reason %q, should be %q", task.FinalReason, reason)
	}
	if at := w.attempt(as.Task); at.Outcome != berth.OutcomeLost || at.Reason != berth.ReasonHostLostAttempt {
		w.t.Errorf("attempt ended %s, %s", at.Outcome, at.Reason)
	}
}

func syncLostCancelled(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.cancel(as.Task)
	if tr := w.oneTransition(a.restart().Transitions); tr.Event != berth.EventCancelled || tr.Outcome != berth.OutcomeLost {
		w.t.Errorf("transition %+v", tr)
	}
	w.state(as.Task, berth.StateCancelled)
}

func notClean(p *store.SyncParams) {
	for i := range p.Devices {
		p.Devices[i].Clean = false
	}
}

func syncLostUnclean(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	a.restart(notClean)
	w.state(as.Task, berth.StateQueued)
	for _, id := range a.ids {
		d := w.device(id)
		lost := id == w.attempt(as.Task).Device
		if d.Unclean != lost || slices.Contains(w.freeIDs(), id) == lost {
			w.t.Errorf("device (held the lost attempt: %v) is unclean: %v, free: %v", lost, d.Unclean, w.freeIDs())
		}
	}
}

func syncUndelivered(w *world) {
	a := w.host("h1", 3)
	claimed := a.claimed()
	task := w.submit()
	w.placed(task.ID)
	assigned := w.attempt(task.ID).ID
	for _, sync := range []func(...func(*store.SyncParams)) store.SyncResult{a.sync, a.restart} {
		res := sync()
		got := slices.Clone(res.Undelivered)
		slices.Sort(got)
		want := []berth.AttemptID{claimed.Attempt, assigned}
		slices.Sort(want)
		if !slices.Equal(got, want) || len(res.Transitions) != 0 {
			w.t.Fatalf("undelivered %v, should be %v; transitions %+v", got, want, res.Transitions)
		}
	}
	// I11: a new process claims both, under a claim id of its own.
	if n := len(a.claim()); n != 2 {
		w.t.Fatalf("I11: %d attempts delivered again, not 2", n)
	}
	w.state(task.ID, berth.StateClaimed)
	w.state(claimed.Task, berth.StateClaimed)
	a.start(claimed)
}

func syncDevices(w *world) {
	a := w.host("h1", 2)
	gone, stays := a.ids[0], a.ids[1]
	full := a.devices
	a.devices = full[1:]
	a.sync()
	if d := w.device(gone); d.Present || !w.device(stays).Present {
		w.t.Errorf("presence %v and %v", d.Present, w.device(stays).Present)
	}
	if free := w.freeIDs(); !slices.Equal(free, []berth.DeviceID{stays}) {
		w.t.Errorf("free %v", free)
	}
	a.devices = append(slices.Clone(full), a.reported("slot-9"))
	res := a.sync()
	if res.Devices[0] != gone || res.Devices[1] != stays || res.Devices[2] != a.devices[2].ID {
		w.t.Errorf("devices %v", res.Devices)
	}
	if free := w.freeIDs(); len(free) != 3 {
		w.t.Errorf("free %v", free)
	}
	if h := w.hostOf(a); h.Devices != 3 {
		w.t.Errorf("host counts %d devices", h.Devices)
	}
	// A device that goes away while held keeps its holder.
	as := a.running(withSelector("slot=slot-9"))
	a.devices = full
	a.sync(holding(as))
	if d := w.device(res.Devices[2]); d.Present || d.Attempt != as.Attempt {
		w.t.Errorf("device %+v", d)
	}
	a.completed(as, berth.OutcomeInfraFailed)
	if slices.Contains(w.freeIDs(), res.Devices[2]) {
		w.t.Errorf("an absent device is free for placement after its attempt")
	}
}

func syncLabels(w *world) {
	a := w.enrolled("h1", w.pool.ID, 1)
	a.devices[0].Labels = map[string]string{"os": "linux", "berth.dev/device": "forged", "berth.dev/x": "y"}
	a.sync()
	want := map[string]string{"os": "linux", berth.LabelDevice: string(a.ids[0]), berth.LabelProbe: string(a.ids[0]), berth.LabelProtocol: "1"}
	if d := diff(want, w.device(a.ids[0]).Labels); d != "" {
		w.t.Errorf("labels (-want +got):\n%s", d)
	}
	a.devices[0].Labels = map[string]string{"os": "darwin"}
	a.devices[0].Name = "renamed"
	a.sync()
	if d := w.device(a.ids[0]); d.Labels["os"] != "darwin" || d.Name != "renamed" || w.free()[0].Labels["os"] != "darwin" {
		w.t.Errorf("device after a change %+v", d)
	}
	w.placed(w.submit(withSelector("os=darwin,berth.dev/device=" + string(a.ids[0]))).ID)
}

func syncHealth(w *world) {
	a := w.host("h1", 3)
	a.devices[0].Health, a.devices[1].Health = berth.HealthQuarantined, berth.HealthSuspect
	a.sync()
	if free := w.freeIDs(); !slices.Equal(free, a.ids[1:]) {
		w.t.Errorf("free %v, should be all but the quarantined", free)
	}
	a.sync(func(p *store.SyncParams) { p.Draining = true })
	if free := w.freeIDs(); len(free) != 0 || !w.hostOf(a).Draining {
		w.t.Errorf("free on a draining host: %v", free)
	}
	a.devices[0].Health, a.devices[1].Health = berth.HealthGood, berth.HealthGood
	a.sync()
	if free := w.freeIDs(); len(free) != 2 || w.hostOf(a).Draining {
		w.t.Errorf("one good probe ended a quarantine: free %v", free)
	}
	w.Clock.Advance(berth.QuarantineFor)
	a.sync()
	a.sync()
	if free := w.freeIDs(); len(free) != 3 {
		w.t.Errorf("free afterwards: %v", free)
	}
}

func syncFences(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.completed(as, berth.OutcomeSucceeded)
	a.devices[0].HighestFence = 41
	a.restart()
	if next := a.running(); next.Fence <= 41 {
		w.t.Errorf("I10: fence %d, the journal had 41", next.Fence)
	}
	b := w.enrolled("h2", w.pool.ID, 1)
	b.devices[0].HighestFence = 99 // a database that never heard of the device
	b.sync()
	if next := b.running(); next.Fence <= 99 {
		w.t.Errorf("I10: fence %d of a new device, the journal had 99", next.Fence)
	}
	b.devices[0].HighestFence = 3 // never down
	before := w.device(b.ids[0]).Fence
	if b.restart(); w.device(b.ids[0]).Fence < before {
		w.t.Errorf("I10: the fence went from %d to %d", before, w.device(b.ids[0]).Fence)
	}
}

func syncClean(w *world) {
	a := w.host("h1", 1)
	a.completed(a.running(), berth.OutcomeFailed, unclean)
	a.sync(notClean)
	if !w.device(a.ids[0]).Unclean || len(w.freeIDs()) != 0 {
		w.t.Fatalf("the device became clean by itself")
	}
	a.sync()
	if w.device(a.ids[0]).Unclean || len(w.freeIDs()) != 1 {
		w.t.Errorf("the device stayed unclean")
	}
}

func syncPlugins(w *world) {
	a := w.host("h1", 1)
	extra := berth.PluginVersion{Name: "extra", Version: "0.3.0"}
	a.plugins = append(a.plugins, berth.Plugin{PluginVersion: extra, Enabled: true, Schema: []byte(`{"type":"object"}`)})
	for range 2 {
		if res := a.sync(); !slices.Equal(res.DisabledPlugins, []berth.PluginVersion{extra}) {
			w.t.Fatalf("disabled plugins %v", res.DisabledPlugins)
		}
	}
	if got := w.free()[0].Plugins; slices.Contains(got, extra) || len(got) != 1 {
		w.t.Errorf("served plugins %v", got)
	}
	list, err := w.Store.PluginVersions(bg(), "extra")
	if err != nil || len(list) != 1 || list[0].Enabled {
		w.t.Fatalf("registered %+v, %v", list, err)
	}
	w.must("register", w.Store.RegisterPlugins(bg(), w.operator, []berth.Plugin{{PluginVersion: extra, Enabled: true, Schema: []byte(`{"type": "object"}`)}}))
	if got := w.free()[0].Plugins; !slices.Contains(got, extra) {
		w.t.Errorf("served plugins after the approval %v", got)
	}
	if res := a.sync(); len(res.DisabledPlugins) != 0 {
		w.t.Errorf("disabled plugins after the approval %v", res.DisabledPlugins)
	}
	a.plugins = a.plugins[:1]
	a.sync()
	if got := w.free()[0].Plugins; slices.Contains(got, extra) {
		w.t.Errorf("a plugin that the host no longer provides is served: %v", got)
	}
}

func syncApproves(w *world) {
	a := w.enrolled("h1", w.pool.ID, 1)
	extra := berth.PluginVersion{Name: "extra", Version: "0.3.0"}
	a.plugins = []berth.Plugin{{PluginVersion: extra, Schema: []byte(`{"type":"object"}`), Description: "more"}}
	res := a.sync(func(p *store.SyncParams) { p.ApprovePlugins = true })
	if len(res.DisabledPlugins) != 0 || !slices.Contains(w.free()[0].Plugins, extra) {
		w.t.Errorf("disabled %v, served %v", res.DisabledPlugins, w.free()[0].Plugins)
	}
	list, err := w.Store.PluginVersions(bg(), "extra")
	if err != nil || len(list) != 1 || !list[0].Enabled || len(list[0].Schema) == 0 || list[0].Description != "more" {
		w.t.Errorf("registered %+v, %v", list, err)
	}
}

func syncConflict(w *world) {
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 2)
	a.devices[0].HardwareUnique, a.devices[0].HardwareID = true, "serial-1"
	b.devices[1].HardwareUnique, b.devices[1].HardwareID = true, "serial-1"
	a.sync()
	for range 2 {
		res := b.sync()
		if res.Devices[0] == "" || res.Devices[1] != "" || !slices.Equal(res.Conflicts, []int{1}) {
			w.t.Fatalf("sync answered %+v", res)
		}
	}
	if d := w.device(a.ids[0]); d.Host != a.id || !d.Present || len(w.freeIDs()) != 2 || len(w.allDevices()) != 2 {
		w.t.Errorf("the first host's device %+v, free %v", d, w.freeIDs())
	}
	// Not unique by itself: slots of the same name on two hosts are two devices.
	if res := a.sync(func(p *store.SyncParams) { p.Devices = append(p.Devices, a.reported("slot-0")) }); len(res.Conflicts) != 0 {
		w.t.Errorf("conflicts %v", res.Conflicts)
	}
}

func syncAudited(w *world) {
	a := w.host("h1", 1)
	a.restart()
	if n := w.acted(berth.AuditHostSynced, "host", string(a.id)); n != 2 {
		w.t.Errorf("%d audit rows of two syncs", n)
	}
	for _, row := range w.audit("host", string(a.id)) {
		if row.Action == berth.AuditHostSynced && row.Actor != a.actor {
			w.t.Errorf("actor %+v", row.Actor)
		}
	}
}
