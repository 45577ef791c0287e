-- Operators' acts, device health with hysteresis, inputs, amnesty.

ALTER TABLE hosts
    ADD COLUMN drain_requested_at timestamptz, -- by an operator; draining is what the agent says
    ADD COLUMN protocol smallint NOT NULL DEFAULT 1;

-- berth.HealthRecord; health itself is in 0001.
ALTER TABLE devices
    ADD COLUMN failures integer NOT NULL DEFAULT 0,
    ADD COLUMN good_probes integer NOT NULL DEFAULT 0,
    ADD COLUMN strikes integer NOT NULL DEFAULT 0,
    ADD COLUMN quarantined_until timestamptz,
    ADD COLUMN admin_note text NOT NULL DEFAULT '',
    ADD COLUMN conflict_host_id uuid REFERENCES hosts (id);
CREATE INDEX devices_conflict ON devices (conflict_host_id) WHERE conflict_host_id IS NOT NULL;

-- What a task brings, as it is read: [{"name", "digest", "size"}].
ALTER TABLE tasks ADD COLUMN inputs json NOT NULL DEFAULT '[]';

-- An upload becomes the input when all of its bytes are there and have the digest.
CREATE TABLE input_uploads (
    id             uuid PRIMARY KEY,
    digest         bytea NOT NULL,
    principal_kind text NOT NULL,
    principal_id   text NOT NULL,
    size           bigint NOT NULL CHECK (size >= 0),
    received       bigint NOT NULL DEFAULT 0,
    hash_state     bytea NOT NULL, -- of the bytes received, so that a resumed upload reads none twice
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    stored_at      timestamptz
);
-- One upload of a principal goes on at a time.
CREATE UNIQUE INDEX input_uploads_open ON input_uploads (digest, principal_kind, principal_id) WHERE stored_at IS NULL;
CREATE INDEX input_uploads_stale ON input_uploads (updated_at) WHERE stored_at IS NULL;

CREATE TABLE input_parts (
    upload_id uuid NOT NULL REFERENCES input_uploads (id) ON DELETE CASCADE,
    start_at  bigint NOT NULL,
    size      bigint NOT NULL CHECK (size > 0),
    blob_key  text NOT NULL,
    PRIMARY KEY (upload_id, start_at)
);

CREATE TABLE inputs (
    digest       bytea PRIMARY KEY,
    size         bigint NOT NULL,
    upload_id    uuid NOT NULL REFERENCES input_uploads (id),
    created_at   timestamptz NOT NULL,
    last_used_at timestamptz NOT NULL
);
CREATE INDEX inputs_unused ON inputs (last_used_at);
CREATE INDEX inputs_upload ON inputs (upload_id); -- for the deletion of uploads

-- Who proved to have the bytes.
CREATE TABLE input_owners (
    digest         bytea NOT NULL REFERENCES inputs (digest) ON DELETE CASCADE,
    principal_kind text NOT NULL,
    principal_id   text NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (principal_kind, principal_id, digest)
);
CREATE INDEX input_owners_digest ON input_owners (digest);

CREATE TABLE task_inputs (
    digest  bytea NOT NULL,
    task_id uuid NOT NULL,
    PRIMARY KEY (digest, task_id)
);
CREATE INDEX task_inputs_task ON task_inputs (task_id);

-- The orphan sweep asks which blobs anything refers to.
CREATE INDEX log_chunks_blob ON log_chunks USING hash (blob_key);
CREATE INDEX artifacts_blob ON artifacts USING hash (blob_key);
CREATE INDEX input_parts_blob ON input_parts USING hash (blob_key);

-- berth.Mark: when keepers last swept (sweep) and agents last renewed (renewal).
CREATE TABLE marks (
    name     text PRIMARY KEY,
    at       timestamptz,
    gap_from timestamptz,
    gap_to   timestamptz
) WITH (fillfactor = 20);
INSERT INTO marks (name) VALUES ('renewal'), ('sweep');

-- berth.Amnesty; the newest counts.
CREATE TABLE amnesties (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    granted_at timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    reason     text NOT NULL
);
