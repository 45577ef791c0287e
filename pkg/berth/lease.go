package berth

import (
	"fmt"
	"time"
)

// Lease is the exclusive, expiring hold of an attempt on a device: the
// device's one row. It is free when Attempt is "".
type Lease struct {
	Device DeviceID
	Host   HostID
	Pool   PoolID
	// Placeable says who may be placed here; see [Placeable].
	Placeable Placeable
	// Fence of the current or last lease.
	Fence     Fence
	Attempt   AttemptID // "" free
	Task      TaskID
	Number    int
	ExpiresAt time.Time
	// KillBy is when the keeper ends a running attempt whose agent should have
	// done so: run_timeout or the cancel bound; zero until started.
	KillBy time.Time
}

// Timings are the lease protocol's durations. The database's clock alone
// decides about instants; durations cross the wire (design.md section 6).
type Timings struct {
	// LeaseTTL is granted by claim, start and renew.
	LeaseTTL time.Duration
	// RenewEvery is how often an agent renews, ±10 %.
	RenewEvery time.Duration
	// RequestTimeout bounds one agent request that is no long poll.
	RequestTimeout time.Duration
	// FenceMargin: the agent stops this long before the lease would end,
	// counted from when it SENT the last successful renewal.
	FenceMargin time.Duration
	// KillMargin: by this long before the lease would end the work is dead.
	KillMargin time.Duration
	// ReapGrace: the keeper acts this long after the expiry of a started
	// attempt's lease.
	ReapGrace time.Duration
	// ClaimWithin bounds the time from assigned to claimed.
	ClaimWithin time.Duration
	// HostOfflineAfter is how long a host may be silent.
	HostOfflineAfter time.Duration
	// HeartbeatEvery is how often an agent reports.
	HeartbeatEvery time.Duration
	// CancelWithin bounds the stopping of a running attempt that was asked to.
	CancelWithin time.Duration
}

// DefaultTimings are the values of design.md section 6.
func DefaultTimings() Timings {
	return Timings{
		LeaseTTL: 60 * time.Second, RenewEvery: 15 * time.Second, RequestTimeout: 5 * time.Second,
		FenceMargin: 15 * time.Second, KillMargin: 5 * time.Second, ReapGrace: 15 * time.Second,
		ClaimWithin: 30 * time.Second, HostOfflineAfter: 45 * time.Second, HeartbeatEvery: 10 * time.Second,
		CancelWithin: 30 * time.Second,
	}
}

// Validate judges the timings against each other and names every fault. The
// order that keeps two holders off one device is: renew, renew again after one
// lost answer, fence, kill, expiry, reap.
func (t Timings) Validate() error {
	var f Faults
	pos := func(path string, d time.Duration) {
		if d <= 0 {
			f.Add(path, fmt.Sprintf("%v is not positive", d), "use a positive duration such as 15s")
		}
	}
	pos("lease_ttl", t.LeaseTTL)
	pos("renew_every", t.RenewEvery)
	pos("request_timeout", t.RequestTimeout)
	pos("fence_margin", t.FenceMargin)
	pos("kill_margin", t.KillMargin)
	pos("reap_grace", t.ReapGrace)
	pos("claim_within", t.ClaimWithin)
	pos("host_offline_after", t.HostOfflineAfter)
	pos("heartbeat_every", t.HeartbeatEvery)
	pos("cancel_within", t.CancelWithin)
	if t.KillMargin >= t.FenceMargin {
		f.Add("kill_margin", "the work must be dead after the agent fences itself and before the lease ends", "make it smaller than fence_margin")
	}
	if fence := t.LeaseTTL - t.FenceMargin; fence < 2*t.RenewEvery+t.RequestTimeout {
		f.Add("renew_every", "one lost renewal would already end the work", "keep 2 x renew_every + request_timeout below lease_ttl - fence_margin")
	}
	if t.HostOfflineAfter < 3*t.HeartbeatEvery {
		f.Add("host_offline_after", "two lost heartbeats would take a host offline", "use at least 3 x heartbeat_every")
	}
	return f.Err()
}

