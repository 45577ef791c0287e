package berth

// Places are all places that a task was found in (I15: an unfinished task is in
// one, a finished one in none).
type Places struct {
	// Final state; "" unfinished.
	Final TaskState
	// Queued: it has a token in the queue.
	Queued bool
	// Delayed is scheduled or failed when it has a token there; "" none.
	Delayed TaskState
	// Live is the state of its live attempt; "" none.
	Live AttemptState
}

// Repair is what brings a task back to one place.
type Repair struct {
	DropQueued, DropDelayed bool
	// Queue: give it a token with the next attempt number.
	Queue bool
	// From and To are the states of the transition; From is "" for a task that was
	// nowhere.
	From, To TaskState
	Reason   string
}

// ReasonFoundTwice: the sweep found the task in two places, or a finished one in
// one.
const ReasonFoundTwice = "found_twice"

// Repair decides how the sweep repairs, and whether something is wrong at all. A
// task in no place is queued. Of two places the live attempt stays, for its work
// goes on; else the queue's token. A finished task keeps its state. A zero Repair
// of what is wrong says that nothing safe can be done: a finished task with a
// live attempt.
func (p Places) Repair() (r Repair, wrong bool) {
	n := 0
	for _, here := range []bool{p.Queued, p.Delayed != "", p.Live != ""} {
		if here {
			n++
		}
	}
	switch {
	case p.Final == "" && n == 1, p.Final != "" && n == 0:
		return Repair{}, false
	case p.Final == "" && n == 0:
		return Repair{Queue: true, To: StateQueued, Reason: ReasonFoundLost}, true
	case p.Final != "" && p.Live != "":
		return Repair{}, true
	}
	r.Reason = ReasonFoundTwice
	switch {
	case p.Final != "":
		r.To, r.DropQueued, r.DropDelayed = p.Final, p.Queued, p.Delayed != ""
	case p.Live != "":
		r.To, r.DropQueued, r.DropDelayed = p.Live.TaskState(), p.Queued, p.Delayed != ""
	default:
		r.To, r.DropDelayed = StateQueued, true
	}
	if r.DropDelayed {
		r.From = p.Delayed
	} else {
		r.From = StateQueued
	}
	return r, true
}
