package postgres

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/pkg/berth"
)

// A server that stops between two statements of a transaction closes the
// connection under it: the caller shall send the same again, not give up.
func TestAClosedConnectionPasses(t *testing.T) {
	err := classify("Heartbeat", fmt.Errorf("words of the driver: %w", pgconn.ErrConnClosed))
	if !errors.Is(err, berth.ErrUnavailable) {
		t.Errorf("%v is no passing fault", err)
	}
}
