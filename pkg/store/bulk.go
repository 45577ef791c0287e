package store

import (
	"context"
	"strconv"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// BulkCounted is up to where PreviewBulk counts, BulkPreviewLooks how many tasks it
// looks at for that.
const (
	BulkCounted      = 10_000
	BulkPreviewLooks = 50_000
	// BulkSample is how many tasks a preview names.
	BulkSample = 10
	// BulkLooks is how many tasks one page of a job looks at, for each that it may
	// change.
	BulkLooks = 10
)

// Bulk are the operations on many tasks at once. A job is done page by page by
// the leasekeepers, each page in one transaction with the job's position: what a
// crash breaks off is neither lost nor done twice.
type Bulk interface {
	// PreviewBulk looks at what a job would change now: a bounded number of rows,
	// however many there are. A spec that berth.CheckBulk refuses is its error.
	PreviewBulk(ctx context.Context, spec BulkSpec) (BulkPreview, error)

	// StartBulk stores a job for the tasks that are there now; those that are
	// submitted later are none of its. It obeys Once: a repeat returns the job as
	// it is now.
	StartBulk(ctx context.Context, p StartBulkParams) (BulkJob, error)

	// GetBulk returns a job, or berth.ErrNotFound.
	GetBulk(ctx context.Context, id string) (BulkJob, error)

	// ListBulk lists jobs, newest first (descending id).
	ListBulk(ctx context.Context, page Page) (jobs []BulkJob, next string, err error)

	// StopBulk ends a running job after its page; what it did stays. One that has
	// ended stays as it is.
	StopBulk(ctx context.Context, actor berth.Actor, id string) (BulkJob, error)

	// RunBulkPage does the next page of the running job whose last page is the
	// longest ago and that nobody else is at: at most limit tasks, from the newest
	// to the oldest. Each task obeys the rules of the single operation (CancelTask,
	// RetryTask, SetTaskPriority) and leaves its transition, with the job's owner
	// as the actor; a task that is deleted is gone with its attempts, log and
	// artifacts (whose bytes the sweep of blobs removes), and leaves
	// berth.EventDeleted. A task that has moved on, so that the rule forbids the
	// act, is counted as refused. The zero result says that there was nothing to do.
	RunBulkPage(ctx context.Context, limit int) (BulkPage, error)
}

// BulkSpec says what to do to which tasks.
type BulkSpec struct {
	Act    berth.BulkAct
	Filter TaskFilter
	// Priority of BulkReprioritise.
	Priority int
	// AddTries of BulkRetry, as in RetryParams.
	AddTries int
}

// Facts of the spec, for the trail.
func (s BulkSpec) Facts(filter string) berth.Facts {
	facts := map[string]string{"act": string(s.Act), "filter": filter}
	switch s.Act {
	case berth.BulkReprioritise:
		facts["priority"] = strconv.Itoa(s.Priority)
	case berth.BulkRetry:
		facts["add_tries"] = strconv.Itoa(max(1, s.AddTries))
	}
	return berth.NewFacts(facts)
}

// BulkPreview of PreviewBulk.
type BulkPreview struct {
	// Count of tasks; More says that there are, or may be, more.
	Count int
	More  bool
	// Sample of them, the first that a job would come to, without content.
	Sample []berth.Task
}

// StartBulkParams of StartBulk.
type StartBulkParams struct {
	Actor berth.Actor
	// ID is the caller's.
	ID   string
	Spec BulkSpec
	Once Once
}

// BulkJob is a job and how far it is.
type BulkJob struct {
	ID string
	BulkSpec
	// PoolName of the filter's pool.
	PoolName string
	State    berth.BulkState
	Owner    berth.Principal
	// RequestID of the call that started it.
	RequestID string
	// Looked counts the tasks that it came by, Changed those that it changed,
	// Refused those that had moved on when their turn came.
	Looked, Changed, Refused int64
	CreatedAt, UpdatedAt     time.Time
	// FinishedAt is zero while it runs.
	FinishedAt time.Time
}

// Actor that does what the job does: its owner, by the job.
func (j BulkJob) Actor() berth.Actor {
	return berth.Actor{Principal: j.Owner, RequestID: j.RequestID, Credential: berth.Credential("bulk-job:" + j.ID)}
}

// Facts of how far the job is.
func (j BulkJob) Facts() berth.Facts {
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	return berth.NewFacts(map[string]string{"state": string(j.State), "changed": n(j.Changed), "refused": n(j.Refused)})
}

// BulkPage of RunBulkPage.
type BulkPage struct {
	// Job as it is after the page; its ID is "" when no job had to be done.
	Job         BulkJob
	Transitions []berth.Transition
}
