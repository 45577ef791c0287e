package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// operatorBrokenOff breaks each act of two transactions off at each of its
// statements, and repeats it.
func operatorBrokenOff(w *world) {
	s, hk := w.hooked()
	acts := map[string]func(a *agent, as store.Assignment) error{
		"RetireDevice": func(_ *agent, as store.Assignment) error {
			return err3(s.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: as.Device}))
		},
		"DrainHost":  func(a *agent, _ store.Assignment) error { return err3(s.DrainHost(bg(), w.operator, a.id, true)) },
		"RevokeHost": func(a *agent, _ store.Assignment) error { return err3(s.RevokeHost(bg(), w.operator, a.id)) },
	}
	n := 0
	for name, act := range acts {
		committed := 0 // first transactions without the second
		for at := 1; ; at++ {
			n++
			a := w.another(w.t).host(fmt.Sprintf("b%d", n), 1)
			as := a.claimed()
			hk.arm(at, func(context.Context) error { return errInjected })
			err := act(a, as)
			acted, _ := hk.disarm()
			if !acted {
				w.must(name, err)
			} else if !errors.Is(err, errInjected) {
				w.t.Fatalf("%s broken off at statement %d: %v", name, at, err)
			}
			h, d := w.hostOf(a), w.device(as.Device)
			first := d.Admin == berth.AdminRetired || h.State == berth.HostRevoked || !h.DrainRequestedAt.IsZero()
			if second := d.Attempt == ""; second && !first || second == acted {
				w.t.Fatalf("%s broken off at statement %d (%v): %+v, %+v", name, at, acted, h, d)
			}
			if first && acted {
				committed++
				if len(a.w.probe(as.Device)) != 0 {
					w.t.Errorf("I14: %s broken off at statement %d: the device may be placed on", name, at)
				}
			}
			w.must("repeat of "+name, act(a, as))
			if at := a.w.attempt(as.Task); at.Outcome != berth.OutcomeReleased || w.device(as.Device).Attempt != "" {
				w.t.Fatalf("%s: after the repeat: %+v", name, at)
			}
			for _, target := range []string{string(a.id), string(as.Device)} {
				for _, action := range []berth.AuditAction{berth.AuditHostDrain, berth.AuditHostRevoked, berth.AuditDeviceAdmin} {
					if n := w.acted(action, "host", target) + w.acted(action, "device", target); n > 1 {
						w.t.Errorf("%s: %d audit rows %s", name, n, action)
					}
				}
			}
			if !acted {
				break
			}
		}
		if committed == 0 {
			w.t.Errorf("%s was never broken off between its transactions", name)
		}
	}
}

// brokenBetween does an act whose second transaction fails.
func (w *world) brokenBetween(decided func() bool, act func(s store.Store) error) {
	w.t.Helper()
	s, hk := w.hooked()
	for at := 1; !decided(); at++ {
		hk.arm(at, func(context.Context) error { return errInjected })
		err := act(s)
		if acted, _ := hk.disarm(); !acted || !errors.Is(err, errInjected) {
			w.t.Fatalf("never broken off between its transactions: %v", err)
		}
	}
}

func operatorNobodyRepeats(w *world) {
	a, b, c := w.host("h1", 1), w.host("h2", 1), w.host("h3", 2)
	on := func(x *agent) store.Assignment { return x.running(pinned(x.ids[0])) }
	revoked, retired, draining := on(a), on(b), on(c)
	assigned := c.claimed(pinned(c.ids[1]))
	w.brokenBetween(func() bool { return w.hostOf(a).State == berth.HostRevoked }, func(s store.Store) error {
		return err3(s.RevokeHost(bg(), w.operator, a.id))
	})
	w.brokenBetween(func() bool { return w.device(retired.Device).Admin == berth.AdminRetired }, func(s store.Store) error {
		return err3(s.RetireDevice(bg(), store.DeviceAdminParams{Actor: w.operator, Device: retired.Device}))
	})
	w.brokenBetween(func() bool { return !w.hostOf(c).DrainRequestedAt.IsZero() }, func(s store.Store) error {
		return err3(s.DrainHost(bg(), w.operator, c.id, true))
	})
	// Nobody repeats. The agents of the retired device and of the draining host
	// finish what they hold; that of the revoked one is refused.
	_, _, err := w.Store.RenewAttempts(bg(), store.RenewParams{AgentCall: a.call(), Items: []store.RenewItem{{Holder: holder(revoked)}}})
	w.fails("renew on a revoked host", err, berth.ErrNotFound)
	b.completed(retired, berth.OutcomeSucceeded)
	c.start(assigned)
	c.completed(assigned, berth.OutcomeSucceeded)
	c.completed(draining, berth.OutcomeSucceeded)
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace)
	for range 2 { // the first sweep may grant an amnesty
		w.reap()
		w.Clock.Advance(w.Timings.LeaseTTL)
	}
	w.reap()
	if at := w.attempt(revoked.Task); at.Outcome != berth.OutcomeTimedOut || at.Reason != berth.ReasonLeaseExpired {
		w.t.Errorf("the revoked host's attempt: %+v", at)
	}
	if d := w.device(revoked.Device); !d.Unclean || d.Attempt != "" {
		w.t.Errorf("its device: %+v", d)
	}
	for _, id := range []berth.DeviceID{revoked.Device, retired.Device, draining.Device, assigned.Device} {
		if len(w.probe(id)) != 0 {
			w.t.Errorf("I14: %s may be placed on", id)
		}
	}
}
