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
-- device that is gone. Those without a lease are ended and queued again.
INSERT INTO queue (class_id, rank, task_id, number, give_up_at)
SELECT t.class_id, t.rank, t.id, a.number + 1, a.give_up_at
FROM attempts a JOIN tasks t ON t.id = a.task_id
WHERE a.ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.attempt_id = a.id);
UPDATE attempts
SET ended_at = CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000,
    outcome = 'lost', ended_by = 'sync', reason = 'host_lost_attempt'
WHERE ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.attempt_id = attempts.id);

CREATE UNIQUE INDEX attempts_live_device ON attempts (device_id) WHERE ended_at IS NULL;
