-- Identity, audit, secrets.

-- All at once and in the order in which daemons lock them (pkg/store), so that
-- they and this wait for each other, but never both.
LOCK TABLE users, refresh_tokens, tasks, hosts, audit_events;

ALTER TABLE users
    ADD COLUMN version integer NOT NULL DEFAULT 1, -- of roles and disabled, for If-Match
    ADD COLUMN issuer  text, -- of somebody whom another installation knows; password_hash is '' then
    ADD COLUMN subject text,
    ADD CHECK ((issuer IS NULL) = (subject IS NULL));
CREATE UNIQUE INDEX users_external ON users (issuer, subject) WHERE issuer IS NOT NULL;

-- A session lives while one of its tokens is neither rotated nor revoked.
ALTER TABLE refresh_tokens
    ADD COLUMN parent  bytea, -- hash of the token that it replaced
    ADD COLUMN settled boolean NOT NULL DEFAULT false; -- a token that replaced it was rotated in turn
CREATE INDEX refresh_tokens_living ON refresh_tokens (family) WHERE rotated_at IS NULL AND revoked_at IS NULL;
CREATE INDEX refresh_tokens_user ON refresh_tokens (user_id) WHERE rotated_at IS NULL AND revoked_at IS NULL;

CREATE TABLE api_keys (
    id           uuid PRIMARY KEY,
    user_id      uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         text NOT NULL,
    prefix       text NOT NULL,
    secret_hash  bytea NOT NULL UNIQUE,
    roles        text[] NOT NULL,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz
);
CREATE INDEX api_keys_user ON api_keys (user_id, id);

-- Failed logins by the keyed hash of the name and the client's address (empty: of all).
CREATE TABLE login_failures (
    name_hash bytea NOT NULL,
    client    text NOT NULL,
    failures  integer NOT NULL,
    last_at   timestamptz NOT NULL,
    wait_until timestamptz,
    known_at  timestamptz, -- of the last success
    PRIMARY KEY (name_hash, client)
);
CREATE INDEX login_failures_last ON login_failures (last_at);

-- Assertions of hosts that were used, until they expire.
CREATE TABLE used_assertions (
    host_id    uuid NOT NULL,
    jti        text NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (host_id, jti)
);
CREATE INDEX used_assertions_expiry ON used_assertions (expires_at);

-- The next key counts beside the old one until the host has used it.
ALTER TABLE hosts
    ADD COLUMN next_public_key bytea,
    ADD COLUMN key_changed_at timestamptz,
    ADD COLUMN key_rotation_requested_at timestamptz;

ALTER TABLE audit_events
    ADD COLUMN client     text NOT NULL DEFAULT '', -- the caller's address
    ADD COLUMN credential text NOT NULL DEFAULT '', -- session, API key or host key that it used
    ADD COLUMN before     json,
    ADD COLUMN after      json;

-- Each index costs with every transition. These two cost little: administrative
-- acts are rare, and one row in five is a person's. Searches by what has no index
-- walk the newest rows, a bounded number a page. -id, so that a plan that orders
-- by it can use no other index.
CREATE INDEX audit_events_acts ON audit_events ((-id)) WHERE target_kind <> 'task';
CREATE INDEX audit_events_users ON audit_events (actor_id, id) WHERE actor_kind = 'user';

-- The trail is append-only, for the owner of the table too: nothing changes a
-- row, and none younger than 30 days goes.
CREATE FUNCTION berth_audit_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.at < clock_timestamp() - interval '30 days' THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit rows are kept as they are' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_events_kept BEFORE UPDATE OR DELETE ON audit_events FOR EACH ROW EXECUTE FUNCTION berth_audit_kept();
CREATE TRIGGER audit_events_whole BEFORE TRUNCATE ON audit_events FOR EACH STATEMENT EXECUTE FUNCTION berth_audit_kept();

-- Retention's way: the daemons' role may not delete, but call this, which looks
-- at the oldest rows (at most so many) and removes those before an instant and
-- older than 30 days. It returns how many it removed.
DO $$ BEGIN EXECUTE format($f$
CREATE FUNCTION berth_expire_audit(older_than timestamptz, max_rows integer) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, %1$I, pg_temp AS $b$
    WITH oldest AS MATERIALIZED (
        SELECT id, at FROM %1$I.audit_events ORDER BY id LIMIT max_rows
    ), gone AS (
        DELETE FROM %1$I.audit_events e USING oldest o
        WHERE e.id = o.id AND o.at < LEAST(older_than, clock_timestamp() - interval '30 days') RETURNING 1)
    SELECT count(*) FROM gone
$b$ $f$, current_schema()); END $$;
REVOKE ALL ON FUNCTION berth_expire_audit FROM PUBLIC;

CREATE TABLE secrets (
    name        text PRIMARY KEY,
    sealed      bytea NOT NULL, -- under the master key, bound to name and version
    version     integer NOT NULL,
    description text NOT NULL DEFAULT '',
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL
);

-- Whose tasks may name a secret: a user by id, or everybody with a role.
CREATE TABLE secret_grants (
    secret  text NOT NULL REFERENCES secrets (name) ON DELETE CASCADE,
    kind    text NOT NULL CHECK (kind IN ('user', 'role')),
    grantee text NOT NULL,
    PRIMARY KEY (secret, kind, grantee)
);

ALTER TABLE tasks ADD COLUMN secrets text[] NOT NULL DEFAULT '{}';
