package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func operatorDrain(w *world) {
	a := w.host("h1", 3)
	running, claimed := a.running(), a.claimed()
	assigned := w.submit()
	w.placed(assigned.ID)
	asked := w.Clock.Advance(time.Second)
	h, trs := w.drain(a, true)
	if !h.DrainRequestedAt.Equal(asked) || h.Draining || h.State != berth.HostOnline || len(trs) != 2 || h.Held != 1 || diff(h, w.hostOf(a)) != "" {
		w.t.Fatalf("drained %+v, %+v", h, trs)
	}
	w.releasedByOperator(claimed, trs, berth.ReasonHostDraining)
	w.state(assigned.ID, berth.StateQueued)
	a.gone(claimed)
	if free, probes := w.freeIDs(), w.probe(a.ids...); len(free)+len(probes) != 0 {
		w.t.Errorf("free %v, for probes %v", free, probes)
	}
	res, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	if err != nil || !res.Drain || res.Resync {
		w.t.Errorf("heartbeat: %+v, %v", res, err)
	}
	w.Clock.Advance(time.Second)
	if h, trs := w.drain(a, true); !h.DrainRequestedAt.Equal(asked) || len(trs) != 0 {
		w.t.Errorf("a repeat: %+v, %v", h, trs)
	}
	// A device that appears on a draining host is no exception.
	a.devices = append(a.devices, a.reported("slot-3"))
	if a.sync(holding(running)); len(w.freeIDs()) != 0 || w.hostOf(a).DrainRequestedAt.IsZero() {
		w.t.Errorf("free after a sync: %v", w.freeIDs())
	}
	a.completed(running, berth.OutcomeSucceeded)
	// Its agent drains by itself, too: both must end.
	beat := func(draining bool) {
		w.t.Helper()
		_, err := w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call(), Draining: draining})
		w.must("heartbeat", err)
	}
	beat(true)
	if h, _ := w.drain(a, false); !h.DrainRequestedAt.IsZero() || !h.Draining || len(w.freeIDs()) != 0 {
		w.t.Errorf("undrained %+v, free %v", h, w.freeIDs())
	}
	if beat(false); len(w.freeIDs()) != 4 {
		w.t.Errorf("free %v", w.freeIDs())
	}
	w.drain(a, false)
	if d, u := w.acted(berth.AuditHostDrain, "host", string(a.id)), w.acted(berth.AuditHostUndrain, "host", string(a.id)); d != 1 || u != 1 {
		w.t.Errorf("%d drains and %d undrains audited", d, u)
	}
	res, err = w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	if err != nil || res.Drain {
		w.t.Errorf("heartbeat: %+v, %v", res, err)
	}
}

