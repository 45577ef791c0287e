package pgtest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv("PGTEST_ABANDON"); dsn != "" {
		abandon(dsn)
	}
	goleak.VerifyTestMain(m)
}

// abandon starts a server, says where and dies without any cleaning up.
func abandon(report string) {
	server, err := StartServer(Options{})
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(report, []byte(server.folder+" "+server.DSN("postgres")), 0o600); err != nil {
		panic(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		panic(err)
	}
	if err := self.Kill(); err != nil {
		panic(err)
	}
	select {}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, conn *pgx.Conn, sql string, args ...any) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// until waits for a condition that another process brings about.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func notesTemplate(t *testing.T, migrations *atomic.Int32) Template {
	return Template{
		// The server of a whole test run may know an earlier run of this test.
		Fingerprint: t.Name() + t.TempDir() + time.Now().String(),
		Migrate: func(ctx context.Context, dsn string) error {
			migrations.Add(1)
			return execute(ctx, dsn, "CREATE TABLE notes (id int PRIMARY KEY); INSERT INTO notes VALUES (1)")
		},
	}
}

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	var migrations atomic.Int32
	template := notesTemplate(t, &migrations)

	first := connect(t, NewDB(t, template))
	run(t, first, "INSERT INTO notes VALUES (2)")
	second := connect(t, NewDB(t, template))
	if n := count(t, second, "SELECT count(*) FROM notes"); n != 1 {
		t.Errorf("the second database has %d rows, want the template's 1", n)
	}
	if n := migrations.Load(); n != 1 {
		t.Errorf("migrated %d times, want once", n)
	}
}

func TestTemplateIsBuiltOnceAmongSimultaneousCallers(t *testing.T) {
	var migrations atomic.Int32
	template := notesTemplate(t, &migrations)
	admin := AdminDSN(t)

	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			if _, err := ensureTemplate(t.Context(), admin, template); err != nil {
				t.Errorf("template: %v", err)
			}
		})
	}
	group.Wait()
	if n := migrations.Load(); n != 1 {
		t.Errorf("migrated %d times, want once", n)
	}
}

func TestFailedMigrationLeavesNoTemplate(t *testing.T) {
	var migrations atomic.Int32
	template := notesTemplate(t, &migrations)
	good := template.Migrate
	wrong := errors.New("no such column")
	template.Migrate = func(ctx context.Context, dsn string) error {
		if err := good(ctx, dsn); err != nil {
			return err
		}
		return wrong
	}
	admin := AdminDSN(t)
	if _, err := ensureTemplate(t.Context(), admin, template); !errors.Is(err, wrong) {
		t.Fatalf("got %v, want the migration's error", err)
	}
	template.Migrate = good
	conn := connect(t, NewDB(t, template))
	if n := count(t, conn, "SELECT count(*) FROM notes"); n != 1 {
		t.Errorf("%d rows, want those of the successful migration alone", n)
	}
}

func TestDatabaseIsDroppedUnderOpenConnections(t *testing.T) {
	admin := connect(t, AdminDSN(t))
	var name string
	t.Run("inner", func(t *testing.T) {
		// Not closed before the database is dropped: cleanups run last in, first out.
		conn, err := pgx.Connect(t.Context(), NewDB(t, Template{}))
		if err != nil {
			t.Fatal(err)
		}
		name = conn.Config().Database
		if n := count(t, admin, "SELECT count(*) FROM pg_database WHERE datname = $1", name); n != 1 {
			t.Errorf("database %s does not exist", name)
		}
	})
	if n := count(t, admin, "SELECT count(*) FROM pg_database WHERE datname = $1", name); n != 0 {
		t.Errorf("database %s outlived its test", name)
	}
}

func TestGivenServerIsUsed(t *testing.T) {
	server := start(t, Options{})
	t.Setenv(EnvURL, server.DSN("postgres"))
	conn := connect(t, NewDB(t, Template{}))
	if got := int(conn.Config().Port); got != server.port {
		t.Errorf("the database is on port %d, want the given server's %d", got, server.port)
	}
}

func TestPrivateServerHasMigratedDatabases(t *testing.T) {
	var migrations atomic.Int32
	server := start(t, Options{})
	conn := connect(t, server.NewDB(t, notesTemplate(t, &migrations)))
	if got := int(conn.Config().Port); got != server.port {
		t.Errorf("the database is on port %d, want the private server's %d", got, server.port)
	}
	if n := count(t, conn, "SELECT count(*) FROM notes"); n != 1 {
		t.Errorf("%d rows, want the template's 1", n)
	}
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	server, err := StartServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return server
}

