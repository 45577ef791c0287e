package berth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

// ended is an attempt's end after its first try of three.
func ended(o berth.Outcome, by berth.EndedBy) berth.Ended {
	return berth.Ended{
		Attempt: "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", Outcome: o, Reason: "why", By: by, Started: true,
		Policy: berth.DefaultRetryPolicy(), Budget: 3, Tries: 1,
	}
}

func TestAfterEachOutcomeWithTriesLeft(t *testing.T) {
	for _, c := range []struct {
		outcome berth.Outcome
		by      berth.EndedBy
		state   berth.TaskState
		reason  string
		waits   bool
	}{
		{berth.OutcomeSucceeded, berth.EndedByAgent, berth.StateSucceeded, berth.ReasonSucceeded, false},
		{berth.OutcomeFailed, berth.EndedByAgent, berth.StateFailed, "why", true},
		{berth.OutcomeInfraFailed, berth.EndedByAgent, berth.StateFailed, "why", true},
		{berth.OutcomeTimedOut, berth.EndedByAgent, berth.StateFailed, "why", true},
		{berth.OutcomeCancelled, berth.EndedByAgent, berth.StateDeadLetter, berth.ReasonNotRetryable, false},
		{berth.OutcomeTimedOut, berth.EndedByExpiry, berth.StateQueued, "why", false},
		{berth.OutcomeTimedOut, berth.EndedByRunTimeout, berth.StateFailed, "why", true},
		{berth.OutcomeLost, berth.EndedBySync, berth.StateQueued, "why", false},
		{berth.OutcomeInfraFailed, berth.EndedByOperator, berth.StateFailed, "why", true},
		{berth.OutcomeCancelled, berth.EndedByCancel, berth.StateCancelled, berth.ReasonCancelled, false},
		{berth.OutcomeReleased, berth.EndedByAgent, berth.StateQueued, "why", false},
		{berth.OutcomeReleased, berth.EndedByExpiry, berth.StateQueued, "why", false},
	} {
		e := ended(c.outcome, c.by)
		got := berth.After(e)
		if got.State != c.state || got.Reason != c.reason || (got.Delay > 0) != c.waits {
			t.Errorf("%s by %s: %+v", c.outcome, c.by, got)
		}
		if c.waits && got.Delay != e.Policy.Backoff(1, berth.JitterOf(e.Attempt)) {
			t.Errorf("%s by %s waits %v", c.outcome, c.by, got.Delay)
		}
	}
}

func TestAfterTheLastTry(t *testing.T) {
	for _, o := range []berth.Outcome{berth.OutcomeFailed, berth.OutcomeInfraFailed, berth.OutcomeTimedOut, berth.OutcomeLost} {
		for _, by := range []berth.EndedBy{berth.EndedByAgent, berth.EndedByExpiry, berth.EndedByRunTimeout, berth.EndedBySync, berth.EndedByOperator} {
			e := ended(o, by)
			e.Tries = e.Budget
			if got := berth.After(e); got.State != berth.StateDeadLetter || got.Reason != berth.ReasonNoTriesLeft {
				t.Errorf("%s by %s on the last try: %+v", o, by, got)
			}
			e.Tries--
			if got := berth.After(e); !got.Retried() {
				t.Errorf("%s by %s before the last try: %+v", o, by, got)
			}
			e.Policy.On = slices.DeleteFunc(slices.Clone(e.Policy.On), func(x berth.Outcome) bool { return x == o })
			if got := berth.After(e); got.State != berth.StateDeadLetter || got.Reason != berth.ReasonNotRetryable {
				t.Errorf("%s by %s, not listed: %+v", o, by, got)
			}
		}
	}
}

func TestAfterUnsafeWork(t *testing.T) {
	e := ended(berth.OutcomeInfraFailed, berth.EndedByAgent)
	e.Policy.RetryUnsafe = true
	if got := berth.After(e); got.State != berth.StateDeadLetter || got.Reason != berth.ReasonNotRetrySafe {
		t.Errorf("started: %+v", got)
	}
	e.Started = false
	if got := berth.After(e); got.State != berth.StateFailed {
		t.Errorf("unstarted: %+v", got)
	}
	e.Outcome, e.Reason = berth.OutcomeReleased, "why"
	if got := berth.After(e); got.State != berth.StateQueued {
		t.Errorf("handed back: %+v", got)
	}
}

