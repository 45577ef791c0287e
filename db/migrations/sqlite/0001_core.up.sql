-- Berth's schema without leases, in SQLite's dialect; the same tables, columns
-- and names as in migrations/postgres. Times are INTEGER microseconds since
-- 1970 UTC, so that they sort; uuids TEXT in their canonical form; booleans 0
-- or 1; JSON and arrays TEXT that holds JSON; durations INTEGER microseconds.
-- A task is in exactly one place: delayed, queue, a live attempt, or finished
-- (tasks.final_state); docs/states.md.

CREATE TABLE pools (
    id             TEXT PRIMARY KEY NOT NULL,
    name           TEXT NOT NULL UNIQUE,
    paused         INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    ageing_step_us INTEGER NOT NULL DEFAULT 600000000 CHECK (ageing_step_us >= 0),
    created_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE hosts (
    id            TEXT PRIMARY KEY NOT NULL,
    name          TEXT NOT NULL UNIQUE,
    pool_id       TEXT NOT NULL REFERENCES pools (id),
    public_key    BLOB NOT NULL,
    state         TEXT NOT NULL DEFAULT 'enrolled' CHECK (state IN ('enrolled', 'online', 'offline', 'revoked')),
    draining      INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1)),
    agent_version TEXT NOT NULL DEFAULT '',
    last_seen_at  INTEGER,
    enrolled_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX hosts_pool ON hosts (pool_id);

