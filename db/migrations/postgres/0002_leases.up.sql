-- Leases, fences and epochs.

ALTER TABLE hosts
    ADD COLUMN epoch bigint NOT NULL DEFAULT 0,
    ADD COLUMN instance text NOT NULL DEFAULT '';

ALTER TABLE attempts
    ADD COLUMN fence bigint NOT NULL DEFAULT 0,
    ADD COLUMN claim_epoch bigint NOT NULL DEFAULT 0;

-- One narrow row a device, for ever; free when attempt_id is null. No index but
-- the key: renewals stay HOT, and sweeps read it whole.
CREATE TABLE leases (
    device_id  uuid PRIMARY KEY,
    host_id    uuid NOT NULL,
    pool_id    uuid NOT NULL,
    placeable  smallint NOT NULL DEFAULT 0 CHECK (placeable IN (0, 1, 2)),
    fence      bigint NOT NULL DEFAULT 0,
    attempt_id uuid,
    task_id    uuid,
    number     integer,
    expires_at timestamptz,
    kill_by    timestamptz,
    CHECK ((attempt_id IS NULL) = (task_id IS NULL)),
    CHECK ((attempt_id IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Every device keeps its row. The bit stays down until its host's agent syncs.
INSERT INTO leases (device_id, host_id, pool_id, fence)
SELECT d.id, d.host_id, d.pool_id, 1 FROM devices d;

-- A live attempt of the old schema becomes the holder of an expired lease, so
-- that the leasekeeper settles it by policy and its task runs.
UPDATE attempts SET fence = 1 WHERE ended_at IS NULL;
UPDATE leases l
SET attempt_id = a.id, task_id = a.task_id, number = a.number, expires_at = berth_now()
FROM (SELECT DISTINCT ON (device_id) * FROM attempts WHERE ended_at IS NULL ORDER BY device_id, assigned_at) a
WHERE a.device_id = l.device_id;

-- The old schema did not forbid two live attempts on one device, or one on a
-- device that is gone. Those without a lease end here, by the same policy as
-- berth.After for an attempt that its host lost: a cancel that was asked for
-- finishes the task, and so does the last try, or work that must not happen
-- twice; otherwise the task is queued again.
CREATE TEMPORARY TABLE orphans ON COMMIT DROP AS
SELECT a.id, a.task_id, a.number, a.device_id, a.host_id, a.state, a.give_up_at, t.class_id, t.rank, berth_now() AS at,
       CASE WHEN a.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN NOT 'lost' = ANY (t.retry_on) THEN 'not_retryable'
            WHEN a.state = 'running' AND t.retry_unsafe THEN 'not_retry_safe'
            WHEN (SELECT count(*) FROM attempts x WHERE x.task_id = t.id AND x.outcome IS DISTINCT FROM 'released') >= t.budget THEN 'no_tries_left'
       END AS final_reason
FROM attempts a JOIN tasks t ON t.id = a.task_id
WHERE a.ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.attempt_id = a.id);
UPDATE attempts a SET ended_at = o.at, outcome = 'lost', ended_by = 'sync', reason = 'host_lost_attempt'
FROM orphans o WHERE a.id = o.id;
UPDATE tasks t
SET final_state = CASE o.final_reason WHEN 'cancelled' THEN 'cancelled' ELSE 'dead_letter' END, final_reason = o.final_reason, finished_at = o.at
FROM orphans o WHERE t.id = o.task_id AND o.final_reason IS NOT NULL;
INSERT INTO queue (class_id, rank, task_id, number, give_up_at)
SELECT class_id, rank, task_id, number + 1, give_up_at FROM orphans WHERE final_reason IS NULL;
INSERT INTO audit_events (at, actor_kind, actor_id, action, target_kind, target_id, attempt_id, number, device_id, host_id, from_state, to_state, outcome, reason)
SELECT at, 'system', 'migration', CASE WHEN final_reason IS NULL THEN 'task.retried' WHEN final_reason = 'cancelled' THEN 'task.cancelled' ELSE 'task.failed' END,
       'task', task_id::text, id, number, device_id, host_id, state,
       CASE WHEN final_reason IS NULL THEN 'queued' WHEN final_reason = 'cancelled' THEN 'cancelled' ELSE 'dead_letter' END,
       'lost', COALESCE(final_reason, 'host_lost_attempt')
FROM orphans;

CREATE UNIQUE INDEX attempts_live_device ON attempts (device_id) WHERE ended_at IS NULL;

ALTER TABLE queue SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE attempts SET (autovacuum_vacuum_scale_factor = 0.05);
