package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// Operators are the acts of people on the fleet and on tasks' order. Each locks
// the lease rows first and clears their placeable bits before it writes what is
// the reason, so that no device is leased after its commit (I14); each is
// audited, and a repeat finds its work done: no error, no second audit row.
//
// What also ends attempts (RetireDevice, DrainHost, RevokeHost) takes two
// transactions: the first clears the bits and records the decision, the second
// ends the attempts under the lock order of every end. A repeat after a crash
// between the two does the second; without one, what is still live ends by
// itself: its agent completes it, or, where its calls are refused, its lease runs
// out. ForceRelease has nothing to decide beside the end and takes one.
type Operators interface {
	// SetDeviceAdmin cordons a device, takes it into maintenance, or makes it
	// active again (also a retired one). Work that runs on it goes on. Retired is
	// berth.ErrInvalid here: RetireDevice does that. Note replaces the old one.
	SetDeviceAdmin(ctx context.Context, p DeviceAdminParams) (berth.Device, error)

	// SetDeviceLabels replaces the operators' labels, which override reported
	// ones. One of Berth's own (berth.OwnLabel) is berth.ErrInvalid.
	SetDeviceLabels(ctx context.Context, actor berth.Actor, id berth.DeviceID, labels map[string]string) (berth.Device, error)

	// TrustDevice ends a quarantine or a doubt by hand (berth.SignalTrusted).
	TrustDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error)

	// MarkDeviceClean ends Unclean by hand: the operator knows that nothing
	// touches the device. A held device is berth.ErrWrongState.
	MarkDeviceClean(ctx context.Context, actor berth.Actor, id berth.DeviceID) (berth.Device, error)

	// RetireDevice takes a device out for good: admin retired; a live attempt ends
	// infra_failed (berth.ReasonDeviceRetired, by operator; an unstarted one is
	// released uncounted), and the device is unclean when it had started.
	RetireDevice(ctx context.Context, p DeviceAdminParams) (berth.Device, []berth.Transition, error)

	// ForceRelease ends the live attempt of a device as RetireDevice does
	// (berth.ReasonForceReleased), raises the fence, and leaves Admin alone. With
	// Attempt set, only if that is the one that holds it. A free device is
	// berth.ErrWrongState, unless Attempt is set and ended: no error then. An
	// Attempt that was never on the device is berth.ErrNotFound.
	ForceRelease(ctx context.Context, p ForceReleaseParams) (berth.Device, []berth.Transition, error)

	// MoveDevice gives a device to another host (whose agent reported the same
	// unique hardware id: a conflict, or will), with its pool. It must be free, and
	// clean: berth.ErrWrongState; where it is on that host already, nothing is done.
	// It is absent until that host's agent syncs. An unknown
	// or revoked host is berth.ErrNotFound; a device whose hardware id is not
	// unique by itself is berth.ErrInvalid; a host that had a device of that name
	// as one of its own is berth.ErrExists.
	MoveDevice(ctx context.Context, actor berth.Actor, id berth.DeviceID, to berth.HostID) (berth.Device, error)

	// DrainHost asks a host to take nothing more (on) or ends that. Unstarted
	// attempts are released uncounted (berth.ReasonHostDraining, by operator),
	// started ones finish. It starts over when a device appears meanwhile. A
	// revoked host is berth.ErrWrongState.
	DrainHost(ctx context.Context, actor berth.Actor, id berth.HostID, on bool) (berth.Host, []berth.Transition, error)

	// RevokeHost shuts a host out for ever: its tokens and calls are refused, its
	// unstarted attempts released uncounted, its started ones end infra_failed
	// (berth.ReasonHostRevoked), their devices unclean.
	RevokeHost(ctx context.Context, actor berth.Actor, id berth.HostID) (berth.Host, []berth.Transition, error)

	// SetPoolPaused stops or resumes placement in a pool; queued tasks wait.
	SetPoolPaused(ctx context.Context, actor berth.Actor, name string, paused bool) (berth.Pool, error)

	// ChangePlugin changes a version (berth.Plugin.Changed), or is
	// berth.ErrNotFound. Hosts serve a disabled one no more: queued tasks wait.
	// What was placed before goes on, also when no agent has claimed it yet: the
	// decision was made while the version was enabled, and a hand-back would only
	// make the task wait for what may be enabled again in a moment.
	ChangePlugin(ctx context.Context, p ChangePluginParams) (berth.Plugin, error)

	// SetTaskPriority gives an unfinished task another priority and so another
	// rank: the token is replaced, or the live attempt locked, before the task is
	// written. A finished task is berth.ErrWrongState, a priority out of range
	// berth.ErrInvalid; the same priority is no error and no effect. A live attempt
	// goes on; its task's next try has the new rank.
	SetTaskPriority(ctx context.Context, p TaskParams, priority int) (berth.Task, []berth.Transition, error)

	// PlacementFacts reads all that explains why a task is where it is, or
	// berth.ErrNotFound. Its cost is bounded by MaxExplainDevices and
	// MaxExplainPosition.
	PlacementFacts(ctx context.Context, scope berth.Scope, id berth.TaskID) (PlacementFacts, error)
}

// Bounds of PlacementFacts.
const (
	MaxExplainDevices  = 5000
	MaxExplainPosition = 1000
)

// DeviceAdminParams of SetDeviceAdmin and RetireDevice.
type DeviceAdminParams struct {
	Actor  berth.Actor
	Device berth.DeviceID
	// Admin is active, cordoned or maintenance; RetireDevice ignores it.
	Admin berth.AdminState
	// Note is at most berth.MaxNameLen bytes.
	Note string
}

// ForceReleaseParams of ForceRelease.
type ForceReleaseParams struct {
	Actor   berth.Actor
	Device  berth.DeviceID
	Attempt berth.AttemptID // "": whichever holds it
}

// ChangePluginParams of ChangePlugin.
type ChangePluginParams struct {
	Actor  berth.Actor
	Plugin berth.PluginVersion
	Change berth.PluginChange
}

// PlacementFacts is what berth knows of a task's chances.
type PlacementFacts struct {
	Task berth.Task
	Pool berth.Pool
	// Plugins are all registered versions of the task's plugin.
	Plugins []berth.Plugin
	// Devices of the pool but retired ones, by id; at most MaxExplainDevices.
	Devices   []PlacementDevice
	Truncated bool
	// Ahead counts the queued tasks of its class before it, to
	// MaxExplainPosition; 0 unless queued.
	Ahead int
	// HandBacks counts its hand-backs in a row.
	HandBacks int
	// LastHost and LastDevice that its next try avoids; "" none.
	LastHost   berth.HostID
	LastDevice berth.DeviceID
	// Now by the clock that decides.
	Now time.Time
}

// PlacementDevice is a device with what its host says about it.
type PlacementDevice struct {
	berth.Device
	Placeable berth.Placeable
	HostState berth.HostState
	// HostFresh: heard of within Timings.HostOfflineAfter.
	HostFresh bool
	// HostDraining: its agent says so, or an operator asked for it.
	HostDraining bool
	// Provides are the plugin versions of the task's plugin that its host has,
	// enabled or not, but those that differ from what is registered.
	Provides []berth.PluginVersion
}
