package e2e

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/test/harness"
)

// checkHistory reads the database as it stands: what must never have been.
func checkHistory(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for what, query := range map[string]string{
		"two attempts held one device at a time": `
SELECT a.device_id, a.id, a.fence, b.id, b.fence FROM attempts a JOIN attempts b ON a.device_id = b.device_id AND a.fence < b.fence
WHERE a.ended_at IS NULL OR b.assigned_at < a.ended_at`,
		"a fence was given twice":                    `SELECT device_id, fence, count(*) FROM attempts GROUP BY device_id, fence HAVING count(*) > 1`,
		"a lease has another fence than its attempt": `SELECT l.device_id FROM leases l JOIN attempts a ON a.id = l.attempt_id WHERE a.fence <> l.fence OR a.ended_at IS NOT NULL`,
		"a fence is above its device's":              `SELECT a.id FROM attempts a JOIN leases l ON l.device_id = a.device_id WHERE a.fence > l.fence`,
		"an attempt ended without an outcome":        `SELECT id FROM attempts WHERE (ended_at IS NULL) <> (outcome IS NULL)`,
		"an attempt began before it was assigned":    `SELECT id FROM attempts WHERE claimed_at < assigned_at OR started_at < claimed_at OR ended_at < assigned_at OR ended_at < started_at`,
		"a task is not in exactly one place": `
SELECT t.id FROM tasks t WHERE (SELECT count(*) FROM queue q WHERE q.task_id = t.id) + (SELECT count(*) FROM delayed d WHERE d.task_id = t.id)
	+ (SELECT count(*) FROM attempts a WHERE a.task_id = t.id AND a.ended_at IS NULL) + (CASE WHEN t.final_state IS NULL THEN 0 ELSE 1 END) <> 1`,
		"an end of an attempt is not audited exactly once": `
SELECT a.id, a.outcome FROM attempts a WHERE a.ended_at IS NOT NULL
	AND (SELECT count(*) FROM audit_events e WHERE e.attempt_id = a.id AND e.outcome IS NOT NULL) <> 1`,
		"the audited outcome is another": `
SELECT a.id, a.outcome, e.outcome FROM attempts a JOIN audit_events e ON e.attempt_id = a.id WHERE e.outcome IS NOT NULL AND e.outcome <> a.outcome`,
		"an assignment is not audited exactly once": `
SELECT a.id FROM attempts a WHERE (SELECT count(*) FROM audit_events e WHERE e.attempt_id = a.id AND e.action = 'task.assigned') <> 1`,
		"a start is not audited exactly once": `
SELECT a.id FROM attempts a WHERE (SELECT count(*) FROM audit_events e WHERE e.attempt_id = a.id AND e.action = 'task.started')
	<> (CASE WHEN a.started_at IS NULL THEN 0 ELSE 1 END)`,
		"a submit is not audited exactly once": `
SELECT t.id FROM tasks t WHERE (SELECT count(*) FROM audit_events e WHERE e.target_id = ` + textID(c) + ` AND e.action = 'task.submitted') <> 1`,
	} {
		if rows := c.Query(t, query); len(rows) > 0 {
			t.Errorf("%s: %d rows, first %v", what, len(rows), rows[0])
		}
	}
	checkAuditChain(t, c)
}

func textID(c *harness.Cluster) string {
	if c.Engine == harness.SQLite {
		return "t.id"
	}
	return "t.id::text"
}

// checkAuditChain follows each task from row to row: every transition has one,
// so each begins where the one before ended, and the last is where the task is.
func checkAuditChain(t *testing.T, c *harness.Cluster) {
	t.Helper()
	at := map[string]string{}
	for _, r := range c.Query(t, `SELECT target_id, action, from_state, to_state FROM audit_events WHERE target_kind = 'task' ORDER BY id`) {
		id, action, from, to := r[0], r[1], r[2], r[3]
		if at[id] != from {
			t.Errorf("task %s: %s goes on from %q, the row before left it %q", id, action, from, at[id])
		}
		at[id] = to
	}
	tasks := c.Query(t, `SELECT id, final_state FROM tasks`)
	for _, r := range tasks {
		if r[1] != "" && at[r[0]] != r[1] {
			t.Errorf("task %s is %s, its last audit row says %q", r[0], r[1], at[r[0]])
		}
	}
	if len(tasks) == 0 {
		t.Error("there is no task to look at")
	}
}

// held is the time for which an agent's work might touch a device.
type held struct {
	attempt  berth.AttemptID
	from, to time.Time
	fence    berth.Fence
}

// checkJournals reads what the agents wrote before they acted: from started to
// finished a device belongs to one attempt, and its fences only grow.
func checkJournals(t *testing.T, agents ...*harness.Agent) {
	t.Helper()
	for _, a := range agents {
		total := 0
		devices := map[string][]held{}
		fences := map[string]berth.Fence{}
		for _, r := range a.Journal(t) {
			switch r.Stage {
			case hostagent.StageClaimed:
				if r.Fence <= fences[r.Device] {
					t.Errorf("%s: device %s was claimed under fence %d after %d", a.Name, r.Device, r.Fence, fences[r.Device])
				}
				fences[r.Device] = r.Fence
			case hostagent.StageStarted:
				devices[r.Device] = append(devices[r.Device], held{attempt: r.Attempt, from: r.At, fence: r.Fence})
			case hostagent.StageFinished:
				holds := devices[r.Device]
				i := slices.IndexFunc(holds, func(h held) bool { return h.attempt == r.Attempt })
				if i < 0 {
					continue // finished without a start
				}
				if i != len(holds)-1 {
					t.Errorf("%s: %s ended on device %s after a later attempt had started", a.Name, r.Attempt, r.Device)
				}
				holds[i].to = r.At
			}
		}
		for _, d := range slices.Sorted(maps.Keys(devices)) {
			total += len(devices[d])
			for i := 1; i < len(devices[d]); i++ {
				before, after := devices[d][i-1], devices[d][i]
				if before.to.IsZero() || after.from.Before(before.to) || after.fence <= before.fence {
					t.Errorf("%s: device %s was held twice: %+v, then %+v", a.Name, d, before, after)
				}
			}
		}
		if total == 0 {
			t.Errorf("%s: the journal has no attempt", a.Name)
		}
		t.Logf("%s: %d attempts on %d devices in its journal", a.Name, total, len(devices))
	}
}
