package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/test/harness"
)

// act is what the test does to a task after its submit.
type act string

const (
	leave        act = ""
	cancelQueued act = "cancel while it is queued"
	cancelRuns   act = "cancel while it runs"
	cancelLast   act = "cancel when all else is over"
)

// kind is a row of the table: so many tasks of a kind, and how they must end.
type kind struct {
	name  string
	count int
	spec  func(n int) client.TaskSpec
	act   act

	state    client.TaskState
	reason   string
	attempts int
	outcome  client.Outcome // of the last attempt
	code     string         // reason of the last attempt; "": any
	host     string         // that every attempt was on; "": any
	check    func(t *testing.T, task client.Task, attempts []client.Attempt)
}

// mixedKinds lists the 200 tasks and their ends.
func mixedKinds(t *testing.T, dir, page string) []kind {
	shell := func(selector, script string) client.TaskSpec {
		s := harness.Shell(t, script)
		s.Selector = selector
		return s
	}
	retry := func(s client.TaskSpec, tries int) client.TaskSpec {
		s.Retry = &client.RetrySpec{MaxAttempts: &tries, BackoffInitialSeconds: ptr(0.05), BackoffMaxSeconds: ptr(0.5)}
		return s
	}
	browser := func(selector string, steps ...map[string]any) client.TaskSpec {
		return client.TaskSpec{
			Plugin: "browser.script", PluginVersion: "^1", Selector: selector,
			Payload: harness.Payload(t, map[string]any{"steps": steps}),
		}
	}
	open := map[string]any{"goto": map[string]any{"url": page}}
	read := map[string]any{"read": map[string]any{"name": "heading", "selector": "h1"}}
	return []kind{
		{name: "echo", count: 52, spec: func(n int) client.TaskSpec {
			s := shell("driver=process", "echo hello")
			s.Priority = n % 10
			return s
		}, state: client.TaskStateSucceeded, reason: "", attempts: 1, outcome: client.OutcomeSucceeded},
		{
			name: "page", count: 14, spec: func(int) client.TaskSpec { return browser("browser=chromium", open, read) },
			state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded,
		},
		{name: "page-that-says-no", count: 4, spec: func(int) client.TaskSpec {
			return retry(browser("driver=chromium", open, map[string]any{"assert": map[string]any{"title": "another"}, "timeout_ms": 300}), 1)
		}, state: client.TaskStateDeadLetter, reason: "no_tries_left", attempts: 1, outcome: client.OutcomeFailed},
		{
			name: "page-on-one", count: 2, spec: func(int) client.TaskSpec { return browser("driver=chromium,site in (one)", open) },
			state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded, host: "one",
		},
		{name: "third-time-lucky", count: 14, spec: func(n int) client.TaskSpec {
			file := filepath.Join(dir, fmt.Sprintf("counter-%d", n))
			return retry(shell("driver=process", fmt.Sprintf("echo x >> %[1]s; [ $(wc -l < %[1]s) -ge 3 ]", file)), 3)
		}, state: client.TaskStateSucceeded, attempts: 3, outcome: client.OutcomeSucceeded},
		{
			name: "never", count: 14, spec: func(int) client.TaskSpec { return retry(shell("driver=process", "exit 1"), 2) },
			state: client.TaskStateDeadLetter, reason: "no_tries_left", attempts: 2, outcome: client.OutcomeFailed, code: "exit_code",
		},
		{name: "expected-code", count: 6, spec: func(int) client.TaskSpec {
			s := shell("driver=process", "")
			s.Payload = harness.Payload(t, map[string]any{"command": []string{"sh", "-c", "exit 7"}, "expected_exit_codes": []int{7}})
			return s
		}, state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded},
		{name: "not-to-be-retried", count: 6, spec: func(int) client.TaskSpec {
			s := shell("driver=process", "exit 3")
			s.Retry = &client.RetrySpec{On: &[]client.RetriedOutcome{client.RetriedOutcomeLost}}
			return s
		}, state: client.TaskStateDeadLetter, reason: "not_retryable", attempts: 1, outcome: client.OutcomeFailed, code: "exit_code"},
		{name: "once-only", count: 6, spec: func(int) client.TaskSpec {
			s := shell("driver=process", "exit 1")
			s.Retry = &client.RetrySpec{RetrySafe: ptr(false)}
			return s
		}, state: client.TaskStateDeadLetter, reason: "not_retry_safe", attempts: 1, outcome: client.OutcomeFailed},
		{name: "endless", count: 6, spec: func(int) client.TaskSpec {
			s := retry(shell("driver=process", "exec sleep 600"), 1)
			s.RunTimeoutSeconds = 1
			return s
		}, state: client.TaskStateDeadLetter, reason: "no_tries_left", attempts: 1, outcome: client.OutcomeTimedOut, code: "run_timeout"},
		{
			name: "cancelled-queued", count: 10, act: cancelQueued, spec: func(int) client.TaskSpec { return shell("site=nowhere", "true") },
			state: client.TaskStateCancelled, reason: "cancelled",
		},
		{
			name: "cancelled-running", count: 6, act: cancelRuns, spec: func(int) client.TaskSpec { return shell("driver=process", "exec sleep 600") },
			state: client.TaskStateCancelled, reason: "cancelled", attempts: 1, outcome: client.OutcomeCancelled,
		},
		{name: "later", count: 10, spec: func(int) client.TaskSpec {
			s := shell("driver=process", "true")
			s.NotBefore = time.Now().Add(3 * time.Second)
			return s
		}, state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded, check: notBefore},
		{
			name: "on-one", count: 18, spec: func(int) client.TaskSpec { return shell("driver=process,site=one", "true") },
			state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded, host: "one",
		},
		{
			name: "on-two", count: 18, spec: func(int) client.TaskSpec { return shell("driver!=chromium,site notin (one)", "true") },
			state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded, host: "two",
		},
		{
			name: "nobody-fits", count: 4, act: cancelLast, spec: func(int) client.TaskSpec { return shell("driver=process,site=elsewhere", "true") },
			state: client.TaskStateCancelled, reason: "cancelled",
		},
		{name: "by-priority", count: 10, spec: func(n int) client.TaskSpec {
			s := browser("driver=chromium,site=two", open)
			s.Priority = (n * 7) % 10 // each once, in no order
			return s
		}, state: client.TaskStateSucceeded, attempts: 1, outcome: client.OutcomeSucceeded, host: "two"},
	}
}

