package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// maxTries of a transaction that met a serialisation failure or a deadlock.
	maxTries = 3
	// maxStartsOver of a transaction that found its token gone. Each time
	// somebody else moved the task, so this ends by itself; the bound is for bugs.
	maxStartsOver = 50
)

// errStartOver makes a transaction roll back and run again: what it had read
// before its locks is no longer so.
var errStartOver = errors.New("start over")

// tx is one transaction, or one statement outside of any (read). It has no
// method to commit: the closure's return value decides.
type tx struct {
	s      *Store
	conn   *pgxpool.Conn
	caller context.Context
	op     string
	hooked bool
	n      int
	clock  string
	hints  []hint
}

// write runs fn in a transaction and commits when it returns nil; an error or
// a panic rolls back. fn may run several times, so it sets its results anew
// each time.
//
// Statements run under a context that the caller cannot cancel: a driver that
// is cancelled in mid-statement drops the connection with the transaction open.
// The caller's context is looked at between statements instead.
func (s *Store) write(ctx context.Context, op string, fn func(*tx) error) error {
	failures, restarts := 0, 0
	for {
		err := s.once(ctx, op, fn)
		switch {
		case err == nil:
			return nil
		case repeatable(err):
			if sqlState(err) == deadlockDetected {
				s.deadlocks.Add(1)
			}
			if failures++; failures >= maxTries {
				return err
			}
		case errors.Is(err, errStartOver):
			if restarts++; restarts >= maxStartsOver {
				return fmt.Errorf("%s: the rows kept moving: %w", op, berth.ErrUnavailable)
			}
			if restarts == 1 {
				continue
			}
		default:
			return err
		}
		if err := pause(ctx, time.Duration(1+rand.IntN(10*(failures+1)))*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// once runs fn in one transaction.
func (s *Store) once(ctx context.Context, op string, fn func(*tx) error) error {
	t, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	defer t.conn.Release()
	t.hooked = true
	if err := t.raw(t.beginSQL()); err != nil {
		return err
	}
	open := true
	defer func() {
		if open {
			// Release closes a connection that is still in a transaction.
			_ = t.raw("ROLLBACK")
		}
	}()
	if err := fn(t); err != nil {
		return err
	}
	if err := t.before(); err != nil {
		return err
	}
	open = false
	tag, err := t.rawTag("COMMIT")
	if err != nil {
		return err
	}
	if tag == "ROLLBACK" {
		return &dbError{op: op, what: "the transaction had failed before its commit"}
	}
	s.hints.publish(t.hints)
	return nil
}

// read runs fn outside of a transaction: each of its statements sees a snapshot
// of its own, so what must agree is read in one.
func (s *Store) read(ctx context.Context, op string, fn func(*tx) error) error {
	t, err := s.acquire(ctx, op)
	if err != nil {
		return err
	}
	defer t.conn.Release()
	return fn(t)
}

func (s *Store) acquire(ctx context.Context, op string) (*tx, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, classify(op, err)
	}
	return &tx{s: s, conn: conn, caller: ctx, op: op}, nil
}

func (t *tx) beginSQL() string {
	if len(t.s.settings) == 0 {
		return "BEGIN"
	}
	var b strings.Builder
	b.WriteString("BEGIN")
	for _, set := range t.s.settings {
		fmt.Fprintf(&b, "; SET LOCAL %s = %s", set.name, set.value)
	}
	return b.String()
}

// detached is the context that statements run under.
func (t *tx) detached() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.caller), serverAnswersWithin)
}

func (t *tx) raw(sql string) error {
	_, err := t.rawTag(sql)
	return err
}

func (t *tx) rawTag(sql string) (string, error) {
	ctx, cancel := t.detached()
	defer cancel()
	tag, err := t.conn.Exec(ctx, sql)
	return tag.String(), classify(t.op, err)
}

// before stands before each statement and before COMMIT.
func (t *tx) before() error {
	if err := t.caller.Err(); err != nil {
		return err
	}
	if t.hooked {
		t.n++
		if hook := t.s.opts.BeforeStatement; hook != nil {
			if err := hook(t.caller, t.op, t.n); err != nil {
				return err
			}
			if err := t.caller.Err(); err != nil {
				return err
			}
		}
	}
	return t.setClock()
}

// setClock hands a replaced clock to the server. It does so before each
// statement, because a test may move it while another waits for a lock.
func (t *tx) setClock() error {
	if t.s.opts.Clock == nil {
		return nil
	}
	now := t.s.opts.Clock.Now().UTC().Truncate(time.Microsecond).Format("2006-01-02T15:04:05.000000Z07:00")
	if now == t.clock {
		return nil
	}
	ctx, cancel := t.detached()
	defer cancel()
	if _, err := t.conn.Exec(ctx, `SELECT set_config('berth.test_clock', $1, false)`, now); err != nil {
		return classify(t.op, err)
	}
	t.clock = now
	return nil
}

// exec runs a statement and returns the number of rows it touched.
func (t *tx) exec(sql string, args ...any) (int64, error) {
	if err := t.before(); err != nil {
		return 0, err
	}
	ctx, cancel := t.detached()
	defer cancel()
	tag, err := t.conn.Exec(ctx, sql, args...)
	return tag.RowsAffected(), classify(t.op, err)
}

// collect runs a query and returns its rows in their order.
func collect[T any](t *tx, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	if err := t.before(); err != nil {
		return nil, err
	}
	ctx, cancel := t.detached()
	defer cancel()
	rows, err := t.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, classify(t.op, err)
	}
	out, err := pgx.CollectRows(rows, scan)
	return out, classify(t.op, err)
}

// first is collect for at most one row; ok is false when there is none.
func first[T any](t *tx, scan pgx.RowToFunc[T], sql string, args ...any) (one T, ok bool, err error) {
	all, err := collect(t, scan, sql, args...)
	if err != nil || len(all) == 0 {
		return one, false, err
	}
	return all[0], true, nil
}

// column scans rows of one column.
func column[T any](row pgx.CollectableRow) (v T, err error) {
	return v, row.Scan(&v)
}

// now is the time by the clock that decides.
func (t *tx) now() (time.Time, error) {
	now, _, err := first(t, column[time.Time], `SELECT berth_now()`)
	return now, err
}

// hint notes what to announce after the commit.
func (t *tx) hint(kind store.HintKind, key string) {
	t.hints = append(t.hints, hint{kind, key})
}

// only passes an answer on when its transaction was committed: what a closure
// has set before a failed commit is not so.
func only[A any](a A, err error) (A, error) {
	if err != nil {
		var none A
		return none, err
	}
	return a, nil
}

// committed is only for two answers.
func committed[A, B any](a A, b B, err error) (A, B, error) {
	a, _ = only(a, err)
	b, err = only(b, err)
	return a, b, err
}
