package storetest

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// operatorOperations are operators' acts, to be broken off.
func operatorOperations() []operation {
	onHost := func(prepare func(w *world, a *agent) callFunc) func(w *world) callFunc {
		return func(w *world) callFunc { return prepare(w, w.host("h1", 2)) }
	}
	return []operation{
		{name: "SetDeviceAdmin", prepare: onHost(func(w *world, a *agent) callFunc {
			p := store.DeviceAdminParams{Actor: w.operator, Device: a.ids[0], Admin: berth.AdminCordoned, Note: "n"}
			return func(ctx context.Context, s store.Store) error { return err2(s.SetDeviceAdmin(ctx, p)) }
		})},
		{name: "SetDeviceLabels", prepare: onHost(func(w *world, a *agent) callFunc {
			return func(ctx context.Context, s store.Store) error {
				return err2(s.SetDeviceLabels(ctx, w.operator, a.ids[0], map[string]string{"a": "b"}))
			}
		})},
		{name: "TrustDevice", prepare: onHost(func(w *world, a *agent) callFunc {
			a.probes(berth.HealthQuarantined)
			return func(ctx context.Context, s store.Store) error { return err2(s.TrustDevice(ctx, w.operator, a.ids[0])) }
		})},
		{name: "MarkDeviceClean", prepare: onHost(func(w *world, a *agent) callFunc {
			as := a.running()
			a.completed(as, berth.OutcomeFailed, unclean)
			return func(ctx context.Context, s store.Store) error {
				return err2(s.MarkDeviceClean(ctx, w.operator, as.Device))
			}
		})},
		{name: "ForceRelease", prepare: onHost(func(w *world, a *agent) callFunc { return w.forcing(a.running()) })},
		{name: "RetireDevice", twoStep: true, prepare: onHost(func(w *world, a *agent) callFunc { return w.retiring(a.running().Device) })},
		{name: "DrainHost", twoStep: true, prepare: onHost(func(w *world, a *agent) callFunc {
			a.claimed()
			return w.draining(a)
		})},
		{name: "RevokeHost", twoStep: true, prepare: onHost(func(w *world, a *agent) callFunc {
			a.running()
			a.claimed()
			return w.revoking(a)
		})},
		{name: "MoveDevice", prepare: func(w *world) callFunc {
			a, b := w.enrolled("h1", w.pool.ID, 1), w.host("h2", 1)
			a.phone(0, serial)
			a.sync()
			return func(ctx context.Context, s store.Store) error {
				return err2(s.MoveDevice(ctx, w.operator, a.ids[0], b.id))
			}
		}},
	}
}