CREATE TABLE enrolment_tokens (
    id         TEXT PRIMARY KEY NOT NULL,
    token_hash BLOB NOT NULL UNIQUE,
    pool_id    TEXT NOT NULL REFERENCES pools (id),
    pattern    TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER,
    used_by    TEXT REFERENCES hosts (id),
    used_key   BLOB,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE plugins (
    name        TEXT NOT NULL,
    version     TEXT NOT NULL,
    enabled     INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    schema      TEXT,
    requires    TEXT NOT NULL DEFAULT '', -- selector that a device must satisfy
    description TEXT NOT NULL DEFAULT '',
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT;

CREATE TABLE host_plugins (
    host_id TEXT NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    name    TEXT NOT NULL,
    version TEXT NOT NULL,
    PRIMARY KEY (host_id, name, version),
    FOREIGN KEY (name, version) REFERENCES plugins (name, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE devices (
    id              TEXT PRIMARY KEY NOT NULL,
    host_id         TEXT NOT NULL REFERENCES hosts (id),
    pool_id         TEXT NOT NULL REFERENCES pools (id),
    driver          TEXT NOT NULL,
    hardware_id     TEXT NOT NULL,
    hardware_unique INTEGER NOT NULL CHECK (hardware_unique IN (0, 1)),
    name            TEXT NOT NULL,
    labels          TEXT NOT NULL DEFAULT '{}', -- reported by the agent
    admin_labels    TEXT NOT NULL DEFAULT '{}', -- override what is reported
    present         INTEGER NOT NULL DEFAULT 1 CHECK (present IN (0, 1)),
    health          TEXT NOT NULL DEFAULT 'good' CHECK (health IN ('good', 'suspect', 'quarantined')),
    admin_state     TEXT NOT NULL DEFAULT 'active' CHECK (admin_state IN ('active', 'cordoned', 'maintenance', 'retired')),
    unclean         INTEGER NOT NULL DEFAULT 0 CHECK (unclean IN (0, 1)),
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    UNIQUE (host_id, driver, hardware_id)
) STRICT;
CREATE INDEX devices_pool ON devices (pool_id);
-- A phone's serial is one device wherever it is plugged in.
CREATE UNIQUE INDEX devices_hardware ON devices (driver, hardware_id) WHERE hardware_unique = 1;

-- Tasks of one pool that ask for the same thing. Rows are never changed.
CREATE TABLE task_classes (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    class_key     TEXT NOT NULL UNIQUE, -- eligibility.ClassKey
    pool_id       TEXT NOT NULL REFERENCES pools (id),
    selector      TEXT NOT NULL,
    plugin        TEXT NOT NULL,
    version_range TEXT NOT NULL
) STRICT;
CREATE INDEX task_classes_pool ON task_classes (pool_id);

-- Written at submit, once at the end, and by acts of people. No index on state.
CREATE TABLE tasks (
    id               TEXT PRIMARY KEY NOT NULL,
    pool_id          TEXT NOT NULL,
    class_id         INTEGER NOT NULL,
    rank             INTEGER NOT NULL,
    name             TEXT NOT NULL DEFAULT '',
    tags             TEXT NOT NULL DEFAULT '[]',
    payload          TEXT NOT NULL,
    priority         INTEGER NOT NULL,
    not_before       INTEGER,
    run_timeout_us   INTEGER NOT NULL,
    queue_timeout_us INTEGER NOT NULL DEFAULT 0, -- 0: waits for ever
    retry_on         TEXT NOT NULL,
    backoff_initial_us INTEGER NOT NULL,
    backoff_factor   REAL NOT NULL,
    backoff_max_us   INTEGER NOT NULL,
    backoff_jitter   REAL NOT NULL,
    retry_unsafe     INTEGER NOT NULL CHECK (retry_unsafe IN (0, 1)),
    max_attempts     INTEGER NOT NULL,
    budget           INTEGER NOT NULL, -- tries allowed: max_attempts, raised by hand
    submitter_kind   TEXT NOT NULL,
    submitter_id     TEXT NOT NULL,
    correlation_id   TEXT NOT NULL,
    trace_parent     TEXT NOT NULL DEFAULT '',
    submitted_at     INTEGER NOT NULL,
    final_state      TEXT CHECK (final_state IN ('succeeded', 'dead_letter', 'cancelled')),
    final_reason     TEXT,
    finished_at      INTEGER,
    result           TEXT,
    CHECK ((final_state IS NULL) = (finished_at IS NULL))
) STRICT;

-- Both waiting places. Foreign keys are left out on the hot tables: the token
-- rule keeps them right, and the sweep proves it.
CREATE TABLE queue (
    class_id    INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    task_id     TEXT NOT NULL UNIQUE,
    number      INTEGER NOT NULL, -- of the next attempt
    give_up_at  INTEGER,
    last_host   TEXT, -- prefer another
    last_device TEXT,
    PRIMARY KEY (class_id, rank, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX queue_give_up ON queue (give_up_at) WHERE give_up_at IS NOT NULL;

CREATE TABLE delayed (
    task_id     TEXT PRIMARY KEY NOT NULL,
    due_at      INTEGER NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('scheduled', 'failed')),
    class_id    INTEGER NOT NULL,
    rank        INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    give_up_at  INTEGER,
    last_host   TEXT,
    last_device TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX delayed_due ON delayed (due_at, task_id);
CREATE INDEX delayed_give_up ON delayed (give_up_at) WHERE give_up_at IS NOT NULL AND kind = 'failed';

-- One row a try. Live until ended_at; at most one live a task (I1).
CREATE TABLE attempts (
    task_id       TEXT NOT NULL,
    number        INTEGER NOT NULL,
    id            TEXT NOT NULL UNIQUE,
    device_id     TEXT NOT NULL,
    host_id       TEXT NOT NULL,
    state         TEXT NOT NULL CHECK (state IN ('assigned', 'claimed', 'running')),
    plugin_version TEXT NOT NULL,
    claim_id      TEXT,
    assigned_at   INTEGER NOT NULL,
    claimed_at    INTEGER,
    started_at    INTEGER,
    cancel_requested_at INTEGER,
    ended_at      INTEGER,
    outcome       TEXT CHECK (outcome IN ('succeeded', 'failed', 'infra_failed', 'timed_out', 'cancelled', 'lost', 'released')),
    ended_by      TEXT,
    reason        TEXT,
    message       TEXT,
    result        TEXT,
    complete_digest BLOB,
    uncounted     INTEGER NOT NULL DEFAULT 0 CHECK (uncounted IN (0, 1)), -- a hand-back by drain or revoke
    progress      REAL NOT NULL DEFAULT 0,
    progress_note TEXT NOT NULL DEFAULT '',
    log_bytes     INTEGER NOT NULL DEFAULT 0,
    give_up_at    INTEGER, -- carried from the token
    PRIMARY KEY (task_id, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) STRICT;
CREATE UNIQUE INDEX attempts_live_task ON attempts (task_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_live_host ON attempts (host_id) WHERE ended_at IS NULL;

CREATE TABLE log_chunks (
    attempt_id TEXT NOT NULL,
    start_at   INTEGER NOT NULL,
    size       INTEGER NOT NULL CHECK (size > 0),
    sha256     BLOB NOT NULL,
    blob_key   TEXT NOT NULL,
    PRIMARY KEY (attempt_id, start_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE artifacts (
    attempt_id   TEXT NOT NULL,
    name         TEXT NOT NULL,
    task_id      TEXT NOT NULL,
    number       INTEGER NOT NULL,
    class        TEXT NOT NULL,
    content_type TEXT NOT NULL,
    size         INTEGER NOT NULL,
    sha256       BLOB NOT NULL,
    blob_key     TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (attempt_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_task ON artifacts (task_id, number, name);

CREATE TABLE idempotency_keys (
    principal_kind TEXT NOT NULL,
    principal_id   TEXT NOT NULL,
    key            TEXT NOT NULL,
    body_digest    BLOB NOT NULL,
    task_ids       TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (principal_kind, principal_id, key)
) STRICT;

CREATE TABLE audit_events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    actor_kind  TEXT NOT NULL,
    actor_id    TEXT NOT NULL,
    request_id  TEXT NOT NULL DEFAULT '',
    action      TEXT NOT NULL,
    target_kind TEXT NOT NULL,
    target_id   TEXT NOT NULL,
    attempt_id  TEXT,
    number      INTEGER,
    device_id   TEXT,
    host_id     TEXT,
    from_state  TEXT,
    to_state    TEXT,
    outcome     TEXT,
    reason      TEXT
) STRICT;
CREATE INDEX audit_events_target ON audit_events (target_id, id);

CREATE TABLE users (
    id            TEXT PRIMARY KEY NOT NULL,
    name          TEXT NOT NULL UNIQUE,
    roles         TEXT NOT NULL,
    password_hash TEXT NOT NULL,
    disabled      INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
    created_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE refresh_tokens (
    token_hash   BLOB PRIMARY KEY NOT NULL,
    family       TEXT NOT NULL,
    user_id      TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    generation   INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    rotated_at   INTEGER,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX refresh_tokens_family ON refresh_tokens (family);

CREATE TABLE signing_keys (
    id         TEXT PRIMARY KEY NOT NULL,
    algorithm  TEXT NOT NULL,
    public_key BLOB NOT NULL,
    private_key BLOB NOT NULL, -- sealed under the master key
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO pools (id, name, created_at)
VALUES ('00000000-0000-7000-8000-000000000001', 'default', CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000);
