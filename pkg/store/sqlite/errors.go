package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
)

// errBusy: the wait for another process's transaction was too long.
var errBusy = errors.New("another process holds the SQLite file")

// classify turns a driver's error into one of the domain's kinds, by its code
// alone. The driver's error itself is never wrapped: nobody outside can reach
// it. Other errors pass unchanged. SQLite's messages name tables and columns,
// never values.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("the connection is closed: %w", berth.ErrUnavailable)
	}
	var se sqlite3.Error
	if !errors.As(err, &se) {
		return err
	}
	code := fmt.Sprintf("SQLite code %d", int(se.ExtendedCode))
	switch se.Code {
	case sqlite3.ErrConstraint:
		return constraint(se)
	case sqlite3.ErrFull:
		return fmt.Errorf("disk full (%s): %w", code, berth.ErrUnavailable)
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return fmt.Errorf("%w (%s): %w", errBusy, code, berth.ErrUnavailable)
	case sqlite3.ErrIoErr, sqlite3.ErrCantOpen, sqlite3.ErrReadonly, sqlite3.ErrNomem, sqlite3.ErrProtocol:
		return fmt.Errorf("the SQLite file cannot be read or written (%s): %w", code, berth.ErrUnavailable)
	case sqlite3.ErrInterrupt:
		return fmt.Errorf("interrupted (%s): %w", code, context.Canceled)
	}
	return fmt.Errorf("%s: %s", code, se.Error())
}

func constraint(se sqlite3.Error) error {
	switch se.ExtendedCode {
	case sqlite3.ErrConstraintUnique, sqlite3.ErrConstraintPrimaryKey, sqlite3.ErrConstraintRowID:
		return fmt.Errorf("%s: %w", se.Error(), berth.ErrExists)
	case sqlite3.ErrConstraintForeignKey:
		return fmt.Errorf("what it refers to does not exist: %w", berth.ErrNotFound)
	}
	return errors.New(se.Error())
}

func notFound(thing string) error { return fmt.Errorf("%s: %w", thing, berth.ErrNotFound) }
