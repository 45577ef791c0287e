package controlplane_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/schema"
)

// programs is where TestMain built the daemons.
var programs string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "berth-daemons-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		programs = dir
		build := exec.Command("go", "build", "-o", dir+string(filepath.Separator),
			"github.com/berth-dev/berth/cmd/api", "github.com/berth-dev/berth/cmd/scheduler", "github.com/berth-dev/berth/cmd/leasekeeper")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "build the daemons:", err)
			return 1
		}
		return m.Run()
	}())
}

// process is a daemon that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}
	err   error

	mu        sync.Mutex
	output    bytes.Buffer
	listening map[string]string // server -> address, from the log
	listened  chan struct{}     // one element a server
}

// start runs a program until the test ends.
func start(t *testing.T, name string, env ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(filepath.Join(programs, name)), ended: make(chan struct{}), listening: map[string]string{}, listened: make(chan struct{}, 10)}
	p.cmd.Env = append([]string{"BERTH_ADMIN_LISTEN=127.0.0.1:0", "BERTH_LOG_LEVEL=debug"}, env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(out)
	}()
	go func() {
		p.err = p.cmd.Wait()
		<-read
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.said())
		}
	})
	return p
}

func (p *process) read(out io.ReadCloser) {
	defer out.Close()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct{ Message, Server, Address string }
		p.mu.Lock()
		p.output.Write(lines.Bytes())
		p.output.WriteByte('\n')
		if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Message == "listening" {
			p.listening[entry.Server] = entry.Address
			p.listened <- struct{}{}
		}
		p.mu.Unlock()
	}
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// url waits until a server of the process listens.
func (p *process) url(server string) string {
	p.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		p.mu.Lock()
		address := p.listening[server]
		p.mu.Unlock()
		if address != "" {
			return "http://" + address
		}
		select {
		case <-p.listened:
		case <-p.ended:
			p.t.Fatalf("ended before it listened: %v", p.err)
		case <-deadline:
			p.t.Fatalf("no %s server within 30 s", server)
		}
	}
}

// stop sends SIGTERM and returns how the process ended.
func (p *process) stop() error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.t.Fatal("did not end within 20 s of SIGTERM")
	}
	return p.err
}

// answer is a status with a body.
type answer struct {
	status int
	body   string
}

func get(t *testing.T, url string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, string(body)}
}

// becomes waits until url gives that status and body code.
func becomes(t *testing.T, url string, status int, code string) {
	t.Helper()
	deadline, ticker := time.After(30*time.Second), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	want := fmt.Sprintf(`"code":%q`, code)
	for {
		got := get(t, url)
		if got.status == status && strings.Contains(got.body, want) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s gives %d %s, not %d %s", url, got.status, got.body, status, want)
		case <-ticker.C:
		}
	}
}

// broken is a Postgres to break, and its one database.
type broken struct {
	t      *testing.T
	server *pgtest.Server
	dsn    string
}

func newBroken(t *testing.T) *broken {
	t.Helper()
	server, err := pgtest.StartServer(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return &broken{t: t, server: server, dsn: server.DSN("postgres")}
}

func (b *broken) exec(sql string) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.dsn)
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(b.t.Context(), sql); err != nil {
		b.t.Fatal(err)
	}
}

