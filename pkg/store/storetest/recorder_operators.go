package storetest

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func (r *recorder) SetTaskPriority(ctx context.Context, p store.TaskParams, priority int) (berth.Task, []berth.Transition, error) {
	task, trs, err := r.Store.SetTaskPriority(ctx, p, priority)
	r.journal.note(p.Actor, trs, err)
	return task, trs, err
}

func (r *recorder) RunBulkPage(ctx context.Context, limit int) (store.BulkPage, error) {
	page, err := r.Store.RunBulkPage(ctx, limit)
	r.journal.note(page.Job.Actor(), page.Transitions, err)
	return page, err
}

// SweepTasks may repair some before it fails on another: what it returns counts.
func (r *recorder) SweepTasks(ctx context.Context, actor berth.Actor, after berth.TaskID, limit int) (store.SweepResult, error) {
	res, err := r.Store.SweepTasks(ctx, actor, after, limit)
	r.journal.add(actor, res.Repaired, err)
	return res, err
}

func (r *recorder) CompleteMany(ctx context.Context, calls []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	answers, err := r.Store.CompleteMany(ctx, calls)
	r.journal.note(berth.Actor{}, nil, err)
	for i, a := range answers {
		r.journal.note(calls[i].Actor, a.Transitions, a.Err)
	}
	return answers, err
}

func (r *recorder) RenewMany(ctx context.Context, calls []store.RenewParams) ([]store.RenewManyAnswer, error) {
	answers, err := r.Store.RenewMany(ctx, calls)
	r.journal.note(berth.Actor{}, nil, err)
	for i, a := range answers {
		r.journal.note(calls[i].Actor, a.Transitions, a.Err)
	}
	return answers, err
}
