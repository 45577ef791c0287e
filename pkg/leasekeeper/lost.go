package leasekeeper

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
)

// LostTasksOnce looks at the next page of all tasks for those that are in no
// place or in two (I15), which only a fault can bring about, and repairs them.
// Over time it walks the whole table, and begins anew.
func (k *Keeper) LostTasksOnce(ctx context.Context) error {
	r, err := k.c.Store.SweepTasks(ctx, k.actor(), k.swept, sweepPage)
	logging.Transitions(k.c.Log, r.Repaired)
	k.c.Metrics.lostTasks(r.Wrong)
	if r.Wrong > 0 {
		ids := make([]string, 0, r.Wrong)
		for _, tr := range r.Repaired {
			ids = append(ids, string(tr.Task))
		}
		k.c.Log.Error("tasks were in no place or in two: they are repaired, but look for the cause",
			zap.Int("wrong", r.Wrong), zap.Strings("repaired", ids), zap.Strings("unrepaired", texts(r.Unrepaired)))
	}
	if err != nil {
		// The page is left behind: one task that cannot be repaired must not keep the
		// sweep from all others. The next walk finds it again.
		err = fmt.Errorf("sweep for lost tasks: %w", err)
	}
	if err == nil || r.Looked > 0 {
		k.swept = r.Next
	}
	return err
}

func texts(ids []berth.TaskID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = string(id)
	}
	return out
}
