-- Live attempts stay live; going up again gives them expired leases.
DROP INDEX attempts_live_device;
DROP TABLE leases;
ALTER TABLE attempts DROP COLUMN claim_epoch;
ALTER TABLE attempts DROP COLUMN fence;
ALTER TABLE hosts DROP COLUMN instance;
ALTER TABLE hosts DROP COLUMN epoch;
