package schema

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/berth-dev/berth/pkg/pgrefusal"
)

// lockKey is the advisory lock that migrators of one database share: "berth"
// in ASCII and a 1.
const lockKey int64 = 0x6265727468_01

type postgresEngine struct{ config *pgx.ConnConfig }

func newPostgres(dsn string) (engine, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		// pgx's error may repeat parts of the URL.
		return nil, fmt.Errorf("%w: a Postgres URL with unknown or malformed parts", ErrTarget)
	}
	// A migration may take long, and waits for nobody in the middle.
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		config.RuntimeParams[name] = "0"
	}
	config.RuntimeParams["application_name"] = "berth-migrate"
	return postgresEngine{config: config}, nil
}

func (p postgresEngine) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, p.config)
	if err != nil {
		return nil, unreachable(ctx, p.config, err)
	}
	return conn, nil
}

// unreachable says what hinders a connection, without its URL; where one cause
// is certain it is a *berth.DatabaseAccessError.
func unreachable(ctx context.Context, config *pgx.ConnConfig, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if access := pgrefusal.Of(err); access != nil {
		return access
	}
	why := "no connection"
	var pg *pgconn.PgError
	var op *net.OpError
	switch {
	case errors.As(err, &pg):
		why = fmt.Sprintf("%s (%s)", pg.Message, pg.Code)
	case errors.As(err, &op):
		why = op.Err.Error()
	}
	return fmt.Errorf("cannot reach Postgres at %s: %s", net.JoinHostPort(config.Host, fmt.Sprint(config.Port)), why)
}

// lock polls for the advisory lock on a connection of its own. The wait is ours
// because golang-migrate's is one blocking statement, whose snapshot makes
// CREATE INDEX CONCURRENTLY of the holder wait for the waiter: a deadlock.
func (p postgresEngine) lock(ctx context.Context) (func(), error) {
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	// The lock ends with its session.
	unlock := func() { _ = conn.Close(context.WithoutCancel(ctx)) }
	err = poll(ctx, func() (got bool, err error) {
		err = conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", lockKey).Scan(&got)
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("ask for the migration lock: %w", sqlError(err))
		}
		return got, err
	})
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (p postgresEngine) status(ctx context.Context) (version uint, dirty bool, err error) {
	conn, err := p.connect(ctx)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass('schema_migrations') IS NOT NULL").Scan(&exists); err != nil || !exists {
		return 0, false, sqlError(err)
	}
	var v int64
	err = conn.QueryRow(ctx, "SELECT version, dirty FROM schema_migrations LIMIT 1").Scan(&v, &dirty)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return uint(max(v, 0)), dirty, sqlError(err)
}

func (p postgresEngine) driver(ctx context.Context) (database.Driver, error) {
	pool := stdlib.OpenDB(*p.config)
	if err := pool.PingContext(ctx); err != nil {
		_ = pool.Close()
		return nil, unreachable(ctx, p.config, err)
	}
	drv, err := migratepgx.WithInstance(pool, &migratepgx.Config{})
	if err != nil {
		_ = pool.Close()
		return nil, plain(err)
	}
	return drv, nil
}

func (postgresEngine) verify(context.Context) error { return nil }

// sqlError keeps the server's sentence and drops the driver's wrapping.
func sqlError(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return fmt.Errorf("%s (%s)", pg.Message, pg.Code)
	}
	return err
}
