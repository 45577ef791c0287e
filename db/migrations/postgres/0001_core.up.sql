-- Berth's schema without leases. A task is in exactly one place: delayed,
-- queue, a live attempt, or finished (tasks.final_state); docs/states.md.

-- The clock that decides. Tests set berth.test_clock to an instant; nothing
-- else does. It is volatile: use (SELECT berth_now()) where an index is wanted.
CREATE FUNCTION berth_now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT COALESCE(NULLIF(current_setting('berth.test_clock', true), '')::timestamptz, clock_timestamp()) $$;

CREATE TABLE pools (
    id             uuid PRIMARY KEY,
    name           text NOT NULL UNIQUE,
    paused         boolean NOT NULL DEFAULT false,
    ageing_step_us bigint NOT NULL DEFAULT 600000000 CHECK (ageing_step_us >= 0),
    created_at     timestamptz NOT NULL
);

CREATE TABLE hosts (
    id            uuid PRIMARY KEY,
    name          text NOT NULL UNIQUE,
    pool_id       uuid NOT NULL REFERENCES pools (id),
    public_key    bytea NOT NULL,
    state         text NOT NULL DEFAULT 'enrolled' CHECK (state IN ('enrolled', 'online', 'offline', 'revoked')),
    draining      boolean NOT NULL DEFAULT false,
    agent_version text NOT NULL DEFAULT '',
    last_seen_at  timestamptz,
    enrolled_at   timestamptz NOT NULL
) WITH (fillfactor = 60);
CREATE INDEX hosts_pool ON hosts (pool_id);

CREATE TABLE enrolment_tokens (
    id         uuid PRIMARY KEY,
    token_hash bytea NOT NULL UNIQUE,
    pool_id    uuid NOT NULL REFERENCES pools (id),
    pattern    text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz,
    used_by    uuid REFERENCES hosts (id),
    used_key   bytea,
    revoked_at timestamptz
);

CREATE TABLE plugins (
    name        text NOT NULL,
    version     text NOT NULL,
    enabled     boolean NOT NULL,
    schema      json,
    requires    text NOT NULL DEFAULT '', -- selector that a device must satisfy
    description text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE host_plugins (
    host_id uuid NOT NULL REFERENCES hosts (id) ON DELETE CASCADE,
    name    text NOT NULL,
    version text NOT NULL,
    PRIMARY KEY (host_id, name, version),
    FOREIGN KEY (name, version) REFERENCES plugins (name, version)
);

CREATE TABLE devices (
    id              uuid PRIMARY KEY,
    host_id         uuid NOT NULL REFERENCES hosts (id),
    pool_id         uuid NOT NULL REFERENCES pools (id),
    driver          text NOT NULL,
    hardware_id     text NOT NULL,
    hardware_unique boolean NOT NULL,
    name            text NOT NULL,
    labels          jsonb NOT NULL DEFAULT '{}', -- reported by the agent
    admin_labels    jsonb NOT NULL DEFAULT '{}', -- override what is reported
    present         boolean NOT NULL DEFAULT true,
    health          text NOT NULL DEFAULT 'good' CHECK (health IN ('good', 'suspect', 'quarantined')),
    admin_state     text NOT NULL DEFAULT 'active' CHECK (admin_state IN ('active', 'cordoned', 'maintenance', 'retired')),
    unclean         boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    UNIQUE (host_id, driver, hardware_id)
) WITH (fillfactor = 80);
CREATE INDEX devices_pool ON devices (pool_id);
-- A phone's serial is one device wherever it is plugged in.
CREATE UNIQUE INDEX devices_hardware ON devices (driver, hardware_id) WHERE hardware_unique;

-- Tasks of one pool that ask for the same thing. Rows are never changed.
CREATE TABLE task_classes (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    class_key     text NOT NULL UNIQUE, -- eligibility.ClassKey
    pool_id       uuid NOT NULL REFERENCES pools (id),
    selector      text NOT NULL,
    plugin        text NOT NULL,
    version_range text NOT NULL
);
CREATE INDEX task_classes_pool ON task_classes (pool_id);

-- Written at submit, once at the end, and by acts of people. No index on state.
CREATE TABLE tasks (
    id               uuid PRIMARY KEY,
    pool_id          uuid NOT NULL,
    class_id         bigint NOT NULL,
    rank             bigint NOT NULL,
    name             text NOT NULL DEFAULT '',
    tags             text[] NOT NULL DEFAULT '{}',
    payload          json NOT NULL,
    priority         smallint NOT NULL,
    not_before       timestamptz,
    run_timeout_us   bigint NOT NULL,
    queue_timeout_us bigint NOT NULL DEFAULT 0, -- 0: waits for ever
    retry_on         text[] NOT NULL,
    backoff_initial_us bigint NOT NULL,
    backoff_factor   double precision NOT NULL,
    backoff_max_us   bigint NOT NULL,
    backoff_jitter   double precision NOT NULL,
    retry_unsafe     boolean NOT NULL,
    max_attempts     integer NOT NULL,
    budget           integer NOT NULL, -- tries allowed: max_attempts, raised by hand
    submitter_kind   text NOT NULL,
    submitter_id     text NOT NULL,
    correlation_id   text NOT NULL,
    trace_parent     text NOT NULL DEFAULT '',
    submitted_at     timestamptz NOT NULL,
    final_state      text CHECK (final_state IN ('succeeded', 'dead_letter', 'cancelled')),
    final_reason     text,
    finished_at      timestamptz,
    result           json,
    CHECK ((final_state IS NULL) = (finished_at IS NULL))
) WITH (fillfactor = 85);

-- Both waiting places. Foreign keys are left out on the hot tables: the token
-- rule keeps them right, and the sweep proves it.
CREATE TABLE queue (
    class_id    bigint NOT NULL,
    rank        bigint NOT NULL,
    task_id     uuid NOT NULL UNIQUE,
    number      integer NOT NULL, -- of the next attempt
    give_up_at  timestamptz,
    last_host   uuid, -- prefer another
    last_device uuid,
    PRIMARY KEY (class_id, rank, task_id)
);
CREATE INDEX queue_give_up ON queue (give_up_at) WHERE give_up_at IS NOT NULL;

CREATE TABLE delayed (
    task_id     uuid PRIMARY KEY,
    due_at      timestamptz NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('scheduled', 'failed')),
    class_id    bigint NOT NULL,
    rank        bigint NOT NULL,
    number      integer NOT NULL,
    give_up_at  timestamptz,
    last_host   uuid,
    last_device uuid
);
CREATE INDEX delayed_due ON delayed (due_at, task_id);
CREATE INDEX delayed_give_up ON delayed (give_up_at) WHERE give_up_at IS NOT NULL AND kind = 'failed';

