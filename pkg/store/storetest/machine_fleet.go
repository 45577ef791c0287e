package storetest

import (
	"context"
	"slices"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/store"
)

// fleetDraws are the acts of operators on devices and hosts.
func fleetDraws() map[string]func(rt *rapid.T, m *machine) step {
	return map[string]func(rt *rapid.T, m *machine) step{
		"act on a device": drawDeviceAct, "force-release": drawForce, "act on a host": drawHostAct, "place late": fixed(stepPlaceLate),
	}
}

// serial is a piece of hardware that every agent of a machine may report.
const serial = "serial-1"

// phoneOf is that hardware as an agent reports it: under a fresh id each time, as
// the API does, for one that was moved away may be new to the agent's host again.
func (a *simAgent) phoneOf(unique bool) store.ReportedDevice {
	d := a.reported(serial)
	d.HardwareUnique = unique
	return d
}

// some is one of all devices, by a drawn number: the same on every machine, for
// their states are.
func (m *machine) some(n int) berth.DeviceID {
	m.t.Helper()
	devices := m.allDevices()
	return devices[n%len(devices)].ID
}

func drawDevice(rt *rapid.T) int { return rapid.IntRange(0, 59).Draw(rt, "device") }

func drawDeviceAct(rt *rapid.T, _ *machine) step {
	n := drawDevice(rt)
	act := rapid.SampledFrom([]string{"active", "active", "active", "cordoned", "maintenance", "retire", "trust", "clean", "clean", "label", "no label"}).Draw(rt, "act")
	return func(m *machine) any {
		id := m.some(n)
		p := store.DeviceAdminParams{Actor: m.operator, Device: id, Admin: berth.AdminState(act), Note: act}
		var d berth.Device
		var trs []berth.Transition
		var err error
		switch act {
		case "retire":
			d, trs, err = m.Store.RetireDevice(bg(), p)
		case "trust":
			d, err = m.Store.TrustDevice(bg(), m.operator, id)
		case "clean":
			d, err = m.Store.MarkDeviceClean(bg(), m.operator, id)
		case "label":
			d, err = m.Store.SetDeviceLabels(bg(), m.operator, id, map[string]string{"os": "none"})
		case "no label":
			d, err = m.Store.SetDeviceLabels(bg(), m.operator, id, nil)
		default:
			d, err = m.Store.SetDeviceAdmin(bg(), p)
		}
		return m.told(d, trs, err)
	}
}

func drawForce(rt *rapid.T, m *machine) step {
	n, named := drawDevice(rt), rapid.Bool().Draw(rt, "named")
	i, k := drawHeld(rt, m)
	return func(m *machine) any {
		p := store.ForceReleaseParams{Actor: m.operator, Device: m.some(n)}
		if named && k >= 0 {
			p.Device, p.Attempt = m.agents[i].known[k].Device, m.agents[i].known[k].Attempt
		}
		d, trs, err := m.Store.ForceRelease(bg(), p)
		return m.told(d, trs, err)
	}
}

func drawHostAct(rt *rapid.T, _ *machine) step {
	i, n := rapid.IntRange(0, machineAgents-1).Draw(rt, "agent"), drawDevice(rt)
	act := rapid.SampledFrom([]string{"drain", "drain", "undrain", "undrain", "undrain", "move", "move", "revoke"}).Draw(rt, "act")
	sure := rapid.IntRange(0, 3).Draw(rt, "sure") == 0
	return func(m *machine) any {
		a := m.agents[i]
		switch {
		case act == "move":
			d, err := m.Store.MoveDevice(bg(), m.operator, m.some(n), a.id)
			return m.told(d, nil, err)
		case act == "revoke" && i > 0 && sure: // some host stays
			h, trs, err := m.Store.RevokeHost(bg(), m.operator, a.id)
			return m.told(h, byAttempt(trs), err)
		}
		h, trs, err := m.Store.DrainHost(bg(), m.operator, a.id, act == "drain")
		return m.told(h, byAttempt(trs), err)
	}
}

// placeAs places by a plan on the devices that look gives, and asserts that what
// was placed was allowed to be (I14).
func (m *machine) placeAs(look func(ctx context.Context, r store.Round) ([]store.FreeDevice, error)) any {
	trs, err := m.Store.PlacementRound(bg(), m.scheduler, m.pool.ID, func(ctx context.Context, r store.Round) error {
		free, err := look(ctx, r)
		if err != nil {
			return err
		}
		plan, err := m.planOn(ctx, r, free)
		if err != nil {
			return err
		}
		_, err = r.Apply(ctx, plan)
		return err
	})
	for _, tr := range trs {
		d := m.device(tr.Device)
		h, err := m.Store.GetHost(bg(), d.Host)
		m.must("get host", err)
		least := berth.PlaceAll
		if _, probe := eligibility.Probe(m.task(tr.Task).Requirement.Selector); probe {
			least = berth.PlaceProbes
		}
		if bit := berth.PlaceableOf(d.Present, d.Health, d.Admin, d.Unclean, h.State, h.Draining || !h.DrainRequestedAt.IsZero()); bit < least {
			m.t.Errorf("I14: task %s was placed on %+v of %+v", tr.Task, d, h)
		}
	}
	return m.told(nil, trs, err)
}

func stepPlace(m *machine) any {
	if m.paused() {
		return nil
	}
	return m.placeAs(func(ctx context.Context, r store.Round) ([]store.FreeDevice, error) {
		free, err := r.FreeDevices(ctx, 0)
		m.looked = slices.Clone(free)
		return free, err
	})
}

// stepPlaceLate plans on what was free when the machine placed last.
func stepPlaceLate(m *machine) any {
	return m.placeAs(func(context.Context, store.Round) ([]store.FreeDevice, error) { return m.looked, nil })
}
