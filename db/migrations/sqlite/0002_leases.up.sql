-- Leases, fences and epochs.

ALTER TABLE hosts ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE hosts ADD COLUMN instance TEXT NOT NULL DEFAULT '';

ALTER TABLE attempts ADD COLUMN fence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE attempts ADD COLUMN claim_epoch INTEGER NOT NULL DEFAULT 0;

-- One narrow row a device, for ever; free when attempt_id is null. No index but
-- the key: a renewal writes one page, and sweeps read the table whole.
CREATE TABLE leases (
    device_id  TEXT PRIMARY KEY NOT NULL,
    host_id    TEXT NOT NULL,
    pool_id    TEXT NOT NULL,
    placeable  INTEGER NOT NULL DEFAULT 0 CHECK (placeable IN (0, 1, 2)),
    fence      INTEGER NOT NULL DEFAULT 0,
    attempt_id TEXT,
    task_id    TEXT,
    number     INTEGER,
    expires_at INTEGER,
    kill_by    INTEGER,
    CHECK ((attempt_id IS NULL) = (task_id IS NULL)),
    CHECK ((attempt_id IS NULL) = (expires_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Every device keeps its row. The bit stays down until its host's agent syncs.
INSERT INTO leases (device_id, host_id, pool_id, fence)
SELECT d.id, d.host_id, d.pool_id, 1 FROM devices d;

-- A live attempt of the old schema becomes the holder of an expired lease, so
-- that the leasekeeper settles it by policy and its task runs.
UPDATE attempts SET fence = 1 WHERE ended_at IS NULL;
UPDATE leases
SET attempt_id = a.id, task_id = a.task_id, number = a.number,
    expires_at = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000
FROM (
    SELECT id, task_id, number, device_id,
           row_number() OVER (PARTITION BY device_id ORDER BY assigned_at, id) AS place
    FROM attempts WHERE ended_at IS NULL
) a
WHERE a.device_id = leases.device_id AND a.place = 1;

-- The old schema did not forbid two live attempts on one device, or one on a
-- device that is gone. Those without a lease end here, by the same policy as
-- berth.After for an attempt that its host lost: a cancel that was asked for
-- finishes the task, and so does the last try, or work that must not happen
-- twice; otherwise the task is queued again.
CREATE TABLE orphans AS
SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.state, a.give_up_at, t.class_id, t.rank,
       CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 AS at,
       CASE WHEN a.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN NOT EXISTS (SELECT 1 FROM json_each(t.retry_on) r WHERE r.value = 'lost') THEN 'not_retryable'
            WHEN a.state = 'running' AND t.retry_unsafe THEN 'not_retry_safe'
            WHEN (SELECT count(*) FROM attempts x WHERE x.task_id = t.id AND x.outcome IS NOT 'released') >= t.budget THEN 'no_tries_left'
       END AS final_reason
FROM attempts a JOIN tasks t ON t.id = a.task_id
WHERE a.ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.attempt_id = a.id);
UPDATE attempts SET ended_at = o.at, outcome = 'lost', ended_by = 'sync', reason = 'host_lost_attempt'
FROM orphans o WHERE attempts.id = o.id;
UPDATE tasks
SET final_state = CASE o.final_reason WHEN 'cancelled' THEN 'cancelled' ELSE 'dead_letter' END, final_reason = o.final_reason, finished_at = o.at
FROM orphans o WHERE tasks.id = o.task_id AND o.final_reason IS NOT NULL;
INSERT INTO queue (class_id, rank, task_id, number, give_up_at)
SELECT class_id, rank, task_id, number + 1, give_up_at FROM orphans WHERE final_reason IS NULL;
INSERT INTO audit_events (at, actor_kind, actor_id, action, target_kind, target_id, attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason)
SELECT at, 'system', 'migration', CASE WHEN final_reason IS NULL THEN 'task.retried' WHEN final_reason = 'cancelled' THEN 'task.cancelled' ELSE 'task.failed' END,
       'task', task_id, id, number, device_id, host_id, state,
       CASE WHEN final_reason IS NULL THEN 'queued' WHEN final_reason = 'cancelled' THEN 'cancelled' ELSE 'dead_letter' END,
       'lost', COALESCE(final_reason, 'host_lost_attempt')
FROM orphans;
DROP TABLE orphans;

CREATE UNIQUE INDEX attempts_live_device ON attempts (device_id) WHERE ended_at IS NULL;
