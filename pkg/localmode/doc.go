// Package localmode is Berth on one machine in one process: what `berth up` and
// `make run` start. SQLite, migrated without being asked; API, scheduler and
// leasekeeper; one Host Agent that enrols itself and speaks to the API over
// HTTP like any other; the demo page on a port of its own. Everything it keeps
// lies in one data directory.
package localmode
