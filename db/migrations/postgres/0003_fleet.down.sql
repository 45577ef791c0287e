DROP TABLE amnesties;
DROP TABLE marks;
DROP TABLE task_inputs;
DROP TABLE input_owners;
DROP TABLE inputs;
DROP TABLE input_parts;
DROP TABLE input_uploads;
ALTER TABLE tasks DROP COLUMN inputs;
ALTER TABLE devices
    DROP COLUMN failures,
    DROP COLUMN good_probes,
    DROP COLUMN strikes,
    DROP COLUMN quarantined_until,
    DROP COLUMN admin_note,
    DROP COLUMN conflict_host_id;
ALTER TABLE hosts
    DROP COLUMN drain_requested_at,
    DROP COLUMN protocol;
