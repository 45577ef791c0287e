package pgtest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// EnvURL names the environment variable with the DSN of a server to use
// instead of one that the tests start.
const EnvURL = "BERTH_TEST_POSTGRES_URL"

// EnvFile names the environment variable with the path of a file that holds
// such a DSN; cmd/with-postgres sets it. EnvURL wins.
const EnvFile = "BERTH_TEST_POSTGRES_FILE"

const (
	migrateLimit = 2 * time.Minute
	dropLimit    = 30 * time.Second
)

// Template says how a test's database looks before the test begins. The zero
// value is an empty database.
type Template struct {
	// Fingerprint names the outcome of Migrate: callers with the same
	// fingerprint share one template, and a server given by EnvURL keeps it
	// over runs. Derive it from all that Migrate applies, for example a digest
	// of the migration files.
	Fingerprint string
	// Migrate brings the empty database at dsn to the wanted state. It has
	// closed its connections when it returns.
	Migrate func(ctx context.Context, dsn string) error
}

// shared is the one server of a test process. A process-wide variable, because
// the tests of a package have nothing else in common; it is never stopped but
// by its janitor, at the end of the process.
var shared = sync.OnceValues(func() (*Server, error) { return StartServer(Options{}) })

// AdminDSN returns the DSN under which databases of the tests' server are
// created: that of EnvURL or EnvFile, or of the server of this process, which
// the first call starts (1 to 2 s). It fails the test where there is none.
func AdminDSN(tb testing.TB) string {
	tb.Helper()
	if dsn := os.Getenv(EnvURL); dsn != "" {
		return dsn
	}
	if path := os.Getenv(EnvFile); path != "" {
		dsn, err := os.ReadFile(path)
		if err != nil {
			tb.Fatalf("pgtest: %s: %v", EnvFile, err)
		}
		return strings.TrimSpace(string(dsn))
	}
	server, err := shared()
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return server.DSN("postgres")
}

// NewDB creates a database as template says, for this test alone, and returns
// its DSN. It is dropped when the test and its subtests end, with whatever
// connections are left. It fails the test on any error.
func NewDB(tb testing.TB, template Template) string {
	tb.Helper()
	admin := AdminDSN(tb)
	name, dsn, err := clone(admin, tb.Name(), template)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dropLimit)
		defer cancel()
		if err := execute(ctx, admin, "DROP DATABASE IF EXISTS "+quote(name)+" WITH (FORCE)"); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return dsn
}

// NewDB creates a database as template says on this server, which runs, and
// returns its DSN. It goes with the server: the test may stop that any time. It
// fails the test on any error.
func (s *Server) NewDB(tb testing.TB, template Template) string {
	tb.Helper()
	_, dsn, err := clone(s.DSN("postgres"), tb.Name(), template)
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return dsn
}

// clone creates a database on the server of admin and returns its name and DSN.
func clone(admin, test string, template Template) (name, dsn string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), migrateLimit)
	defer cancel()
	source, err := ensureTemplate(ctx, admin, template)
	if err != nil {
		return "", "", fmt.Errorf("template database: %w", err)
	}
	name = databaseName(test)
	if dsn, err = withDatabase(admin, name); err != nil {
		return "", "", err
	}
	return name, dsn, execute(ctx, admin, "CREATE DATABASE "+quote(name)+" TEMPLATE "+quote(source))
}

// ensureTemplate returns the name of a database that template.Migrate has
// fully prepared. Among all processes that use the server one builds it and
// the others wait. It is built under another name, so that one whose builder
// died is never taken for complete.
func ensureTemplate(ctx context.Context, admin string, template Template) (string, error) {
	if template.Migrate == nil {
		return "template0", nil
	}
	digest := sha256.Sum256([]byte(template.Fingerprint))
	name := "berth_template_" + hex.EncodeToString(digest[:8])

	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if found, err := exists(ctx, conn, name); err != nil || found {
		return name, err
	}
	// The lock ends with the session.
	key := int64(binary.BigEndian.Uint64(digest[:8]))
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
		return "", fmt.Errorf("lock: %w", err)
	}
	if found, err := exists(ctx, conn, name); err != nil || found {
		return name, err
	}
	return name, buildTemplate(ctx, conn, admin, name, template.Migrate)
}

func buildTemplate(ctx context.Context, conn *pgx.Conn, admin, name string,
	migrate func(context.Context, string) error,
) error {
	draft := name + "_draft"
	for _, sql := range []string{
		"DROP DATABASE IF EXISTS " + quote(draft) + " WITH (FORCE)",
		"CREATE DATABASE " + quote(draft) + " TEMPLATE template0",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	dsn, err := withDatabase(admin, draft)
	if err != nil {
		return err
	}
	if err := migrate(ctx, dsn); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	// Nobody may connect to a template: a clone waits 5 s for strangers to
	// leave, then fails.
	for _, sql := range []string{
		"ALTER DATABASE " + quote(draft) + " WITH ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '" + draft + "'",
		"ALTER DATABASE " + quote(draft) + " RENAME TO " + quote(name),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

func exists(ctx context.Context, conn *pgx.Conn, name string) (bool, error) {
	var found bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&found)
	if err != nil {
		return false, fmt.Errorf("look for database %s: %w", name, err)
	}
	return found, nil
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// databaseName makes a name that tells whose database it is, and is no other's.
func databaseName(test string) string {
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, test)
	// PostgreSQL cuts names at 63 bytes.
	readable = readable[:min(len(readable), 32)]
	return fmt.Sprintf("berth_test_%s_%s", readable, strings.ToLower(rand.Text()[:12]))
}

func quote(identifier string) string { return pgx.Identifier{identifier}.Sanitize() }

// withDatabase puts another database into a DSN in URL form.
func withDatabase(dsn, database string) (string, error) {
	parsed, err := url.Parse(dsn)
	if err != nil || parsed.Scheme == "" {
		// The error of url.Parse repeats the DSN with its password.
		return "", fmt.Errorf("%s must be a URL (postgres://user:password@host:port/database)", EnvURL)
	}
	parsed.Path = "/" + database
	return parsed.String(), nil
}
