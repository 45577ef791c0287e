-- Schedules, dead letters by cause, bulk jobs, the plugin registry, history of
-- devices, webhooks, statistics.

-- The row is locked while its slots are decided. revision counts what changes
-- slots (cron, time_zone); version counts every edit, for If-Match.
CREATE TABLE schedules (
    id         TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL UNIQUE,
    pool_id    TEXT NOT NULL REFERENCES pools (id),
    cron       TEXT NOT NULL,
    time_zone  TEXT NOT NULL,
    template   TEXT NOT NULL, -- what a submit takes, without its pool and not-before
    catch_up   TEXT NOT NULL CHECK (catch_up IN ('none', 'latest', 'all')),
    catch_up_window_us INTEGER NOT NULL CHECK (catch_up_window_us >= 0),
    catch_up_limit INTEGER NOT NULL CHECK (catch_up_limit > 0),
    overlap    TEXT NOT NULL CHECK (overlap IN ('skip', 'allow', 'queue_one', 'cancel_running')),
    revision   INTEGER NOT NULL DEFAULT 1,
    version    INTEGER NOT NULL DEFAULT 1,
    paused     INTEGER NOT NULL DEFAULT 0,
    note       TEXT NOT NULL DEFAULT '',
    owner_kind TEXT NOT NULL, -- whose the tasks are
    owner_id   TEXT NOT NULL,
    owner_roles TEXT NOT NULL, -- that the template was written with
    -- The slot that is waited for, null while paused; look_at is when the next
    -- look at it is worth while.
    next_slot_at  INTEGER,
    next_slot_key TEXT NOT NULL DEFAULT '',
    waiting    INTEGER NOT NULL DEFAULT 0, -- it is due, and waits for a task's end
    look_at    INTEGER,
    decided_to INTEGER NOT NULL, -- every slot up to here is decided
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (look_at) WHERE look_at IS NOT NULL;

-- One row a slot that was decided, or a run of slots that were skipped together.
CREATE TABLE fires (
    schedule_id TEXT NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    revision    INTEGER NOT NULL,
    slot_key    TEXT NOT NULL, -- cron.Slot; run-now has its own
    slot_at     INTEGER NOT NULL,
    decided_at  INTEGER NOT NULL,
    task_id     TEXT, -- null: skipped
    reason      TEXT NOT NULL DEFAULT '', -- why skipped
    slots       INTEGER NOT NULL DEFAULT 1, -- how many, from slot_at to last_slot_at
    at_least    INTEGER NOT NULL DEFAULT 0, -- they were not counted to the end
    last_slot_at INTEGER NOT NULL,
    open        INTEGER NOT NULL DEFAULT 0, -- its task was unfinished at the last look
    PRIMARY KEY (schedule_id, revision, slot_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX fires_history ON fires (schedule_id, decided_at, slot_key, revision);
CREATE INDEX fires_open ON fires (schedule_id, slot_at) WHERE open;
CREATE INDEX fires_age ON fires (decided_at);

-- Inputs that templates name do not expire.
CREATE TABLE schedule_inputs (
    digest      TEXT NOT NULL,
    schedule_id TEXT NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    PRIMARY KEY (digest, schedule_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_inputs_schedule ON schedule_inputs (schedule_id);

-- An index whose predicate names a column that every finish changes would cost
-- every finish its HOT update: schedule_id never changes, cause_key seldom.
ALTER TABLE tasks ADD COLUMN schedule_id TEXT;
ALTER TABLE tasks ADD COLUMN cause_key TEXT; -- of a dead letter; causes
CREATE INDEX tasks_schedule ON tasks (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX tasks_cause ON tasks (cause_key, id) WHERE cause_key IS NOT NULL;

-- What dead letters have in common: berth.CauseOf.
CREATE TABLE causes (
    cause_key  TEXT PRIMARY KEY NOT NULL,
    plugin     TEXT NOT NULL,
    reason     TEXT NOT NULL,
    message    TEXT NOT NULL, -- normalised
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Dead letters from before have no message to tell them apart by: berth.UnknownCause.
INSERT INTO causes (cause_key, plugin, reason, message, created_at)
SELECT '00000000000000000000000000000000', '', '', '', CAST(strftime('%s', 'now') AS INTEGER) * 1000000
WHERE EXISTS (SELECT 1 FROM tasks WHERE final_state = 'dead_letter');
UPDATE tasks SET cause_key = '00000000000000000000000000000000' WHERE final_state = 'dead_letter';

-- Work on many tasks, done page by page by the leasekeepers.
CREATE TABLE bulk_jobs (
    id          TEXT PRIMARY KEY NOT NULL,
    act         TEXT NOT NULL CHECK (act IN ('cancel', 'retry', 'delete', 'reprioritise')),
    filter      TEXT NOT NULL, -- as in the listing of tasks
    params      TEXT NOT NULL, -- of the act
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'stopped')),
    owner_kind  TEXT NOT NULL,
    owner_id    TEXT NOT NULL,
    request_id  TEXT NOT NULL DEFAULT '',
    position    TEXT, -- of the last task looked at; from the newest to the oldest
    position_cause TEXT NOT NULL DEFAULT '', -- of a walk through causes
    upper       TEXT NOT NULL, -- tasks that came later are none of its
    looked      INTEGER NOT NULL DEFAULT 0,
    changed     INTEGER NOT NULL DEFAULT 0,
    refused     INTEGER NOT NULL DEFAULT 0, -- had moved on when their turn came
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    finished_at INTEGER,
    CHECK ((state = 'running') = (finished_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX bulk_jobs_running ON bulk_jobs (id) WHERE finished_at IS NULL;

-- pending: a host reported it, and nobody has decided. What an older release
-- knew of such a version was its name.
ALTER TABLE plugins ADD COLUMN pending       INTEGER NOT NULL DEFAULT 0 CHECK (pending IN (0, 1));
ALTER TABLE plugins ADD COLUMN deprecated    INTEGER NOT NULL DEFAULT 0 CHECK (deprecated IN (0, 1));
ALTER TABLE plugins ADD COLUMN result_schema TEXT;
ALTER TABLE plugins ADD COLUMN defaults      TEXT NOT NULL DEFAULT '{}'; -- run_timeout, retry
ALTER TABLE plugins ADD COLUMN note          TEXT NOT NULL DEFAULT '';
ALTER TABLE plugins ADD COLUMN revision      INTEGER NOT NULL DEFAULT 1; -- for If-Match
ALTER TABLE plugins ADD COLUMN decided_at    INTEGER;
UPDATE plugins SET pending = 1 WHERE NOT enabled AND schema IS NULL;
UPDATE plugins SET decided_at = created_at WHERE NOT pending;

-- differs: what the host reports is not what was registered; it serves no tasks
-- with it.
ALTER TABLE host_plugins ADD COLUMN differs INTEGER NOT NULL DEFAULT 0 CHECK (differs IN (0, 1));
CREATE INDEX host_plugins_version ON host_plugins (name, version, host_id);

ALTER TABLE hosts ADD COLUMN drain_deadline INTEGER;
ALTER TABLE hosts ADD COLUMN note TEXT NOT NULL DEFAULT '';
ALTER TABLE devices ADD COLUMN maintenance_until INTEGER;
CREATE INDEX devices_maintenance ON devices (maintenance_until) WHERE maintenance_until IS NOT NULL;
CREATE INDEX attempts_device ON attempts (device_id, assigned_at);

CREATE TABLE webhooks (
    id         TEXT PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL UNIQUE,
    url        TEXT NOT NULL,
    sealed     BLOB NOT NULL, -- key of the signatures, under the master key
    events     TEXT NOT NULL,
    pool_id    TEXT REFERENCES pools (id), -- null: all
    enabled    INTEGER NOT NULL DEFAULT 1,
    note       TEXT NOT NULL DEFAULT '', -- why it was disabled
    version    INTEGER NOT NULL DEFAULT 1,
    after_event INTEGER NOT NULL, -- events of the audit trail up to here are settled
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE webhook_deliveries (
    id         TEXT PRIMARY KEY NOT NULL,
    webhook_id TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event_id   INTEGER NOT NULL,
    event      TEXT NOT NULL,
    body       TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    tries      INTEGER NOT NULL DEFAULT 0,
    next_at    INTEGER,
    status     INTEGER, -- of the last answer
    error      TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    finished_at INTEGER,
    UNIQUE (webhook_id, event_id),
    CHECK ((state = 'pending') = (next_at IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_history ON webhook_deliveries (webhook_id, id);
CREATE INDEX webhook_deliveries_age ON webhook_deliveries (finished_at) WHERE finished_at IS NOT NULL;

-- Where readers of the audit trail are.
CREATE TABLE trail_readers (
    name     TEXT PRIMARY KEY NOT NULL,
    event_id INTEGER NOT NULL,
    at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Small rows that answer every question about the past. waits and runs are
-- histograms over berth.StatsBounds.
CREATE TABLE stats_tasks (
    minute    INTEGER NOT NULL,
    pool_id   TEXT NOT NULL,
    plugin    TEXT NOT NULL,
    submitted INTEGER NOT NULL DEFAULT 0,
    started   INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0,
    dead      INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    retried   INTEGER NOT NULL DEFAULT 0,
    waits     TEXT NOT NULL DEFAULT '[]',
    runs      TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (pool_id, minute, plugin)
) STRICT, WITHOUT ROWID;
CREATE INDEX stats_tasks_age ON stats_tasks (minute);

CREATE TABLE stats_devices (
    hour      INTEGER NOT NULL,
    device_id TEXT NOT NULL,
    pool_id   TEXT NOT NULL,
    attempts  INTEGER NOT NULL DEFAULT 0,
    failures  INTEGER NOT NULL DEFAULT 0, -- infra_failed, timed_out, lost
    busy_us   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (device_id, hour)
) STRICT, WITHOUT ROWID;
CREATE INDEX stats_devices_age ON stats_devices (hour);

-- How deep queues are, as it was counted last.
CREATE TABLE stats_depth (
    class_id  INTEGER NOT NULL,
    pool_id   TEXT NOT NULL,
    state     TEXT NOT NULL, -- queued, scheduled, failed, assigned, claimed, running
    tasks     INTEGER NOT NULL,
    oldest_at INTEGER, -- since when the oldest one waits
    counted_at INTEGER NOT NULL,
    PRIMARY KEY (class_id, state)
) STRICT, WITHOUT ROWID;
