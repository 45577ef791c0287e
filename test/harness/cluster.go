package harness

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
)

// Engine is where a cluster keeps its state.
type Engine string

// The engines.
const (
	Postgres Engine = "postgres"
	// SQLite: one process that has all duties of the control plane.
	SQLite Engine = "sqlite"
)

// Engines lists both.
func Engines() []Engine { return []Engine{SQLite, Postgres} }

// Options of a cluster. The zero value is one of each daemon on Postgres.
type Options struct {
	Engine Engine // "": Postgres
	// APIs, Schedulers and Leasekeepers count the daemons; 0: 1, below: none.
	// On SQLite there is one process.
	APIs, Schedulers, Leasekeepers int
	// DSN of a database to use; "": a new one of the tests' server.
	DSN string
	// Env is added to every daemon's environment.
	Env map[string]string
	// TLS of the test's own client; nil: the system's.
	TLS *tls.Config
}

// Admin is the first administrator of every cluster.
const Admin = "admin"

// Cluster is a control plane of real processes, and its agents.
type Cluster struct {
	Engine Engine
	// Folder of the test: logs, blobs, agents' states.
	Folder string
	// DatabaseURL as the daemons are told it: on Postgres that of a role which
	// owns nothing.
	DatabaseURL string
	// OwnerURL is for migrations, and for tests that change what daemons may not.
	OwnerURL     string
	APIs         []*Daemon
	Schedulers   []*Daemon
	Leasekeepers []*Daemon
	Agents       []*Agent
	// Client is the administrator at the first API.
	Client *client.Client
	// Password of the administrator, Tokens of the last login, and MasterKey:
	// what must be seen nowhere.
	Password, MasterKey string
	Tokens              client.Tokens

	role role // of the daemons, on Postgres
	env  map[string]string
	http *http.Client
}

// NewCluster migrates the database with `berth migrate up`, starts the daemons,
// and logs in. Everything ends with the test.
func NewCluster(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	c := Prepare(tb, o)
	c.Migrate(tb, "up")
	c.Start(tb)
	c.Login(tb)
	return c
}

// Prepare makes a cluster that is not migrated and not started.
func Prepare(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	if o.Engine == "" {
		o.Engine = Postgres
	}
	c := &Cluster{
		Engine: o.Engine, Folder: Folder(tb), Password: "Pw-canary-" + random(), OwnerURL: o.DSN,
		MasterKey: hexKey(),
		http:      &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32, TLSClientConfig: o.TLS}},
	}
	tb.Cleanup(c.http.CloseIdleConnections)
	switch {
	case o.Engine == SQLite:
		c.OwnerURL = "sqlite://" + filepath.Join(c.Folder, "berth.db")
	case o.DSN == "":
		c.OwnerURL, c.role = newDatabase(tb)
	default:
		c.role = makeRole(tb, o.DSN)
	}
	c.DatabaseURL = c.Runtime(tb, c.OwnerURL)
	c.env = map[string]string{
		"BERTH_DATABASE_URL": c.DatabaseURL, "BERTH_LOG_LEVEL": "debug", "BERTH_ADMIN_LISTEN": "127.0.0.1:0",
		"BERTH_SHUTDOWN_WITHIN": "15s",
	}
	maps.Copy(c.env, o.Env)
	c.define(tb, o)
	return c
}

// define lists the daemons of the cluster.
func (c *Cluster) define(tb testing.TB, o Options) {
	tb.Helper()
	keyFile := c.write(tb, "master.key", c.MasterKey+"\n")
	passwordFile := c.write(tb, "admin-password", c.Password+"\n")
	api := map[string]string{
		"BERTH_LISTEN": "127.0.0.1:0", "BERTH_BLOB_DIR": filepath.Join(c.Folder, "blobs"),
		"BERTH_MASTER_KEY_FILE": keyFile, "BERTH_ADMIN_NAME": Admin, "BERTH_ADMIN_PASSWORD_FILE": passwordFile,
	}
	if o.Engine == SQLite {
		o.APIs, o.Schedulers, o.Leasekeepers = 1, -1, -1
		api["BERTH_WORKERS"] = "scheduler,leasekeeper"
	}
	for n := range count(o.APIs) {
		d := c.Daemon("api", "api-"+strconv.Itoa(n+1), api)
		d.Server = "api"
		c.APIs = append(c.APIs, d)
	}
	for n := range count(o.Schedulers) {
		c.Schedulers = append(c.Schedulers, c.Daemon("scheduler", "scheduler-"+strconv.Itoa(n+1), nil))
	}
	for n := range count(o.Leasekeepers) {
		c.Leasekeepers = append(c.Leasekeepers, c.Daemon("leasekeeper", "leasekeeper-"+strconv.Itoa(n+1), nil))
	}
}

