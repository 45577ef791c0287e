package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// Audit is the trail of transitions and administrative acts. It is written by
// the operations themselves, in their transactions, and by these.
type Audit interface {
	// ListAudit returns audit rows after the id, ascending: the trail of one
	// target (kind and id) or, with kind "", of everything.
	ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) ([]berth.AuditEvent, error)
}

// AuditSearch reads the trail by filters.
type AuditSearch interface {
	// SearchAudit returns rows newest first, below the cursor (an id; 0: from the
	// newest), and the cursor of the next page, 0 at the end. Its cost is bounded:
	// where a filter is rare, a page may be short or empty and go on.
	SearchAudit(ctx context.Context, f AuditFilter, below int64, limit int) (events []berth.AuditEvent, next int64, err error)
	// RecordRead writes the row of a read that is on record (artifacts, logs).
	RecordRead(ctx context.Context, actor berth.Actor, e berth.AuditEvent) error
}

// AuditFilter narrows a search; zero fields pass everything.
type AuditFilter struct {
	ActorKind berth.ActorKind
	ActorID   string
	// Action is an action, or with a trailing dot all that begin with it (task.).
	Action     string
	TargetKind string
	TargetID   string
	Host       berth.HostID
	Device     berth.DeviceID
	RequestID  string
	// From and To bound the time, To exclusive.
	From, To time.Time
}
