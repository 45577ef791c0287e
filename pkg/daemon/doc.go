// Package daemon is the life of every Berth process: components that start in
// order and stop in reverse within a bound, health and metrics on an admin
// listener, and loops that run rounds.
//
// # Loops
//
// A [Loop] runs RunOnce again and again: at its interval with jitter, earlier
// when it is woken. Before each round it asks its gate (schema.Gate) and runs
// none while the gate is shut. An error or a panic of a round is logged and
// counted, and the next round runs, a little later after each failure in a row.
//
// # Stopping
//
// On SIGTERM or SIGINT no new round begins; a round in progress may end by
// itself for a grace, then its context is cancelled, and it issues its own
// ROLLBACK. What has not stopped within the bound is named, and the process
// exits with 1. A second signal ends the process at once.
//
// The package knows no database: what is ready is told by a function.
package daemon
