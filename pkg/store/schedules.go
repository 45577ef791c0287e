package store

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// Schedules are the operations on schedules. Which slots there are pkg/cron says,
// and what becomes of them pkg/schedule; each slot is decided once, with the
// schedule's row locked (I7).
type Schedules interface {
	// CreateSchedule makes a schedule that waits for its first slot after now. What
	// is wrong with it is a *berth.InvalidError, as in SubmitTasks for what its
	// template names, with paths under template. A name that is taken is a
	// *berth.ExistsError. It obeys Once: a repeat returns the schedule as it is now.
	CreateSchedule(ctx context.Context, p CreateScheduleParams) (berth.Schedule, error)
	// GetSchedule returns a schedule, or berth.ErrNotFound.
	GetSchedule(ctx context.Context, name string) (berth.Schedule, error)
	// ListSchedules by name, without the payloads of templates; the cursor is the name.
	ListSchedules(ctx context.Context, page Page) (schedules []berth.Schedule, next string, err error)
	// EditSchedule first decides what is due under the old spec, as FireDue; then
	// the edit holds, strictly after that (cron.FirstAfterEdit). A slot that waits for a
	// task's end is skipped (berth.SkipEdited), unless the edit leaves spec and
	// overlap. An edit that changes nothing is none; else another version than the
	// one asked for is berth.ErrWrongState.
	EditSchedule(ctx context.Context, p EditScheduleParams) (berth.Schedule, []berth.Transition, error)
	// DeleteSchedule removes a schedule with its history; its tasks go on. An unknown
	// one is berth.ErrNotFound, another version than asked for berth.ErrWrongState.
	DeleteSchedule(ctx context.Context, actor berth.Actor, name string, version int) error
	// PauseSchedule decides what is due, and then stops: nothing accumulates. A slot
	// that waits for a task's end is skipped (berth.SkipPaused). A repeat has no effect.
	PauseSchedule(ctx context.Context, actor berth.Actor, name string, fresh func() berth.TaskID) (berth.Schedule, []berth.Transition, error)
	// ResumeSchedule waits for the first slot after now. A repeat has no effect.
	ResumeSchedule(ctx context.Context, actor berth.Actor, name string) (berth.Schedule, error)
	// RunSchedule makes a task of the template now, whatever overlaps and also while
	// the schedule is paused. What is refused is the caller's error. It obeys Once: a
	// repeat returns the task as it is now.
	RunSchedule(ctx context.Context, p RunScheduleParams) (RunScheduleResult, error)
	// ListFires of a schedule, the last decided first; the cursor is theirs.
	ListFires(ctx context.Context, name string, page Page) (fires []berth.Fire, next string, err error)
	// FireDue decides the due slots of at most limit schedules, each in a transaction
	// of its own that others skip: it records each slot as a task, submitted as by the
	// owner, or as skipped, and moves the schedule on. A refused task is a skipped
	// slot. A schedule whose spec cannot be read any more is paused, with a note. The
	// first error is returned with what went through; a schedule that fails does
	// not keep the others from their turn.
	FireDue(ctx context.Context, p FireDueParams) (FireDueResult, error)
}

// CreateScheduleParams of CreateSchedule.
type CreateScheduleParams struct {
	Actor berth.Actor
	// Scope and Roles as in SubmitTasks.
	Scope berth.Scope
	Roles []berth.Role
	ID    berth.ScheduleID
	Name  string
	// Edit has the schedule's cron and template at least.
	Edit berth.ScheduleEdit
	Once Once
}

// EditScheduleParams of EditSchedule.
type EditScheduleParams struct {
	Actor berth.Actor
	Scope berth.Scope
	Roles []berth.Role
	Name  string
	// Version that the edit is based on, 0 for any.
	Version int
	Edit    berth.ScheduleEdit
	// Fresh makes the ids of tasks that become due.
	Fresh func() berth.TaskID
}

// RunScheduleParams of RunSchedule.
type RunScheduleParams struct {
	Actor berth.Actor
	Name  string
	Task  berth.TaskID
	Once  Once
}

// RunScheduleResult of RunSchedule.
type RunScheduleResult struct {
	Task        berth.Task
	Replayed    bool
	Transitions []berth.Transition
}

// FireDueParams of FireDue.
type FireDueParams struct {
	// Actor is the scheduler; its request id goes to the tasks' audit rows.
	Actor berth.Actor
	Limit int
	// Fresh makes the tasks' ids.
	Fresh func() berth.TaskID
}

// FireDueResult of FireDue.
type FireDueResult struct {
	// Schedules that were looked at.
	Schedules   int
	Fires       []berth.Fire
	Transitions []berth.Transition
}
