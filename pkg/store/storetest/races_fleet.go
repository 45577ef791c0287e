package storetest

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// fleetRaces are about which host has a device.
func fleetRaces() []race {
	again := func(a *agent) callFunc {
		p := a.syncParams()
		return func(ctx context.Context, s store.Store) error { return err2(s.SyncHost(ctx, p)) }
	}
	// phones makes two hosts with one unique device, which the first has.
	phones := func(w *world) (a, b *agent, id berth.DeviceID) {
		a, b = w.enrolled("h1"+w.suffix, w.pool.ID, 1), w.enrolled("h2"+w.suffix, w.pool.ID, 1)
		a.phone(0, serial+w.suffix)
		b.phone(0, serial+w.suffix)
		a.sync()
		b.sync()
		return a, b, a.ids[0]
	}
	moving := func(w *world, id berth.DeviceID, to *agent) callFunc {
		return func(ctx context.Context, s store.Store) error { return err2(s.MoveDevice(ctx, w.operator, id, to.id)) }
	}
	// settles: whoever was faster, the next syncs of both hosts agree.
	settles := func(w *world, a, b *agent, id berth.DeviceID) {
		w.t.Helper()
		b.sync()
		a.sync()
		if d := w.device(id); d.Host != b.id || !d.Present || d.ConflictHost != a.id {
			w.t.Errorf("after both synced: %+v", d)
		}
	}
	return []race{
		{"sync of the old host and move", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, id := phones(w)
			return again(a), moving(w, id, b), func(x, y error) {
				w.fine(x, y)
				if d := w.device(id); d.Host != b.id || d.Present || d.ConflictHost != "" && d.ConflictHost != a.id {
					w.t.Errorf("moved %+v", d)
				}
				w.nothingFree()
				settles(w, a, b, id)
			}
		}},
		{"sync of the new host and move", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, id := phones(w)
			return again(b), moving(w, id, b), func(x, y error) {
				w.fine(x, y)
				if d := w.device(id); d.Host != b.id || d.ConflictHost == b.id {
					w.t.Errorf("moved %+v", d)
				}
				settles(w, a, b, id)
			}
		}},
		{"move and drain by an operator", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			_, b, id := phones(w)
			return moving(w, id, b), w.draining(b), func(x, y error) {
				w.fine(x, y)
				b.sync()
				w.nothingFree()
			}
		}},
		{"two hosts claim one device as unique", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b := w.enrolled("h1"+w.suffix, w.pool.ID, 1), w.enrolled("h2"+w.suffix, w.pool.ID, 1)
			a.devices[0].HardwareID, b.devices[0].HardwareID = serial+w.suffix, serial+w.suffix
			a.sync() // each has one of its own, until both say that it is the same
			b.sync()
			a.phone(0, serial+w.suffix)
			b.phone(0, serial+w.suffix)
			return again(a), again(b), func(x, y error) {
				w.fine(x, y)
				one, two := w.device(a.ids[0]), w.device(b.ids[0])
				if one.HardwareUnique == two.HardwareUnique || one.Present == two.Present || one.HardwareUnique != one.Present {
					w.t.Errorf("devices %+v and %+v", one, two)
				}
			}
		}},
	}
}
