package store

import (
	"context"
	"sort"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// Audit is the trail of transitions and administrative acts. It is written by
// the operations themselves, in their transactions, and by RecordRead.
type Audit interface {
	// ListAudit returns audit rows after the id, ascending: the trail of one
	// target (kind and id) or, with kind "", of everything.
	ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) ([]berth.AuditEvent, error)
	// SearchAudit returns at most limit rows that pass the filter, newest first,
	// below an id (0: from the newest), and the id below which the next page goes
	// on, 0 at the end. It looks at AuditScan rows at most: where a filter is rare, a
	// page may be short or empty and go on. From and To are found by halving, for ids
	// and times ascend together, but for AuditSlack.
	SearchAudit(ctx context.Context, f AuditFilter, below int64, limit int) (rows []AuditRow, next int64, err error)
	// RecordRead writes the row of a read that is on record (artifacts, logs, inputs):
	// e's action, target, coordinates and facts. When and who are not e's to say.
	RecordRead(ctx context.Context, actor berth.Actor, e berth.AuditEvent) error
}

const (
	// AuditScan bounds the rows that one page of SearchAudit looks at.
	AuditScan = 5000
	// AuditSlack is how far the times of two rows may be from the order of their
	// ids: a row gets its time and its id in the course of one short transaction, on
	// a clock that may be set.
	AuditSlack = 10 * time.Minute
)

// AuditFilter narrows a search; zero fields pass everything.
type AuditFilter struct {
	ActorKind berth.ActorKind
	ActorID   string
	// Action is an action, or with a trailing dot all that begin with it (task.).
	Action     string
	TargetKind string
	TargetID   string
	// Host and Device pass rows that name one as theirs or as their target.
	Host      berth.HostID
	Device    berth.DeviceID
	RequestID string
	// From and To bound the time, To exclusive.
	From, To time.Time
}

// AuditRow is a row with the name of its actor.
type AuditRow struct {
	berth.AuditEvent
	// ActorName of a user or host, as it is now; "" for others.
	ActorName string
}

// AuditWindow narrows the ids from (inclusive) to below (exclusive), of which
// newest is the last, to those that a filter's times can have. at tells the time of
// the first row at or above an id; false where there is none.
func AuditWindow(f AuditFilter, below, newest int64, at func(id int64) (time.Time, bool, error)) (from, to int64, err error) {
	first := func(when time.Time) int64 {
		return int64(sort.Search(int(newest)+1, func(id int) bool {
			if err != nil {
				return true
			}
			t, ok, aerr := at(int64(id))
			err = aerr
			return !ok || !t.Before(when)
		}))
	}
	if to = newest + 1; below > 0 {
		to = min(to, below)
	}
	if !f.To.IsZero() {
		to = min(to, first(f.To.Add(AuditSlack)))
	}
	if !f.From.IsZero() {
		from = first(f.From.Add(-AuditSlack))
	}
	return from, to, err
}
