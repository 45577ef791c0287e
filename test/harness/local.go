package harness

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
)

// Local is `berth up`: everything in one process on SQLite.
type Local struct {
	*Process
	Folder, DataDir string
	// URL of the API and DemoURL of the demo page.
	URL, DemoURL string
	Client       *client.Client
	Password     string
	Tokens       client.Tokens

	browsers, processes int
	http                *http.Client
}

// Up starts `berth up` in a new folder and returns when it said that it is up,
// logged in.
func Up(tb testing.TB, browsers, processes int) *Local {
	tb.Helper()
	folder := Folder(tb)
	l := &Local{
		Folder: folder, DataDir: filepath.Join(folder, "data"), browsers: browsers, processes: processes,
		http: &http.Client{Transport: &http.Transport{}},
	}
	tb.Cleanup(l.http.CloseIdleConnections)
	l.Start(tb)
	return l
}

// Start starts it, again perhaps, and logs in.
func (l *Local) Start(tb testing.TB) {
	tb.Helper()
	l.Process = Run(tb, l.Folder, l.Command(tb))
	var out string
	up := poll(Patience, func() bool {
		b, err := os.ReadFile(l.LogPath)
		out = string(b)
		return err == nil && strings.Contains(out, "Ctrl-C stops everything.") || l.Ended()
	})
	if !up || l.Ended() {
		tb.Fatalf("berth up is not up:\n%s%s%s", out, tail(l.ErrPath, 2000), tail(l.LogFile(), 3000))
	}
	l.URL = after(tb, out, "Berth is up at ")
	l.DemoURL = strings.TrimSpace(after(tb, out, "demo page"))
	password, err := os.ReadFile(filepath.Join(l.DataDir, "admin-password"))
	if err != nil {
		tb.Fatal(err)
	}
	l.Password = strings.TrimSpace(string(password))
	l.Client, l.Tokens = Login(tb, l.URL, Admin, l.Password, l.http)
}

// Command is what Start runs.
func (l *Local) Command(tb testing.TB) Command {
	tb.Helper()
	return Command{Name: "berth-up", Path: Program(tb, "berth"), Args: []string{
		"up", "--data-dir", l.DataDir, "--listen", "127.0.0.1:0", "--demo-listen", "127.0.0.1:0",
		"--chromium", strconv.Itoa(l.browsers), "--process", strconv.Itoa(l.processes), "--log-level", "debug",
	}}
}

// LogFile is where it logs.
func (l *Local) LogFile() string { return filepath.Join(l.DataDir, "berth.log") }

// after is the rest of the line that holds a text.
func after(tb testing.TB, out, text string) string {
	tb.Helper()
	_, rest, ok := strings.Cut(out, text)
	line, _, _ := strings.Cut(rest, "\n")
	if !ok {
		tb.Fatalf("berth up did not print %q:\n%s", text, out)
	}
	return strings.TrimSpace(line)
}
