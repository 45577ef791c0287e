package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// TestARunWhileEverySecondAnswerIsLost: a real Host Agent and the real client
// stand behind a proxy that loses the first, third, fifth ... answer of every
// kind of call. All tasks end right, and everything has happened once: the work,
// the attempts, the tasks, the pool.
func TestARunWhileEverySecondAnswerIsLost(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c := harness.NewCluster(t, harness.Options{Engine: engine, Env: map[string]string{"BERTH_RENEW_EVERY": "500ms", "BERTH_REQUEST_TIMEOUT": "4s"}})
		proxy := c.Lossy(t, c.APIs[0].URL)
		proxy.LoseEverySecond()
		agent := c.AddAgent(t, harness.AgentOptions{Name: "behind", Processes: 4, Server: proxy.URL})
		h := &http.Client{Transport: &http.Transport{}}
		defer h.CloseIdleConnections()
		cl, _ := harness.Login(t, proxy.URL, harness.Admin, c.Password, h)

		if _, err := cl.CreatePool(t.Context(), client.PoolSpec{Name: "once"}); err != nil {
			t.Errorf("create pool: %v", err)
		}
		effects := filepath.Join(c.Folder, "effects")
		var specs []client.TaskSpec
		for n := range 30 {
			// Long enough to be renewed.
			spec := harness.Shell(t, fmt.Sprintf("echo task-%02d | tee -a %s; sleep 1", n, effects))
			spec.Name = fmt.Sprintf("task-%02d", n)
			specs = append(specs, spec)
		}
		tasks, err := cl.SubmitTasks(t.Context(), specs[:15], client.SubmitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range specs[15:] {
			tasks = append(tasks, harness.Submit(t, cl, spec, client.SubmitOptions{}))
		}
		for _, task := range tasks {
			checkRanOnce(t, cl, task)
		}
		retryOnce(t, c, cl)
		checkEffects(t, effects, len(specs))
		checkWasLost(t, proxy)
		if n := len(c.Query(t, "SELECT 1 FROM tasks")); n != len(specs)+1 {
			t.Errorf("%d tasks are stored, want %d", n, len(specs)+1)
		}
		agent.Stop(t)
		checkHistory(t, c)
		checkJournals(t, agent)
	})
}

// checkRanOnce: one attempt, which succeeded, with its log whole.
func checkRanOnce(t *testing.T, cl *client.Client, task client.Task) {
	t.Helper()
	done := harness.Finished(t, cl, task.ID, 3*time.Minute)
	attempts := harness.Attempts(t, cl, task.ID)
	if done.State != client.TaskStateSucceeded || len(attempts) != 1 {
		t.Errorf("%s is %s (%s) after %d attempts", task.Name, done.State, done.Reason, len(attempts))
		return
	}
	var log []byte
	for ended := false; !ended; {
		piece, err := cl.ReadLog(t.Context(), task.ID, 1, int64(len(log)), true)
		if err != nil {
			t.Fatalf("log of %s: %v", task.Name, err)
		}
		log, ended = append(log, piece.Bytes...), piece.Ended && len(piece.Bytes) == 0
	}
	if strings.TrimSpace(string(log)) != task.Name {
		t.Errorf("the log of %s is %q", task.Name, log)
	}
}

// retryOnce: an act of a person has one effect.
func retryOnce(t *testing.T, c *harness.Cluster, cl *client.Client) {
	t.Helper()
	one := 1
	spec := harness.Shell(t, "exit 3")
	spec.Retry = &client.RetrySpec{MaxAttempts: &one}
	task := harness.Submit(t, cl, spec, client.SubmitOptions{})
	harness.AwaitState(t, cl, task.ID, client.TaskStateDeadLetter, time.Minute)
	if _, err := cl.RetryTask(t.Context(), task.ID, 1); err != nil {
		t.Errorf("retry: %v", err)
	}
	harness.Eventually(t, time.Minute, "the retried task failed again", func() bool {
		got := harness.Task(t, cl, task.ID)
		return got.State == client.TaskStateDeadLetter && got.Attempts == 2
	})
	if n := c.Query(t, audited("task.retried_by_hand", task.ID))[0][0]; n != "1" {
		t.Errorf("the task was retried %s times", n)
	}
}

// checkEffects reads what the work did: a line a task, each once.
func checkEffects(t *testing.T, path string, want int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(b))
	slices.Sort(lines)
	if n := len(slices.Compact(slices.Clone(lines))); len(lines) != want || n != want {
		t.Errorf("the work of %d tasks was done %d times, by %d of them: %v", want, len(lines), n, lines)
	}
}

// checkWasLost: every kind of call that the run needed met the loss.
func checkWasLost(t *testing.T, proxy *harness.Lossy) {
	t.Helper()
	lost, seen := proxy.LostBy(), proxy.Seen()
	for _, route := range []string{
		"POST /agent/v1/enrol", "POST /agent/v1/token", "POST /agent/v1/sync", "POST /agent/v1/heartbeat", "POST /agent/v1/claims",
		"POST /agent/v1/attempts/start", "POST /agent/v1/attempts/renew", "POST /agent/v1/attempts/complete", "PUT /agent/v1/attempts/{}/log/{}",
		"POST /api/v1/auth/login", "POST /api/v1/pools", "POST /api/v1/tasks", "POST /api/v1/tasks/batch", "POST /api/v1/tasks/{}/retry",
	} {
		if lost[route] == 0 {
			t.Errorf("no answer to %s was lost, of %d", route, seen[route])
		}
	}
	t.Logf("lost %v of %v", lost, seen)
}
