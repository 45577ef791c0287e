package berth

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"
)

// RetryPolicy says which ends of an attempt are tried again, how often and
// after how long.
type RetryPolicy struct {
	// MaxAttempts is the number of tries allowed, hand-backs not counted.
	MaxAttempts int
	// On lists the outcomes that are tried again, sorted.
	On []Outcome
	// Initial, Factor and Max shape the backoff; Jitter spreads it (0.2: ±20 %).
	Initial time.Duration
	Factor  float64
	Max     time.Duration
	Jitter  float64
	// RetryUnsafe: never again once an attempt was started, because the work
	// must not happen twice. (The wire says retry_safe: false; the zero value
	// here is the default.)
	RetryUnsafe bool
}

// Defaults of a retry policy (design: 3 tries, 10 s doubling to 10 min, ±20 %).
const (
	DefaultMaxAttempts = 3
	DefaultBackoff     = 10 * time.Second
	DefaultFactor      = 2.0
	DefaultMaxBackoff  = 10 * time.Minute
	DefaultJitter      = 0.2
	maxBackoffLimit    = 24 * time.Hour
)

// MaxHandBacks is how many times in a row an attempt may be released unstarted
// before the task is dead-lettered.
const MaxHandBacks = 5

// DefaultRetryPolicy tries every outcome but cancelled again, three times.
func DefaultRetryPolicy() RetryPolicy {
	return RetryPolicy{
		MaxAttempts: DefaultMaxAttempts,
		On:          []Outcome{OutcomeFailed, OutcomeInfraFailed, OutcomeLost, OutcomeTimedOut},
		Initial:     DefaultBackoff, Factor: DefaultFactor, Max: DefaultMaxBackoff, Jitter: DefaultJitter,
	}
}

// normalise expects a policy whose absent fields were already filled from
// DefaultRetryPolicy by whoever parsed it, and judges the rest.
func (p *RetryPolicy) normalise(path string, f *Faults) {
	if p.MaxAttempts < 1 || p.MaxAttempts > MaxTries {
		f.Add(path+".max_attempts", fmt.Sprintf("%d is out of range", p.MaxAttempts), fmt.Sprintf("use 1 to %d", MaxTries))
	}
	on := make([]Outcome, 0, len(p.On))
	for i, o := range p.On {
		switch o {
		case OutcomeFailed, OutcomeInfraFailed, OutcomeTimedOut, OutcomeLost:
			on = append(on, o)
		default:
			f.Add(fmt.Sprintf("%s.on[%d]", path, i), fmt.Sprintf("%q cannot be tried again", Clip(string(o), 40)), "use failed, infra_failed, timed_out or lost")
		}
	}
	slices.Sort(on)
	p.On = slices.Compact(on)
	if p.Initial < 0 || p.Initial > maxBackoffLimit {
		f.Add(path+".backoff_initial_seconds", "out of range", "use 0 to 86400")
	}
	if p.Max < p.Initial || p.Max > maxBackoffLimit {
		f.Add(path+".backoff_max_seconds", "out of range", "use at least backoff_initial_seconds and at most 86400")
	}
	if !(p.Factor >= 1 && p.Factor <= 100) {
		f.Add(path+".backoff_factor", "out of range", "use 1 to 100")
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		f.Add(path+".backoff_jitter", "out of range", "use 0 to 1; 0.2 means ±20 %")
	}
}

// Backoff is the wait before the try that follows try number tries (1, 2, ...).
// u in [0,1) picks the place inside the jitter; see [JitterOf]. The result is
// never negative and never above Max stretched by Jitter.
func (p RetryPolicy) Backoff(tries int, u float64) time.Duration {
	if tries < 1 {
		tries = 1
	}
	d := float64(p.Initial) * math.Pow(p.Factor, float64(tries-1))
	if d > float64(p.Max) || math.IsNaN(d) {
		d = float64(p.Max)
	}
	d *= 1 - p.Jitter + 2*p.Jitter*u
	return time.Duration(d).Truncate(time.Microsecond)
}

