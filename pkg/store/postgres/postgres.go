// Package postgres is the storage engine of an installation: PostgreSQL as the
// system of record and as the queue. It implements every promise of pkg/store
// with hand-written SQL; the rules are those of pkg/berth.
//
// How a change is made, everywhere:
//
//  1. Lock the rows, in the lock order of the contract, ascending by key, with
//     FOR NO KEY UPDATE (FOR UPDATE would collide with foreign keys).
//  2. Read what decides (the locked rows, the host's epoch, the clock) in a
//     later statement: what a statement compared before it waited for a lock is
//     worth nothing.
//  3. Ask pkg/berth, then write to the keys that were locked, never to the
//     predicate again.
//
// It works through PgBouncer in transaction mode: nothing but the hint listener
// needs a session, and without hints everything works, only slower.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// Time limits that the server enforces on every transaction, so that neither a
// stopped process nor a slow statement hides rows from the others.
const (
	idleInTransactionLimit = 3 * time.Second
	lockLimit              = 5 * time.Second
	statementLimit         = 10 * time.Second
	// serverAnswersWithin bounds the wait for a statement whose server went
	// away without a word; it lies above the server's own limits.
	serverAnswersWithin = 20 * time.Second
	connectLimit        = 5 * time.Second
	defaultConnections  = 10
)

// Store is the PostgreSQL engine. Its methods may be called from any number of
// goroutines.
type Store struct {
	pool      *pgxpool.Pool
	opts      store.Options
	timings   berth.Timings
	settings  []setting // sent with each BEGIN where a pooler stands in between
	hints     *hints
	deadlocks atomic.Int64
	aside     store.SetAside // of ReapLeases
	closing   sync.Once
}

var _ store.Store = (*Store)(nil)

// Open connects lazily: it fails only on a DSN that cannot be read or on
// timings that do not fit together, so that a daemon starts while its database
// is away. Close ends what it started.
//
// Beside what pgx knows (pool_max_conns among it), the DSN may say:
//
//   - pgbouncer=true: a pooler in transaction mode stands in between; the time
//     limits are then set in each transaction.
//   - listen=host:port: where the server itself is to be reached for LISTEN,
//     which a pooler accepts and never serves. With pgbouncer=true and without
//     it, hints of other processes are not received.
func Open(_ context.Context, dsn string, opts store.Options) (*Store, error) {
	if opts.Timings == (berth.Timings{}) {
		opts.Timings = berth.DefaultTimings()
	}
	if err := opts.Timings.Validate(); err != nil {
		return nil, fmt.Errorf("timings: %w", err)
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's words may repeat parts of the DSN.
		return nil, berth.Invalid("dsn", "cannot be read as a PostgreSQL connection string", "write postgres://user:password@host:5432/database")
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		cfg.MaxConns = max(cfg.MaxConns, defaultConnections)
	}
	s := &Store{opts: opts, timings: opts.Timings}
	listenAt, err := s.configure(cfg)
	if err != nil {
		return nil, err
	}
	s.pool, err = pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, classify("Open", err)
	}
	s.hints = newHints(s.pool, listenAt, opts.OnBackgroundError)
	return s, nil
}

type setting struct{ name, value string }

// configure takes our own parameters out of the DSN's and returns the
// configuration of the hint listener; nil when it could not receive anything.
func (s *Store) configure(cfg *pgxpool.Config) (*pgx.ConnConfig, error) {
	conn := cfg.ConnConfig
	params := conn.RuntimeParams
	pooled, listen := params["pgbouncer"] == "true", params["listen"]
	delete(params, "pgbouncer")
	delete(params, "listen")
	conn.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = connectLimit
	}
	if params["application_name"] == "" {
		params["application_name"] = "berth"
	}
	// PgBouncer refuses these as start-up parameters.
	limits := []setting{
		{"idle_in_transaction_session_timeout", milliseconds(idleInTransactionLimit)},
		{"lock_timeout", milliseconds(lockLimit)},
		{"statement_timeout", milliseconds(statementLimit)},
	}
	listener := conn.Copy()
	if pooled {
		s.settings = limits
	} else {
		for _, l := range limits {
			params[l.name] = l.value
		}
	}
	cfg.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		c.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		return nil
	}
	if listen == "" {
		if pooled {
			return nil, nil
		}
		return listener, nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, berth.Invalid("dsn", "listen is not host:port", "write listen=db.example.org:5432")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, berth.Invalid("dsn", "listen has no port number", "write listen=db.example.org:5432")
	}
	listener.Host, listener.Port, listener.Fallbacks = host, uint16(n), nil
	return listener, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Deadlocks counts the deadlocks (40P01) that transactions of this process fell
// into and repeated themselves out of. Each is a bug in the lock order.
func (s *Store) Deadlocks() int64 { return s.deadlocks.Load() }

// Close sends the hints that are left, ends the listener and closes the
// connections once they are given back.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.hints.close()
		s.pool.Close()
	})
	return nil
}

// Subscribe is documented at store.Hints.
func (s *Store) Subscribe(kind store.HintKind, key string) (<-chan struct{}, func()) {
	return s.hints.subscribe(kind, key)
}

// Ping is documented at store.Health.
func (s *Store) Ping(ctx context.Context) error {
	err := s.read(ctx, "Ping", func(t *tx) error {
		_, err := t.exec(`SELECT 1`)
		return err
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, berth.ErrUnavailable) {
		return fmt.Errorf("ping: %w", berth.ErrUnavailable)
	}
	return err
}

// SchemaVersion is documented at store.Health.
func (s *Store) SchemaVersion(ctx context.Context) (version uint, dirty bool, err error) {
	type row struct {
		version int64
		dirty   bool
	}
	err = s.read(ctx, "SchemaVersion", func(t *tx) error {
		r, ok, err := first(t, func(c pgx.CollectableRow) (r row, err error) {
			return r, c.Scan(&r.version, &r.dirty)
		}, `SELECT version, dirty FROM schema_migrations LIMIT 1`)
		if sqlState(err) == undefinedTable {
			return nil
		}
		if ok && r.version > 0 {
			version = uint(r.version)
		}
		dirty = r.dirty
		return err
	})
	return version, dirty, err
}

// Now is documented at store.Health.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.read(ctx, "Now", func(t *tx) error {
		now, err = t.now()
		return err
	})
	return now, err
}
