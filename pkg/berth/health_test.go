package berth_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

var healthSignals = []berth.HealthSignal{
	berth.SignalWorked, berth.SignalInfraFailed, berth.SignalInfraFailed, berth.SignalProbeGood, berth.SignalProbeGood, berth.SignalProbeGood,
	berth.SignalProbeSuspect, berth.SignalProbeBroken, berth.SignalTrusted,
}

// doubts are the signals of a device that never works.
var doubts = []berth.HealthSignal{
	berth.SignalProbeGood, berth.SignalProbeGood, berth.SignalProbeGood, berth.SignalProbeGood, berth.SignalProbeGood,
	berth.SignalInfraFailed, berth.SignalProbeSuspect, berth.SignalProbeBroken,
}

var healthEpoch = time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)

// drawRecord is a record that some history of signals leads to, and its end.
func drawRecord(t *rapid.T) (berth.HealthRecord, time.Time) {
	r, now := berth.HealthRecord{}, healthEpoch
	for range rapid.IntRange(0, 40).Draw(t, "history") {
		now = now.Add(time.Duration(rapid.IntRange(0, 600).Draw(t, "seconds")) * time.Second)
		r = r.Next(rapid.SampledFrom(healthSignals).Draw(t, "signal"), now)
	}
	return r, now
}

func repeat(r berth.HealthRecord, s berth.HealthSignal, n int, now time.Time) berth.HealthRecord {
	for range n {
		r = r.Next(s, now)
	}
	return r
}

func TestHealthStartsGood(t *testing.T) {
	for _, s := range []berth.HealthSignal{berth.SignalProbeGood, berth.SignalWorked, berth.SignalTrusted} {
		if got := (berth.HealthRecord{}).Next(s, healthEpoch); !got.Same(berth.HealthRecord{Health: berth.HealthGood}) {
			t.Errorf("%s: %+v", s, got)
		}
	}
}

func TestWorkAndTrustForgetEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, now := drawRecord(t)
		for _, s := range []berth.HealthSignal{berth.SignalWorked, berth.SignalTrusted} {
			if got := r.Next(s, now); !got.Same(berth.HealthRecord{Health: berth.HealthGood}) {
				t.Fatalf("%s made %+v of %+v", s, got, r)
			}
		}
	})
}

// TestTrustIsSlow: without work or an operator no device gets better in fewer
// than GoodProbesToTrust good probes in a row, and none leaves a quarantine
// before its time.
func TestTrustIsSlow(t *testing.T) {
	badness := map[berth.Health]int{"": 0, berth.HealthGood: 0, berth.HealthSuspect: 1, berth.HealthQuarantined: 2}
	rapid.Check(t, func(t *rapid.T) {
		r, now := berth.HealthRecord{Health: berth.HealthGood}, healthEpoch
		inRow := 0 // good probes since the last bad word, or the last step up
		for range 80 {
			now = now.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, "seconds")) * time.Second)
			s := rapid.SampledFrom(doubts).Draw(t, "signal")
			before := r
			if r = r.Next(s, now); s == berth.SignalProbeGood {
				inRow++
			} else {
				inRow = 0
			}
			if badness[r.Health] >= badness[before.Health] {
				continue
			}
			if s != berth.SignalProbeGood || inRow < berth.GoodProbesToTrust || badness[before.Health]-badness[r.Health] != 1 {
				t.Fatalf("%s made %+v of %+v", s, r, before)
			}
			if before.Health == berth.HealthQuarantined && now.Before(before.QuarantinedUntil) {
				t.Fatalf("left its quarantine at %v: %+v", now, before)
			}
			inRow = 0
		}
	})
}

// TestDoubtIsQuick: bad words are believed at once, failures after their
// thresholds, whatever good probes said between.
func TestDoubtIsQuick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, now := drawRecord(t)
		if got := r.Next(berth.SignalProbeBroken, now); got.Health != berth.HealthQuarantined || got.GoodProbes != 0 {
			t.Fatalf("broken made %+v of %+v", got, r)
		}
		if got := r.Next(berth.SignalProbeSuspect, now); got.Health == berth.HealthGood || got.GoodProbes != 0 {
			t.Fatalf("suspect made %+v of %+v", got, r)
		}
		for i := range berth.FailuresToQuarantine {
			r = r.Next(berth.SignalInfraFailed, now)
			if i+1 >= berth.FailuresToSuspect && r.Health == berth.HealthGood {
				t.Fatalf("%d failures: %+v", i+1, r)
			}
			r = repeat(r, berth.SignalProbeGood, rapid.IntRange(0, berth.GoodProbesToTrust-1).Draw(t, "good probes"), now)
		}
		if r.Health != berth.HealthQuarantined {
			t.Fatalf("%d failures: %+v", berth.FailuresToQuarantine, r)
		}
	})
}

