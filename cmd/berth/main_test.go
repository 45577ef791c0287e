package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/store"
)

// shell runs command lines in-process, as one person on one machine.
type shell struct {
	t   *testing.T
	s   *apitest.Server
	env []string
}

// said is what a command line printed.
type said struct {
	out, err string
	code     int
}

func newShell(t *testing.T) *shell {
	s := apitest.OnSQLite(t)
	return &shell{t: t, s: s, env: []string{"BERTH_CONFIG_DIR=" + t.TempDir(), "BERTH_URL=" + s.URL}}
}

// as makes a user and logs in.
func (sh *shell) as(name string, roles ...berth.Role) *shell {
	sh.t.Helper()
	sh.s.User(name, roles...)
	sh.wants(exitOK, sh.with(apitest.Password+"\n", "login", "--name", name, "--password-stdin"))
	return sh
}

func (sh *shell) run(args ...string) said { return sh.with("", args...) }

func (sh *shell) with(stdin string, args ...string) said {
	var out, errs bytes.Buffer
	code := run(sh.t.Context(), args, sh.env, strings.NewReader(stdin), &out, &errs)
	return said{out.String(), errs.String(), code}
}

func (sh *shell) wants(code int, got said) said {
	sh.t.Helper()
	if got.code != code {
		sh.t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", got.code, code, got.out, got.err)
	}
	return got
}

// ids and instants differ from run to run.
var (
	anID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anAge  = regexp.MustCompile(`\b[0-9]+s\b`)
	aClock = regexp.MustCompile(`\d\d:\d\d:\d\d(\.\d+)?`)
)

func steady(s string) string {
	return aClock.ReplaceAllString(anAge.ReplaceAllString(anID.ReplaceAllString(s, "ID"), "1s"), "12:00:00")
}

// reads compares what a person sees, blind to ids, ages and the width of
// columns.
func (sh *shell) reads(what, got, want string) {
	sh.t.Helper()
	squeeze := func(s string) string {
		lines := strings.Split(strings.TrimSpace(steady(s)), "\n")
		for i, line := range lines {
			lines[i] = strings.Join(strings.Fields(line), " ")
		}
		return strings.Join(lines, "\n")
	}
	if g, w := squeeze(got), squeeze(want); g != w {
		sh.t.Errorf("%s reads\n%s\nwant\n%s", what, g, w)
	}
}

func TestSubmitFollowAndFetch(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	agent := sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	dir := filepath.Join(t.TempDir(), "results")

	done := make(chan said, 1)
	go func() {
		done <- sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--name", "first", "--tag", "a", "--wait", "--output-dir", dir)
	}()
	attempt := agent.Run(onlyTask(t, sh.s))
	attempt.Log("hello\n")
	attempt.Artifact("page.txt", "text/plain", "the page")
	attempt.Complete(berth.OutcomeSucceeded, "", `{"answer":42}`)
	got := sh.wants(exitOK, <-done)
	sh.reads("the result", got.out, "{\n\"answer\": 42\n}\n"+dir+"/page.txt 8 B")
	if !strings.Contains(got.err, "succeeded") {
		t.Errorf("stderr: %s", got.err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "page.txt")); err != nil || string(b) != "the page" {
		t.Errorf("the file holds %q, %v", b, err)
	}

	sh.reads("logs", sh.wants(exitOK, sh.run("task", "logs", "@last", "-f")).out, "hello")
	sh.reads("artifacts", sh.wants(exitOK, sh.run("task", "artifacts", "@last")).out, `
		ATTEMPT NAME CLASS SIZE TYPE
		1 page.txt file 8 B text/plain`)
	sh.reads("list", sh.wants(exitOK, sh.run("task", "list", "--state", "succeeded")).out, `
		ID STATE NAME PLUGIN POOL PRIO TRIES AGE REASON
		ID succeeded first work default 0 1/3 1s`)
	sh.reads("events", sh.wants(exitOK, sh.run("task", "events", "@last")).out, `
		AT EVENT STATE ATTEMPT BY REASON
		12:00:00 submitted queued user
		12:00:00 assigned queued > assigned 1 system
		12:00:00 claimed assigned > claimed 1 host
		12:00:00 started claimed > running 1 host
		12:00:00 completed running > succeeded 1 host succeeded`)
	shown := sh.wants(exitOK, sh.run("task", "get", "@last")).out
	for _, want := range []string{"State:        succeeded", "Name:         first", "Tries:        1 of 3", "slot a", "lab-1", `"answer": 42`} {
		if !strings.Contains(shown, want) {
			t.Errorf("task get lacks %q:\n%s", want, shown)
		}
	}
	var task client.Task
	if err := json.Unmarshal([]byte(sh.wants(exitOK, sh.run("task", "get", "@last", "-o", "json")).out), &task); err != nil || task.State != "succeeded" {
		t.Errorf("json: %+v, %v", task, err)
	}
}

