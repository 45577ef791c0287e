package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

func ptr[T any](v T) *T { return &v }

// onBoth runs a test on both engines at once.
func onBoth(t *testing.T, test func(t *testing.T, engine harness.Engine)) {
	t.Helper()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			test(t, engine)
		})
	}
}

// TestQueuedTasksRunAfterARestart: what was acknowledged waits through the end
// of every process, whether asked for (SIGTERM) or not (SIGKILL).
func TestQueuedTasksRunAfterARestart(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c := harness.NewCluster(t, harness.Options{Engine: engine})
		agent := c.AddAgent(t, harness.AgentOptions{Name: "worker", Processes: 2})
		agent.Stop(t)
		var ids []string
		submit := func() {
			for range 4 {
				task := c.Submit(t, harness.Shell(t, "echo done"))
				ids = append(ids, task.ID)
				if task.State != client.TaskStateQueued {
					t.Fatalf("submitted task is %s", task.State)
				}
			}
		}
		submit()
		// One with a life that goes on over the restart: a time to wait for.
		later := harness.Shell(t, "echo later")
		later.NotBefore = time.Now().Add(2 * time.Second)
		ids = append(ids, c.Submit(t, later).ID)
		c.Stop(t)
		c.Start(t)
		submit()
		c.Kill()
		c.Start(t)
		submit()
		agent.Start(t)
		for _, id := range ids {
			task := harness.Finished(t, c.Client, id, 2*harness.Patience)
			if task.State != client.TaskStateSucceeded || task.Attempts != 1 {
				t.Errorf("task %s is %s after %d attempts", id, task.State, task.Attempts)
			}
		}
	})
}

// TestBerthUpGoesOnAfterAKill: `berth up` is killed with one task running and
// others queued; started again, it settles the one by policy and runs the rest.
func TestBerthUpGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	l := harness.Up(t, 0, 1)
	marker := filepath.Join(l.Folder, "first-run")
	first := harness.Submit(t, l.Client, harness.Shell(t, fmt.Sprintf("[ -e %[1]s ] && exit 0; touch %[1]s; exec sleep 600", marker)), client.SubmitOptions{})
	harness.AwaitState(t, l.Client, first.ID, client.TaskStateRunning, harness.Patience)
	var queued []string
	for range 3 {
		queued = append(queued, harness.Submit(t, l.Client, harness.Shell(t, "true"), client.SubmitOptions{}).ID)
	}
	l.Kill()
	l.Start(t)
	for _, id := range queued {
		if task := harness.Finished(t, l.Client, id, 2*harness.Patience); task.State != client.TaskStateSucceeded {
			t.Errorf("queued task is %s (%s)", task.State, task.Reason)
		}
	}
	task := harness.Finished(t, l.Client, first.ID, 2*harness.Patience)
	attempts := harness.Attempts(t, l.Client, first.ID)
	if task.State != client.TaskStateSucceeded || len(attempts) != 2 || attempts[0].Outcome != client.OutcomeLost || attempts[0].Reason != berth.ReasonHostLostAttempt {
		t.Errorf("the running task is %s, attempts %+v", task.State, attempts)
	}
	l.Stop(t)
}

// shortLeases makes leases end within seconds.
func shortLeases() map[string]string {
	return map[string]string{
		"BERTH_LEASE_TTL": "8s", "BERTH_RENEW_EVERY": "1s", "BERTH_REQUEST_TIMEOUT": "2s", "BERTH_FENCE_MARGIN": "2s",
		"BERTH_KILL_MARGIN": "1s", "BERTH_REAP_GRACE": "1s", "BERTH_CLAIM_WITHIN": "8s", "BERTH_HOST_OFFLINE_AFTER": "6s",
		"BERTH_HEARTBEAT_EVERY": "1s", "BERTH_CANCEL_WITHIN": "1h", "BERTH_LOOP_REAP_INTERVAL": "200ms", "BERTH_LOOP_SILENT_HOSTS_INTERVAL": "500ms",
	}
}

// expiredCase is a task whose attempt's lease runs out while nothing is up.
type expiredCase struct {
	name  string
	reach berth.AttemptState
	retry client.RetrySpec
	// cancel asks for its end while it runs.
	cancel bool
	// What follows, as pkg/berth says.
	state   client.TaskState
	outcome client.Outcome
	reason  string
	tries   int
	unclean bool
	// finalReason of the task.
	finalReason string
}

