package kill

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// threeHosts are the hosts of an outage: fewer are no reason for an amnesty.
func threeHosts(t *testing.T, c *harness.Cluster, devices int) {
	t.Helper()
	for _, name := range []string{"one", "two", "three"} {
		c.AddAgent(t, harness.AgentOptions{Name: name, Processes: devices})
	}
}

// TestDatabaseStopsForTwentySeconds: at the default timings, while tasks are
// submitted. No attempt ends but by its own work.
func TestDatabaseStopsForTwentySeconds(t *testing.T) {
	t.Parallel()
	server, dsn := breakable(t)
	c := harness.NewCluster(t, harness.Options{DSN: dsn})
	threeHosts(t, c, 5)
	release := filepath.Join(c.Folder, "release")
	var ids []string
	for n := range 12 {
		// Every third one comes to its end meanwhile.
		script := "until [ -e " + release + " ]; do sleep 1; done"
		if n%3 == 0 {
			script = "sleep 10"
		}
		ids = append(ids, c.Submit(t, harness.Shell(t, script)).ID)
	}
	for _, id := range ids {
		harness.AwaitState(t, c.Client, id, client.TaskStateRunning, harness.Patience)
	}
	var submits sync.WaitGroup
	more := make([]string, 10)
	must(t, server.Stop(false))
	stopped := time.Now()
	for n := range more {
		submits.Go(func() {
			// Answered when the database is back: the client asks again.
			task, err := c.Client.SubmitTask(t.Context(), harness.Shell(t, "true"), client.SubmitOptions{})
			if err != nil {
				t.Errorf("submit: %v", err)
			}
			more[n] = task.ID
		})
	}
	pass(t, 20*time.Second-time.Since(stopped))
	must(t, server.Start())
	await(t, harness.Patience, "every lease is renewed", func() bool {
		return len(c.Query(t, fmt.Sprintf(`SELECT 1 FROM leases l JOIN attempts a ON a.id = l.attempt_id
WHERE a.state = 'running' AND l.expires_at <= '%s'::timestamptz + interval '80 seconds'`, stopped.UTC().Format(time.RFC3339Nano)))) == 0
	})
	must(t, touch(release))
	submits.Wait()
	for _, id := range append(ids, more...) {
		task := harness.Finished(t, c.Client, id, 2*harness.Patience)
		if task.State != client.TaskStateSucceeded || task.Attempts != 1 {
			t.Errorf("task %s is %s (%s) after %d attempts", id, task.State, task.Reason, task.Attempts)
		}
	}
	if rows := c.Query(t, `SELECT action FROM audit_events WHERE action LIKE '%amnesty%'`); len(rows) > 0 {
		t.Errorf("an amnesty, though agents could renew in time: %v", rows)
	}
	c.CheckHistory(t)
}
