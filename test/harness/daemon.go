package harness

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// Daemon is a program that can be started again with the same configuration and
// at the same addresses.
type Daemon struct {
	Name    string
	Program string
	Env     map[string]string
	Args    []string
	// Server is the name of its public server, "" where it has none.
	Server string

	*Process // the current or the last run
	runs     []*Process
	folder   string
	admin    string
	public   string
}

// Start starts the daemon and returns when it listens. The ports that it got at
// first it keeps.
func (d *Daemon) Start(tb testing.TB) {
	tb.Helper()
	d.Launch(tb)
	d.admin = d.Process.Address(tb, "admin")
	d.Env["BERTH_ADMIN_LISTEN"] = d.admin
	if d.Server != "" {
		d.public = d.Process.Address(tb, d.Server)
		d.Env["BERTH_LISTEN"] = d.public
	}
}

// Launch starts the daemon and does not wait.
func (d *Daemon) Launch(tb testing.TB) {
	tb.Helper()
	d.Process = Run(tb, d.folder, Command{Name: d.Name, Path: Program(tb, d.Program), Args: d.Args, Env: d.Env})
	d.runs = append(d.runs, d.Process)
}

// Runs lists the process of each start.
func (d *Daemon) Runs() []*Process { return d.runs }

// Admin is the base URL of its admin server, URL that of its public one.
func (d *Daemon) Admin() string { return "http://" + d.admin }

// URL is the base URL of its public server.
func (d *Daemon) URL() string {
	if d.Env["BERTH_TLS_CERT_FILE"] != "" {
		return "https://" + d.public
	}
	return "http://" + d.public
}

// AwaitReady waits until /readyz answers 200.
func (d *Daemon) AwaitReady(tb testing.TB) {
	tb.Helper()
	var status int
	var body string
	ok := poll(Patience, func() bool {
		status, body = Get(d.Admin() + "/readyz")
		return status == http.StatusOK || d.Ended()
	})
	if !ok || status != http.StatusOK {
		tb.Fatalf("%s is not ready: %d %s", d.Name, status, body)
	}
}

// Get gets a URL without following or keeping anything; status 0 where nobody
// answers.
func Get(url string) (status int, body string) {
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}
