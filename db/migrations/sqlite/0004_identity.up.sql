-- Identity, audit, secrets.

ALTER TABLE users ADD COLUMN version INTEGER NOT NULL DEFAULT 1; -- of roles and disabled, for If-Match
ALTER TABLE users ADD COLUMN issuer TEXT; -- of somebody whom another installation knows; password_hash is '' then
ALTER TABLE users ADD COLUMN subject TEXT;
CREATE UNIQUE INDEX users_external ON users (issuer, subject) WHERE issuer IS NOT NULL;

-- A session lives while one of its tokens is neither rotated nor revoked.
ALTER TABLE refresh_tokens ADD COLUMN parent BLOB; -- hash of the token that it replaced
ALTER TABLE refresh_tokens ADD COLUMN settled INTEGER NOT NULL DEFAULT 0; -- a token that replaced it was rotated in turn
CREATE INDEX refresh_tokens_living ON refresh_tokens (family) WHERE rotated_at IS NULL AND revoked_at IS NULL;
CREATE INDEX refresh_tokens_user ON refresh_tokens (user_id) WHERE rotated_at IS NULL AND revoked_at IS NULL;

CREATE TABLE api_keys (
    id           TEXT PRIMARY KEY NOT NULL,
    user_id      TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name         TEXT NOT NULL,
    prefix       TEXT NOT NULL,
    secret_hash  BLOB NOT NULL UNIQUE,
    roles        TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_user ON api_keys (user_id, id);

-- Failed logins by the keyed hash of the name and the client's address (empty: of all).
CREATE TABLE login_failures (
    name_hash BLOB NOT NULL,
    client    TEXT NOT NULL,
    failures  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL,
    wait_until INTEGER,
    known_at   INTEGER, -- of the last success
    PRIMARY KEY (name_hash, client)
) STRICT, WITHOUT ROWID;
CREATE INDEX login_failures_last ON login_failures (last_at);

-- Assertions of hosts that were used, until they expire.
CREATE TABLE used_assertions (
    host_id    TEXT NOT NULL,
    jti        TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (host_id, jti)
) STRICT, WITHOUT ROWID;
CREATE INDEX used_assertions_expiry ON used_assertions (expires_at);

-- The next key counts beside the old one until the host has used it.
ALTER TABLE hosts ADD COLUMN next_public_key BLOB;
ALTER TABLE hosts ADD COLUMN key_changed_at INTEGER;
ALTER TABLE hosts ADD COLUMN key_rotation_requested_at INTEGER;

ALTER TABLE audit_events ADD COLUMN client TEXT NOT NULL DEFAULT ''; -- the caller's address
ALTER TABLE audit_events ADD COLUMN credential TEXT NOT NULL DEFAULT ''; -- session, API key or host key that it used
ALTER TABLE audit_events ADD COLUMN before TEXT;
ALTER TABLE audit_events ADD COLUMN after TEXT;

-- Each index costs with every transition. These two cost little: administrative
-- acts are rare, and one row in five is a person's. Searches by what has no index
-- walk the newest rows, a bounded number a page.
CREATE INDEX audit_events_acts ON audit_events (id) WHERE target_kind <> 'task';
CREATE INDEX audit_events_users ON audit_events (actor_id, id) WHERE actor_kind = 'user';

-- The trail is append-only: nothing changes a row, and none younger than 30 days
-- goes.
CREATE TRIGGER audit_events_unchanged BEFORE UPDATE ON audit_events
BEGIN
    SELECT RAISE(ABORT, 'audit rows are kept as they are');
END;
CREATE TRIGGER audit_events_kept BEFORE DELETE ON audit_events
WHEN OLD.at >= (CAST(strftime('%s', 'now') AS INTEGER) - 2592000) * 1000000
BEGIN
    SELECT RAISE(ABORT, 'audit rows are kept as they are');
END;

CREATE TABLE secrets (
    name        TEXT PRIMARY KEY NOT NULL,
    sealed      BLOB NOT NULL, -- under the master key, bound to name and version
    version     INTEGER NOT NULL,
    description TEXT NOT NULL DEFAULT '',
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Whose tasks may name a secret: a user by id, or everybody with a role.
CREATE TABLE secret_grants (
    secret  TEXT NOT NULL REFERENCES secrets (name) ON DELETE CASCADE,
    kind    TEXT NOT NULL CHECK (kind IN ('user', 'role')),
    grantee TEXT NOT NULL,
    PRIMARY KEY (secret, kind, grantee)
) STRICT, WITHOUT ROWID;

ALTER TABLE tasks ADD COLUMN secrets TEXT NOT NULL DEFAULT '[]';
