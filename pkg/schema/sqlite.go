package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"syscall"

	"github.com/golang-migrate/migrate/v4/database"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite3"
	"github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
)

type sqliteEngine struct{ path string }

// dsn makes the driver's name of the file. Foreign keys stay off while tables
// are rebuilt; verify checks them afterwards.
func (s sqliteEngine) dsn(mode string) string {
	escaped := (&url.URL{Path: s.path}).EscapedPath()
	return "file:" + escaped + "?mode=" + mode + "&_journal_mode=WAL&_busy_timeout=10000&_txlock=immediate&_synchronous=FULL&_foreign_keys=off"
}

// lock takes an OS lock on a file beside the database: golang-migrate's own
// lock for SQLite is inside the process only, and processes that started at
// once corrupted the version.
func (s sqliteEngine) lock(ctx context.Context) (func(), error) {
	f, err := os.OpenFile(s.path+".migrate.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, FileError(err)
	}
	err = poll(ctx, func() (bool, error) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	// The file stays: removing it would let two hold locks on two files of one
	// name.
	return func() { _ = f.Close() }, nil
}

func (s sqliteEngine) status(ctx context.Context) (version uint, dirty bool, err error) {
	if _, err := os.Stat(s.path); errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	pool, err := sql.Open("sqlite3", s.dsn("rw"))
	if err != nil {
		return 0, false, fmt.Errorf("open the SQLite file: %w", err)
	}
	defer func() { _ = pool.Close() }()
	var tables int
	err = pool.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'").Scan(&tables)
	if err != nil || tables == 0 {
		return 0, false, readError(err)
	}
	var v int64
	err = pool.QueryRowContext(ctx, "SELECT version, dirty FROM schema_migrations LIMIT 1").Scan(&v, &dirty)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return uint(max(v, 0)), dirty, readError(err)
}

func readError(err error) error {
	if err == nil {
		return nil
	}
	var e sqlite3.Error
	if errors.As(err, &e) && e.Code == sqlite3.ErrNotADB {
		return &berth.SetupError{What: "the file that BERTH_DATABASE_URL names is no SQLite database", Remedy: "check the path, or name a file that does not exist yet"}
	}
	return fmt.Errorf("read the SQLite file: %w", err)
}

func (s sqliteEngine) driver(context.Context) (database.Driver, error) {
	pool, err := sql.Open("sqlite3", s.dsn("rwc"))
	if err != nil {
		return nil, fmt.Errorf("open the SQLite file: %w", err)
	}
	// One connection, so that a pragma of a migration holds for all of it.
	pool.SetMaxOpenConns(1)
	drv, err := migratesqlite.WithInstance(pool, &migratesqlite.Config{})
	if err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("open the SQLite file: %w", plain(err))
	}
	return drv, nil
}

// verify looks for rows whose parents are gone.
func (s sqliteEngine) verify(ctx context.Context) error {
	pool, err := sql.Open("sqlite3", s.dsn("rw"))
	if err != nil {
		return fmt.Errorf("open the SQLite file: %w", err)
	}
	defer func() { _ = pool.Close() }()
	rows, err := pool.QueryContext(ctx, "PRAGMA foreign_key_check")
	if err != nil {
		return readError(err)
	}
	defer func() { _ = rows.Close() }()
	if rows.Next() {
		var table, parent sql.NullString
		var row, fk sql.NullInt64
		if err := rows.Scan(&table, &row, &parent, &fk); err != nil {
			return readError(err)
		}
		return fmt.Errorf("the migrated SQLite file has a row of %s without its %s", table.String, parent.String)
	}
	return readError(rows.Err())
}