// JitterOf spreads attempts over [0,1) by their id, so that the same end of an
// attempt gives the same wait in every engine and at every repeat.
func JitterOf(id AttemptID) float64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	// FNV's high bits hardly differ for inputs that differ at the end only.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return float64(x>>11) / (1 << 53)
}

// EndedBy says who ended an attempt; it decides the wait before the next try.
type EndedBy string

// Who ends attempts.
const (
	// EndedByAgent: complete or release.
	EndedByAgent EndedBy = "agent"
	// EndedByExpiry: the keeper, because the lease ran out.
	EndedByExpiry EndedBy = "expiry"
	// EndedByRunTimeout: the keeper, because the run time or the cancel bound ran out.
	EndedByRunTimeout EndedBy = "run_timeout"
	// EndedBySync: the host came back without the attempt.
	EndedBySync EndedBy = "sync"
	// EndedByOperator: drain, revoke, retire or force-release.
	EndedByOperator EndedBy = "operator"
	// EndedByCancel: the API, before the attempt was started.
	EndedByCancel EndedBy = "cancel"
)

// Ended is an attempt's end with all that decides what follows.
type Ended struct {
	Attempt         AttemptID
	Outcome         Outcome
	Reason          string
	By              EndedBy
	Started         bool
	CancelRequested bool
	Policy          RetryPolicy
	// Budget is the number of tries allowed.
	Budget int
	// Tries counts the attempts that were not released, this one included.
	Tries int
	// HandBacks counts the attempts released in a row up to and including this
	// one; those that drain or revoke caused are not counted.
	HandBacks int
}

// Next says where a task goes when its live attempt ended.
type Next struct {
	// State is succeeded, dead_letter, cancelled, queued, or failed (waiting
	// for Delay in `delayed`).
	State  TaskState
	Delay  time.Duration
	Reason string
}

// Retried reports whether the task will be tried again.
func (n Next) Retried() bool { return n.State == StateQueued || n.State == StateFailed }

// After decides what follows the end of an attempt. It is the one place of
// this rule (design.md section 3, promises I5, I6 and I9):
//
//   - a cancel that was asked for finishes the task as cancelled, whatever the
//     attempt's outcome;
//   - succeeded finishes it;
//   - released puts it back at once, unless that happened MaxHandBacks times in
//     a row;
//   - any other outcome is tried again if the policy lists it, tries are left,
//     and the work either was not started or may happen twice: at once when
//     the lease ran out or the host lost it, else after the backoff;
//   - otherwise the task is dead-lettered.
func After(e Ended) Next {
	switch {
	case e.CancelRequested || e.By == EndedByCancel:
		return Next{State: StateCancelled, Reason: ReasonCancelled}
	case e.Outcome == OutcomeSucceeded:
		return Next{State: StateSucceeded, Reason: ReasonSucceeded}
	case e.Outcome == OutcomeReleased:
		if e.HandBacks >= MaxHandBacks {
			return Next{State: StateDeadLetter, Reason: ReasonHandBackLimit}
		}
		return Next{State: StateQueued, Reason: e.Reason}
	case !slices.Contains(e.Policy.On, e.Outcome):
		return Next{State: StateDeadLetter, Reason: ReasonNotRetryable}
	case e.Started && e.Policy.RetryUnsafe:
		return Next{State: StateDeadLetter, Reason: ReasonNotRetrySafe}
	case e.Tries >= e.Budget:
		return Next{State: StateDeadLetter, Reason: ReasonNoTriesLeft}
	case e.By == EndedByExpiry || e.By == EndedBySync:
		return Next{State: StateQueued, Reason: e.Reason}
	}
	return Next{State: StateFailed, Delay: e.Policy.Backoff(e.Tries, JitterOf(e.Attempt)), Reason: e.Reason}
}

// MovedGiveUp is a waiting token's give-up time after a live attempt that
// lasted from assigned to ended: waiting is what counts, not running. Zero
// stays zero.
func MovedGiveUp(giveUp, assigned, ended time.Time) time.Time {
	if giveUp.IsZero() {
		return giveUp
	}
	if d := ended.Sub(assigned); d > 0 {
		return giveUp.Add(d)
	}
	return giveUp
}
