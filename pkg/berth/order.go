package berth

import (
	"fmt"
	"slices"
	"time"
)

// DefaultAgeingStep is how much waiting outweighs one step of priority.
const DefaultAgeingStep = 10 * time.Minute

// StrictPriorityStep stands for an infinite ageing step: a higher priority
// always goes first. It keeps ranks inside 64 bits until the year 30000.
const StrictPriorityStep = 100 * 365 * 24 * time.Hour

// RankOf is a task's virtual start time in microseconds since 1970: its submit
// time less its priority times the pool's ageing step. The smaller rank goes
// first. A waiting task rises by itself relative to newer ones, without any
// update, and nothing starves. A retry keeps its task's rank.
func RankOf(submitted time.Time, priority int, step time.Duration) Rank {
	return Rank(submitted.UnixMicro() - int64(priority)*step.Microseconds())
}

// PriorityReason says in the trail which priority a task was given.
func PriorityReason(priority int) string { return fmt.Sprintf("priority_%d", priority) }

func sortedUnique(s []string) []string {
	if len(s) == 0 {
		return nil
	}
	out := slices.Clone(s)
	slices.Sort(out)
	return slices.Compact(out)
}