func TestAfterHandBacks(t *testing.T) {
	for n := 1; n <= berth.MaxHandBacks+1; n++ {
		e := ended(berth.OutcomeReleased, berth.EndedByAgent)
		e.Started, e.HandBacks, e.Tries = false, n, 0
		got := berth.After(e)
		if last := n >= berth.MaxHandBacks; last != (got.State == berth.StateDeadLetter) || last && got.Reason != berth.ReasonHandBackLimit {
			t.Errorf("hand-back %d in a row: %+v", n, got)
		}
	}
	// A hand-back spends no try: an exhausted budget does not matter.
	e := ended(berth.OutcomeReleased, berth.EndedByAgent)
	e.HandBacks, e.Tries = 1, e.Budget
	if got := berth.After(e); got.State != berth.StateQueued {
		t.Errorf("handed back with all tries used: %+v", got)
	}
}

// anyEnded draws every mix of what After may be asked.
func anyEnded(t *rapid.T) berth.Ended {
	policy := berth.DefaultRetryPolicy()
	policy.On = rapid.SliceOfDistinct(rapid.SampledFrom(policy.On), rapid.ID[berth.Outcome]).Draw(t, "on")
	policy.RetryUnsafe = rapid.Bool().Draw(t, "unsafe")
	budget := rapid.IntRange(1, 5).Draw(t, "budget")
	return berth.Ended{
		Attempt: berth.AttemptID(rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "attempt")),
		Outcome: rapid.SampledFrom(berth.Outcomes()).Draw(t, "outcome"), Reason: "why",
		By: rapid.SampledFrom([]berth.EndedBy{
			berth.EndedByAgent, berth.EndedByExpiry, berth.EndedByRunTimeout, berth.EndedBySync, berth.EndedByOperator, berth.EndedByCancel,
		}).Draw(t, "by"),
		Started: rapid.Bool().Draw(t, "started"), CancelRequested: rapid.Bool().Draw(t, "cancel"), Policy: policy,
		Budget: budget, Tries: rapid.IntRange(0, budget).Draw(t, "tries"), HandBacks: rapid.IntRange(0, 7).Draw(t, "hand-backs"),
	}
}

func TestAfterKeepsThePromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anyEnded(t)
		n := berth.After(e)
		cancelled := e.CancelRequested || e.By == berth.EndedByCancel
		if cancelled != (n.State == berth.StateCancelled) {
			t.Fatalf("I5, I6: %+v gives %+v", e, n)
		}
		if cancelled {
			return
		}
		if (e.Outcome == berth.OutcomeSucceeded) != (n.State == berth.StateSucceeded) {
			t.Fatalf("%+v gives %+v", e, n)
		}
		if e.Outcome != berth.OutcomeReleased && n.Retried() && e.Tries+1 > e.Budget {
			t.Fatalf("I9: another try beyond the budget: %+v gives %+v", e, n)
		}
		if n.Retried() && e.Outcome != berth.OutcomeReleased && (!slices.Contains(e.Policy.On, e.Outcome) || e.Started && e.Policy.RetryUnsafe) {
			t.Fatalf("tried again against the policy: %+v gives %+v", e, n)
		}
		if n.State.Live() || n.State == berth.StateScheduled || !n.State.Valid() || n.Reason == "" || n.Delay < 0 {
			t.Fatalf("%+v gives %+v", e, n)
		}
		if (n.State == berth.StateFailed) != (n.Delay > 0) {
			t.Fatalf("waits %v in %s", n.Delay, n.State)
		}
		if m := berth.After(e); m != n {
			t.Fatalf("the same end gives %+v and %+v", n, m)
		}
	})
}

