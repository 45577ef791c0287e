package kill

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// TestDatabaseStopsForTwoMinutes: longer than any lease. What finished meanwhile
// keeps its outcome; what fenced itself is reported infra_failed by its agent;
// nothing is timed out, because the leasekeeper grants an amnesty. The short
// form has a quarter of all times.
func TestDatabaseStopsForTwoMinutes(t *testing.T) {
	t.Parallel()
	env, unit := quarter(), 250*time.Millisecond // of a default second
	if long() {
		env, unit = nil, time.Second
	}
	server, dsn := breakable(t)
	c := harness.NewCluster(t, harness.Options{DSN: dsn, Env: env})
	threeHosts(t, c, 4)
	type end struct {
		outcomes []client.Outcome
		reason   string // of the first attempt
		state    client.TaskState
	}
	kinds := []struct {
		name, script string
		count        int
		end          end
	}{
		{"succeeds meanwhile", "sleep %[1]v", 3, end{[]client.Outcome{client.OutcomeSucceeded}, "succeeded", client.TaskStateSucceeded}},
		{"fails meanwhile", "sleep %[1]v; exit 3", 3, end{[]client.Outcome{client.OutcomeFailed}, "exit_code", client.TaskStateDeadLetter}},
		{
			"runs on", "[ -e %[2]s ] && exit 0; : >%[2]s; exec sleep 600", 6,
			end{[]client.Outcome{client.OutcomeInfraFailed, client.OutcomeSucceeded}, "fenced", client.TaskStateSucceeded},
		},
	}
	ends := map[string]end{}
	for _, k := range kinds {
		for n := range k.count {
			marker := filepath.Join(c.Folder, fmt.Sprintf("%s-%d", strings.ReplaceAll(k.name, " ", "-"), n))
			// They end before their agent would fence them, in any case.
			spec := harness.Shell(t, fmt.Sprintf(k.script+"\n# %[1]v %[2]s", (15*unit).Seconds(), marker))
			spec.Name = k.name
			spec.Retry = &client.RetrySpec{
				On:                    &[]client.RetriedOutcome{client.RetriedOutcomeInfraFailed, client.RetriedOutcomeLost, client.RetriedOutcomeTimedOut},
				BackoffInitialSeconds: ptr(0.1), BackoffMaxSeconds: ptr(1.0),
			}
			ends[c.Submit(t, spec).ID] = k.end
		}
	}
	await(t, harness.Patience, "all run", func() bool {
		return len(c.Query(t, `SELECT 1 FROM attempts WHERE state = 'running' AND ended_at IS NULL`)) == len(ends)
	})
	must(t, server.Stop(true))
	pass(t, 120*unit)
	must(t, server.Start())
	for id, want := range ends {
		task := harness.Finished(t, c.Client, id, 3*harness.Patience)
		all := harness.Attempts(t, c.Client, id)
		var got []client.Outcome
		for _, a := range all {
			got = append(got, a.Outcome)
		}
		if fmt.Sprint(got) != fmt.Sprint(want.outcomes) || all[0].Reason != want.reason || task.State != want.state {
			t.Errorf("%s: %s, attempts ended as %v, the first with %q; want %s, %v, %q", task.Name, task.State, got, all[0].Reason, want.state, want.outcomes, want.reason)
		}
	}
	if rows := c.Query(t, `SELECT id FROM attempts WHERE outcome = 'timed_out'`); len(rows) > 0 {
		t.Errorf("%d attempts are timed out", len(rows))
	}
	if rows := c.Query(t, `SELECT 1 FROM audit_events WHERE action = 'leases.amnesty'`); len(rows) != 1 {
		t.Errorf("%d amnesties in the audit trail, want 1", len(rows))
	}
	c.CheckHistory(t)
	for _, a := range c.Agents {
		a.Stop(t)
	}
	harness.CheckJournals(t, c.Agents...)
}
