package berth

import (
	"fmt"
	"slices"
	"strings"
)

// BulkAct is what a bulk job does to each task that its filter passes.
type BulkAct string

// The acts.
const (
	BulkCancel       BulkAct = "cancel"
	BulkRetry        BulkAct = "retry"
	BulkDelete       BulkAct = "delete"
	BulkReprioritise BulkAct = "reprioritise"
)

// BulkState says where a bulk job is.
type BulkState string

// The states.
const (
	BulkRunning BulkState = "running"
	BulkDone    BulkState = "done"
	BulkStopped BulkState = "stopped" // by an operator, before its end
)

// BulkWalk is what a job walks through to find its tasks, so that its cost
// follows what it may change and not all that is stored.
type BulkWalk string

// The walks.
const (
	// WalkPlaces: the queue, what is delayed, and live attempts.
	WalkPlaces BulkWalk = "places"
	// WalkCauses: dead letters, by cause.
	WalkCauses BulkWalk = "causes"
	// WalkTasks: all tasks.
	WalkTasks BulkWalk = "tasks"
)

// CheckBulk says which states of tasks a job is about and what it walks through:
// wanted are those of its filter, none for all that the act can change. The error
// is an *InvalidError that names act or filter.state.
func CheckBulk(act BulkAct, wanted []TaskState, byCause bool) (states []TaskState, walk BulkWalk, err error) {
	var able []TaskState
	switch act {
	case BulkCancel, BulkReprioritise:
		able = []TaskState{StateScheduled, StateQueued, StateFailed, StateAssigned, StateClaimed, StateRunning}
	case BulkRetry:
		able = []TaskState{StateDeadLetter, StateFailed}
	case BulkDelete:
		able = []TaskState{StateSucceeded, StateDeadLetter, StateCancelled}
	default:
		return nil, "", Invalid("act", fmt.Sprintf("%q is no act", Clip(string(act), 20)), "use cancel, retry, delete or reprioritise")
	}
	states = able
	if len(wanted) > 0 {
		states = nil
	}
	for _, s := range wanted {
		if !slices.Contains(able, s) {
			return nil, "", Invalid("filter.state", fmt.Sprintf("%s does nothing to tasks that are %s", act, Clip(string(s), 20)), "use "+joined(able)+", or leave it out")
		}
		if !slices.Contains(states, s) {
			states = append(states, s)
		}
	}
	if byCause && !slices.Contains(states, StateDeadLetter) {
		return nil, "", Invalid("filter.cause", "only dead letters have a cause", "leave it out, or retry or delete dead_letter tasks")
	}
	switch {
	case act == BulkRetry && (len(wanted) == 0 || byCause):
		states = []TaskState{StateDeadLetter}
	case act == BulkRetry && len(states) > 1:
		return nil, "", Invalid("filter.state", "dead_letter and failed tasks are not retried in one job", "start one for each")
	case byCause:
		states = []TaskState{StateDeadLetter}
	}
	switch {
	case slices.Equal(states, []TaskState{StateDeadLetter}):
		return states, WalkCauses, nil
	case states[0].Finished():
		return states, WalkTasks, nil
	}
	return states, WalkPlaces, nil
}

func joined(states []TaskState) string {
	words := make([]string, len(states))
	for i, s := range states {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}
