package leasekeeper

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
)

const (
	// bulkPage is how many tasks one transaction of a bulk job changes: few enough
	// that nobody waits long for what it holds.
	bulkPage = 250
	// bulkPages bounds one RunOnce.
	bulkPages = 200
)

// BulkOnce does pages of bulk jobs. It rests after each page for as long as the
// page took, so that a large job leaves at least half of the database to others.
func (k *Keeper) BulkOnce(ctx context.Context) error {
	for range bulkPages {
		began := time.Now()
		page, err := k.c.Store.RunBulkPage(ctx, bulkPage)
		if err != nil {
			return fmt.Errorf("page of a bulk job: %w", err)
		}
		if page.Job.ID == "" {
			return nil
		}
		logging.Transitions(k.c.Log, page.Transitions)
		k.c.Metrics.bulk(page.Job.Act, len(page.Transitions))
		if page.Job.State == berth.BulkDone {
			k.c.Log.Info("bulk job is done", zap.String("bulk_job_id", page.Job.ID), zap.String("act", string(page.Job.Act)),
				zap.Int64("changed", page.Job.Changed), zap.Int64("refused", page.Job.Refused))
		}
		if err := rest(ctx, time.Since(began)); err != nil {
			return err
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
