package kill

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// TestHostDies: a host with eight busy devices dies with all that ran on it, at
// the default timings. Counted from the last renewal of each, its tasks have
// left running within 85 s and run elsewhere within 90 s: one dead host is no
// reason for an amnesty.
func TestHostDies(t *testing.T) {
	t.Parallel()
	const devices = 8
	c := harness.NewCluster(t, harness.Options{})
	dying := c.AddAgent(t, harness.AgentOptions{Name: "dying", Processes: devices})
	release := filepath.Join(c.Folder, "release")
	var ids []string
	for range devices {
		ids = append(ids, c.Submit(t, harness.Shell(t, "until [ -e "+release+" ]; do sleep 1; done")).ID)
	}
	for _, id := range ids {
		harness.AwaitState(t, c.Client, id, client.TaskStateRunning, harness.Patience)
	}
	heir := c.AddAgent(t, harness.AgentOptions{Name: "heir", Processes: devices})
	await(t, harness.Patience, "every lease is renewed", func() bool {
		return len(c.Query(t, `SELECT 1 FROM leases l JOIN attempts a ON a.id = l.attempt_id WHERE l.expires_at <= a.started_at + interval '61 seconds'`)) == 0
	})
	dying.Process.Kill()
	killWork(t, dying)

	db, err := sql.Open("pgx", c.DatabaseURL)
	must(t, err)
	defer func() { _ = db.Close() }()
	renewed := map[string]time.Time{}
	rows, err := db.QueryContext(t.Context(), `SELECT attempt_id, expires_at FROM leases WHERE attempt_id IS NOT NULL`)
	must(t, err)
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id string
		var expires time.Time
		must(t, rows.Scan(&id, &expires))
		renewed[id] = expires.Add(-berth.DefaultTimings().LeaseTTL)
	}
	must(t, rows.Err())
	if len(renewed) != devices {
		t.Fatalf("%d leases are held, want %d", len(renewed), devices)
	}
	await(t, 2*time.Minute, "all tasks run elsewhere", func() bool {
		n := 0
		return db.QueryRowContext(t.Context(), `SELECT count(*) FROM attempts WHERE number = 2 AND state = 'running'`).Scan(&n) == nil && n == devices
	})
	for _, id := range ids {
		all := harness.Attempts(t, c.Client, id)
		first, second := all[0], all[1]
		last := renewed[first.ID]
		left, again := first.EndedAt.Sub(last), second.StartedAt.Sub(last)
		if left > 85*time.Second || again > 90*time.Second {
			t.Errorf("after the last renewal task %s left running in %v and ran again in %v", id, left, again)
		}
		if first.Outcome != client.OutcomeTimedOut || first.Reason != berth.ReasonLeaseExpired || second.HostID != heir.HostID {
			t.Errorf("the first attempt ended as %s (%s), the second is on %s", first.Outcome, first.Reason, second.HostName)
		}
	}
	if rows := c.Query(t, `SELECT action FROM audit_events WHERE action LIKE '%amnesty%'`); len(rows) > 0 {
		t.Errorf("an amnesty: %v", rows)
	}
	must(t, touch(release))
	for _, id := range ids {
		if task := harness.Finished(t, c.Client, id, harness.Patience); task.State != client.TaskStateSucceeded || task.Attempts != 2 {
			t.Errorf("task %s is %s after %d attempts", id, task.State, task.Attempts)
		}
	}
	c.CheckHistory(t)
}

// killWork kills what an agent that died left running: all that has its state
// directory in its environment.
func killWork(t *testing.T, a *harness.Agent) {
	t.Helper()
	mark := "HOME=" + a.StateDir + "/"
	await(t, harness.Patience, "the work is dead", func() bool {
		found := false
		entries, err := filepath.Glob("/proc/[0-9]*/environ")
		must(t, err)
		for _, path := range entries {
			env, err := os.ReadFile(path)
			if err != nil || !strings.Contains("\x00"+string(env), "\x00"+mark) {
				continue
			}
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
				if p, err := os.FindProcess(pid); err == nil {
					_ = p.Kill()
					found = true
				}
			}
		}
		return !found
	})
}