func TestServerKeepsItsDataAndAddressOverStops(t *testing.T) {
	server := start(t, Options{})
	dsn := server.DSN("postgres")
	conn := connect(t, dsn)
	run(t, conn, "CREATE TABLE kept (id int)")
	for _, immediate := range []bool{true, false} {
		run(t, conn, "INSERT INTO kept VALUES (1)")
		if err := server.Stop(immediate); err != nil {
			t.Fatal(err)
		}
		if err := server.Stop(immediate); err != nil {
			t.Errorf("the second stop: %v", err)
		}
		if _, err := pgx.Connect(t.Context(), dsn); err == nil {
			t.Fatal("the stopped server accepts connections")
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		conn = connect(t, dsn)
	}
	if n := count(t, conn, "SELECT count(*) FROM kept"); n != 2 {
		t.Errorf("%d committed rows after two stops, want 2", n)
	}
	if recovered, err := server.LogContains("was not properly shut down"); err != nil || !recovered {
		t.Errorf("the immediate stop was no crash: %v %v", recovered, err)
	}
}

func TestDatabaseIsPutBackToItsDump(t *testing.T) {
	server := start(t, Options{})
	dsn := server.NewDB(t, Template{})
	parsed, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, dsn)
	run(t, conn, "CREATE TABLE kept (id int)")
	run(t, conn, "INSERT INTO kept VALUES (1)")
	dump, err := server.Dump(parsed.Database)
	if err != nil {
		t.Fatal(err)
	}
	run(t, conn, "INSERT INTO kept VALUES (2)")
	if err := server.Restore(parsed.Database, dump); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SELECT 1"); err == nil {
		t.Error("a connection outlived the database that was replaced")
	}
	if n := count(t, connect(t, dsn), "SELECT count(*) FROM kept"); n != 1 {
		t.Errorf("%d rows after the restore, want the 1 of the dump", n)
	}
}

func TestLogShowsAnAbandonedTransaction(t *testing.T) {
	const line = "unexpected EOF on client connection with an open transaction"
	server := start(t, Options{})
	conn := connect(t, server.DSN("postgres"))
	run(t, conn, "BEGIN")
	if early, err := server.LogContains(line); err != nil || early {
		t.Fatalf("before the break: %v %v", early, err)
	}
	if err := conn.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the line in the log", func() bool {
		found, err := server.LogContains(line)
		return err == nil && found
	})
}

func TestServerIsClosedToStrangersAndRoot(t *testing.T) {
	server := start(t, Options{Settings: map[string]string{"work_mem": "5MB"}})
	conn := connect(t, server.DSN("postgres"))
	setting := func(name string) (value string) {
		if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	for name, want := range map[string]string{
		"listen_addresses": "127.0.0.1", "synchronous_commit": "on", "fsync": "off", "work_mem": "5MB",
	} {
		if got := setting(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	stranger := conn.Config().Copy()
	stranger.Password = "guess"
	if _, err := pgx.ConnectConfig(t.Context(), stranger); err == nil {
		t.Error("a wrong password was accepted")
	}
	info, err := os.Stat(server.data())
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the data folder is open to others: %v", info.Mode())
	}
}

func TestClosedServerLeavesNothing(t *testing.T) {
	server := start(t, Options{})
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(server.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if err := server.Close(); err != nil {
		t.Errorf("the second close: %v", err)
	}
	if err := server.Start(); err == nil {
		t.Error("a closed server started")
	}
}

func TestKilledProcessLeavesNothing(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report")
	self := exec.CommandContext(t.Context(), os.Args[0])
	self.Env = append(os.Environ(), "PGTEST_ABANDON="+report)
	if err := self.Run(); err == nil || self.ProcessState.ExitCode() != -1 {
		t.Fatalf("the process was to be killed: %v", err)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	folder, dsn, _ := strings.Cut(string(text), " ")
	until(t, "the folder of the killed process's server to go", func() bool {
		_, err := os.Stat(folder)
		return errors.Is(err, os.ErrNotExist)
	})
	// A server without its folder refuses logins but still listens.
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	if conn, err := net.Dial("tcp", address); err == nil {
		_ = conn.Close()
		t.Error("the server of the killed process still runs")
	}
}

func TestMissingBinariesNameTheRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := findBinaries(t.Context(), t.TempDir())
	if !errors.Is(err, ErrNoServer) {
		t.Fatalf("got %v, want ErrNoServer", err)
	}
	for _, part := range []string{"apt-get install postgresql", "make deps-postgres", EnvURL} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the message does not say %q: %v", part, err)
		}
	}
}

func TestNewestServerIsFound(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	root := t.TempDir()
	for _, version := range []string{"9.6", "15", "17"} {
		dir := filepath.Join(root, version, "bin")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		programs := serverPrograms()
		if version == "17" { // only the client of this version is installed
			programs = []string{"psql"}
		}
		for _, name := range programs {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := findBinaries(t.Context(), root)
	if want := filepath.Join(root, "15", "bin"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestDatabaseNamesFitAndDiffer(t *testing.T) {
	long := strings.Repeat("TestÄ/with spaces", 20)
	first, second := databaseName(long), databaseName(long)
	if len(first) > 63 {
		t.Errorf("%q is longer than PostgreSQL keeps", first)
	}
	if first == second {
		t.Errorf("two databases are called %q", first)
	}
}

func TestMalformedURLIsNotRepeated(t *testing.T) {
	_, err := withDatabase("host=127.0.0.1 password=hunter2", "x")
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want an error without the password", err)
	}
}