// LeaseAlive reports whether a lease that ends at expires may still be acted
// under at now. Renewal and start are strict: expired is gone.
func LeaseAlive(expires, now time.Time) bool { return now.Before(expires) }

// KillBy is when a running attempt that was started at started must be over,
// before the keeper's grace: its run time-out, or CancelWithin after a cancel,
// whichever comes first. cancelAt is zero without a cancel.
func (t Timings) KillBy(started time.Time, runTimeout time.Duration, cancelAt time.Time) time.Time {
	by := started.Add(runTimeout)
	if !cancelAt.IsZero() {
		if c := cancelAt.Add(t.CancelWithin); c.Before(by) {
			return c
		}
	}
	return by
}

// Reaping is what the leasekeeper finds when it has locked a live attempt and
// its lease.
type Reaping struct {
	State     AttemptState
	ExpiresAt time.Time
	KillBy    time.Time
	Cancel    bool
}

// ReapVerdict says how the keeper ends an attempt.
type ReapVerdict struct {
	Outcome Outcome
	Reason  string
	By      EndedBy
	// Unclean: the work may still touch the device; nobody is placed there
	// until it is proved clean.
	Unclean bool
}

// Reap decides whether the keeper may end an attempt at now, and how. It is
// asked after the locks are held, on the locked rows. ok is false when the
// attempt may go on.
//
// What was not started is released as soon as its lease ended: no start can be
// granted any more. What runs is ended ReapGrace after its lease or its time
// limit ended.
func (t Timings) Reap(r Reaping, now time.Time) (v ReapVerdict, ok bool) {
	switch {
	case !r.State.Started() && !LeaseAlive(r.ExpiresAt, now):
		reason := ReasonNotStarted
		if r.State == AttemptAssigned {
			reason = ReasonUnclaimed
		}
		return ReapVerdict{Outcome: OutcomeReleased, Reason: reason, By: EndedByExpiry}, true
	case !r.State.Started():
		return v, false
	case !now.Before(r.ExpiresAt.Add(t.ReapGrace)):
		return ReapVerdict{Outcome: OutcomeTimedOut, Reason: ReasonLeaseExpired, By: EndedByExpiry, Unclean: true}, true
	case !r.KillBy.IsZero() && !now.Before(r.KillBy.Add(t.ReapGrace)):
		reason := ReasonRunTimeout
		if r.Cancel {
			reason = ReasonCancelTimeout
		}
		return ReapVerdict{Outcome: OutcomeTimedOut, Reason: reason, By: EndedByRunTimeout, Unclean: true}, true
	}
	return v, false
}

// NextEpoch decides the epoch that a sync gets.
//
//   - a process that the host row does not know and that never synced
//     (held == 0) is a new agent start: a higher epoch;
//   - the process that the row knows keeps the row's epoch: it was only cut off,
//     or repeats a sync whose answer it lost, also one that had raised the epoch;
//   - a process that holds an older epoch was superseded: ErrStaleEpoch;
//   - an epoch above the server's (held or in the journal) means the database
//     was restored: go above it (I10).
func NextEpoch(stored Epoch, storedInstance, instance string, held, journal Epoch) (Epoch, error) {
	top := max(stored, held, journal)
	switch {
	case held > stored:
		return top + 1, nil
	case instance == storedInstance && stored > 0:
		if journal > stored {
			return top + 1, nil
		}
		return stored, nil
	case held == 0:
		return top + 1, nil
	}
	return 0, fmt.Errorf("a newer agent of this host has synced: %w", ErrStaleEpoch)
}

// CheckEpoch judges the epoch that an agent call carries against the host's.
func CheckEpoch(stored, carried Epoch) error {
	switch {
	case carried < stored:
		return fmt.Errorf("epoch %d is older than the host's %d, a newer agent runs: %w", carried, stored, ErrStaleEpoch)
	case carried > stored:
		return fmt.Errorf("epoch %d is above the host's %d, sync again: %w", carried, stored, ErrEpochAhead)
	}
	return nil
}
