package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
)

// tx is one transaction. Its methods look at the caller's context before each
// statement; the statement itself runs to its end, so that a connection is
// never left in an unknown state.
type tx struct {
	store *Store
	conn  *sql.Conn
	// caller's context ends the operation between two statements.
	caller context.Context
	// run is the context of the statements.
	run context.Context
	op  string
	// writing transactions call Options.BeforeStatement; a read, which holds
	// nothing, does not.
	writing bool
	// statements issued, for Options.BeforeStatement.
	statements int
	// now is the time at which the transaction had the database for itself.
	now   time.Time
	hints []hint
}

// inRound marks the context of a placement round's function: the writer is
// taken, so another writing operation in it would wait for itself.
type inRound struct{ store *Store }

// write runs fn as the only writing transaction and commits when it returns
// nil. An error or a panic of fn rolls back. Hints go out after the commit.
func (s *Store) write(ctx context.Context, op string, fn func(t *tx) error) error {
	return s.writeWithin(ctx, op, lockWait, fn)
}

// writeWithin waits for another process's transaction for at most wait.
func (s *Store) writeWithin(ctx context.Context, op string, wait time.Duration, fn func(t *tx) error) error {
	if ctx.Value(inRound{s}) != nil {
		return fmt.Errorf("%s inside a placement round would wait for the round itself", op)
	}
	if err := s.takeTurn(ctx); err != nil {
		return err
	}
	defer func() { s.turn <- struct{}{} }()
	t, err := s.writeInTurn(ctx, op, wait, fn)
	if err != nil {
		return err
	}
	s.hints.send(t.hints)
	return nil
}

func (s *Store) takeTurn(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.closing:
		return errClosed()
	default:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return errClosed()
	case <-s.turn:
		return nil
	}
}

func errClosed() error { return fmt.Errorf("the store is closed: %w", berth.ErrUnavailable) }

func (s *Store) writeInTurn(ctx context.Context, op string, wait time.Duration, fn func(t *tx) error) (*tx, error) {
	t := &tx{store: s, conn: s.writer, caller: ctx, run: context.WithoutCancel(ctx), op: op, writing: true}
	committed := false
	defer func() {
		if !committed {
			t.rollback()
		}
	}()
	err := s.retryBusy(ctx, wait, func() error {
		_, err := t.conn.ExecContext(t.run, "BEGIN IMMEDIATE")
		return err
	})
	if err != nil {
		return nil, err
	}
	t.now = s.clock()
	if err := fn(t); err != nil {
		return nil, err
	}
	if err := t.before(); err != nil {
		return nil, err
	}
	if _, err := t.conn.ExecContext(t.run, "COMMIT"); err != nil {
		return nil, classify(err)
	}
	committed = true
	return t, nil
}

// retryBusy repeats try while another process's transaction keeps the file,
// for at most wait. The driver itself waits lockPoll at each try.
func (s *Store) retryBusy(ctx context.Context, wait time.Duration, try func() error) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		err := try()
		var se sqlite3.Error
		if !errors.As(err, &se) || se.Code != sqlite3.ErrBusy && se.Code != sqlite3.ErrLocked {
			return classify(err)
		}
		pause := time.NewTimer(time.Millisecond)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-deadline.C:
			pause.Stop()
			return classify(err)
		case <-pause.C:
		}
	}
}

// rollback ends the transaction if there is one: SQLite itself rolls back on
// some errors (a full disk), and then a ROLLBACK would only fail.
func (t *tx) rollback() {
	open := false
	_ = t.conn.Raw(func(c any) error {
		open = !c.(*sqlite3.SQLiteConn).AutoCommit()
		return nil
	})
	if open {
		_, _ = t.conn.ExecContext(context.WithoutCancel(t.caller), "ROLLBACK")
	}
}

// read runs fn on one snapshot, beside the writer.
func (s *Store) read(ctx context.Context, op string, fn func(t *tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.closing:
		return errClosed()
	default:
	}
	conn, err := s.readerPool.Conn(ctx)
	if err != nil {
		return fromRead(ctx, err)
	}
	defer func() { _ = conn.Close() }() // gives the connection back
	t := &tx{store: s, conn: conn, caller: ctx, run: ctx, op: op}
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), "BEGIN"); err != nil {
		return classify(err)
	}
	defer t.rollback()
	t.now = s.clock()
	return fromRead(ctx, fn(t))
}

// fromRead prefers the caller's own end to what it did to a statement.
func fromRead(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return classify(err)
}

// before is due before each statement and before COMMIT.
func (t *tx) before() error {
	if err := t.caller.Err(); err != nil {
		return err
	}
	t.statements++
	if hook := t.store.opts.BeforeStatement; hook != nil && t.writing {
		if err := hook(t.caller, t.op, t.statements); err != nil {
			return fmt.Errorf("%s: %w", t.op, err)
		}
	}
	return t.caller.Err()
}

// exec runs a statement and returns how many rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	if err := t.before(); err != nil {
		return 0, err
	}
	res, err := t.conn.ExecContext(t.run, query, args...)
	if err != nil {
		return 0, classify(err)
	}
	n, err := res.RowsAffected()
	return n, classify(err)
}

// execOne runs a statement that must change exactly one row. Another number
// means that the rows read before and the rows written do not agree, which
// rolls the operation back.
func (t *tx) execOne(query string, args ...any) error {
	n, err := t.exec(query, args...)
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: %d rows changed where one was read", t.op, n)
	}
	return err
}

// row is what a scan function reads from.
type row interface{ Scan(dest ...any) error }

// queryAll returns every row of a query; without rows the list is empty, not
// nil.
func queryAll[T any](t *tx, scan func(row) (T, error), query string, args ...any) (out []T, err error) {
	if err := t.before(); err != nil {
		return nil, err
	}
	rows, err := t.conn.QueryContext(t.run, query, args...)
	if err != nil {
		return nil, classify(err)
	}
	defer func() { _ = rows.Close() }()
	out = []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			// Without its text, which may hold what is stored.
			return nil, fmt.Errorf("%s: a stored row is not what this program writes", t.op)
		}
		out = append(out, v)
	}
	return out, classify(rows.Err())
}

// queryOne returns the first row of a query; ok is false when there is none.
func queryOne[T any](t *tx, scan func(row) (T, error), query string, args ...any) (v T, ok bool, err error) {
	all, err := queryAll(t, scan, query, args...)
	if err != nil || len(all) == 0 {
		return v, false, err
	}
	return all[0], true, nil
}

func scanInt(r row) (n int64, err error) { return n, r.Scan(&n) }

func scanText(r row) (s string, err error) { return s, r.Scan(&s) }
