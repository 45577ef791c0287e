// Package store is the storage contract of Berth: the operations of the domain
// with their promises. Two engines implement it, pkg/store/postgres and
// pkg/store/sqlite, and both run all of pkg/store/storetest. No promise stands
// here without a test there.
//
// What holds for every operation, in both engines:
//
//   - It is one transaction (SyncHost: two) that commits whole or not at all,
//     and it may be repeated: the repeat of a committed call gives the same
//     answer and no second effect, where its doc comment says so.
//   - The database's clock decides; no caller passes the time. Opening an
//     engine with [Options.Clock] replaces it, for tests and for SQLite.
//   - Rules are asked of pkg/berth after the rows they judge are locked. Lock
//     order: bulk job, schedule, idempotency key, user, API key, input, class, queue/delayed token,
//     attempt, lease, task, cause, device, host, then insert-only rows; many rows of a
//     kind ascending by key.
//   - Each transition writes its audit row in the same transaction and is
//     returned, so that the caller can log it.
//   - Errors wrap the kinds of pkg/berth. A driver's error never leaves its
//     engine: what is not a kind is wrapped without the driver's text in
//     reach of errors.As. Lost connections, lock and statement time-outs,
//     serialisation failures and deadlocks are berth.ErrUnavailable.
//   - When ctx ends, an operation that has not begun to commit issues its own
//     ROLLBACK and returns ctx's error; it never drops the connection inside a
//     transaction. A commit that has begun is waited for (within a bound of
//     the engine's own), so a caller that gets nil can rely on it.
package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// Store is everything. Callers should ask for the narrow interface they need.
type Store interface {
	Tasks
	Bulk
	Agents
	HostKeyring
	Scheduling
	Keeping
	Operators
	Inputs
	Fleet
	Audit
	Accounts
	Guesses
	Sealed
	Secrets
	Schedules
	Health
	Hints
	// Close ends the background work and the connections. It may be called
	// twice.
	Close() error
}

// Once makes a call safe to repeat when its answer was lost. The first call of
// a principal under the key has the effect; a repeat with the same digest has
// none and is answered as the operation's comment says, also when both run at
// once; one with another digest is berth.ErrIdempotencyMismatch. A call that
// failed leaves the key free. The zero value asks for nothing.
type Once struct {
	Key string
	// BodyDigest is the SHA-256 of what the call asks for; it tells operations
	// apart, too: the keys of a principal are one set.
	BodyDigest [32]byte
}

// Options are what both engines take at Open.
type Options struct {
	// Timings of leases; zero: berth.DefaultTimings. All processes of an
	// installation must have the same.
	Timings berth.Timings
	// Clock replaces the database's clock; nil: the database's own (SQLite:
	// time.Now in the one process).
	Clock Clock
	// BeforeStatement, for tests, is called before each statement inside a
	// transaction with the operation's name (the Go method's) and the
	// statement's number from 1; it may block. It is also called, as the last
	// number, before COMMIT. An error it returns makes the statement fail.
	BeforeStatement func(ctx context.Context, op string, n int) error
	// OnBackgroundError is told about errors of background work (the hint
	// listener); nil: dropped.
	OnBackgroundError func(error)
}

// Clock tells the time. Engines truncate it to microseconds, UTC.
type Clock interface{ Now() time.Time }

// Health tells whether the store can be used.
type Health interface {
	// Ping reports whether the database answers: nil or berth.ErrUnavailable.
	Ping(ctx context.Context) error
	// SchemaVersion is the migration that the database is at; 0 when there is
	// none. dirty says that one was broken off.
	SchemaVersion(ctx context.Context) (version uint, dirty bool, err error)
	// Now is the time by the clock that decides.
	Now(ctx context.Context) (time.Time, error)
}

// HintKind says what may have become worth looking at.
type HintKind string

// The hints.
const (
	// HintWork: a pool (key: PoolID) may have something to place: a task was
	// queued, a device became free or placeable.
	HintWork HintKind = "work"
	// HintAssigned: a host (key: HostID) may have assigned attempts to claim,
	// or a running one to cancel.
	HintAssigned HintKind = "assigned"
	// HintTask: a task (key: TaskID) may have changed its state or its log.
	HintTask HintKind = "task"
)

// Hints are sent by the engines after their commits, outside the transaction,
// coalesced. They only make things faster: they may be lost, doubled or late,
// and everything works without them by polling.
type Hints interface {
	// Subscribe gives a channel that receives after a hint of that kind and
	// key; "" is every key. The channel holds at most one pending hint and is
	// never closed. cancel ends the subscription and may be called twice.
	Subscribe(kind HintKind, key string) (c <-chan struct{}, cancel func())
}

// Page asks for one page of a list.
type Page struct {
	// Size is 1 to 200; 0: 50.
	Size int
	// After is the id of the last item of the page before; "" for the first.
	After string
}

// Limit is the number of rows to return.
func (p Page) Limit() int {
	switch {
	case p.Size <= 0:
		return 50
	case p.Size > 200:
		return 200
	}
	return p.Size
}
