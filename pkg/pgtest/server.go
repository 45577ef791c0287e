package pgtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	debianRoot  = "/usr/lib/postgresql"
	superuser   = "postgres"
	startLimit  = 60 * time.Second
	portRetries = 5
)

// Options of a private server. The zero value works.
type Options struct {
	// Settings are added to, or replace, those of postgresql.conf, for example
	// {"idle_in_transaction_session_timeout": "3s"}.
	Settings map[string]string
}

// Server is a PostgreSQL server that this process started. Its methods may be
// called from several goroutines.
type Server struct {
	bin, folder string
	account     account
	password    string
	port        int
	settings    map[string]string
	janitor     *janitor

	mu      sync.Mutex
	running bool
	closed  bool
}

// StartServer starts a server of the caller's own on a free port and returns
// when it accepts connections. Close it at the end; should the process die
// before, the server and its folder go with it all the same. It returns an
// error that wraps ErrNoServer where this machine has no server binaries.
func StartServer(opts Options) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	bin, err := findBinaries(ctx, debianRoot)
	if err != nil {
		return nil, err
	}
	s, err := newServer(bin, opts)
	if err != nil {
		return nil, err
	}
	if err := s.initialise(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Another process may take the free port before PostgreSQL does.
	for try := 1; ; try++ {
		if s.port, err = freePort(); err == nil {
			err = s.Start()
		}
		if err == nil {
			return s, nil
		}
		taken, _ := s.LogContains("Address already in use")
		if !taken || try == portRetries {
			return nil, errors.Join(err, s.Close())
		}
	}
}

func newServer(bin string, opts Options) (*Server, error) {
	acc, err := serverAccount()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(acc.baseFolder(), "berth-pgtest-")
	if err != nil {
		return nil, fmt.Errorf("folder for the server: %w", err)
	}
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	s := &Server{
		bin: bin, folder: folder, account: acc,
		password: hex.EncodeToString(secret[:]), settings: defaultSettings(),
	}
	for name, value := range opts.Settings {
		s.settings[name] = value
	}
	if err := os.Chown(folder, acc.uid, acc.gid); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	if s.janitor, err = startJanitor(folder); err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

// defaultSettings trade durability over a power cut, which no test here can
// cause, for speed. synchronous_commit stays on: Berth relies on it, and a
// killed server must still have what it acknowledged.
func defaultSettings() map[string]string {
	return map[string]string{
		"fsync":                   "off",
		"full_page_writes":        "off",
		"checkpoint_timeout":      "30min",
		"max_connections":         "300",
		"shared_buffers":          "128MB",
		"jit":                     "off",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_line_prefix":         "%m [%p] %d ",
		"log_connections":         "on",
		"log_statement":           "none",
		"log_min_error_statement": "panic", // a failing statement may hold a secret
	}
}

// initialise makes the data folder. The password guards the server from other
// users of this machine: a superuser runs programs as the server's user.
func (s *Server) initialise(ctx context.Context) error {
	secret := filepath.Join(s.folder, "password")
	if err := os.WriteFile(secret, []byte(s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("password of the server: %w", err)
	}
	if err := os.Chown(secret, s.account.uid, s.account.gid); err != nil {
		return fmt.Errorf("password of the server: %w", err)
	}
	// For the programs that connect; the port comes later.
	passfile := filepath.Join(s.folder, "pgpass")
	if err := os.WriteFile(passfile, []byte("*:*:*:*:"+s.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("password of the server: %w", err)
	}
	if err := os.Chown(passfile, s.account.uid, s.account.gid); err != nil {
		return fmt.Errorf("password of the server: %w", err)
	}
	if err := s.command(ctx, "initdb", "--pgdata", s.data(), "--username", superuser,
		"--auth", "scram-sha-256", "--pwfile", secret,
		"--encoding", "UTF8", "--locale", "C", "--no-sync"); err != nil {
		return err
	}
	return os.Remove(secret)
}

// Start starts the server after Stop, at the same address, and returns when it
// accepts connections. It does nothing where the server runs.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errors.New("pgtest: the server is closed")
	}
	if s.running {
		return nil
	}
	if err := s.configure(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	// pg_ctl waits until the server says in postmaster.pid that it is ready; a
	// socket alone appears earlier.
	if err := s.command(ctx, "pg_ctl", "start", "--pgdata", s.data(), "--log", s.LogPath(),
		"--wait", "--timeout", strconv.Itoa(int(startLimit.Seconds())), "--silent"); err != nil {
		return fmt.Errorf("%w\nend of its log:\n%s", err, s.logTail())
	}
	s.running = true
	return nil
}

// configure writes the settings where they win over those of initdb.
func (s *Server) configure() error {
	all := map[string]string{
		"port":                    strconv.Itoa(s.port),
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": s.folder,
	}
	for name, value := range s.settings {
		all[name] = value
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	var conf strings.Builder
	for _, name := range names {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	path := filepath.Join(s.data(), "postgresql.auto.conf")
	if err := os.WriteFile(path, []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("settings of the server: %w", err)
	}
	return os.Chown(path, s.account.uid, s.account.gid)
}

// Stop stops the server and returns when it is gone; its data stay. With
// immediate it stops as in a crash: connections break at once, nothing is
// written, and the next Start recovers from the write-ahead log. Otherwise open
// transactions are rolled back, connections are told and the state is written.
// It does nothing where the server is stopped.
func (s *Server) Stop(immediate bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil
	}
	mode := "fast"
	if immediate {
		mode = "immediate"
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := s.command(ctx, "pg_ctl", "stop", "--pgdata", s.data(), "--mode", mode,
		"--wait", "--silent"); err != nil {
		return err
	}
	s.running = false
	return nil
}

// Close stops the server and removes its folder with all data and the log. It
// may be called twice.
func (s *Server) Close() error {
	err := s.Stop(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(err, s.janitor.release())
}

// DSN returns the URL of a database of this server, for its superuser. The
// database need not exist; "postgres" always does.
func (s *Server) DSN(database string) string {
	dsn := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + database,
		RawQuery: "sslmode=disable",
	}
	return dsn.String()
}

// LogPath returns the path of the server's log, which goes on over restarts.
func (s *Server) LogPath() string { return filepath.Join(s.folder, "server.log") }

// LogContains reports whether the server's log holds text. A backend writes as
// it ends, so a line about a broken connection may come a moment after the
// client saw the break.
func (s *Server) LogContains(text string) (bool, error) {
	log, err := os.ReadFile(s.LogPath())
	if err != nil {
		return false, fmt.Errorf("log of the server: %w", err)
	}
	return bytes.Contains(log, []byte(text)), nil
}

func (s *Server) logTail() string {
	log, err := os.ReadFile(s.LogPath())
	if err != nil {
		return err.Error()
	}
	const most = 2000
	return string(log[max(0, len(log)-most):])
}

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

// command runs one of PostgreSQL's programs as the server's user, with none of
// the PG* variables that may point it at another server.
func (s *Server) command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = s.folder
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.folder, "LC_ALL=C", "TZ=UTC", "PGPASSFILE=" + filepath.Join(s.folder, "pgpass")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: s.account.credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