func expiredCases() []expiredCase {
	tries := func(n int) client.RetrySpec { return client.RetrySpec{MaxAttempts: ptr(n)} }
	return []expiredCase{
		{
			name: "claimed", reach: berth.AttemptClaimed, retry: tries(3), state: client.TaskStateQueued,
			outcome: client.OutcomeReleased, reason: berth.ReasonNotStarted,
		},
		{
			name: "claimed-last-try", reach: berth.AttemptClaimed, retry: tries(1), state: client.TaskStateQueued,
			outcome: client.OutcomeReleased, reason: berth.ReasonNotStarted,
		},
		{
			name: "running", reach: berth.AttemptRunning, retry: tries(2), state: client.TaskStateQueued,
			outcome: client.OutcomeTimedOut, reason: berth.ReasonLeaseExpired, tries: 1, unclean: true,
		},
		{
			name: "running-last-try", reach: berth.AttemptRunning, retry: tries(1), state: client.TaskStateDeadLetter,
			outcome: client.OutcomeTimedOut, reason: berth.ReasonLeaseExpired, tries: 1, unclean: true, finalReason: berth.ReasonNoTriesLeft,
		},
		{
			name: "running-not-retry-safe", reach: berth.AttemptRunning, retry: client.RetrySpec{RetrySafe: ptr(false)}, state: client.TaskStateDeadLetter,
			outcome: client.OutcomeTimedOut, reason: berth.ReasonLeaseExpired, tries: 1, unclean: true, finalReason: berth.ReasonNotRetrySafe,
		},
		{
			name: "running-not-on-the-list", reach: berth.AttemptRunning, retry: client.RetrySpec{On: &[]client.RetriedOutcome{client.RetriedOutcomeFailed}},
			state: client.TaskStateDeadLetter, outcome: client.OutcomeTimedOut, reason: berth.ReasonLeaseExpired, tries: 1, unclean: true,
			finalReason: berth.ReasonNotRetryable,
		},
		{
			name: "running-cancelled", reach: berth.AttemptRunning, retry: tries(3), cancel: true, state: client.TaskStateCancelled,
			outcome: client.OutcomeTimedOut, reason: berth.ReasonLeaseExpired, tries: 1, unclean: true, finalReason: berth.ReasonCancelled,
		},
		// Assigned ones come last: a claim takes all that are assigned.
		{
			name: "assigned", reach: berth.AttemptAssigned, retry: tries(3), state: client.TaskStateQueued,
			outcome: client.OutcomeReleased, reason: berth.ReasonUnclaimed,
		},
		{
			name: "assigned-last-try", reach: berth.AttemptAssigned, retry: tries(1), state: client.TaskStateQueued,
			outcome: client.OutcomeReleased, reason: berth.ReasonUnclaimed,
		},
	}
}

// TestExpiredAttemptsAfterARestart: the control plane is killed while attempts
// are assigned, claimed and running; their leases run out while nothing is up.
// Started again, it ends them by policy, and the tasks with tries left run.
func TestExpiredAttemptsAfterARestart(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		cases := expiredCases()
		env := shortLeases()
		// Nothing is ended before the kill, however slow this machine is.
		env["BERTH_LOOP_REAP_DISABLED"] = "true"
		c := harness.NewCluster(t, harness.Options{Engine: engine, Env: env})
		agent := c.Enrol(t, "silent")
		var labels []map[string]string
		for _, k := range cases {
			labels = append(labels, map[string]string{"slot": k.name})
		}
		agent.Sync(t, labels...)
		ids := reach(t, c, agent, cases)

		c.Kill()
		harness.Eventually(t, harness.Patience, "every lease runs out", func() bool { return leasesAlive(t, c) == 0 })
		for _, d := range c.Daemons() {
			delete(d.Env, "BERTH_LOOP_REAP_DISABLED")
		}
		c.Start(t)
		for _, k := range cases {
			checkExpired(t, c, k, ids[k.name], agent.Devices[slices.IndexFunc(cases, func(o expiredCase) bool { return o.name == k.name })])
		}

		// A new agent of the host comes, with clean devices: the rest runs.
		agent.Authenticate(t)
		agent.Sync(t, labels...)
		want := 0
		for _, k := range cases {
			if k.state == client.TaskStateQueued {
				want++
			}
		}
		for _, a := range agent.Claim(t, want) {
			agent.StartAttempt(t, a)
			agent.Complete(t, a, berth.OutcomeSucceeded)
		}
		for _, k := range cases {
			task := harness.Task(t, c.Client, ids[k.name])
			if k.state == client.TaskStateQueued && (task.State != client.TaskStateSucceeded || task.Attempts != 2 || task.Tries != k.tries+1) {
				t.Errorf("%s: in the end %s after %d attempts, %d tries", k.name, task.State, task.Attempts, task.Tries)
			}
		}
		checkHistory(t, c)
	})
}

