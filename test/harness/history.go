package harness

import "testing"

// CheckHistory reads the database as it stands, audit trail included, and fails
// the test for what must never have been.
func (c *Cluster) CheckHistory(tb testing.TB) {
	tb.Helper()
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
SELECT t.id FROM tasks t WHERE (SELECT count(*) FROM audit_events e WHERE e.target_id = ` + c.textID() + ` AND e.action = 'task.submitted') <> 1`,
		"an attempt was placed, claimed or started after the task was cancelled, or asked to stop": `
SELECT e.target_id, e.action, e.number FROM audit_events c JOIN audit_events e ON e.target_id = c.target_id AND e.id > c.id
WHERE c.target_kind = 'task' AND c.action IN ('task.cancelled', 'task.cancel_requested')
	AND e.action IN ('task.assigned', 'task.claimed', 'task.started')`,
		"an attempt succeeded without all of its log": `
SELECT a.id, a.log_bytes FROM attempts a WHERE a.outcome = 'succeeded'
	AND a.log_bytes <> (SELECT COALESCE(sum(l.size), 0) FROM log_chunks l WHERE l.attempt_id = a.id)`,
	} {
		if rows := c.Query(tb, query); len(rows) > 0 {
			tb.Errorf("%s: %d rows, first %v", what, len(rows), rows[0])
		}
	}
	c.checkAuditChain(tb)
}

// textID is a task's id as the audit trail has it.
func (c *Cluster) textID() string {
	if c.Engine == SQLite {
		return "t.id"
	}
	return "t.id::text"
}

// checkAuditChain follows each task from row to row: every transition has one,
// so each begins where the one before ended, and the last is where the task is.
func (c *Cluster) checkAuditChain(tb testing.TB) {
	tb.Helper()
	at := map[string]string{}
	for _, r := range c.Query(tb, `SELECT target_id, action, from_state, to_state FROM audit_events WHERE target_kind = 'task' ORDER BY id`) {
		id, action, from, to := r[0], r[1], r[2], r[3]
		if at[id] != from {
			tb.Errorf("task %s: %s goes on from %q, the row before left it %q", id, action, from, at[id])
		}
		at[id] = to
	}
	tasks := c.Query(tb, `SELECT id, final_state FROM tasks`)
	for _, r := range tasks {
		if r[1] != "" && at[r[0]] != r[1] {
			tb.Errorf("task %s is %s, its last audit row says %q", r[0], r[1], at[r[0]])
		}
	}
	if len(tasks) == 0 {
		tb.Error("there is no task to look at")
	}
}