func TestATaskThatDoesNotSucceedHasItsExitCode(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	agent := sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--max-attempts", "1"))
	agent.Run(onlyTask(t, sh.s)).Complete(berth.OutcomeFailed, "it said no\x1b[31m", "")
	got := sh.wants(exitNoSuccess, sh.run("task", "watch", "@last"))
	sh.reads("watch", got.err, "12:00:00 dead_letter (no_tries_left)\nit said no?[31m")

	sh.reads("retry", sh.wants(exitOK, sh.run("task", "retry", "@last")).out, "ID queued")
	sh.reads("cancel", sh.wants(exitOK, sh.run("task", "cancel", "@last")).out, "ID cancelled")
	sh.wants(exitNoSuccess, sh.run("task", "watch", "@last"))
	got = sh.wants(exitError, sh.run("task", "retry", "@last"))
	if !strings.Contains(got.err, "error: task is cancelled") || !strings.Contains(got.err, "(code wrong_state, request ") {
		t.Errorf("stderr: %s", got.err)
	}
}

func TestSubmitFromFiles(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	for name, tc := range map[string]struct {
		file  string
		tasks int
	}{
		"one":    {`{"plugin":"work","payload":{"do":"x"}}`, 1},
		"array":  {`[{"plugin":"work","payload":{"do":"x"}},{"plugin":"work","payload":{"do":"y"}}]`, 2},
		"object": {`{"tasks":[{"plugin":"work","payload":{"do":"x"}},{"plugin":"work","payload":{"do":"y"}}]}`, 2},
	} {
		got := sh.wants(exitOK, sh.with(tc.file, "task", "submit", "-f", "-"))
		if n := len(anID.FindAllString(got.out, -1)); n != tc.tasks {
			t.Errorf("%s: %d tasks:\n%s", name, n, got.out)
		}
	}
	for file, want := range map[string]string{
		"{\n\"plugin\":\n":                     "error: standard input is not JSON, at line 3\n  try: mend it; a task is an object with at least a plugin\n",
		"7":                                    "error: standard input holds no task\n  try: write one object, or an array of them\n",
		`{"plugin":"nope"}`:                    "error: plugin: unknown plugin\n  try: known is work\n  (code invalid, request ID)\n",
		`{"plugin":"work","payload":{"do":1}}`: "error: payload.do: must be a string\n  try: mend that field and try again\n  (code invalid, request ID)\n",
		`[{"plugin":"work","payload":{"do":1}},{"plugin":"x"}]`: "error: 2 faults:\n  - tasks[0].payload.do: must be a string\n  - tasks[1].plugin: unknown plugin (known is work)\n  (code invalid, request ID)\n",
	} {
		if got := sh.wants(exitError, sh.with(file, "task", "submit", "-f", "-")); steady(got.err) != want || got.out != "" {
			t.Errorf("%q: %s%s\nwant %s", file, got.out, got.err, want)
		}
	}
}

func TestTheFleetIsShown(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	sh.reads("no devices", sh.wants(exitOK, sh.run("device", "list")).err, "No devices. `berth host enrol` lets a host with devices in.")
	sh.s.Agent("lab-1", map[string]string{"os": "linux", "browser": "chromium"})
	sh.reads("devices", sh.run("device", "list").out, `
		NAME STATE POOL HOST DRIVER LABELS ID
		slot a free default lab-1 process browser=chromium,os=linux ID`)
	sh.reads("hosts", sh.run("host", "list").out, `
		NAME STATE POOL BUSY PLUGINS SEEN VERSION ID
		lab-1 online default 0/1 work 1.2.0 1s ago 0.1.0 ID`)
	sh.reads("plugins", sh.run("plugin", "list").out, `
		NAME VERSION STATE DESCRIPTION
		work 1.2.0 enabled Does work.`)
	sh.reads("pool create", sh.wants(exitOK, sh.run("pool", "create", "phones", "--ageing-step", "90s")).out, "phones created")
	sh.wants(exitError, sh.run("pool", "create", "phones"))
	sh.reads("pools", sh.run("pool", "list").out, `
		NAME STATE AGEING STEP AGE
		default active 10m0s 1s
		phones active 1m30s 1s`)
	got := sh.wants(exitOK, sh.run("host", "enrol", "--pool", "phones", "--name-pattern", "lab-*"))
	if !regexp.MustCompile(`^BERTH_ENROLMENT_TOKEN=berth-enrol-\S+ hostagent --server ` + regexp.QuoteMeta(sh.s.URL) + "\n$").MatchString(got.out) {
		t.Errorf("enrol prints %q", got.out)
	}
	for _, list := range []string{"device", "host", "plugin", "pool", "task"} {
		var shape map[string]any
		got := sh.wants(exitOK, sh.run(list, "list", "--output", "json"))
		if err := json.Unmarshal([]byte(got.out), &shape); err != nil || shape[list+"s"] == nil {
			t.Errorf("%s list -o json: %v: %s", list, err, got.out)
		}
	}
}

