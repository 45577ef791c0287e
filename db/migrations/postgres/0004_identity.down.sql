ALTER TABLE tasks DROP COLUMN secrets;
DROP TABLE secret_grants;
DROP TABLE secrets;
DROP FUNCTION berth_expire_audit;
DROP TRIGGER audit_events_whole ON audit_events;
DROP TRIGGER audit_events_kept ON audit_events;
DROP FUNCTION berth_audit_kept;
DROP INDEX audit_events_users;
DROP INDEX audit_events_acts;
ALTER TABLE audit_events
    DROP COLUMN client,
    DROP COLUMN credential,
    DROP COLUMN before,
    DROP COLUMN after;
ALTER TABLE hosts
    DROP COLUMN next_public_key,
    DROP COLUMN key_changed_at,
    DROP COLUMN key_rotation_requested_at;
DROP TABLE used_assertions;
DROP TABLE login_failures;
DROP TABLE api_keys;
DROP INDEX refresh_tokens_user;
DROP INDEX refresh_tokens_living;
ALTER TABLE refresh_tokens
    DROP COLUMN parent,
    DROP COLUMN settled;
-- Nobody can be them below this version.
UPDATE users SET disabled = true WHERE issuer IS NOT NULL;
ALTER TABLE users
    DROP COLUMN version,
    DROP COLUMN issuer,
    DROP COLUMN subject;
