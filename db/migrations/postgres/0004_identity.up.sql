-- Identity, audit, secrets.

ALTER TABLE users
    ADD COLUMN version integer NOT NULL DEFAULT 1, -- of roles and disabled, for If-Match
    ADD COLUMN issuer  text, -- of somebody whom another installation knows; password_hash is '' then
    ADD COLUMN subject text,
    ADD CHECK ((issuer IS NULL) = (subject IS NULL));
CREATE UNIQUE INDEX users_external ON users (issuer, subject) WHERE issuer IS NOT NULL;
CREATE INDEX refresh_tokens_user ON refresh_tokens (user_id);

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
