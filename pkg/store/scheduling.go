package store

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// Scheduling are the scheduler's operations.
type Scheduling interface {
	// PlacementRound runs fn inside one transaction as pool's only active
	// scheduler and commits when fn returns nil. Another active one is
	// berth.ErrNotActive, at once. fn must not wait on anything but round.
	// After the commit the engine sends the hints.
	//
	// Correctness does not rest on being the only one: Apply is safe against
	// another round, a cancel, a cordon, or a renewal at the same instant.
	PlacementRound(ctx context.Context, actor berth.Actor, pool berth.PoolID, fn func(ctx context.Context, round Round) error) ([]berth.Transition, error)

	// PromoteDue moves at most limit tasks whose time has come from delayed to
	// queue, earliest due first, skipping rows that others hold.
	PromoteDue(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error)

	// GiveUp dead-letters at most limit waiting tasks (queued, or failed and
	// waiting for a retry; not scheduled ones) whose GiveUpAt has passed, with
	// berth.ReasonQueueTimeout.
	GiveUp(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error)

	// SchedulablePools lists the pools that are not paused, by id.
	SchedulablePools(ctx context.Context) ([]berth.PoolID, error)
}

// Round is one placement round's view and hand.
type Round interface {
	// FreeDevices lists at most limit free devices of the pool on which all may
	// be placed and whose host is fresh and not draining, by device id.
	// limit <= 0 is no limit.
	FreeDevices(ctx context.Context, limit int) ([]FreeDevice, error)
	// ProbeDevices lists those of the devices that are free and on which at least
	// operators' probes may be placed (berth.PlaceProbes or more), their hosts
	// fresh and not draining, by device id. For classes that pin one by
	// berth.LabelProbe.
	ProbeDevices(ctx context.Context, ids []berth.DeviceID) ([]FreeDevice, error)
	// WaitingClasses lists the classes of the pool that have queued tasks. Its
	// cost grows with the pool's classes, not with its queue.
	WaitingClasses(ctx context.Context) ([]Class, error)
	// Heads returns the next queued tasks of each class after its cursor, in
	// order of (rank, task id), at most PerClass each. No rows are locked. Rows
	// read are proportional to rows returned plus classes asked.
	Heads(ctx context.Context, asks []HeadsAsk) ([]Head, error)
	// Apply places: each placement whose queue row and lease row are still there,
	// free, placeable and held by nobody else gets its attempt (assigned), its
	// lease (fence raised, ClaimWithin to live) and loses its queue row; the
	// rest are silently not placed. It returns the indexes placed, ascending.
	// Deleted, updated and inserted rows are checked to agree; if not, the error
	// rolls the round back.
	Apply(ctx context.Context, placements []Placement) ([]int, error)
}

// FreeDevice is a device that may be leased now.
type FreeDevice struct {
	ID     berth.DeviceID
	Host   berth.HostID
	Labels map[string]string
	// Plugins enabled on its host. Shared by devices of a host: do not change.
	Plugins []berth.PluginVersion
	// Suspect devices are chosen last.
	Suspect bool
}

// Class is a class with queued tasks.
type Class struct {
	ID          berth.ClassID
	Requirement berth.Requirement
}

// HeadsAsk asks for the tasks of a class after a position. The zero position
// is the head.
type HeadsAsk struct {
	Class     berth.ClassID
	AfterRank berth.Rank
	AfterTask berth.TaskID // "" from the head
	PerClass  int
}

// Head is a queued task near the head of its class.
type Head struct {
	Class berth.ClassID
	Rank  berth.Rank
	Task  berth.TaskID
	// Number of the attempt it would get.
	Number int
	// Ref is the engine's own way to find the row again.
	Ref string
	// LastHost is where the attempt before ended infra_failed, timed_out, lost
	// or released, to prefer another; "" otherwise.
	LastHost berth.HostID
	// LastDevice likewise.
	LastDevice berth.DeviceID
}

// Placement is a decision: this task on this device.
type Placement struct {
	Head Head
	// Attempt is the new attempt's id.
	Attempt berth.AttemptID
	Device  berth.DeviceID
	Host    berth.HostID
	// Version of the plugin that the host will run.
	Version string
	// Probe: the task pins the device by berth.LabelProbe, so berth.PlaceProbes
	// will do.
	Probe bool
}

// Keeping are the leasekeeper's operations.
type Keeping interface {
	// ReapLeases ends at most limit live attempts that berth.Timings.Reap says
	// are over: judged on the locked rows, each in a transaction of its own, so
	// that one failure does not stop the others. The first error is returned
	// with the transitions of those that went through. One that fails does not
	// keep its place at the head of the list for ever.
	//
	// It first judges the amnesty (berth.Timings.JudgeAmnesty) under the sweep's
	// mark, which it then moves to now, grants it with an audit row if so, and ends
	// no running attempt while one is in force; each end reads it again in its own
	// transaction, and ends nothing when the mark has meanwhile become older than
	// BlindAfter.
	ReapLeases(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error)

	// MarkSilentHosts takes at most limit online hosts that are no longer fresh
	// offline: their devices' placeable bits are cleared (lease rows first, then
	// the host) and an audit row written. Attempts are left to their leases. It
	// returns the hosts. None while an amnesty is in force, or when the mark of
	// sweeps is older than BlindAfter: then the next sweep judges the amnesty first.
	MarkSilentHosts(ctx context.Context, actor berth.Actor, limit int) ([]berth.HostID, error)

	// LastAmnesty is the newest amnesty, zero when there was none.
	LastAmnesty(ctx context.Context) (berth.Amnesty, error)

	// SweepTasks looks at limit tasks after a position, by id, for unfinished ones
	// in no place or in two, and finished ones that have a token (I15): judged in
	// one statement and again after locking the task; a task that was only moving
	// is not counted. One in no place is queued again with the next attempt number
	// (berth.EventRepaired, berth.ReasonFoundLost), waits for its not-before if that
	// lies ahead, or is finished when it was asked to stop or has no tries left; of two places a live attempt stays, else the queue's
	// token (berth.ReasonFoundTwice): see berth.RepairOf. What cannot be repaired is
	// only told of. Each repair is a transaction of its own; the first error is
	// returned with what went through.
	SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (SweepResult, error)

	// UnknownBlobs returns those of the keys that no log, artifact, input or
	// upload refers to. The caller has seen to it that they are old.
	UnknownBlobs(ctx context.Context, keys []string) ([]string, error)
}

// SweepResult of SweepTasks.
type SweepResult struct {
	// Next position; "" when the end was reached.
	Next berth.TaskID
	// Looked counts the tasks looked at, Wrong those in no or two places.
	Looked, Wrong int
	Repaired      []berth.Transition
	// Unrepaired of the wrong ones: finished tasks with a live attempt.
	Unrepaired []berth.TaskID
}
