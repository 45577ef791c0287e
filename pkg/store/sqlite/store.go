// Package sqlite is the storage contract on one SQLite file, for a laptop or a
// single small server: one control-plane process, the same promises as
// pkg/store/postgres.
//
// Writers are serial. One connection writes, every transaction of it begins
// IMMEDIATE, and so what a transaction has read cannot change under it: the
// row locks of the other engine need no counterpart here. The shape is the
// same all the same: load the rows, ask the rule of pkg/berth, write what it
// says. A few read-only connections serve the reads beside the writer; each
// read is one snapshot.
//
// Times are INTEGER microseconds UTC, so that they sort; parameters are
// numbered ?1, because the driver binds other forms in the order of their
// appearance.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	_ "github.com/mattn/go-sqlite3" // registers the driver

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// readers is how many reads run beside the writer.
	readers = 4
	// lockWait bounds the wait for another process's transaction.
	lockWait = 5 * time.Second
	// lockPoll is how often that wait looks at the caller's context.
	lockPoll = 50 * time.Millisecond
)

// Store is the SQLite engine. It is safe for concurrent use.
type Store struct {
	opts    store.Options
	timings berth.Timings
	hints   *broadcaster

	// turn holds one token: whoever has it owns writer.
	turn       chan struct{}
	writerPool *sql.DB
	writer     *sql.Conn
	readerPool *sql.DB

	rounds roundSet
	aside  store.SetAside // of ReapLeases

	closing  chan struct{}
	closeErr error
	once     sync.Once
}

var _ store.Store = (*Store)(nil)

// Open opens the file at path, making an empty one (mode 0600) if there is
// none. It applies no migration and takes no process lock: whoever wires a
// daemon does both. Several handles on one file work, in one process or in
// several.
func Open(ctx context.Context, path string, opts store.Options) (*Store, error) {
	if opts.Timings == (berth.Timings{}) {
		opts.Timings = berth.DefaultTimings()
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the SQLite file: %w", err)
	}
	if err := create(abs); err != nil {
		return nil, err
	}
	s := &Store{
		opts: opts, timings: opts.Timings, hints: newBroadcaster(),
		turn: make(chan struct{}, 1), closing: make(chan struct{}),
	}
	s.turn <- struct{}{}
	if err := s.connect(ctx, abs); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// create makes the file, readable by its owner only: it holds password hashes
// and payloads. A file that exists is not touched: closing any descriptor of it
// would drop the locks that other handles of this process hold.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create the SQLite file: %w", err)
	}
	return f.Close()
}

func dsn(path string, busy time.Duration, queryOnly bool) string {
	q := url.Values{
		"_journal_mode": {"WAL"}, "_synchronous": {"FULL"}, "_foreign_keys": {"on"}, "_txlock": {"immediate"},
		"_busy_timeout": {strconv.FormatInt(busy.Milliseconds(), 10)}, "_stmt_cache_size": {"128"},
	}
	if queryOnly {
		// The mode of the journal is the file's, which the writer has set.
		q.Del("_journal_mode")
		q.Set("_query_only", "on")
		q.Set("_txlock", "deferred")
	}
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + q.Encode()
}

func (s *Store) connect(ctx context.Context, path string) (err error) {
	if s.writerPool, err = sql.Open("sqlite3", dsn(path, lockPoll, false)); err != nil {
		return classify(err)
	}
	s.writerPool.SetMaxOpenConns(1)
	if s.readerPool, err = sql.Open("sqlite3", dsn(path, lockWait, true)); err != nil {
		return classify(err)
	}
	s.readerPool.SetMaxOpenConns(readers)
	s.readerPool.SetMaxIdleConns(readers)
	err = s.retryBusy(ctx, lockWait, func() (err error) {
		s.writer, err = s.writerPool.Conn(context.WithoutCancel(ctx))
		return err
	})
	if err != nil {
		return err
	}
	return s.checkDurable(ctx)
}

// checkDurable makes sure that the file really is as durable as the contract
// says; on some file systems SQLite silently keeps another journal mode.
func (s *Store) checkDurable(ctx context.Context) error {
	for _, want := range []struct{ pragma, value, means string }{
		{"journal_mode", "wal", "the journal mode is not WAL"},
		{"synchronous", "2", "synchronous is not FULL"},
		{"foreign_keys", "1", "foreign keys are off"},
	} {
		var got string
		if err := s.writer.QueryRowContext(ctx, "PRAGMA "+want.pragma).Scan(&got); err != nil {
			return classify(err)
		}
		if got != want.value {
			return fmt.Errorf("the SQLite file cannot be used: %s; put it on a local file system", want.means)
		}
	}
	return nil
}

// Close waits for the writing transaction, if there is one, and closes the
// connections. It may be called twice. Later calls of other methods fail with
// berth.ErrUnavailable.
func (s *Store) Close() error {
	s.once.Do(func() {
		close(s.closing)
		<-s.turn // never given back
		var errs []error
		if s.writer != nil {
			errs = append(errs, s.writer.Close())
		}
		for _, pool := range []*sql.DB{s.readerPool, s.writerPool} {
			if pool != nil {
				errs = append(errs, pool.Close())
			}
		}
		s.closeErr = classify(errors.Join(errs...))
	})
	return s.closeErr
}

// clock tells the time that decides.
func (s *Store) clock() time.Time {
	now := time.Now
	if s.opts.Clock != nil {
		now = s.opts.Clock.Now
	}
	return now().UTC().Truncate(time.Microsecond)
}

// Ping implements store.Health.
func (s *Store) Ping(ctx context.Context) error {
	return s.read(ctx, "Ping", func(t *tx) error {
		_, _, err := queryOne(t, scanInt, "SELECT count(*) FROM sqlite_master")
		return err
	})
}

// SchemaVersion implements store.Health. It reads golang-migrate's table.
func (s *Store) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	err = s.read(ctx, "SchemaVersion", func(t *tx) error {
		n, _, err := queryOne(t, scanInt, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'schema_migrations'")
		if err != nil || n == 0 {
			return err
		}
		v, _, err := queryOne(t, func(r row) (v int64, err error) {
			return v, r.Scan(&v, &dirty)
		}, "SELECT version, dirty FROM schema_migrations LIMIT 1")
		version = uint(max(v, 0))
		return err
	})
	return version, dirty, err
}

// Now implements store.Health.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	if err := s.Ping(ctx); err != nil {
		return time.Time{}, err
	}
	return s.clock(), nil
}
