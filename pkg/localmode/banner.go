package localmode

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// firstTask is the task that a new user submits: order a berth on the demo page,
// or, without a browser, run a command.
func firstTask(r Running) []byte {
	type object = map[string]any
	task := object{
		"name": "first task", "plugin": manifest.ProcessRunName, "plugin_version": "^1", "selector": "driver=process",
		"payload": object{"command": []string{"echo", "Hello from Berth"}},
	}
	if r.Browsers > 0 {
		task = object{
			"name": "first task", "plugin": manifest.BrowserScriptName, "plugin_version": "^1", "selector": "browser=chromium",
			"payload": json.RawMessage(demo.FirstTask(r.DemoURL)),
		}
	}
	b, err := json.MarshalIndent(task, "", "  ")
	if err != nil {
		panic("localmode: " + err.Error()) // strings always encode
	}
	return append(b, '\n')
}

// speaker says things to the person at the terminal.
type speaker struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *speaker) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// banner tells where Berth is and what to do first.
func (s *speaker) banner(r Running, secret secrets, o Options) {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	berth := program()
	password, task := shellPath(r.PasswordFile), shellPath(r.TaskFile)

	say("")
	say("Berth is up at %s", r.URL)
	switch {
	case o.NoAgent:
		say("  devices     none here (--no-agent); enrol a host with: %s host enrol", berth)
	case r.Browsers > 0:
		say("  devices     %d browser, %d process", r.Browsers, o.Processes)
	default:
		say("  devices     %d process", o.Processes)
	}
	say("  demo page   %s", r.DemoURL)
	say("  log         %s", shellPath(r.LogFile))
	if secret.fresh {
		say("  login       user %s, password %s (shown once, kept in %s)", r.AdminName, secret.password.Reveal(), password)
	} else {
		say("  login       user %s, password in %s", r.AdminName, password)
	}
	say("")
	say("Log in, and run the first task:")
	say("")
	say("  %s login %s --name %s --password-file %s", berth, r.URL, r.AdminName, password)
	say("  %s task submit -f %s --wait --output-dir results", berth, task)
	say("")
	say("What it leaves is then in the folder results; later: %s task artifacts @last", berth)
	say("")
	say("The same with curl:")
	say("")
	say(`  TOKEN=$(curl -s %s/api/v1/auth/login -H 'Content-Type: application/json' -d "{\"name\":\"%s\",\"password\":\"$(cat %s)\"}" | sed 's/.*"access_token":"\([^"]*\)".*/\1/')`, r.URL, r.AdminName, password)
	say(`  curl -s "%s/api/v1/tasks?wait=25" -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' -d @%s`, r.URL, task)
	say("")
	say("Ctrl-C stops everything.")
	s.line("%s", b.String())
}

// program is how the user calls this program.
func program() string {
	name := os.Args[0]
	if filepath.Base(name) != "berth" {
		return "berth" // a test, or another program that embeds local mode
	}
	return name
}

// shellPath is a path as one can paste it, relative where that is shorter.
func shellPath(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
			path = rel
		}
	}
	if strings.ContainsAny(path, " '\"$&;()") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.Host
}