// TestQuarantinesGrow: each one without work between lasts twice as long as the
// one before, to the maximum, and never longer; a broken probe within one does
// not prolong it.
func TestQuarantinesGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, now, hold := berth.HealthRecord{}, healthEpoch, berth.QuarantineFor
		for i := range rapid.IntRange(1, 40).Draw(t, "quarantines") {
			bad := rapid.SampledFrom([]berth.HealthSignal{berth.SignalProbeBroken, berth.SignalInfraFailed}).Draw(t, "bad")
			for r.Health != berth.HealthQuarantined {
				r = r.Next(bad, now)
			}
			if got := r.QuarantinedUntil.Sub(now); got != hold {
				t.Fatalf("quarantine %d lasts %v, should be %v", i+1, got, hold)
			}
			if again := r.Next(berth.SignalProbeBroken, now.Add(hold/2)); !again.QuarantinedUntil.Equal(r.QuarantinedUntil) {
				t.Fatalf("prolonged to %v", again.QuarantinedUntil)
			}
			if early := repeat(r, berth.SignalProbeGood, 100, r.QuarantinedUntil.Add(-time.Microsecond)); early.Health != berth.HealthQuarantined {
				t.Fatalf("over too early: %+v", early)
			}
			now = r.QuarantinedUntil
			if r = repeat(r, berth.SignalProbeGood, berth.GoodProbesToTrust, now); r.Health != berth.HealthSuspect {
				t.Fatalf("not over: %+v", r)
			}
			// One more failure is enough.
			if got := r.Next(berth.SignalInfraFailed, now); got.Health != berth.HealthQuarantined {
				t.Fatalf("a failure after a quarantine: %+v", got)
			}
			hold = min(2*hold, berth.MaxQuarantineFor)
		}
	})
}

// TestHealthSettles: good probes alone soon change nothing any more, so that a
// device which is well costs no writes.
func TestHealthSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, now := drawRecord(t)
		settled := repeat(r, berth.SignalProbeGood, berth.GoodProbesToTrust, now)
		if again := settled.Next(berth.SignalProbeGood, now); !again.Same(settled) && settled.Health == berth.HealthQuarantined {
			t.Fatalf("%+v after %+v", again, settled)
		}
		later := now.Add(berth.MaxQuarantineFor)
		for range 3 * berth.GoodProbesToTrust {
			settled = settled.Next(berth.SignalProbeGood, later)
		}
		if again := settled.Next(berth.SignalProbeGood, later); !again.Same(settled) || settled.Health == berth.HealthQuarantined {
			t.Fatalf("%+v after %+v", again, settled)
		}
	})
}

func TestSameTellsInstantsNotZones(t *testing.T) {
	r := berth.HealthRecord{Health: berth.HealthQuarantined, Strikes: 1, QuarantinedUntil: healthEpoch}
	o := r
	o.QuarantinedUntil = healthEpoch.In(time.FixedZone("east", 3600))
	if !r.Same(o) {
		t.Error("one instant in two zones differs")
	}
	for _, other := range []berth.HealthRecord{
		{Health: berth.HealthSuspect, Strikes: 1, QuarantinedUntil: healthEpoch},
		{Health: berth.HealthQuarantined, Strikes: 2, QuarantinedUntil: healthEpoch},
		{Health: berth.HealthQuarantined, Strikes: 1},
	} {
		if r.Same(other) || other.Same(r) {
			t.Errorf("%+v is the same as %+v", r, other)
		}
	}
}

// TestSignalOf: of the ends of attempts, only what an agent saw itself says
// something about the device.
func TestSignalOf(t *testing.T) {
	said := map[[2]any]berth.HealthSignal{ // outcome, started -> by the agent
		{berth.OutcomeSucceeded, true}:    berth.SignalWorked,
		{berth.OutcomeFailed, true}:       berth.SignalWorked,
		{berth.OutcomeInfraFailed, true}:  berth.SignalInfraFailed,
		{berth.OutcomeInfraFailed, false}: berth.SignalInfraFailed,
	}
	for _, by := range []berth.EndedBy{
		berth.EndedByAgent, berth.EndedByExpiry, berth.EndedByRunTimeout, berth.EndedBySync, berth.EndedByOperator, berth.EndedByCancel,
	} {
		for _, outcome := range berth.Outcomes() {
			for _, started := range []bool{false, true} {
				want, ok := said[[2]any{outcome, started}]
				ok = ok && by == berth.EndedByAgent
				if got, said := berth.SignalOf(outcome, string(outcome), by, started); said != ok || ok && got != want {
					t.Errorf("%s by %s, started %v: %q, %v", outcome, by, started, got, said)
				}
			}
		}
	}
	// An outage or a restart of the agent is no fault of its devices.
	for _, reason := range []string{
		berth.ReasonFenced, berth.ReasonAgentStopped, berth.ReasonStartUnanswered, berth.ReasonDraining, berth.ReasonInputs, berth.ReasonInputLost, berth.ReasonJournal,
		berth.ReasonPluginStart, berth.ReasonPluginKilled,
	} {
		if got, said := berth.SignalOf(berth.OutcomeInfraFailed, reason, berth.EndedByAgent, true); said {
			t.Errorf("infra_failed (%s): %q", reason, got)
		}
	}
}

func TestProbeSignal(t *testing.T) {
	for health, want := range map[berth.Health]berth.HealthSignal{
		berth.HealthGood: berth.SignalProbeGood, berth.HealthSuspect: berth.SignalProbeSuspect, berth.HealthQuarantined: berth.SignalProbeBroken,
	} {
		if got := berth.ProbeSignal(health); got != want {
			t.Errorf("%s: %s", health, got)
		}
	}
}
