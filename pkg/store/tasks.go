package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Tasks are the operations of clients and operators on tasks.
type Tasks interface {
	// SubmitTasks stores all tasks, each with its token (queue, or delayed when
	// NotBefore lies ahead), or none. Ids are the caller's; classes are made as
	// needed; the rank is berth.RankOf by the pool's ageing step.
	//
	// With an idempotency key: the first call of a principal stores the tasks
	// under it; a repeat with the same digest returns those same tasks, as they
	// are now, with Replayed set and no other effect, also when both run at
	// once; one with another digest is berth.ErrIdempotencyMismatch.
	// An unknown pool is berth.ErrNotFound. An input that is not stored, or that
	// the actor may not use, is a *berth.InvalidError that names
	// tasks[i].inputs[j].digest; scope says what it may use. A secret that does not
	// exist or that is not granted to the actor is one that names tasks[i].secrets[j].
	SubmitTasks(ctx context.Context, p SubmitParams) (SubmitResult, error)

	// SubmittedTasks returns what SubmitTasks stored under a principal's key, as a
	// repeat would: the tasks in the order of the submit, as they are now. Nothing
	// under the key is berth.ErrNotFound, another digest
	// berth.ErrIdempotencyMismatch. It is for a repeat that would be refused today,
	// because its plugin was disabled meanwhile.
	SubmittedTasks(ctx context.Context, principal berth.Principal, o Once) ([]berth.Task, error)

	// GetTask returns the task with its derived state, or berth.ErrNotFound
	// when it does not exist or scope does not see it.
	GetTask(ctx context.Context, scope berth.Scope, id berth.TaskID) (berth.Task, error)

	// ListTasks returns the tasks that scope sees and filter passes, newest
	// first (descending id), and the cursor of the next page ("" at the end).
	// Payload and Result are left out.
	ListTasks(ctx context.Context, scope berth.Scope, filter TaskFilter, page Page) (tasks []berth.Task, next string, err error)

	// CancelTask makes sure that what had not started never starts (I5):
	//   - a waiting task becomes cancelled;
	//   - an assigned or claimed attempt ends as cancelled, with its task, and
	//     its device is free;
	//   - a running attempt is marked; its agent is told at the next renewal and
	//     ends it, or the keeper does after CancelWithin (KillBy of the lease
	//     moves nearer);
	//   - a task that was asked to or is cancelled stays so: no error, no effect.
	// A succeeded or dead-lettered task is berth.ErrWrongState; an unseen one
	// berth.ErrNotFound.
	CancelTask(ctx context.Context, p TaskParams) (berth.Task, []berth.Transition, error)

	// RetryTask puts a dead-lettered task back in the queue with a budget of
	// AddTries more than the tries it has used (attempt numbers go on, the
	// final state, reason and result are cleared, give-up and hand-backs count
	// anew from now),
	// and a failed one (waiting for its backoff) there at once, budget
	// unchanged. Any other state is berth.ErrWrongState. A payload that
	// is given takes the place of the old one; the trail says that it was edited, and
	// nothing of it. It obeys Once: a repeat
	// returns the task as it is now, without transitions.
	RetryTask(ctx context.Context, p RetryParams) (berth.Task, []berth.Transition, error)

	// ListDeadLetters returns the dead letters by cause, ascending by its key, which
	// is the cursor. Each page reads a bounded number of rows, however many there
	// are: of each cause at most DeadLettersCounted are counted.
	ListDeadLetters(ctx context.Context, page Page) (causes []berth.DeadLetters, next string, err error)

	// ListAttempts returns all attempts of a task by number, or
	// berth.ErrNotFound.
	ListAttempts(ctx context.Context, scope berth.Scope, id berth.TaskID) ([]berth.Attempt, error)

	// ListArtifacts returns all artifacts of a task by attempt number and name,
	// or berth.ErrNotFound.
	ListArtifacts(ctx context.Context, scope berth.Scope, id berth.TaskID) ([]berth.Artifact, error)

	// GetArtifact returns one, or berth.ErrNotFound.
	GetArtifact(ctx context.Context, scope berth.Scope, id berth.TaskID, number int, name string) (berth.Artifact, error)

	// ReadLog returns the chunks of an attempt's log that hold bytes at or after
	// offset, ascending, at most limit chunks; ended says that the attempt is
	// over. An unknown attempt is berth.ErrNotFound.
	ReadLog(ctx context.Context, p ReadLogParams) (chunks []berth.LogChunk, ended bool, err error)
}

// DeadLettersCounted is up to where ListDeadLetters counts.
const DeadLettersCounted = 1000

// SubmitParams of SubmitTasks.
type SubmitParams struct {
	Actor berth.Actor
	// Scope is what the actor may see of inputs.
	Scope berth.Scope
	// Roles that the actor's credential has: a secret that is granted to a role may
	// be named by who has it and whose user has it, too.
	Roles []berth.Role
	// Tasks, normalised and canonical, with ids; 1 to berth.MaxBulkSubmit.
	Tasks []berth.NewTask
	// IdempotencyKey is "" for none.
	IdempotencyKey string
	// BodyDigest is the SHA-256 of the canonical body.
	BodyDigest    [32]byte
	CorrelationID string
	TraceParent   string
}

// SubmitResult of SubmitTasks.
type SubmitResult struct {
	// Tasks in the order of the submit.
	Tasks       []berth.Task
	Replayed    bool
	Transitions []berth.Transition
}

// TaskFilter narrows a list; zero fields pass everything. Bulk jobs store it as
// JSON.
type TaskFilter struct {
	States     []berth.TaskState `json:"states,omitempty"`
	Pool       berth.PoolID      `json:"pool,omitempty"`
	Plugin     string            `json:"plugin,omitempty"`
	Tag        string            `json:"tag,omitempty"`
	NamePrefix string            `json:"name_prefix,omitempty"`
	Submitter  string            `json:"submitter,omitempty"` // principal id
	Schedule   berth.ScheduleID  `json:"schedule,omitempty"`
	Device     berth.DeviceID    `json:"device,omitempty"`
	// SubmittedFrom (inclusive) and SubmittedTo (exclusive).
	SubmittedFrom time.Time `json:"submitted_from,omitzero"`
	SubmittedTo   time.Time `json:"submitted_to,omitzero"`
	// Cause of dead letters: those alone are read.
	Cause berth.CauseKey `json:"cause,omitempty"`
}

// TaskParams names a task and who acts on it.
type TaskParams struct {
	Actor berth.Actor
	Scope berth.Scope
	Task  berth.TaskID
}

// RetryParams of RetryTask.
type RetryParams struct {
	TaskParams
	// AddTries is 1 to berth.MaxTries; 0 means 1.
	AddTries int
	// Payload that the next attempts get; zero leaves it as it is.
	Payload redact.Bytes
	Once    Once
}

// ReadLogParams of ReadLog.
type ReadLogParams struct {
	Scope  berth.Scope
	Task   berth.TaskID
	Number int
	Offset int64
	Limit  int
}
