-- Schedules, dead letters by cause, bulk jobs, the plugin registry, history of
-- devices, webhooks, statistics.

-- As in 0004.
LOCK TABLE attempts, tasks, devices, hosts, plugins, host_plugins;

-- The row is locked while its slots are decided. revision counts what changes
-- slots (cron, time_zone); version counts every edit, for If-Match.
CREATE TABLE schedules (
    id         uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    pool_id    uuid NOT NULL REFERENCES pools (id),
    cron       text NOT NULL,
    time_zone  text NOT NULL,
    template   json NOT NULL, -- what a submit takes, without its pool and not-before
    catch_up   text NOT NULL CHECK (catch_up IN ('none', 'latest', 'all')),
    catch_up_window_us bigint NOT NULL CHECK (catch_up_window_us >= 0),
    catch_up_limit integer NOT NULL CHECK (catch_up_limit > 0),
    overlap    text NOT NULL CHECK (overlap IN ('skip', 'allow', 'queue_one', 'cancel_running')),
    revision   integer NOT NULL DEFAULT 1,
    version    integer NOT NULL DEFAULT 1,
    paused     boolean NOT NULL DEFAULT false,
    note       text NOT NULL DEFAULT '',
    owner_kind text NOT NULL, -- whose the tasks are
    owner_id   text NOT NULL,
    owner_roles text[] NOT NULL, -- that the template was written with
    -- The slot that is waited for, null while paused; look_at is when the next
    -- look at it is worth while.
    next_slot_at  timestamptz,
    next_slot_key text NOT NULL DEFAULT '',
    waiting    boolean NOT NULL DEFAULT false, -- it is due, and waits for a task's end
    look_at    timestamptz,
    decided_to timestamptz NOT NULL, -- every slot up to here is decided
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX schedules_due ON schedules (look_at) WHERE look_at IS NOT NULL;

-- One row a slot that was decided, or a run of slots that were skipped together.
CREATE TABLE fires (
    schedule_id uuid NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    revision    integer NOT NULL,
    slot_key    text NOT NULL, -- cron.Slot; run-now has its own
    slot_at     timestamptz NOT NULL,
    decided_at  timestamptz NOT NULL,
    task_id     uuid, -- null: skipped
    reason      text NOT NULL DEFAULT '', -- why skipped
    slots       integer NOT NULL DEFAULT 1, -- how many, from slot_at to last_slot_at
    at_least    boolean NOT NULL DEFAULT false, -- they were not counted to the end
    last_slot_at timestamptz NOT NULL,
    open        boolean NOT NULL DEFAULT false, -- its task was unfinished at the last look
    PRIMARY KEY (schedule_id, revision, slot_key)
);
CREATE INDEX fires_history ON fires (schedule_id, decided_at, slot_key, revision);
CREATE INDEX fires_open ON fires (schedule_id, slot_at) WHERE open;
CREATE INDEX fires_age ON fires (decided_at);

-- Inputs that templates name do not expire.
CREATE TABLE schedule_inputs (
    digest      bytea NOT NULL,
    schedule_id uuid NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    PRIMARY KEY (digest, schedule_id)
);
CREATE INDEX schedule_inputs_schedule ON schedule_inputs (schedule_id);

-- An index whose predicate names a column that every finish changes would cost
-- every finish its HOT update: schedule_id never changes, cause_key seldom.
ALTER TABLE tasks
    ADD COLUMN schedule_id uuid,
    ADD COLUMN cause_key text; -- of a dead letter; causes
CREATE INDEX tasks_schedule ON tasks (schedule_id, id) WHERE schedule_id IS NOT NULL;
CREATE INDEX tasks_cause ON tasks (cause_key, id) WHERE cause_key IS NOT NULL;

-- What dead letters have in common: berth.CauseOf.
CREATE TABLE causes (
    cause_key  text PRIMARY KEY,
    plugin     text NOT NULL,
    reason     text NOT NULL,
    message    text NOT NULL, -- normalised
    created_at timestamptz NOT NULL
);

-- Dead letters from before have no message to tell them apart by: berth.UnknownCause.
INSERT INTO causes (cause_key, plugin, reason, message, created_at)
SELECT '00000000000000000000000000000000', '', '', '', berth_now()
WHERE EXISTS (SELECT 1 FROM tasks WHERE final_state = 'dead_letter');
UPDATE tasks SET cause_key = '00000000000000000000000000000000' WHERE final_state = 'dead_letter';

-- Work on many tasks, done page by page by the leasekeepers.
CREATE TABLE bulk_jobs (
    id          uuid PRIMARY KEY,
    act         text NOT NULL CHECK (act IN ('cancel', 'retry', 'delete', 'reprioritise')),
    filter      json NOT NULL, -- as in the listing of tasks
    params      json NOT NULL, -- of the act
    state       text NOT NULL CHECK (state IN ('running', 'done', 'stopped')),
    owner_kind  text NOT NULL,
    owner_id    text NOT NULL,
    request_id  text NOT NULL DEFAULT '',
    position    uuid, -- of the last task looked at; from the newest to the oldest
    position_cause text NOT NULL DEFAULT '', -- of a walk through causes
    upper       uuid NOT NULL, -- tasks that came later are none of its
    looked      bigint NOT NULL DEFAULT 0,
    changed     bigint NOT NULL DEFAULT 0,
    refused     bigint NOT NULL DEFAULT 0, -- had moved on when their turn came
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    finished_at timestamptz,
    CHECK ((state = 'running') = (finished_at IS NULL))
);
CREATE INDEX bulk_jobs_running ON bulk_jobs (id) WHERE finished_at IS NULL;

-- pending: a host reported it, and nobody has decided. What an older release
-- knew of such a version was its name.
ALTER TABLE plugins
    ADD COLUMN pending       boolean NOT NULL DEFAULT false,
    ADD COLUMN deprecated    boolean NOT NULL DEFAULT false,
    ADD COLUMN result_schema json,
    ADD COLUMN defaults      json NOT NULL DEFAULT '{}', -- run_timeout, retry
    ADD COLUMN note          text NOT NULL DEFAULT '',
    ADD COLUMN revision      integer NOT NULL DEFAULT 1, -- for If-Match
    ADD COLUMN decided_at    timestamptz;
UPDATE plugins SET pending = NOT enabled AND schema IS NULL;
UPDATE plugins SET decided_at = created_at WHERE NOT pending;

-- differs: what the host reports is not what was registered; it serves no tasks
-- with it.
ALTER TABLE host_plugins ADD COLUMN differs boolean NOT NULL DEFAULT false;
CREATE INDEX host_plugins_version ON host_plugins (name, version, host_id);

ALTER TABLE hosts
    ADD COLUMN drain_deadline timestamptz,
    ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE devices ADD COLUMN maintenance_until timestamptz;
CREATE INDEX devices_maintenance ON devices (maintenance_until) WHERE maintenance_until IS NOT NULL;
CREATE INDEX attempts_device ON attempts (device_id, assigned_at);

CREATE TABLE webhooks (
    id         uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    url        text NOT NULL,
    sealed     bytea NOT NULL, -- key of the signatures, under the master key
    events     text[] NOT NULL,
    pool_id    uuid REFERENCES pools (id), -- null: all
    enabled    boolean NOT NULL DEFAULT true,
    note       text NOT NULL DEFAULT '', -- why it was disabled
    version    integer NOT NULL DEFAULT 1,
    after_event bigint NOT NULL, -- events of the audit trail up to here are settled
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE webhook_deliveries (
    id         uuid PRIMARY KEY,
    webhook_id uuid NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    event_id   bigint NOT NULL,
    event      text NOT NULL,
    body       json NOT NULL,
    state      text NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    tries      integer NOT NULL DEFAULT 0,
    next_at    timestamptz,
    status     integer, -- of the last answer
    error      text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    UNIQUE (webhook_id, event_id),
    CHECK ((state = 'pending') = (next_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_history ON webhook_deliveries (webhook_id, id);
CREATE INDEX webhook_deliveries_age ON webhook_deliveries (finished_at) WHERE finished_at IS NOT NULL;

-- Where readers of the audit trail are.
CREATE TABLE trail_readers (
    name     text PRIMARY KEY,
    event_id bigint NOT NULL,
    at       timestamptz NOT NULL
);

-- Small rows that answer every question about the past. waits and runs are
-- histograms over berth.StatsBounds.
CREATE TABLE stats_tasks (
    minute    timestamptz NOT NULL,
    pool_id   uuid NOT NULL,
    plugin    text NOT NULL,
    submitted bigint NOT NULL DEFAULT 0,
    started   bigint NOT NULL DEFAULT 0,
    succeeded bigint NOT NULL DEFAULT 0,
    dead      bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    retried   bigint NOT NULL DEFAULT 0,
    waits     bigint[] NOT NULL DEFAULT '{}',
    runs      bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (pool_id, minute, plugin)
);
CREATE INDEX stats_tasks_age ON stats_tasks (minute);

CREATE TABLE stats_devices (
    hour      timestamptz NOT NULL,
    device_id uuid NOT NULL,
    pool_id   uuid NOT NULL,
    attempts  bigint NOT NULL DEFAULT 0,
    failures  bigint NOT NULL DEFAULT 0, -- infra_failed, timed_out, lost
    busy_us   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (device_id, hour)
);
CREATE INDEX stats_devices_age ON stats_devices (hour);

-- How deep queues are, as it was counted last.
CREATE TABLE stats_depth (
    class_id  bigint NOT NULL,
    pool_id   uuid NOT NULL,
    state     text NOT NULL, -- queued, scheduled, failed, assigned, claimed, running
    tasks     bigint NOT NULL,
    oldest_at timestamptz, -- since when the oldest one waits
    counted_at timestamptz NOT NULL,
    PRIMARY KEY (class_id, state)
);