-- One row a try. Live until ended_at; at most one live a task (I1).
CREATE TABLE attempts (
    task_id       uuid NOT NULL,
    number        integer NOT NULL,
    id            uuid NOT NULL UNIQUE,
    device_id     uuid NOT NULL,
    host_id       uuid NOT NULL,
    state         text NOT NULL CHECK (state IN ('assigned', 'claimed', 'running')),
    plugin_version text NOT NULL,
    claim_id      uuid,
    assigned_at   timestamptz NOT NULL,
    claimed_at    timestamptz,
    started_at    timestamptz,
    cancel_requested_at timestamptz,
    ended_at      timestamptz,
    outcome       text CHECK (outcome IN ('succeeded', 'failed', 'infra_failed', 'timed_out', 'cancelled', 'lost', 'released')),
    ended_by      text,
    reason        text,
    message       text,
    result        json,
    complete_digest bytea,
    uncounted     boolean NOT NULL DEFAULT false, -- a hand-back by drain or revoke
    progress      real NOT NULL DEFAULT 0,
    progress_note text NOT NULL DEFAULT '',
    log_bytes     bigint NOT NULL DEFAULT 0,
    give_up_at    timestamptz, -- carried from the token
    PRIMARY KEY (task_id, number),
    CHECK ((ended_at IS NULL) = (outcome IS NULL))
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX attempts_live_task ON attempts (task_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_live_host ON attempts (host_id) WHERE ended_at IS NULL;

CREATE TABLE log_chunks (
    attempt_id uuid NOT NULL,
    start_at   bigint NOT NULL,
    size       bigint NOT NULL CHECK (size > 0),
    sha256     bytea NOT NULL,
    blob_key   text NOT NULL,
    PRIMARY KEY (attempt_id, start_at)
);

CREATE TABLE artifacts (
    attempt_id   uuid NOT NULL,
    name         text NOT NULL,
    task_id      uuid NOT NULL,
    number       integer NOT NULL,
    class        text NOT NULL,
    content_type text NOT NULL,
    size         bigint NOT NULL,
    sha256       bytea NOT NULL,
    blob_key     text NOT NULL,
    created_at   timestamptz NOT NULL,
    PRIMARY KEY (attempt_id, name)
);
CREATE INDEX artifacts_task ON artifacts (task_id, number, name);

CREATE TABLE idempotency_keys (
    principal_kind text NOT NULL,
    principal_id   text NOT NULL,
    key            text NOT NULL,
    body_digest    bytea NOT NULL,
    task_ids       uuid[] NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (principal_kind, principal_id, key)
);

CREATE TABLE audit_events (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL,
    actor_kind  text NOT NULL,
    actor_id    text NOT NULL,
    request_id  text NOT NULL DEFAULT '',
    action      text NOT NULL,
    target_kind text NOT NULL,
    target_id   text NOT NULL,
    attempt_id  uuid,
    number      integer,
    device_id   uuid,
    host_id     uuid,
    from_state  text,
    to_state    text,
    outcome     text,
    reason      text
);
CREATE INDEX audit_events_target ON audit_events (target_id, id);

CREATE TABLE users (
    id            uuid PRIMARY KEY,
    name          text NOT NULL UNIQUE,
    roles         text[] NOT NULL,
    password_hash text NOT NULL,
    disabled      boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL
);

CREATE TABLE refresh_tokens (
    token_hash   bytea PRIMARY KEY,
    family       uuid NOT NULL,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    generation   integer NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    rotated_at   timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX refresh_tokens_family ON refresh_tokens (family);

CREATE TABLE signing_keys (
    id         text PRIMARY KEY,
    algorithm  text NOT NULL,
    public_key bytea NOT NULL,
    private_key bytea NOT NULL, -- sealed under the master key
    created_at timestamptz NOT NULL
);

INSERT INTO pools (id, name, created_at)
VALUES ('00000000-0000-7000-8000-000000000001', 'default', berth_now());