func operatorRevoke(w *world) {
	a := w.host("h1", 3)
	running, claimed := a.running(), a.claimed()
	h, trs := w.revoke(a)
	if h.State != berth.HostRevoked || h.Held != 0 || len(trs) != 2 || diff(h, w.hostOf(a)) != "" {
		w.t.Fatalf("revoked %+v, %+v", h, trs)
	}
	w.endedByOperator(running, trs, berth.ReasonHostRevoked)
	w.releasedByOperator(claimed, trs, berth.ReasonHostRevoked)
	if h, trs := w.revoke(a); h.State != berth.HostRevoked || len(trs) != 0 || w.acted(berth.AuditHostRevoked, "host", string(a.id)) != 1 {
		w.t.Errorf("a repeat: %+v, %v", h, trs)
	}
	call := a.call()
	_, keyErr := w.Store.HostKeys(bg(), a.id)
	for name, err := range map[string]error{
		"key":       keyErr,
		"sync":      err2(w.Store.SyncHost(bg(), a.syncParams())),
		"heartbeat": err2(w.Store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: call})),
		"claim":     err3(w.Store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: call, ClaimID: newID[string](w.Env), Max: 1})),
		"renew":     err3(w.Store.RenewAttempts(bg(), store.RenewParams{AgentCall: call, Items: []store.RenewItem{{Holder: holder(running)}}})),
		"complete":  err3(w.Store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: call, Items: []store.CompleteItem{item(running, berth.OutcomeSucceeded)}})),
		"clean":     w.Store.CleanDevice(bg(), store.CleanParams{AgentCall: call, Device: running.Device, Fence: running.Fence}),
	} {
		w.fails(name+" of a revoked host", err, berth.ErrNotFound)
	}
	_, _, err := w.Store.DrainHost(bg(), w.operator, a.id, true)
	w.fails("drain a revoked host", err, berth.ErrWrongState)
	// Its devices stay, kept from everybody, whatever is said of them.
	for _, id := range a.ids {
		_, err := w.Store.MarkDeviceClean(bg(), w.operator, id)
		w.must("clean", err)
		w.admin(id, berth.AdminCordoned, "")
		w.admin(id, berth.AdminActive, "")
	}
	if free, probes := w.freeIDs(), w.probe(a.ids...); len(free)+len(probes) != 0 {
		w.t.Errorf("I14: free %v, for probes %v", free, probes)
	}
	w.cancel(claimed.Task)
	w.host("h2", 2).again(running.Task)
}

// phone makes a device of the agent one whose hardware id is unique by itself.
func (a *agent) phone(i int, serial string) {
	a.devices[i].HardwareUnique, a.devices[i].HardwareID = true, serial
}

func operatorConflict(w *world) {
	a, b, c := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 2), w.enrolled("h3", w.pool.ID, 1)
	a.phone(0, "serial-1")
	b.phone(1, "serial-1")
	c.phone(0, "serial-1")
	a.sync()
	rival := func(want *agent, rows int) {
		w.t.Helper()
		var id berth.HostID
		if want != nil {
			id = want.id
		}
		d := w.device(a.ids[0])
		if d.ConflictHost != id || d.Host != a.id || d.HostName != a.name || !d.Present {
			w.t.Fatalf("device %+v, the other host should be %q", d, id)
		}
		if n := w.acted(berth.AuditDeviceConflict, "device", string(d.ID)); n != rows {
			w.t.Fatalf("%d audit rows, should be %d", n, rows)
		}
	}
	rival(nil, 0)
	for range 2 {
		b.sync()
		rival(b, 1)
	}
	rows := w.audit("device", string(a.ids[0]))
	if row := rows[len(rows)-1]; row.Host != b.id || row.Actor != b.actor {
		w.t.Errorf("audit row %+v", row)
	}
	c.sync() // a third host does not push the second out
	a.sync()
	rival(b, 1)
	phone := b.devices[1]
	b.devices = b.devices[:1]
	b.sync()
	rival(nil, 1)
	c.sync()
	rival(c, 2)
	c.devices[0].HardwareUnique = false // a slot of that name is another thing
	c.sync()
	rival(nil, 2)
	b.devices = append(b.devices, phone)
	b.sync()
	rival(b, 3)
	if n := len(w.freeIDs()); n != 3 {
		w.t.Errorf("%d free devices", n)
	}
}