// reach brings each case's task to its state, one device each.
func reach(t *testing.T, c *harness.Cluster, agent *harness.Wire, cases []expiredCase) map[string]string {
	t.Helper()
	ids := map[string]string{}
	submit := func(k expiredCase) {
		spec := harness.Shell(t, "true")
		spec.Name, spec.Selector, spec.Retry = k.name, "slot="+k.name, &k.retry
		ids[k.name] = c.Submit(t, spec).ID
	}
	held := 0
	for _, k := range cases {
		if k.reach != berth.AttemptAssigned {
			submit(k)
			held++
		}
	}
	byName := map[string]protocol.Assignment{}
	for _, a := range agent.Claim(t, held) {
		byName[a.TaskName] = a
		if i := slices.IndexFunc(cases, func(k expiredCase) bool { return k.name == a.TaskName }); cases[i].reach == berth.AttemptRunning {
			agent.StartAttempt(t, a)
		}
	}
	if len(byName) != held {
		t.Fatalf("claimed %v", slices.Collect(maps.Keys(byName)))
	}
	for _, k := range cases {
		if k.cancel {
			if _, err := c.Client.CancelTask(t.Context(), ids[k.name]); err != nil {
				t.Fatal(err)
			}
		}
		if k.reach == berth.AttemptAssigned {
			submit(k)
		}
	}
	for _, k := range cases {
		harness.Eventually(t, harness.Patience, k.name+" is "+string(k.reach), func() bool {
			agent.Heartbeat(t) // until now the host is not silent
			return harness.Task(t, c.Client, ids[k.name]).State == client.TaskState(k.reach)
		})
	}
	return ids
}

// leasesAlive counts the leases that the keeper may not end yet.
func leasesAlive(t *testing.T, c *harness.Cluster) int {
	t.Helper()
	if c.Engine == harness.SQLite {
		return len(c.Query(t, fmt.Sprintf("SELECT 1 FROM leases WHERE attempt_id IS NOT NULL AND expires_at > %d", time.Now().UnixMicro())))
	}
	return len(c.Query(t, "SELECT 1 FROM leases WHERE attempt_id IS NOT NULL AND expires_at > berth_now()"))
}

func checkExpired(t *testing.T, c *harness.Cluster, k expiredCase, id string, device berth.DeviceID) {
	t.Helper()
	harness.Eventually(t, harness.Patience, k.name+": the attempt is ended", func() bool {
		a := harness.Attempts(t, c.Client, id)
		return len(a) == 1 && !a[0].EndedAt.IsZero()
	})
	a := harness.Attempts(t, c.Client, id)[0]
	if a.Outcome != k.outcome || a.Reason != k.reason || a.State != client.AttemptState(k.reach) {
		t.Errorf("%s: the attempt ended as %s (%s) in %s, want %s (%s) in %s", k.name, a.Outcome, a.Reason, a.State, k.outcome, k.reason, k.reach)
	}
	task := harness.Task(t, c.Client, id)
	if task.State != k.state || task.Tries != k.tries || task.Reason != k.finalReason {
		t.Errorf("%s: the task is %s (%q) with %d tries, want %s (%q) with %d", k.name, task.State, task.Reason, task.Tries, k.state, k.finalReason, k.tries)
	}
	d, err := c.Client.GetDevice(t.Context(), string(device))
	if err != nil {
		t.Fatal(err)
	}
	if unclean := d.Occupancy == client.Unclean; unclean != k.unclean {
		t.Errorf("%s: the device is %s", k.name, d.Occupancy)
	}
}