func notBefore(t *testing.T, task client.Task, attempts []client.Attempt) {
	t.Helper()
	if len(attempts) > 0 && attempts[0].AssignedAt.Before(task.NotBefore) {
		t.Errorf("task %s ran %v before its time", task.ID, task.NotBefore.Sub(attempts[0].AssignedAt))
	}
}

// TestTwoHundredMixedTasks: 200 tasks, 2 agents with 8 devices, 2 of each
// daemon; all end as the table says, and no device is ever held twice.
func TestTwoHundredMixedTasks(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(demo.Handler())
	defer page.Close()
	c := harness.NewCluster(t, harness.Options{APIs: 2, Schedulers: 2, Leasekeepers: 2})
	one := c.AddAgent(t, harness.AgentOptions{Name: "one", Processes: 3, Browsers: 1, Labels: []string{"site=one"}, Loopback: true})
	two := c.AddAgent(t, harness.AgentOptions{Name: "two", Processes: 3, Browsers: 1, Labels: []string{"site=two"}, Loopback: true, API: 1})
	second, _ := harness.Login(t, c.APIs[1].URL(), harness.Admin, c.Password, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}})

	kinds := mixedKinds(t, c.Folder, page.URL+"/")
	tasks := make([][]client.Task, len(kinds))
	total := 0
	for i, k := range kinds {
		var specs []client.TaskSpec
		for n := range k.count {
			s := k.spec(n)
			s.Name, s.Tags = k.name, []string{"mixed"}
			specs = append(specs, s)
		}
		cl := []*client.Client{c.Client, second}[i%2]
		batch, err := cl.SubmitTasks(t.Context(), specs, client.SubmitOptions{})
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		tasks[i] = batch
		total += len(batch)
	}
	if total != 200 {
		t.Fatalf("the table has %d tasks", total)
	}
	cancelMarked(t, c, second, kinds, tasks, cancelQueued, client.TaskStateQueued)
	cancelMarked(t, c, second, kinds, tasks, cancelRuns, client.TaskStateRunning)
	for i, k := range kinds {
		if k.act == cancelLast {
			continue
		}
		for _, task := range tasks[i] {
			checkEnd(t, c, k, task.ID)
		}
	}
	cancelMarked(t, c, second, kinds, tasks, cancelLast, client.TaskStateQueued)
	for i, k := range kinds {
		switch {
		case k.act == cancelLast:
			for _, task := range tasks[i] {
				checkEnd(t, c, k, task.ID)
			}
		case k.name == "by-priority":
			checkPriorities(t, c, tasks[i])
		}
	}
	one.Stop(t)
	two.Stop(t)
	c.Stop(t)
	checkHistory(t, c)
	checkJournals(t, one, two)
	if live := c.Query(t, "SELECT id FROM attempts WHERE ended_at IS NULL"); len(live) > 0 {
		t.Errorf("%d attempts are live in the end", len(live))
	}
}

