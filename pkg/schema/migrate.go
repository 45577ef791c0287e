package schema

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/berth-dev/berth/db"
)

// lockPoll is how often a migrator asks again for a lock that another holds.
const lockPoll = 200 * time.Millisecond

// mostCollisions is how often a migration is begun that fell into a deadlock with
// the work beside it. Between two of them the work goes on.
const mostCollisions = 20

// engine is what migrating needs of a dialect.
type engine interface {
	// lock keeps other migrators out until unlock; it waits until ctx ends.
	lock(ctx context.Context) (unlock func(), err error)
	// status reads the version table, and makes none. 0, false without one.
	status(ctx context.Context) (version uint, dirty bool, err error)
	// driver opens golang-migrate's driver; closing it closes its connections.
	driver(ctx context.Context) (database.Driver, error)
	// verify looks for faults after a migration.
	verify(ctx context.Context) error
}

func open(target string) (Dialect, engine, error) {
	d, where, err := ParseTarget(target)
	switch {
	case err != nil:
		return "", nil, err
	case d == Postgres:
		e, err := newPostgres(where)
		return d, e, err
	}
	return d, sqliteEngine{path: where}, nil
}

// Up applies every migration that the database lacks; none is no error. Several
// processes may call it at once: one migrates and the others wait for it, until
// ctx ends. A ctx that ends during a migration lets that one end first.
func Up(ctx context.Context, target string) error { return UpTo(ctx, target, Latest()) }

// UpTo is Up that stops at version.
func UpTo(ctx context.Context, target string, version uint) error {
	if version > Latest() {
		return fmt.Errorf("this program knows versions up to %d", Latest())
	}
	return upTo(ctx, db.Migrations, target, version)
}

func upTo(ctx context.Context, files fs.FS, target string, version uint) error {
	return migrating(ctx, files, target, func(m *migrate.Migrate, at uint) error {
		if at >= version {
			return nil
		}
		return m.Migrate(version)
	})
}

// Down takes back the last steps migrations, at least one; fewer when there
// are not that many. What only the newer schema can hold is lost.
func Down(ctx context.Context, target string, steps int) error {
	if steps < 1 {
		return errors.New("migrate down: say how many steps, at least 1")
	}
	goal := -1 // of a version; it is begun again where a step collides
	return migrating(ctx, db.Migrations, target, func(m *migrate.Migrate, at uint) error {
		if goal < 0 {
			goal = max(0, int(at)-steps)
		}
		if int(at) == goal {
			return nil
		}
		return m.Steps(goal - int(at))
	})
}

// Force writes version into a dirty database's books, without running anything:
// after somebody looked and knows that the database is at that version. 0 says
// that nothing is applied.
func Force(ctx context.Context, target string, version uint) error {
	if version > Latest() {
		return fmt.Errorf("this program knows versions 0 to %d", Latest())
	}
	d, e, err := open(target)
	if err != nil {
		return err
	}
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := instance(ctx, db.Migrations, d, e)
	if err != nil {
		return err
	}
	defer closing(m)
	return plain(m.Force(recorded(version)))
}

// recorded is how golang-migrate's books name a version.
func recorded(version uint) int {
	if version == 0 {
		return database.NilVersion
	}
	return int(version)
}

// closing drops the errors of two connections that are no longer needed.
func closing(m *migrate.Migrate) { _, _ = m.Close() }

// ReadStatus reads where the schema stands and changes nothing. An SQLite file
// that does not exist is at version 0.
func ReadStatus(ctx context.Context, target string) (Status, error) {
	_, e, err := open(target)
	if err != nil {
		return Status{}, err
	}
	version, dirty, err := e.status(ctx)
	if err != nil {
		return Status{}, err
	}
	return Status{Version: version, Dirty: dirty, Latest: Latest(), Code: Check(version, dirty, Latest())}, nil
}

// migrating runs act under our lock, on a schema that is neither dirty nor ahead.
func migrating(ctx context.Context, files fs.FS, target string, act func(m *migrate.Migrate, at uint) error) error {
	d, e, err := open(target)
	if err != nil {
		return err
	}
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	at, dirty, err := e.status(ctx)
	if err != nil {
		return err
	}
	if err := acceptable(d, at, dirty); err != nil {
		return err
	}
	m, err := instance(ctx, files, d, e)
	if err != nil {
		return err
	}
	defer closing(m)
	stop := context.AfterFunc(ctx, func() { m.GracefulStop <- true })
	defer stop()
	if err := acting(ctx, e, m, at, act); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return e.verify(ctx)
}

