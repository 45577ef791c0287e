package storetest

import (
	"context"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// journal keeps what the engine returned through any handle of one database.
type journal struct {
	mu          sync.Mutex
	transitions []recorded
	errors      []error
}

// recorded is a returned transition and who caused it.
type recorded struct {
	actor berth.Actor
	berth.Transition
}

// note keeps a call's answer. Beside an error only ReapLeases, which uses one
// transaction an attempt, says something with its transitions.
func (j *journal) note(actor berth.Actor, trs []berth.Transition, err error) {
	if err != nil {
		trs = nil
	}
	j.add(actor, trs, err)
}

func (j *journal) add(actor berth.Actor, trs []berth.Transition, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, tr := range trs {
		j.transitions = append(j.transitions, recorded{actor, tr})
	}
	if err != nil {
		j.errors = append(j.errors, err)
	}
}

// recorder passes every call on and notes transitions and errors.
type recorder struct {
	store.Store
	journal *journal
}

func (r *recorder) SubmitTasks(ctx context.Context, p store.SubmitParams) (store.SubmitResult, error) {
	res, err := r.Store.SubmitTasks(ctx, p)
	r.journal.note(p.Actor, res.Transitions, err)
	return res, err
}

func (r *recorder) CancelTask(ctx context.Context, p store.TaskParams) (berth.Task, []berth.Transition, error) {
	task, trs, err := r.Store.CancelTask(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return task, trs, err
}

func (r *recorder) RetryTask(ctx context.Context, p store.RetryParams) (berth.Task, []berth.Transition, error) {
	task, trs, err := r.Store.RetryTask(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return task, trs, err
}

func (r *recorder) Enrol(ctx context.Context, p store.EnrolParams) (berth.Host, error) {
	h, err := r.Store.Enrol(ctx, p)
	r.journal.note(p.Actor, nil, err)
	return h, err
}

func (r *recorder) SyncHost(ctx context.Context, p store.SyncParams) (store.SyncResult, error) {
	res, err := r.Store.SyncHost(ctx, p)
	r.journal.note(p.Actor, res.Transitions, err)
	return res, err
}

func (r *recorder) ClaimAttempts(ctx context.Context, p store.ClaimParams) ([]store.Assignment, []berth.Transition, error) {
	as, trs, err := r.Store.ClaimAttempts(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return as, trs, err
}

func (r *recorder) StartAttempts(ctx context.Context, p store.StartParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	as, trs, err := r.Store.StartAttempts(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return as, trs, err
}

func (r *recorder) RenewAttempts(ctx context.Context, p store.RenewParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	as, trs, err := r.Store.RenewAttempts(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return as, trs, err
}

func (r *recorder) CompleteAttempts(ctx context.Context, p store.CompleteParams) ([]store.CompleteAnswer, []berth.Transition, error) {
	as, trs, err := r.Store.CompleteAttempts(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return as, trs, err
}

func (r *recorder) ReleaseAttempts(ctx context.Context, p store.ReleaseParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	as, trs, err := r.Store.ReleaseAttempts(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return as, trs, err
}

func (r *recorder) AppendLog(ctx context.Context, p store.AppendLogParams) (int64, bool, error) {
	next, stored, err := r.Store.AppendLog(ctx, p)
	r.journal.note(p.Actor, nil, err)
	return next, stored, err
}

func (r *recorder) AddArtifact(ctx context.Context, p store.AddArtifactParams) (bool, error) {
	stored, err := r.Store.AddArtifact(ctx, p)
	r.journal.note(p.Actor, nil, err)
	return stored, err
}

func (r *recorder) PlacementRound(ctx context.Context, actor berth.Actor, pool berth.PoolID, fn func(context.Context, store.Round) error) ([]berth.Transition, error) {
	trs, err := r.Store.PlacementRound(ctx, actor, pool, fn)
	r.journal.note(actor, trs, err)
	return trs, err
}

func (r *recorder) PromoteDue(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error) {
	trs, err := r.Store.PromoteDue(ctx, actor, limit)
	r.journal.note(actor, trs, err)
	return trs, err
}

func (r *recorder) GiveUp(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error) {
	trs, err := r.Store.GiveUp(ctx, actor, limit)
	r.journal.note(actor, trs, err)
	return trs, err
}

func (r *recorder) ReapLeases(ctx context.Context, actor berth.Actor, limit int) ([]berth.Transition, error) {
	trs, err := r.Store.ReapLeases(ctx, actor, limit)
	r.journal.add(actor, trs, err)
	return trs, err
}

func (r *recorder) RetireDevice(ctx context.Context, p store.DeviceAdminParams) (berth.Device, []berth.Transition, error) {
	d, trs, err := r.Store.RetireDevice(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return d, trs, err
}

func (r *recorder) ForceRelease(ctx context.Context, p store.ForceReleaseParams) (berth.Device, []berth.Transition, error) {
	d, trs, err := r.Store.ForceRelease(ctx, p)
	r.journal.note(p.Actor, trs, err)
	return d, trs, err
}

func (r *recorder) DrainHost(ctx context.Context, actor berth.Actor, id berth.HostID, on bool) (berth.Host, []berth.Transition, error) {
	h, trs, err := r.Store.DrainHost(ctx, actor, id, on)
	r.journal.note(actor, trs, err)
	return h, trs, err
}

func (r *recorder) RevokeHost(ctx context.Context, actor berth.Actor, id berth.HostID) (berth.Host, []berth.Transition, error) {
	h, trs, err := r.Store.RevokeHost(ctx, actor, id)
	r.journal.note(actor, trs, err)
	return h, trs, err
}

func (r *recorder) AddSigningKey(ctx context.Context, key store.SigningKey, olderThan time.Duration) (store.SigningKey, error) {
	k, err := r.Store.AddSigningKey(ctx, key, olderThan)
	r.journal.note(berth.Actor{}, nil, err)
	return k, err
}

func (r *recorder) RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error {
	err := r.Store.RegisterPlugins(ctx, actor, plugins)
	r.journal.note(actor, nil, err)
	return err
}

// ofSchedule notes transitions that the owner of a schedule is the actor of.
func (r *recorder) ofSchedule(ctx context.Context, caller berth.Actor, trs []berth.Transition, err error) {
	for _, tr := range trs {
		task, lost := r.Store.GetTask(context.WithoutCancel(ctx), berth.Scope{All: true}, tr.Task)
		if lost != nil {
			err = lost
			break
		}
		r.journal.add(berth.Schedule{ID: task.Schedule, Owner: task.Submitter}.OwnerActor(caller), []berth.Transition{tr}, nil)
	}
	r.journal.add(caller, nil, err)
}

func (r *recorder) CreateSchedule(ctx context.Context, p store.CreateScheduleParams) (berth.Schedule, error) {
	s, err := r.Store.CreateSchedule(ctx, p)
	r.journal.note(p.Actor, nil, err)
	return s, err
}

func (r *recorder) EditSchedule(ctx context.Context, p store.EditScheduleParams) (berth.Schedule, []berth.Transition, error) {
	s, trs, err := r.Store.EditSchedule(ctx, p)
	r.ofSchedule(ctx, p.Actor, trs, err)
	return s, trs, err
}

func (r *recorder) PauseSchedule(ctx context.Context, actor berth.Actor, name string, fresh func() berth.TaskID) (berth.Schedule, []berth.Transition, error) {
	s, trs, err := r.Store.PauseSchedule(ctx, actor, name, fresh)
	r.ofSchedule(ctx, actor, trs, err)
	return s, trs, err
}

func (r *recorder) RunSchedule(ctx context.Context, p store.RunScheduleParams) (store.RunScheduleResult, error) {
	res, err := r.Store.RunSchedule(ctx, p)
	r.ofSchedule(ctx, p.Actor, res.Transitions, err)
	return res, err
}

// FireDue may get some schedules through before it fails on another.
func (r *recorder) FireDue(ctx context.Context, p store.FireDueParams) (store.FireDueResult, error) {
	res, err := r.Store.FireDue(ctx, p)
	r.ofSchedule(ctx, p.Actor, res.Transitions, err)
	return res, err
}
