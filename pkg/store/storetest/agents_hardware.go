package storetest

import (
	"fmt"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func hardwareChecks() []check {
	return []check{
		in("hosts report hardware ids as they like", hardwareWalk),
		in("a new device's id is its own", hardwareIDs),
	}
}

// rowOf is a device as the contract has it: of one hardware id and one host.
type rowOf struct {
	id              berth.DeviceID
	unique, present bool
	conflict        berth.HostID
}

// oneID is what two hosts did with one hardware id, and what came of it.
type oneID struct {
	serial string
	// reports of both hosts, in two rounds; a report is the flags of each mention.
	reports [2][2][]bool
	moves   bool // between the rounds an operator moves the device to the other host
	rows    [2]*rowOf
}

// sync is the rule: an id that is unique by itself on the other host is a conflict
// for who reports it so; everything else is the host's own, by its last word.
func (o *oneID) sync(host int, hosts [2]*agent, devices []store.ReportedDevice) (ids []berth.DeviceID) {
	mine, theirs := o.rows[host], o.rows[1-host]
	if mine != nil {
		mine.present = false
	}
	conflict := false
	for _, d := range devices {
		if d.HardwareUnique && theirs != nil && theirs.unique {
			conflict = true
			ids = append(ids, "")
			continue
		}
		if mine == nil {
			mine = &rowOf{id: d.ID}
			o.rows[host] = mine
		}
		mine.unique, mine.present = d.HardwareUnique, true
		ids = append(ids, mine.id)
	}
	if theirs != nil {
		theirs.conflict = ""
		if conflict {
			theirs.conflict = hosts[host].id
		}
	}
	return ids
}

// hardwareWalk lets two hosts report a hardware id not at all, as a slot's name, as
// a serial, and as both, in every order, with and without a move: each way has an
// id of its own, and all are in the same few syncs. None may fail a sync, nor keep
// its host from syncing again.
func hardwareWalk(w *world) {
	hosts := [2]*agent{w.enrolled("h1", w.pool.ID, 0), w.enrolled("h2", w.pool.ID, 0)}
	all := everyWay()
	round := func(n int) {
		for h, a := range hosts {
			w.syncWays(fmt.Sprintf("round %d of %s", n, a.name), all, h, hosts, n)
		}
		w.checkWays(all, hosts)
	}
	round(0)
	for _, o := range all {
		if o.moves {
			w.moveWay(o, hosts)
		}
	}
	round(1)
	round(1) // what is permanent is so again
}

func everyWay() (all []*oneID) {
	ways := [2][][]bool{{nil, {false}, {true}, {false, true}}, {nil, {false}, {true}, {true, false}}}
	for n := range 4 * 4 * 4 * 4 * 2 {
		o := &oneID{serial: fmt.Sprintf("serial-%d", n), moves: n%2 == 1}
		n /= 2
		for round := range 2 {
			for h := range 2 {
				o.reports[round][h] = ways[h][n%4]
				n /= 4
			}
		}
		all = append(all, o)
	}
	return all
}

// syncWays syncs a host with every id as it reports it in a round, and compares the
// answer with the rule's.
func (w *world) syncWays(what string, all []*oneID, host int, hosts [2]*agent, round int) {
	w.t.Helper()
	a := hosts[host]
	a.devices = nil
	var want []berth.DeviceID
	for _, o := range all {
		var mentions []store.ReportedDevice
		for _, unique := range o.reports[round][host] {
			d := a.reported(o.serial)
			d.HardwareUnique = unique
			mentions = append(mentions, d)
		}
		want = append(want, o.sync(host, hosts, mentions)...)
		a.devices = append(a.devices, mentions...)
	}
	res := a.sync()
	var conflicts []int
	for i, id := range want {
		if res.Devices[i] != id {
			w.t.Fatalf("%s: %+v is device %q, should be %q", what, a.devices[i], res.Devices[i], id)
		}
		if id == "" {
			conflicts = append(conflicts, i)
		}
	}
	if !slices.Equal(res.Conflicts, conflicts) {
		w.t.Fatalf("%s: conflicts %v, should be %v", what, res.Conflicts, conflicts)
	}
}

// moveWay moves the device of a serial to the other host, which may have one of
// that name.
func (w *world) moveWay(o *oneID, hosts [2]*agent) {
	w.t.Helper()
	from := slices.IndexFunc(o.rows[:], func(r *rowOf) bool { return r != nil && r.unique })
	if from < 0 {
		return
	}
	to := 1 - from
	d, err := w.Store.MoveDevice(bg(), w.operator, o.rows[from].id, hosts[to].id)
	if o.rows[to] != nil {
		w.fails("move to a host with a device of that name", err, berth.ErrExists)
		return
	}
	w.must("move "+o.serial, err)
	o.rows[from], o.rows[to] = nil, &rowOf{id: d.ID, unique: true}
}

func (w *world) checkWays(all []*oneID, hosts [2]*agent) {
	w.t.Helper()
	want := map[string]rowOf{}
	for _, o := range all {
		for h, r := range o.rows {
			if r != nil {
				want[hosts[h].name+"/"+o.serial] = *r
			}
		}
	}
	got := map[string]rowOf{}
	for _, d := range w.allDevices() {
		got[d.HostName+"/"+d.HardwareID] = rowOf{d.ID, d.HardwareUnique, d.Present, d.ConflictHost}
	}
	for name, r := range want {
		if got[name] != r {
			w.t.Fatalf("device %s is %+v, should be %+v", name, got[name], r)
		}
	}
	if len(got) != len(want) {
		w.t.Fatalf("%d devices, should be %d", len(got), len(want))
	}
}

// hardwareIDs reports a new device under an id that another has: the caller's fault,
// said at once, and no reason to try again.
func hardwareIDs(w *world) {
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 1)
	a.phone(0, serial)
	a.sync()
	id := a.ids[0]
	b.phone(0, serial)
	b.sync()
	w.must("move", err2(w.Store.MoveDevice(bg(), w.operator, id, b.id)))
	b.devices[0].HardwareUnique = false
	if b.sync(); b.ids[0] != id {
		w.t.Fatalf("the moved device is %s, not %s", b.ids[0], id)
	}
	// For the first host it is new now: the other's is a slot of that name.
	_, err := w.Store.SyncHost(bg(), a.syncParams())
	w.fails("a new device under an id that another has", err, berth.ErrExists)
	twice := []store.ReportedDevice{a.reported("slot-8"), a.reported("slot-9")}
	twice[1].ID = twice[0].ID
	_, err = w.Store.SyncHost(bg(), a.syncParams(func(p *store.SyncParams) { p.Devices = twice }))
	w.fails("two new devices under one id", err, berth.ErrExists)
	if n := len(w.allDevices()); n != 1 {
		w.t.Fatalf("%d devices after syncs that failed, not 1", n)
	}
	a.devices[0].ID = newID[berth.DeviceID](w.Env)
	if res := a.sync(); res.Devices[0] != a.devices[0].ID || len(res.Conflicts) != 0 {
		w.t.Fatalf("sync answered %+v", res)
	}
	// A retired device is still there: its serial is nobody else's.
	_, _, err = w.Store.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: a.ids[0]})
	w.must("retire", err)
	b.devices[0].HardwareUnique = true
	if res := b.sync(); !slices.Equal(res.Conflicts, []int{0}) || w.device(a.ids[0]).ConflictHost != b.id {
		w.t.Errorf("sync answered %+v, the retired device is %+v", res, w.device(a.ids[0]))
	}
	if res := a.sync(); res.Devices[0] != a.devices[0].ID || w.device(a.ids[0]).Admin != berth.AdminRetired {
		w.t.Errorf("sync answered %+v, the retired device is %+v", res, w.device(a.ids[0]))
	}
}
