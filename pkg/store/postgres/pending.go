package postgres

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

var errPending = errors.New("not built yet")

// Fleet acts (FLEET).

func (s *Store) SetDeviceAdmin(context.Context, store.DeviceAdminParams) (d berth.Device, err error) {
	return d, errPending
}

func (s *Store) SetDeviceLabels(context.Context, berth.Actor, berth.DeviceID, map[string]string) (d berth.Device, err error) {
	return d, errPending
}

func (s *Store) TrustDevice(context.Context, berth.Actor, berth.DeviceID) (d berth.Device, err error) {
	return d, errPending
}

func (s *Store) MarkDeviceClean(context.Context, berth.Actor, berth.DeviceID) (d berth.Device, err error) {
	return d, errPending
}

func (s *Store) RetireDevice(context.Context, store.DeviceAdminParams) (d berth.Device, m []berth.Transition, err error) {
	return d, m, errPending
}

func (s *Store) ForceRelease(context.Context, store.ForceReleaseParams) (d berth.Device, m []berth.Transition, err error) {
	return d, m, errPending
}

func (s *Store) MoveDevice(context.Context, berth.Actor, berth.DeviceID, berth.HostID) (d berth.Device, err error) {
	return d, errPending
}

func (s *Store) DrainHost(context.Context, berth.Actor, berth.HostID, bool) (h berth.Host, m []berth.Transition, err error) {
	return h, m, errPending
}

func (s *Store) RevokeHost(context.Context, berth.Actor, berth.HostID) (h berth.Host, m []berth.Transition, err error) {
	return h, m, errPending
}

func (r *round) ProbeDevices(context.Context, []berth.DeviceID) ([]store.FreeDevice, error) {
	return nil, errPending
}

// Keeping and order (KEEPER).

func (s *Store) SetPoolPaused(context.Context, berth.Actor, string, bool) (p berth.Pool, err error) {
	return p, errPending
}

func (s *Store) SetPluginEnabled(context.Context, berth.Actor, berth.PluginVersion, bool) (p berth.Plugin, err error) {
	return p, errPending
}

func (s *Store) SetTaskPriority(context.Context, store.TaskParams, int) (t berth.Task, m []berth.Transition, err error) {
	return t, m, errPending
}

func (s *Store) LastAmnesty(context.Context) (a berth.Amnesty, err error) { return a, errPending }

func (s *Store) SweepTasks(context.Context, berth.Actor, berth.TaskID, int) (r store.SweepResult, err error) {
	return r, errPending
}

func (s *Store) CompleteMany(context.Context, []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	return nil, errPending
}

func (s *Store) RenewMany(context.Context, []store.RenewParams) ([]store.RenewManyAnswer, error) {
	return nil, errPending
}
