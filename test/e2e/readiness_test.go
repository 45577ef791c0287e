package e2e

import (
	"database/sql"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// health is what a test wants to see on a daemon's ports.
type health struct {
	t *testing.T
	c *harness.Cluster
	// secrets must be in no body.
	secrets []string
}

// becomes waits until /readyz of every daemon says code ("ready" or another),
// while /livez goes on answering 200, and the API's routes say the same.
func (h health) becomes(code string) {
	h.t.Helper()
	want := http.StatusServiceUnavailable
	if code == "ready" {
		want = http.StatusOK
	}
	for _, d := range h.c.Daemons() {
		var status int
		var body string
		harness.Eventually(h.t, harness.Patience, d.Name+" is "+code, func() bool {
			status, body = harness.Get(d.Admin() + "/readyz")
			h.clean(body)
			if live, b := harness.Get(d.Admin() + "/livez"); live != http.StatusOK {
				h.t.Fatalf("/livez of %s: %d %s", d.Name, live, b)
			}
			return status == want && strings.TrimSpace(body) == `{"code":"`+code+`"}`
		})
	}
	h.routes(code)
}

// routes of the API answer 503 with the code while it is not ready, whoever
// asks.
func (h health) routes(code string) {
	h.t.Helper()
	for _, path := range []string{"/api/v1/tasks", "/api/v1/devices", "/agent/v1/claims"} {
		want := http.StatusUnauthorized
		if code != "ready" {
			want = http.StatusServiceUnavailable
		}
		harness.Eventually(h.t, harness.Patience, path+" answers as it is "+code, func() bool {
			method := http.MethodGet
			if strings.HasPrefix(path, "/agent") {
				method = http.MethodPost
			}
			req, err := http.NewRequestWithContext(h.t.Context(), method, h.c.APIs[0].URL()+path, nil)
			if err != nil {
				h.t.Fatal(err)
			}
			res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
			if err != nil {
				return false
			}
			defer func() { _ = res.Body.Close() }()
			var problem struct {
				Code   string `json:"code"`
				Detail string `json:"detail"`
			}
			if err := json.NewDecoder(res.Body).Decode(&problem); err != nil {
				h.t.Fatalf("%s: %v", path, err)
			}
			h.clean(problem.Code + problem.Detail)
			return res.StatusCode == want && (code == "ready" || problem.Code == code)
		})
	}
}

func (h health) clean(body string) {
	h.t.Helper()
	for _, s := range append(h.secrets, "postgres://", "sqlite://", "password", "dial tcp", "SQLSTATE") {
		if s != "" && strings.Contains(body, s) {
			h.t.Errorf("a body holds %q: %s", s, body)
		}
	}
}

// TestReadinessOfEveryDaemon: database down, schema behind, ahead and dirty, on
// running processes and on freshly started ones.
func TestReadinessOfEveryDaemon(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		server := quietServer(t)
		createDatabase(t, server, "health", "template0")
		c := harness.Prepare(t, harness.Options{DSN: server.DSN("health")})
		u, err := url.Parse(c.DatabaseURL)
		if err != nil {
			t.Fatal(err)
		}
		password, _ := u.User.Password()
		h := health{t: t, c: c, secrets: []string{password, u.Host, c.Password, c.MasterKey}}
		if err := server.Stop(true); err != nil {
			t.Fatal(err)
		}
		for _, d := range c.Daemons() {
			d.Start(t) // with no database at all
		}
		h.becomes("database_unreachable")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		h.becomes("schema_behind")
		c.Migrate(t, "up")
		h.becomes("ready")
		c.Login(t)
		schemaVersions(t, h, "pgx", c.OwnerURL)
		if err := server.Stop(true); err != nil {
			t.Fatal(err)
		}
		h.becomes("database_unreachable")
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		h.becomes("ready")
		c.Stop(t)
	})
	t.Run("sqlite", func(t *testing.T) {
		c := harness.Prepare(t, harness.Options{Engine: harness.SQLite})
		h := health{t: t, c: c, secrets: []string{c.File(), c.Password, c.MasterKey}}
		for _, d := range c.Daemons() {
			d.Start(t)
		}
		h.becomes("schema_behind")
		c.Stop(t)
		c.Migrate(t, "up")
		for _, d := range c.Daemons() {
			d.Start(t)
		}
		h.becomes("ready")
		schemaVersions(t, h, "sqlite3", "file:"+c.File()+"?_busy_timeout=10000")
		c.Stop(t)
	})
}