// acting runs act, again where it fell into a deadlock with daemons that work
// meanwhile: nothing was kept of that step then, and the daemons went on.
func acting(ctx context.Context, e engine, m *migrate.Migrate, at uint, act func(m *migrate.Migrate, at uint) error) error {
	for n := 1; ; n++ {
		err := act(m, at)
		if err == nil || errors.Is(err, migrate.ErrNoChange) {
			return nil
		}
		failure := failed(ctx, e, m, at, err)
		if n == mostCollisions || !collided(err) || ctx.Err() != nil {
			return failure
		}
		var dirty bool
		if at, dirty, err = e.status(ctx); err != nil || dirty {
			return failure
		}
		pause := time.NewTimer(time.Duration(50+rand.IntN(200)) * time.Millisecond)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// collided reports whether Postgres ended a migration to resolve a deadlock.
func collided(err error) bool {
	statement, _ := databaseError(err)
	var pg *pgconn.PgError
	return errors.As(statement.OrigErr, &pg) && pg.Code == "40P01"
}

func acceptable(d Dialect, at uint, dirty bool) error {
	switch Check(at, dirty, Latest()) {
	case CodeDirty:
		return dirtyError(at)
	case CodeAhead:
		return fmt.Errorf("%w: the database is at version %d, this program knows up to %d; use a Berth at least as new as the one that migrated it", ErrAhead, at, Latest())
	}
	return nil
}

func dirtyError(at uint) error {
	return fmt.Errorf("%w: a migration to version %d was broken off. Each migration is one transaction, so it happened whole or not at all: look which tables are there (restore the backup when in doubt), run `berth migrate force N` with the version that the database is really at, then `berth migrate up`",
		ErrDirty, at)
}

// failed puts the books right after a migration that failed, and its error into
// words. A migration is one transaction: when the database itself said no,
// nothing of it was kept, and the database is where it was before that step.
func failed(ctx context.Context, e engine, m *migrate.Migrate, before uint, cause error) error {
	ctx = context.WithoutCancel(ctx)
	at, dirty, err := e.status(ctx)
	if err != nil || !dirty {
		return plain(cause)
	}
	statement, refused := databaseError(cause)
	if !refused || strings.Contains(string(statement.Query), "CONCURRENTLY") {
		return fmt.Errorf("%w; %w", plain(cause), dirtyError(at))
	}
	kept, verb := at-1, "apply"
	if at < before {
		kept, verb = at+1, "take back"
	}
	if err := m.Force(recorded(kept)); err != nil {
		return fmt.Errorf("%w; %w", plain(cause), dirtyError(at))
	}
	return fmt.Errorf("cannot %s migration %d, the database stays at version %d: %w", verb, max(at, kept), kept, plain(cause))
}

// databaseError finds golang-migrate's error, which one driver returns by value
// and another by pointer.
func databaseError(err error) (database.Error, bool) {
	var byValue database.Error
	var byPointer *database.Error
	if errors.As(err, &byPointer) {
		return *byPointer, true
	}
	return byValue, errors.As(err, &byValue)
}

// plain strips a driver's error of the whole migration's text.
func plain(err error) error {
	e, ok := databaseError(err)
	if !ok {
		return err
	}
	message := e.Err
	if e.OrigErr != nil && (message == "" || message == "migration failed") {
		message = e.OrigErr.Error()
	}
	if e.Line > 0 {
		return fmt.Errorf("line %d: %s", e.Line, message)
	}
	return errors.New(message)
}

// instance makes golang-migrate's object over the files of d.
func instance(ctx context.Context, files fs.FS, d Dialect, e engine) (*migrate.Migrate, error) {
	src, err := iofs.New(files, d.folder())
	if err != nil {
		return nil, fmt.Errorf("embedded migrations: %w", err)
	}
	drv, err := e.driver(ctx)
	if err != nil {
		return nil, err
	}
	m, err := migrate.NewWithInstance("embedded", src, string(d), drv)
	if err != nil {
		return nil, errors.Join(err, drv.Close())
	}
	// Ours is the lock that decides; golang-migrate's is only waited for
	// where a foreign tool holds it.
	m.LockTimeout = time.Minute
	return m, nil
}

// poll asks try every lockPoll until it says true, fails or ctx ends.
func poll(ctx context.Context, try func() (bool, error)) error {
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		ok, err := try()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another migration of this database is running: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}