// okRounds reads how many rounds a daemon's loops have run.
func okRounds(t *testing.T, admin string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(get(t, admin+"/metrics").body) {
		if strings.HasPrefix(line, "berth_loop_rounds_total") && !strings.Contains(line, `result="gated"`) && !strings.Contains(line, `loop="prepare"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestReadinessOfRealProcesses(t *testing.T) {
	keys := t.TempDir()
	for name, text := range map[string]string{"key": strings.Repeat("0f", 32), "password": "correct horse battery"} {
		if err := os.WriteFile(filepath.Join(keys, name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"scheduler", "leasekeeper", "api"} {
		t.Run(name, func(t *testing.T) {
			db := newBroken(t)
			urlFile := filepath.Join(t.TempDir(), "url")
			if err := os.WriteFile(urlFile, []byte(db.dsn), 0o600); err != nil {
				t.Fatal(err)
			}
			env := []string{
				"BERTH_DATABASE_URL_FILE=" + urlFile, "BERTH_LOOP_PLACE_INTERVAL=50ms", "BERTH_LOOP_PROMOTE_INTERVAL=50ms", "BERTH_LOOP_GIVE_UP_INTERVAL=50ms", "BERTH_LOOP_SCHEDULES_INTERVAL=50ms",
				"BERTH_LOOP_REAP_INTERVAL=50ms", "BERTH_LOOP_SILENT_HOSTS_INTERVAL=50ms", "BERTH_LOOP_LOST_TASKS_INTERVAL=50ms", "BERTH_LOOP_GUESSES_INTERVAL=50ms", "BERTH_LOOP_BULK_JOBS_INTERVAL=50ms",
			}
			if name == "api" {
				env = append(env, "BERTH_LISTEN=127.0.0.1:0", "BERTH_MASTER_KEY_FILE="+keys+"/key", "BERTH_ADMIN_PASSWORD_FILE="+keys+"/password",
					"BERTH_BLOB_DIR="+filepath.Join(t.TempDir(), "blobs"), "BERTH_WORKERS=scheduler,leasekeeper",
					"BERTH_LOOP_INPUTS_INTERVAL=50ms", "BERTH_LOOP_BLOBS_INTERVAL=50ms")
			}
			p := start(t, name, env...)
			walkThroughStates(t, name, p, db)
			if err := p.stop(); err != nil {
				t.Errorf("SIGTERM: %v", err)
			}
			password := passwordOf(t, db.dsn)
			if strings.Contains(p.said(), password) || strings.Contains(p.said(), "correct horse") || strings.Contains(p.said(), strings.Repeat("0f", 32)) {
				t.Error("a credential is in the log")
			}
		})
	}
}

func walkThroughStates(t *testing.T, name string, p *process, db *broken) {
	t.Helper()
	admin := p.url("admin")
	var bodies strings.Builder
	is := func(status int, code string) {
		t.Helper()
		becomes(t, admin+"/readyz", status, code)
		bodies.WriteString(get(t, admin+"/readyz").body)
		if live := get(t, admin+"/livez"); live.status != 200 {
			t.Errorf("%s: livez gives %d", code, live.status)
		}
		if name != "api" {
			return
		}
		public := p.url("api")
		becomes(t, public+"/readyz", status, code)
		if live := get(t, public+"/livez"); live.status != 200 {
			t.Errorf("%s: public livez gives %d", code, live.status)
		}
		got := get(t, public+"/api/v1/pools")
		bodies.WriteString(got.body)
		if status == 503 && (got.status != 503 || !strings.Contains(got.body, code)) {
			t.Errorf("%s: /api/v1/pools gives %d %s", code, got.status, got.body)
		}
		if status == 200 && got.status != 401 {
			t.Errorf("ready: /api/v1/pools gives %d", got.status)
		}
	}
	// shut checks that no round runs while the gate is shut.
	shut := func(code string) {
		t.Helper()
		is(503, code)
		before := okRounds(t, admin)
		becomes(t, admin+"/readyz", 503, code)
		eventuallyGated(t, admin)
		if after := okRounds(t, admin); after != before {
			t.Errorf("%s: rounds were run:\n%s%s", code, before, after)
		}
	}
	shut("schema_behind")
	if err := schema.Up(t.Context(), db.dsn); err != nil {
		t.Fatal(err)
	}
	is(200, "ready")
	db.exec("UPDATE schema_migrations SET version = 99")
	shut("schema_ahead")
	db.exec(fmt.Sprintf("UPDATE schema_migrations SET version = %d, dirty = true", schema.Latest()))
	shut("schema_dirty")
	db.exec("UPDATE schema_migrations SET dirty = false")
	is(200, "ready")
	if err := db.server.Stop(true); err != nil {
		t.Fatal(err)
	}
	shut("database_unreachable")
	if err := db.server.Start(); err != nil {
		t.Fatal(err)
	}
	is(200, "ready")
	if text := bodies.String(); strings.Contains(text, passwordOf(t, db.dsn)) || strings.Contains(text, "postgres") || strings.Contains(text, "127.0.0.1") {
		t.Errorf("a body tells too much: %s", text)
	}
}

// eventuallyGated waits until every loop has been gated once more.
func eventuallyGated(t *testing.T, admin string) {
	t.Helper()
	gated := func() string {
		var lines []string
		for line := range strings.Lines(get(t, admin+"/metrics").body) {
			if strings.Contains(line, `result="gated"`) && !strings.Contains(line, `loop="prepare"`) {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "")
	}
	before := strings.Split(gated(), "\n")
	deadline, ticker := time.After(30*time.Second), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	for {
		now, all := gated(), true
		for _, line := range before {
			all = all && (line == "" || !strings.Contains(now, line+"\n"))
		}
		if all && now != "" {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("not gated again: %s", now)
		case <-ticker.C:
		}
	}
}

func passwordOf(t *testing.T, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil || config.Password == "" {
		t.Fatal("the test's database has no password")
	}
	return config.Password
}
