package berth

import "time"

// HealthRecord is what is remembered of a device's health. Its zero value is a
// device that has done nothing yet: HealthGood (an empty Health is good).
//
// The rules have hysteresis: it takes more to trust a device again than it
// took to doubt it, so that one that flaps does not take turns with the pool's
// tasks.
type HealthRecord struct {
	Health Health
	// Failures counts infra_failed attempts since the device last did work.
	Failures int
	// GoodProbes counts good probes in a row, while the health is not good.
	GoodProbes int
	// Strikes counts quarantines since the device last did work.
	Strikes int
	// QuarantinedUntil is before when good probes do not end a quarantine; zero
	// outside one.
	QuarantinedUntil time.Time
}

// The thresholds of health.
const (
	// FailuresToSuspect and FailuresToQuarantine are infra failures in a row.
	FailuresToSuspect    = 2
	FailuresToQuarantine = 3
	// GoodProbesToTrust is how many good probes in a row end a doubt.
	GoodProbesToTrust = 3
	// QuarantineFor is the least time of a first quarantine; each one that
	// follows without work between is twice as long, to MaxQuarantineFor.
	QuarantineFor    = time.Minute
	MaxQuarantineFor = time.Hour
)

// HealthSignal is something that was seen of a device.
type HealthSignal string

// The signals.
const (
	// SignalWorked: an attempt ended succeeded or failed: the device did its part.
	SignalWorked HealthSignal = "worked"
	// SignalInfraFailed: the agent ended an attempt as infra_failed, and not for a
	// reason of its own or the server's.
	SignalInfraFailed HealthSignal = "infra_failed"
	// SignalProbeGood, SignalProbeSuspect and SignalProbeBroken are what the
	// driver's probe said: HealthGood, HealthSuspect, HealthQuarantined.
	SignalProbeGood    HealthSignal = "probe_good"
	SignalProbeSuspect HealthSignal = "probe_suspect"
	SignalProbeBroken  HealthSignal = "probe_broken"
	// SignalTrusted: an operator says that it is well.
	SignalTrusted HealthSignal = "trusted"
)

// ProbeSignal is the signal of a health that an agent reports.
func ProbeSignal(reported Health) HealthSignal {
	switch reported {
	case HealthSuspect:
		return SignalProbeSuspect
	case HealthQuarantined:
		return SignalProbeBroken
	}
	return SignalProbeGood
}

// SignalOf is what the end of an attempt says about its device: only what the
// agent itself saw counts. A task that timed out, was cancelled or was lost says
// nothing about the device, and neither does what the agent ended for reasons of
// its own or the server's: else an outage that repeats would quarantine a fleet.
func SignalOf(outcome Outcome, reason string, by EndedBy, started bool) (HealthSignal, bool) {
	if by != EndedByAgent {
		return "", false
	}
	switch outcome {
	case OutcomeSucceeded, OutcomeFailed:
		return SignalWorked, started
	case OutcomeInfraFailed:
		return SignalInfraFailed, !ofTheAgent(reason)
	}
	return "", false
}

// ofTheAgent reports whether an agent ended an attempt for a reason that lies not
// with the device but with the host or a plugin on it.
func ofTheAgent(reason string) bool {
	switch reason {
	case ReasonFenced, ReasonAgentStopped, ReasonStartUnanswered, ReasonDraining, ReasonInputs, ReasonInputLost, ReasonJournal,
		ReasonPluginStart, ReasonPluginKilled:
		return true
	}
	return false
}

// Next is the record after a signal at now.
//
//   - Work trusts the device at once and forgets everything, also in quarantine
//     (an operator's pinned probe).
//   - The second infra failure in a row makes it suspect, the third quarantines
//     it. Suspect devices are placed last.
//   - A probe that says suspect or broken is believed at once.
//   - Three good probes in a row make a suspect device good, unless infra
//     failures made it so: then only work does. They end a quarantine whose time
//     is over, as suspect: one more failure quarantines again, for twice as long.
func (r HealthRecord) Next(s HealthSignal, now time.Time) HealthRecord {
	if r.Health == "" {
		r.Health = HealthGood
	}
	switch s {
	case SignalWorked, SignalTrusted:
		return HealthRecord{Health: HealthGood}
	case SignalInfraFailed:
		r.GoodProbes = 0
		r.Failures = min(r.Failures+1, FailuresToQuarantine)
		switch {
		case r.Failures >= FailuresToQuarantine:
			return r.quarantined(now)
		case r.Failures >= FailuresToSuspect && r.Health == HealthGood:
			r.Health = HealthSuspect
		}
	case SignalProbeBroken:
		r.GoodProbes = 0
		if r.Health != HealthQuarantined {
			return r.quarantined(now)
		}
	case SignalProbeSuspect:
		r.GoodProbes = 0
		if r.Health == HealthGood {
			r.Health = HealthSuspect
		}
	case SignalProbeGood:
		return r.probedGood(now)
	}
	return r
}

// Same reports whether two records say the same: what does not change is not
// written.
func (r HealthRecord) Same(o HealthRecord) bool {
	until := r.QuarantinedUntil.Equal(o.QuarantinedUntil)
	r.QuarantinedUntil, o.QuarantinedUntil = time.Time{}, time.Time{}
	return until && r == o
}

func (r HealthRecord) quarantined(now time.Time) HealthRecord {
	r.Health = HealthQuarantined
	r.Strikes = min(r.Strikes+1, 16)
	r.QuarantinedUntil = now.Add(min(QuarantineFor<<(r.Strikes-1), MaxQuarantineFor))
	return r
}

func (r HealthRecord) probedGood(now time.Time) HealthRecord {
	if r.Health == HealthGood {
		return r
	}
	r.GoodProbes = min(r.GoodProbes+1, GoodProbesToTrust)
	if r.GoodProbes < GoodProbesToTrust {
		return r
	}
	switch {
	case r.Health == HealthQuarantined && !now.Before(r.QuarantinedUntil):
		r.Health, r.QuarantinedUntil, r.GoodProbes = HealthSuspect, time.Time{}, 0
		r.Failures = FailuresToQuarantine - 1
	case r.Health == HealthSuspect && r.Failures < FailuresToSuspect:
		r.Health, r.GoodProbes = HealthGood, 0
	}
	return r
}