func operatorMove(w *world) {
	other := w.makePool("other")
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", other.ID, 1)
	a.phone(0, "serial-1")
	b.phone(0, "serial-1")
	a.sync()
	id := a.ids[0]
	as := a.running()
	b.sync()
	move := func(to berth.HostID) (berth.Device, error) { return w.Store.MoveDevice(bg(), w.operator, id, to) }
	_, err := move(b.id)
	w.fails("move a held device", err, berth.ErrWrongState)
	a.completed(as, berth.OutcomeFailed, unclean)
	if d, err := move(a.id); err != nil || d.Host != a.id || d.ConflictHost != b.id || w.acted(berth.AuditDeviceMoved, "device", string(id)) != 0 {
		w.t.Errorf("move to where it is: %+v, %v", d, err)
	}
	// The new host's agent could not know what of the old one's work is alive.
	_, err = move(b.id)
	w.fails("move an unclean device", err, berth.ErrWrongState)
	w.must("clean", err2(w.Store.MarkDeviceClean(bg(), w.operator, id)))
	w.Clock.Advance(time.Second)
	for range 2 {
		d, err := move(b.id)
		if err != nil || d.Host != b.id || d.HostName != "h2" || d.Pool != other.ID || d.PoolName != "other" || d.Present || d.ConflictHost != "" {
			w.t.Fatalf("moved: %+v, %v", d, err)
		}
	}
	rows := w.audit("device", string(id))
	if row := rows[len(rows)-1]; row.Action != berth.AuditDeviceMoved || row.Host != b.id || row.Actor != w.operator || w.acted(berth.AuditDeviceMoved, "device", string(id)) != 1 {
		w.t.Errorf("audit row %+v", row)
	}
	if len(w.freeIDs()) != 0 || w.hostOf(a).Devices != 0 || w.hostOf(b).Devices != 1 {
		w.t.Errorf("free %v, hosts %+v %+v", w.freeIDs(), w.hostOf(a), w.hostOf(b))
	}
	// Now the first host is the one in conflict, and the second has it.
	if res := a.sync(); !slices.Equal(res.Conflicts, []int{0}) || w.device(id).ConflictHost != a.id {
		w.t.Errorf("sync of the first host: %+v", res)
	}
	if res := b.sync(); res.Devices[0] != id || len(res.Conflicts) != 0 {
		w.t.Errorf("sync of the second host: %+v", res)
	}
	if d := w.device(id); !d.Present || d.Unclean || d.ConflictHost != a.id {
		w.t.Errorf("device %+v", d)
	}
	task := w.submit(withPool(other.ID))
	_, err = w.Store.PlacementRound(bg(), w.scheduler, other.ID, w.placeIn)
	w.must("place", err)
	if next := b.one(task.ID); next.Device != id || next.Fence <= as.Fence {
		w.t.Errorf("I10: fence %d after %d", next.Fence, as.Fence)
	} else {
		b.start(next)
		if d, err := move(b.id); err != nil || d.Host != b.id {
			w.t.Errorf("a repeat of the move, whose answer was lost: %+v, %v", d, err)
		}
		b.completed(next, berth.OutcomeSucceeded)
	}
	// From a revoked host, too; to one, never.
	w.revoke(b)
	if d, err := move(a.id); err != nil || d.Host != a.id || d.Pool != w.pool.ID {
		w.t.Errorf("moved back: %+v, %v", d, err)
	}
	_, err = move(b.id)
	w.fails("move to a revoked host", err, berth.ErrNotFound)
	if a.sync(); !slices.Equal(w.freeIDs(), []berth.DeviceID{id}) {
		w.t.Errorf("free %v", w.freeIDs())
	}
}

func operatorUnique(w *world) {
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 1)
	a.sync() // both have a slot-0 of their own
	b.sync()
	mine, theirs := a.ids[0], b.ids[0]
	a.devices[0].HardwareUnique = true
	if a.sync(); !w.device(mine).HardwareUnique || len(w.freeIDs()) != 2 {
		w.t.Fatalf("device %+v", w.device(mine))
	}
	// The second host cannot have it as its own any more.
	b.devices[0].HardwareUnique = true
	if res := b.sync(); !slices.Equal(res.Conflicts, []int{0}) || res.Devices[0] != "" {
		w.t.Fatalf("sync answered %+v", res)
	}
	if d := w.device(theirs); d.Present || d.HardwareUnique || w.device(mine).ConflictHost != b.id {
		w.t.Errorf("devices %+v, %+v", d, w.device(mine))
	}
	_, err := w.Store.MoveDevice(bg(), w.operator, mine, b.id)
	w.fails("move to a host with a device of that name", err, berth.ErrExists)
	b.devices[0].HardwareUnique = false
	b.sync()
	if !w.device(theirs).Present || w.device(mine).ConflictHost != "" || len(w.freeIDs()) != 2 {
		w.t.Errorf("devices %+v, %+v", w.device(theirs), w.device(mine))
	}
	a.devices[0].HardwareUnique = false
	if a.sync(); w.device(mine).HardwareUnique {
		w.t.Errorf("device %+v", w.device(mine))
	}
}