// schemaVersions moves the noted version under running daemons.
func schemaVersions(t *testing.T, h health, driver, dsn string) {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, step := range []struct{ sql, code string }{
		{"UPDATE schema_migrations SET dirty = true", "schema_dirty"},
		{"UPDATE schema_migrations SET dirty = false, version = version + 1", "schema_ahead"},
		{"UPDATE schema_migrations SET version = version - 2", "schema_behind"},
		{"UPDATE schema_migrations SET version = version + 1", "ready"},
	} {
		if _, err := db.ExecContext(t.Context(), step.sql); err != nil {
			t.Fatalf("%s: %v", step.sql, err)
		}
		h.becomes(step.code)
	}
}

// TestHostAgentReadiness: the agent is ready while its server answers.
func TestHostAgentReadiness(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, harness.Options{Engine: harness.SQLite, Env: shortLeases()})
	a := c.AddAgent(t, harness.AgentOptions{Name: "ready", Processes: 1})
	a.AwaitReady(t)
	c.Stop(t)
	harness.Eventually(t, harness.Patience, "the agent is not ready without its server", func() bool {
		status, body := harness.Get(a.Admin() + "/readyz")
		live, _ := harness.Get(a.Admin() + "/livez")
		return status == http.StatusServiceUnavailable && strings.TrimSpace(body) == `{"code":"server_unreachable"}` && live == http.StatusOK
	})
	c.Start(t)
	a.AwaitReady(t)
	a.Stop(t)
}

// TestSecondProcessOnAnSQLiteFile: it is refused with the reason, and the first
// one goes on.
func TestSecondProcessOnAnSQLiteFile(t *testing.T) {
	t.Parallel()
	t.Run("api", func(t *testing.T) {
		c := harness.NewCluster(t, harness.Options{Engine: harness.SQLite})
		for _, program := range []string{"api", "scheduler", "leasekeeper"} {
			env := map[string]string{}
			for k, v := range c.APIs[0].Env {
				env[k] = v
			}
			env["BERTH_LISTEN"], env["BERTH_ADMIN_LISTEN"] = "127.0.0.1:0", "127.0.0.1:0"
			d := c.Daemon(program, "second-"+program, env)
			d.Launch(t)
			mustBeRefused(t, d.Process, c.APIs[0].Pid())
		}
		c.Submit(t, harness.Shell(t, "true"))
		c.APIs[0].Process.Kill() // the lock goes with the process
		c.Start(t)
	})
	t.Run("berth up", func(t *testing.T) {
		l := harness.Up(t, 0, 1)
		mustBeRefused(t, harness.Run(t, l.Folder, l.Command(t)), l.Pid())
		harness.Submit(t, l.Client, harness.Shell(t, "true"), client.SubmitOptions{})
		l.Stop(t)
		if _, err := os.Stat(l.DataDir); err != nil {
			t.Error(err)
		}
	})
}

func mustBeRefused(t *testing.T, p *harness.Process, holder int) {
	t.Helper()
	code, err := p.Exit(harness.Patience)
	if err != nil {
		t.Fatal(err)
	}
	_, stderr := p.Output(t)
	if code == 0 || !strings.Contains(stderr, "another Berth control plane") || !strings.Contains(stderr, strconv.Itoa(holder)) {
		t.Errorf("%s ended with %d: %s", p.Name, code, stderr)
	}
}
