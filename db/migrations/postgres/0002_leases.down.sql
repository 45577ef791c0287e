-- Live attempts stay live; going up again gives them expired leases.
ALTER TABLE attempts RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE queue RESET (autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay);
DROP INDEX attempts_live_device;
DROP TABLE leases;
ALTER TABLE attempts DROP COLUMN claim_epoch, DROP COLUMN fence;
ALTER TABLE hosts DROP COLUMN instance, DROP COLUMN epoch;