func TestExitCodesAndRemedies(t *testing.T) {
	sh := newShell(t)
	got := sh.wants(exitForbidden, sh.run("task", "list"))
	sh.reads("not logged in", got.err, "error: not logged in on "+sh.s.URL+"\ntry: berth login "+sh.s.URL)
	sh.s.User("viewer", berth.RoleViewer)
	got = sh.wants(exitForbidden, sh.with("wrong", "login", "--name", "viewer", "--password-stdin"))
	sh.reads("wrong password", got.err, "error: the name or the password is wrong\ntry: check both and try again\n(code unauthenticated, request ID)")
	sh.wants(exitUsage, sh.run("login", "--name", "viewer")) // nobody to ask
	sh.wants(exitOK, sh.with(apitest.Password, "login", "--name", "viewer", "--password-stdin"))

	sh.wants(exitForbidden, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`))
	got = sh.wants(exitNotFound, sh.run("task", "get", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10"))
	if !strings.Contains(got.err, "it does not exist, or it is not yours to see") {
		t.Errorf("stderr: %s", got.err)
	}
	for _, args := range [][]string{
		{"task", "get"},
		{"task", "get", "nope"},
		{"task", "get", "@last"},
		{"task", "nope"},
		{"nope"},
		{"task", "list", "--nope"},
		{"task", "submit"},
		{"task", "submit", "-f", "x", "--plugin", "y"},
		{"task", "submit", "--plugin", "work", "--payload", "{"},
		{"task", "submit", "--plugin", "work", "--output-dir", "x"},
		{"task", "list", "-o", "yaml"},
		{"task", "list", "--since", "yesterday"},
		{"pool", "create"},
		{"device", "list", "x"},
		{"--url", "nonsense", "task", "list"},
	} {
		got := sh.run(args...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "error: ") || !strings.Contains(got.err, "\n  try: ") {
			t.Errorf("%v: exit code %d\nstdout: %s\nstderr: %s", args, got.code, got.out, got.err)
		}
	}
	sh.env = append(sh.env, "BERTH_TOKEN=nonsense")
	got = sh.wants(exitForbidden, sh.run("task", "list"))
	if !strings.Contains(got.err, "the token in BERTH_TOKEN is not valid") || strings.Contains(got.err, "nonsense") {
		t.Errorf("stderr: %s", got.err)
	}
	got = sh.wants(exitUnreachable, sh.run("--url", "http://127.0.0.1:1", "task", "list"))
	if !strings.HasPrefix(got.err, "error: cannot reach Berth at http://127.0.0.1:1: nothing listens there\n  try: ") {
		t.Errorf("stderr: %s", got.err)
	}
	got = sh.wants(exitOK, sh.run("version"))
	if !strings.HasPrefix(got.out, "berth ") {
		t.Errorf("version: %s", got.out)
	}
}

func TestTheLoginFileIsPrivateAndRenewed(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	c := newCLI(sh.env, nil, io.Discard, io.Discard)
	path := c.loginFile()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("login file: %v, %v", info.Mode(), err)
	}
	before, err := readLogins(path)
	if err != nil {
		t.Fatal(err)
	}
	// The access token is over; several commands at once renew it once.
	if err := changeLogins(path, func(l *logins) error {
		stored := l.Logins[sh.s.URL]
		stored.ExpiresAt = time.Now().Add(-time.Minute)
		l.Logins[sh.s.URL] = stored
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if got := sh.run("task", "list"); got.code != exitOK {
				t.Errorf("exit code %d: %s", got.code, got.err)
			}
		})
	}
	wg.Wait()
	after, err := readLogins(path)
	if err != nil || after.Logins[sh.s.URL].RefreshToken == before.Logins[sh.s.URL].RefreshToken {
		t.Errorf("the login was not renewed (%v)", err)
	}
	sh.wants(exitOK, sh.run("logout"))
	sh.wants(exitForbidden, sh.run("task", "list"))
	if _, err := sh.s.Client("").Refresh(t.Context(), after.Logins[sh.s.URL].RefreshToken); !client.HasCode(err, "unauthenticated") {
		t.Errorf("the server still knows the login: %v", err)
	}
}

func TestALoginThatIsNoLongerGoodAsksForALogin(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	for name, expires := range map[string]time.Duration{"the server refuses its token": time.Hour, "it has expired": -time.Hour} {
		err := changeLogins(newCLI(sh.env, nil, io.Discard, io.Discard).loginFile(), func(l *logins) error {
			stored := l.Logins[sh.s.URL]
			stored.AccessToken, stored.RefreshToken, stored.ExpiresAt = "none", "none", time.Now().Add(expires)
			l.Logins[sh.s.URL] = stored
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got := sh.wants(exitForbidden, sh.run("task", "list"))
		if want := "error: the login on " + sh.s.URL + " is over\n  try: berth login " + sh.s.URL + "\n"; !strings.HasPrefix(got.err, want) {
			t.Errorf("%s: %q", name, got.err)
		}
	}
}

// onlyTask waits for the one task there is.
func onlyTask(t *testing.T, s *apitest.Server) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	hint, end := s.Store.Subscribe(store.HintTask, "")
	defer end()
	for {
		tasks, _, err := s.Store.ListTasks(ctx, berth.Scope{All: true}, store.TaskFilter{}, store.Page{})
		if err != nil {
			t.Fatal(err)
		}
		if len(tasks) == 1 {
			return string(tasks[0].ID)
		}
		select {
		case <-hint:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no task came")
		}
	}
}