// operatorProbes: a pinned probe is placed on what is cordoned or quarantined
// and on nothing worse; a plan that is older than the decision is not carried
// out (I14).
func operatorProbes(w *world) {
	a := w.host("h1", 2)
	id := a.ids[0]
	// apply places a task on the device as if it were free.
	apply := func(task berth.TaskID, probe bool) bool {
		w.t.Helper()
		placed := false
		w.round(func(ctx context.Context, r store.Round) error {
			heads, err := allHeads(ctx, r, 10)
			if err != nil {
				return err
			}
			i := slices.IndexFunc(heads, func(h store.Head) bool { return h.Task == task })
			got, err := r.Apply(ctx, []store.Placement{{
				Head: heads[i], Attempt: newID[berth.AttemptID](w.Env), Device: id, Host: a.id, Version: pluginVersion, Probe: probe,
			}})
			placed = len(got) == 1
			return err
		})
		return placed
	}
	quarantine := func() { a.probes(berth.HealthQuarantined) }
	trust := func() { w.must("trust", err2(w.Store.TrustDevice(bg(), w.operator, id))) }
	for _, tc := range []struct {
		name      string
		do, undo  func()
		all, some bool
	}{
		{"active", func() {}, func() {}, true, true},
		{"cordoned", func() { w.admin(id, berth.AdminCordoned, "") }, func() { w.admin(id, berth.AdminActive, "") }, false, true},
		{"quarantined", quarantine, trust, false, true},
		{"maintenance", func() { w.admin(id, berth.AdminMaintenance, "") }, func() { w.admin(id, berth.AdminActive, "") }, false, false},
		{"retired", func() { w.retire(id) }, func() { w.admin(id, berth.AdminActive, "") }, false, false},
		{"draining", func() { w.drain(a, true) }, func() { w.drain(a, false) }, false, false},
		{"absent", func() { a.sync(func(p *store.SyncParams) { p.Devices = p.Devices[1:] }) }, func() { a.sync() }, false, false},
	} {
		tc.do()
		if got := slices.Contains(w.freeIDs(), id); got != tc.all {
			w.t.Errorf("%s: free for all: %v", tc.name, got)
		}
		if got := len(w.probe(id)) == 1; got != tc.some {
			w.t.Errorf("%s: free for probes: %v", tc.name, got)
		}
		for probe, want := range map[bool]bool{false: tc.all, true: tc.some} {
			task := w.submit(probing(id))
			if got := apply(task.ID, probe); got != want {
				w.t.Errorf("I14: %s: placed (probe %v): %v", tc.name, probe, got)
			}
			w.cancel(task.ID)
		}
		tc.undo()
	}
	other := w.makePool("other")
	_, err := w.Store.PlacementRound(bg(), w.scheduler, other.ID, func(ctx context.Context, r store.Round) error {
		got, err := r.ProbeDevices(ctx, a.ids)
		if len(got) != 0 {
			w.t.Errorf("another pool's devices are offered for probes: %v", got)
		}
		return err
	})
	w.must("round", err)
	if got := w.probe(); len(got) != 0 {
		w.t.Errorf("probes of no device: %v", got)
	}
	got := w.probe(a.ids[1], id, newID[berth.DeviceID](w.Env), a.ids[1])
	if len(got) != 2 || got[0].ID > got[1].ID || diff(got, w.free()) != "" {
		w.t.Errorf("probe devices %+v, free %+v", got, w.free())
	}
}