func count(n int) int {
	if n == 0 {
		return 1
	}
	return max(n, 0)
}

// Daemon makes a daemon of the cluster that is not started, with more variables.
func (c *Cluster) Daemon(program, name string, env map[string]string) *Daemon {
	all := maps.Clone(c.env)
	maps.Copy(all, env)
	return &Daemon{Name: name, Program: program, Env: all, folder: c.Folder}
}

func (c *Cluster) write(tb testing.TB, name, content string) string {
	tb.Helper()
	path := filepath.Join(c.Folder, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Runtime is the URL of a database of the cluster's server, or of a copy of the
// cluster's, as its daemons may use it. SQLite's stays itself.
func (c *Cluster) Runtime(tb testing.TB, owner string) string {
	tb.Helper()
	if c.Engine == SQLite {
		return owner
	}
	return c.role.in(tb, owner)
}

// Migrate runs `berth migrate <args>` and fails the test where that fails. On
// Postgres `up` also grants the daemons' role what it needs.
func (c *Cluster) Migrate(tb testing.TB, args ...string) {
	tb.Helper()
	if c.Engine == Postgres && args[0] == "up" {
		args = append(args, "--grant-to", c.role.name)
	}
	p := c.Berth(tb, append([]string{"migrate"}, args...)...)
	p.MustExit(tb, Patience, 0)
}

// Berth starts the command line with the database's URL, the owner's, in its
// environment.
func (c *Cluster) Berth(tb testing.TB, args ...string) *Process {
	tb.Helper()
	return Run(tb, c.Folder, Command{
		Name: "berth", Path: Program(tb, "berth"), Args: args, Env: map[string]string{"BERTH_DATABASE_URL": c.OwnerURL},
	})
}

// Daemons lists those of the control plane.
func (c *Cluster) Daemons() []*Daemon {
	var all []*Daemon
	all = append(all, c.APIs...)
	all = append(all, c.Schedulers...)
	return append(all, c.Leasekeepers...)
}

// Start starts every daemon of the control plane and waits until all are ready.
func (c *Cluster) Start(tb testing.TB) {
	tb.Helper()
	for _, d := range c.Daemons() {
		d.Start(tb)
	}
	for _, d := range c.Daemons() {
		d.AwaitReady(tb)
	}
}

// Stop ends the control plane by SIGTERM; every daemon must exit with 0.
func (c *Cluster) Stop(tb testing.TB) {
	tb.Helper()
	for _, d := range c.Daemons() {
		d.Terminate()
	}
	for _, d := range c.Daemons() {
		d.MustExit(tb, Patience, 0)
	}
}

// Kill ends the control plane by SIGKILL.
func (c *Cluster) Kill() {
	for _, d := range c.Daemons() {
		d.Process.Kill()
	}
}

// Login logs in as the administrator at the first API and sets Client.
func (c *Cluster) Login(tb testing.TB) {
	tb.Helper()
	c.Client, c.Tokens = Login(tb, c.APIs[0].URL(), Admin, c.Password, c.http)
}

// Login logs in anywhere; the client renews its tokens by itself.
func Login(tb testing.TB, url, name, password string, h *http.Client) (*client.Client, client.Tokens) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	plain, err := client.New(url, nil, client.WithHTTP(h))
	if err != nil {
		tb.Fatal(err)
	}
	tokens, err := plain.Login(ctx, name, password)
	if err != nil {
		tb.Fatalf("login at %s: %v", url, err)
	}
	session, err := client.NewSession(url, client.GrantOf(tokens, time.Now()), nil)
	if err != nil {
		tb.Fatal(err)
	}
	cl, err := client.New(url, session, client.WithHTTP(h), client.WithRetryFor(Patience))
	if err != nil {
		tb.Fatal(err)
	}
	return cl, tokens
}

// Logs lists the log and error files of every process that ran in the folder.
func (c *Cluster) Logs(tb testing.TB) []string {
	tb.Helper()
	var out []string
	for _, pattern := range []string{"*.log", "*.err"} {
		paths, err := filepath.Glob(filepath.Join(c.Folder, pattern))
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, paths...)
	}
	return out
}

// ControlLines are the lines of every daemon of the control plane, over all its
// runs; each says in "process" whose it is.
func (c *Cluster) ControlLines(tb testing.TB) []Line {
	tb.Helper()
	var out []Line
	for _, d := range c.Daemons() {
		for _, p := range d.Runs() {
			for _, l := range p.Lines(tb) {
				l["process"] = d.Name
				out = append(out, l)
			}
		}
	}
	return out
}

// File is the SQLite file.
func (c *Cluster) File() string { return strings.TrimPrefix(c.DatabaseURL, "sqlite://") }

// String names the cluster.
func (c *Cluster) String() string { return fmt.Sprintf("%s cluster in %s", c.Engine, c.Folder) }
