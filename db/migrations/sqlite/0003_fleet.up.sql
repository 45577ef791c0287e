-- Operators' acts, device health with hysteresis, inputs, amnesty.

ALTER TABLE hosts ADD COLUMN drain_requested_at INTEGER; -- by an operator; draining is what the agent says
ALTER TABLE hosts ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;

-- berth.HealthRecord; health itself is in 0001.
ALTER TABLE devices ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE devices ADD COLUMN good_probes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE devices ADD COLUMN strikes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE devices ADD COLUMN quarantined_until INTEGER;
ALTER TABLE devices ADD COLUMN admin_note TEXT NOT NULL DEFAULT '';
ALTER TABLE devices ADD COLUMN conflict_host_id TEXT;
CREATE INDEX devices_conflict ON devices (conflict_host_id) WHERE conflict_host_id IS NOT NULL;

-- What a task brings, as it is read: [{"name", "digest", "size"}].
ALTER TABLE tasks ADD COLUMN inputs TEXT NOT NULL DEFAULT '[]';

-- An upload becomes the input when all of its bytes are there and have the digest.
CREATE TABLE input_uploads (
    id             TEXT PRIMARY KEY NOT NULL,
    digest         TEXT NOT NULL, -- lower-case hex
    principal_kind TEXT NOT NULL,
    principal_id   TEXT NOT NULL,
    size           INTEGER NOT NULL CHECK (size >= 0),
    received       INTEGER NOT NULL DEFAULT 0,
    hash_state     BLOB NOT NULL, -- of the bytes received, so that a resumed upload reads none twice
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    stored_at      INTEGER
) STRICT, WITHOUT ROWID;
-- One upload of a principal goes on at a time.
CREATE UNIQUE INDEX input_uploads_open ON input_uploads (digest, principal_kind, principal_id) WHERE stored_at IS NULL;
CREATE INDEX input_uploads_stale ON input_uploads (updated_at) WHERE stored_at IS NULL;

CREATE TABLE input_parts (
    upload_id TEXT NOT NULL REFERENCES input_uploads (id) ON DELETE CASCADE,
    start_at  INTEGER NOT NULL,
    size      INTEGER NOT NULL CHECK (size > 0),
    blob_key  TEXT NOT NULL,
    PRIMARY KEY (upload_id, start_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE inputs (
    digest       TEXT PRIMARY KEY NOT NULL,
    size         INTEGER NOT NULL,
    upload_id    TEXT NOT NULL REFERENCES input_uploads (id),
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX inputs_unused ON inputs (last_used_at);
CREATE INDEX inputs_upload ON inputs (upload_id); -- for the deletion of uploads

-- Who proved to have the bytes.
CREATE TABLE input_owners (
    digest         TEXT NOT NULL REFERENCES inputs (digest) ON DELETE CASCADE,
    principal_kind TEXT NOT NULL,
    principal_id   TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (principal_kind, principal_id, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX input_owners_digest ON input_owners (digest);

CREATE TABLE task_inputs (
    digest  TEXT NOT NULL,
    task_id TEXT NOT NULL,
    PRIMARY KEY (digest, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_inputs_task ON task_inputs (task_id);

-- The orphan sweep asks which blobs anything refers to.
CREATE INDEX log_chunks_blob ON log_chunks (blob_key);
CREATE INDEX artifacts_blob ON artifacts (blob_key);
CREATE INDEX input_parts_blob ON input_parts (blob_key);

-- berth.Mark: when keepers last swept (sweep) and agents last renewed (renewal).
CREATE TABLE marks (
    name     TEXT PRIMARY KEY NOT NULL,
    at       INTEGER,
    gap_from INTEGER,
    gap_to   INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO marks (name) VALUES ('renewal'), ('sweep');

-- berth.Amnesty; the newest counts.
CREATE TABLE amnesties (
    id         INTEGER PRIMARY KEY,
    granted_at INTEGER NOT NULL,
    until      INTEGER NOT NULL,
    reason     TEXT NOT NULL
) STRICT;
