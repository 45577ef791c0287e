package berth

// Places says where a task was found, by one look at all places.
type Places struct {
	// Final state; "" when unfinished.
	Final TaskState
	// Queued and Delayed tokens; Kind is the latter's state.
	Queued, Delayed bool
	Kind            TaskState
	// Live is the state of the live attempt; "" when there is none.
	Live AttemptState
}

// Count is in how many places the task is.
func (p Places) Count() (n int) {
	for _, there := range []bool{p.Final != "", p.Live != "", p.Queued, p.Delayed} {
		if there {
			n++
		}
	}
	return n
}

// Wrong reports whether the task is in no place or in two (I15).
func (p Places) Wrong() bool { return p.Count() != 1 }

// Repair is what makes a task's places right again.
type Repair struct {
	// Requeue it, Schedule it for its not-before, or finish it (Final), when it is
	// in no place.
	Requeue, Schedule bool
	Final             TaskState
	// DropQueued and DropDelayed are tokens too many.
	DropQueued, DropDelayed bool
	// To is the state that the task has then.
	To     TaskState
	Reason string
}

// RepairOf decides how a task that is in no place or in two is repaired; ok is
// false when it cannot be: a finished task with a live attempt.
//
// A live attempt stays before a token, a token in the queue before a delayed one.
// A task in no place is queued again, or waits for its not-before that lies ahead,
// unless its last attempt was asked to stop (I5) or its tries are spent (I9).
func RepairOf(p Places, tries, budget int, cancelRequested, ahead bool) (r Repair, ok bool) {
	r.Reason = ReasonFoundTwice
	switch {
	case !p.Wrong(), p.Final != "" && p.Live != "":
		return Repair{}, false
	case p.Final != "":
		r.DropQueued, r.DropDelayed, r.To = p.Queued, p.Delayed, p.Final
	case p.Live != "":
		r.DropQueued, r.DropDelayed, r.To = p.Queued, p.Delayed, p.Live.TaskState()
	case p.Queued:
		r.DropDelayed, r.To = true, StateQueued
	default:
		r.Reason = ReasonFoundLost
		switch {
		case cancelRequested:
			r.Final = StateCancelled
		case tries >= budget:
			r.Final = StateDeadLetter
		case ahead:
			r.Schedule, r.To = true, StateScheduled
			return r, true
		default:
			r.Requeue, r.To = true, StateQueued
			return r, true
		}
		r.To = r.Final
	}
	return r, true
}

// State is the one that the task had by what was found: that of the place that
// wins, "" when it was in none.
func (p Places) State() TaskState {
	switch {
	case p.Final != "":
		return p.Final
	case p.Live != "":
		return p.Live.TaskState()
	case p.Queued:
		return StateQueued
	}
	return p.Kind
}
