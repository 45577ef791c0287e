// Package hostagent is the reference Host Agent: it enrols a machine, reports
// its devices, claims the attempts that the scheduler placed on them, runs them
// through a [runtime.Runtime], renews their leases and completes them, all over
// outbound HTTPS (pkg/protocol, docs/protocol.md).
//
// What it promises:
//
//   - A device is not touched before the server granted the start, and not
//     before older work on it is dead.
//   - When renewals stop succeeding it fences itself: it kills the work before
//     the lease ends, counted from when it SENT the last successful renewal, by
//     a clock that runs through suspend.
//   - It journals attempt and fence (fsync) before it acts. After its own crash
//     it first kills what is left over, then syncs, hands in what had finished
//     and was not yet reported, and never resumes a started attempt.
//   - It does what was cut off again: every call may be repeated.
//   - No payload, log, artifact, result, note or token is ever logged.
//
// One goroutine executes each held attempt ([Agent.execute]); loops beside them
// claim, renew, report and watch the fences. State lives under one mutex.
package hostagent
