DROP TABLE signing_keys, refresh_tokens, users, audit_events, idempotency_keys, artifacts, log_chunks,
    attempts, delayed, queue, tasks, task_classes, devices, host_plugins, plugins, enrolment_tokens, hosts, pools;
DROP FUNCTION berth_now();