func TestEndEventNamesWhatFollowed(t *testing.T) {
	for _, c := range []struct {
		outcome berth.Outcome
		state   berth.TaskState
		want    berth.Event
	}{
		{berth.OutcomeSucceeded, berth.StateSucceeded, berth.EventCompleted},
		{berth.OutcomeReleased, berth.StateQueued, berth.EventReleased},
		{berth.OutcomeReleased, berth.StateDeadLetter, berth.EventFailed},
		{berth.OutcomeReleased, berth.StateCancelled, berth.EventCancelled},
		{berth.OutcomeFailed, berth.StateFailed, berth.EventRetried},
		{berth.OutcomeLost, berth.StateQueued, berth.EventRetried},
		{berth.OutcomeTimedOut, berth.StateDeadLetter, berth.EventFailed},
		{berth.OutcomeSucceeded, berth.StateCancelled, berth.EventCancelled},
	} {
		if got := berth.EndEvent(c.outcome, berth.Next{State: c.state}); got != c.want {
			t.Errorf("%s to %s: %s, should be %s", c.outcome, c.state, got, c.want)
		}
	}
}

func TestBackoffDoublesUpToItsLimit(t *testing.T) {
	p := berth.DefaultRetryPolicy()
	p.Jitter = 0
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600} {
		if got := p.Backoff(i+1, 0.99); got != want*time.Second {
			t.Errorf("after try %d: %v, should be %v", i+1, got, want*time.Second)
		}
	}
	if got := p.Backoff(0, 0); got != 10*time.Second {
		t.Errorf("before any try: %v", got)
	}
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		day := int64(24 * time.Hour)
		p := berth.RetryPolicy{
			Initial: time.Duration(rapid.Int64Range(0, day).Draw(t, "initial")),
			Factor:  rapid.Float64Range(1, 100).Draw(t, "factor"),
			Jitter:  rapid.Float64Range(0, 1).Draw(t, "jitter"),
		}
		p.Max = time.Duration(rapid.Int64Range(int64(p.Initial), day).Draw(t, "max"))
		try, u := rapid.IntRange(-1, berth.MaxTries).Draw(t, "try"), rapid.Float64Range(0, 0.999).Draw(t, "u")
		d := p.Backoff(try, u)
		if d < 0 || float64(d) > float64(p.Max)*(1+p.Jitter)+1 || d%time.Microsecond != 0 {
			t.Fatalf("%+v waits %v after try %d", p, d, try)
		}
		if low := p.Backoff(try, 0); low > d {
			t.Fatalf("%v at the low end, %v at %v", low, d, u)
		}
		p.Jitter = 0
		if a, b := p.Backoff(try, u), p.Backoff(try+1, u); a > b {
			t.Fatalf("without jitter the wait falls from %v to %v", a, b)
		}
	})
}

func TestJitterSpreadsAttempts(t *testing.T) {
	const n, buckets = 10000, 10
	var got [buckets]int
	for i := range n {
		// Ids that differ at their end only, as those of one moment do.
		u := berth.JitterOf(berth.AttemptID(fmt.Sprintf("01976f3c-5f4e-7c1a-9b55-%012x", i)))
		if u < 0 || u >= 1 {
			t.Fatalf("jitter %v", u)
		}
		got[int(u*buckets)]++
	}
	for i, c := range got {
		if c < n/buckets*8/10 || c > n/buckets*12/10 {
			t.Errorf("bucket %d has %d of %d", i, c, n)
		}
	}
	if berth.JitterOf("a") != berth.JitterOf("a") {
		t.Error("the same attempt has two jitters")
	}
}

func TestMovedGiveUp(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ giveUp, assigned, ended, want time.Time }{
		{time.Time{}, at, at.Add(time.Hour), time.Time{}},
		{at, at, at.Add(time.Minute), at.Add(time.Minute)},
		{at, at, at, at},
		{at, at.Add(time.Second), at, at}, // a clock that went back
	} {
		if got := berth.MovedGiveUp(c.giveUp, c.assigned, c.ended); !got.Equal(c.want) {
			t.Errorf("%+v gives %v", c, got)
		}
	}
}
