package scheduler

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/store"
)

// scheduleBatch is how many schedules one FireDue looks at.
const scheduleBatch = 100

// FireOnce decides the slots of schedules that are due: each becomes a task or a
// recorded skip.
func (s *Scheduler) FireOnce(ctx context.Context) error {
	p := store.FireDueParams{Actor: s.actor(), Limit: scheduleBatch, Fresh: freshTask}
	for range maxBatches {
		result, err := s.c.Store.FireDue(ctx, p)
		logging.Transitions(s.c.Log, result.Transitions)
		for _, f := range result.Fires {
			s.c.Metrics.slots(f)
			if f.Task == "" {
				s.c.Log.Info("slot skipped", zap.String("schedule_id", string(f.Schedule)), zap.String("slot", f.Key),
					zap.String("reason", f.Reason), zap.Int("slots", f.Slots), zap.Bool("at_least", f.AtLeast))
			}
		}
		if err != nil {
			return fmt.Errorf("fire schedules: %w", err)
		}
		if result.Schedules < scheduleBatch {
			return nil
		}
	}
	return nil
}

func freshTask() berth.TaskID { return berth.TaskID(uuid.Must(uuid.NewV7()).String()) }
