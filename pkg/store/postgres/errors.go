package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/pgrefusal"
)

// SQLSTATEs that are told apart.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	uniqueViolation      = "23505"
	undefinedTable       = "42P01"
)

// dbError is a fault of the database as it leaves the engine: a code and a
// kind, never the driver's error, its text or a value of the statement.
type dbError struct {
	op         string
	code       string // SQLSTATE, "" when the server did not answer
	constraint string
	what       string
	kind       error // of pkg/berth, or nil
}

// Error names the operation and the code.
func (e *dbError) Error() string {
	msg := e.op + ": " + e.what
	if e.code != "" {
		msg += " (SQLSTATE " + e.code + ")"
	}
	if e.constraint != "" {
		msg += ", constraint " + e.constraint
	}
	if e.kind != nil {
		msg += ": " + e.kind.Error()
	}
	return msg
}

// Unwrap gives the kind.
func (e *dbError) Unwrap() error { return e.kind }

// sqlState is the code of a database fault, "" for every other error.
func sqlState(err error) string {
	var e *dbError
	if errors.As(err, &e) {
		return e.code
	}
	return ""
}

// repeatable reports whether the transaction may be run again at once.
func repeatable(err error) bool {
	code := sqlState(err)
	return code == serializationFailure || code == deadlockDetected
}

// classify turns whatever the driver said into a dbError. nil stays nil and a
// dbError stays itself.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	var known *dbError
	if errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	refused := errors.As(err, &pg)
	if access := pgrefusal.Of(err); access != nil {
		e := &dbError{op: op, what: "no connection to the database", kind: access}
		if refused {
			e.code = pg.Code
		}
		return e
	}
	if refused {
		e := &dbError{op: op, code: pg.Code, constraint: pg.ConstraintName, what: "the database refused a statement"}
		if passing(pg.Code) {
			e.kind = berth.ErrUnavailable
		}
		return e
	}
	e := &dbError{op: op, what: "the statement could not be sent or its answer not be read"}
	var (
		errno   syscall.Errno
		connect *pgconn.ConnectError
		network net.Error
	)
	switch {
	case errors.As(err, &errno):
		e.what, e.kind = "no connection to the database: "+errno.Error(), berth.ErrUnavailable
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), errors.Is(err, pgconn.ErrConnClosed), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errors.Is(err, puddle.ErrClosedPool), pgconn.SafeToRetry(err):
		e.what, e.kind = "no connection to the database", berth.ErrUnavailable
	default:
		// The type says where to look and holds no value.
		e.what = fmt.Sprintf("%s [%T]", e.what, err)
	}
	return e
}

// passing reports whether a SQLSTATE stands for a condition that passes.
func passing(code string) bool {
	switch code {
	case serializationFailure, deadlockDetected,
		"55P03", // lock_timeout
		"57014", // statement_timeout
		"25P03", // idle_in_transaction_session_timeout
		"57P01", "57P02", "57P03", "57P05",
		"25006": // read only: a standby
		return true
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53")
}
