package controlplane

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/schema"
)

// outages asks the database for its schema on behalf of the gate, and logs why
// it cannot be used: once for each reason, and once when it answers again. The
// gate itself knows a code only, and is asked many times a second.
type outages struct {
	schema.Versioned
	log  *zap.Logger
	mu   sync.Mutex
	last string // the reason; "" while the database answers
}

// SchemaVersion is that of the database.
func (o *outages) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	version, dirty, err = o.Versioned.SchemaVersion(ctx)
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // cancelled: nobody waits any more
		o.note(err)
	}
	return version, dirty, err
}

// note logs a change. Errors of a store hold neither credentials nor URLs.
func (o *outages) note(err error) {
	var access *berth.DatabaseAccessError
	reason, message := "", "the database does not answer"
	if errors.As(err, &access) {
		message = access.Error()
	}
	if err != nil {
		reason = err.Error()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case reason == o.last:
		return
	case err != nil:
		o.log.Error(message, zap.String("error", reason))
	default:
		o.log.Info("the database answers again")
	}
	o.last = reason
}
