package berth

import (
	"strconv"
	"time"
)

// The facts that the acts of the contract leave in the trail, before and after.
// Both engines spell them here, so that their rows are the same.

// AdminFacts are a device's admin state and what the operator said about it.
func AdminFacts(state AdminState, note string) Facts {
	facts := map[string]string{"admin_state": string(state)}
	if note != "" {
		facts["note"] = note
	}
	return NewFacts(facts)
}

// MoveFacts are where a device is.
func MoveFacts(host HostID, pool PoolID) Facts {
	return NewFacts(map[string]string{"host": string(host), "pool": string(pool)})
}

// HeldFacts are who held a device.
func HeldFacts(task TaskID, state AttemptState) Facts {
	return NewFacts(map[string]string{"task": string(task), "state": string(state)})
}

// PoolFacts are a pool's.
func PoolFacts(p Pool) Facts {
	return NewFacts(map[string]string{"name": p.Name, "paused": strconv.FormatBool(p.Paused), "ageing_step": p.AgeingStep.String()})
}

// EnrolmentFacts are what an enrolment token allows.
func EnrolmentFacts(pool PoolID, pattern string, expires time.Time) Facts {
	return NewFacts(map[string]string{"pool": string(pool), "name_pattern": pattern, "expires_at": FactTime(expires)})
}

// EnrolledFacts are a new host's name and the token that let it in.
func EnrolledFacts(name string, token EnrolmentID) Facts {
	return NewFacts(map[string]string{"name": name, "enrolment": string(token)})
}

// Facts of an amnesty: until when.
func (a Amnesty) Facts() Facts { return Fact("until", FactTime(a.Until)) }

// FlagFacts are one flag, before and after it became on.
func FlagFacts(name string, on bool) (before, after Facts) {
	return Fact(name, strconv.FormatBool(!on)), Fact(name, strconv.FormatBool(on))
}

// NumberFacts are one number.
func NumberFacts[T ~int | ~int64](name string, n T) Facts {
	return Fact(name, strconv.FormatInt(int64(n), 10))
}

// RetryFacts are a task's tries allowed, and whether a retry by hand edited its
// payload.
func RetryFacts(budget int, edited bool) Facts {
	facts := map[string]string{"budget": strconv.Itoa(budget)}
	if edited {
		facts["payload"] = "edited"
	}
	return NewFacts(facts)
}

// FactTime spells a time among facts.
func FactTime(at time.Time) string { return at.UTC().Format(time.RFC3339) }