func cancelMarked(t *testing.T, c *harness.Cluster, other *client.Client, kinds []kind, tasks [][]client.Task, what act, state client.TaskState) {
	t.Helper()
	for i, k := range kinds {
		if k.act != what {
			continue
		}
		for n, task := range tasks[i] {
			harness.AwaitState(t, c.Client, task.ID, state, 2*harness.Patience)
			if _, err := []*client.Client{c.Client, other}[n%2].CancelTask(t.Context(), task.ID); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
}

func checkEnd(t *testing.T, c *harness.Cluster, k kind, id string) {
	t.Helper()
	task := harness.Finished(t, c.Client, id, 3*harness.Patience)
	attempts := harness.Attempts(t, c.Client, id)
	reason := task.Reason
	if task.State == client.TaskStateSucceeded {
		reason = ""
	}
	if task.State != k.state || reason != k.reason || len(attempts) != k.attempts || task.Attempts != k.attempts {
		t.Errorf("%s: %s (%s) after %d attempts, want %s (%s) after %d; %+v", k.name, task.State, task.Reason, len(attempts), k.state, k.reason, k.attempts, attempts)
		return
	}
	for i, a := range attempts {
		want, code := client.OutcomeFailed, ""
		if i == len(attempts)-1 {
			want, code = k.outcome, k.code
		}
		if a.Number != i+1 || a.Outcome != want || (code != "" && a.Reason != code) || (k.host != "" && a.HostName != k.host) {
			t.Errorf("%s: attempt %d of %s ended as %s (%s) on %s, want %s (%s) on %q", k.name, a.Number, id, a.Outcome, a.Reason, a.HostName, want, code, k.host)
		}
	}
	if k.check != nil {
		k.check(t, task, attempts)
	}
}

// checkPriorities: on the one device that fits, the most urgent went first.
func checkPriorities(t *testing.T, c *harness.Cluster, tasks []client.Task) {
	t.Helper()
	type placed struct {
		priority int
		at       time.Time
	}
	var order []placed
	for _, task := range tasks {
		order = append(order, placed{task.Priority, harness.Attempts(t, c.Client, task.ID)[0].AssignedAt})
	}
	slices.SortFunc(order, func(a, b placed) int { return a.at.Compare(b.at) })
	for i := 1; i < len(order); i++ {
		if order[i].priority > order[i-1].priority {
			t.Errorf("placed in the order %+v", order)
			return
		}
	}
}
