// Package pgtest gives tests a real PostgreSQL server, and each test a
// database of its own.
//
// # Which server
//
// Where BERTH_TEST_POSTGRES_URL is set, that server is used: a DSN of a role
// that may create databases. `make test` starts one server for all packages,
// and hands it on in a file (see cmd/with-postgres). Otherwise the first call in a test process
// starts a server from the binaries of this machine: an own data folder, a
// free port on 127.0.0.1, a random password, never as root. Nothing is ever
// skipped: where no binaries are found, the test fails and the message names
// the package to install.
//
// # Which database
//
// NewDB clones a template database, which the first caller migrates and all
// later callers share, in this process and in others that use the same server.
// A clone takes some 40 ms where a migration takes seconds. It is dropped when
// the test ends.
//
//	dsn := pgtest.NewDB(t, pgtest.Template{
//		Fingerprint: "schema-" + digestOfAllMigrations,
//		Migrate:     func(ctx context.Context, dsn string) error { ... },
//	})
//
// # A server to break
//
// A test that stops, kills or reads the log of its server starts a private one
// with StartServer; its address stays the same over Stop and Start, and its own
// NewDB makes migrated databases there. Dump and Restore put a database of it back
// to what it was.
//
// # Nothing is left behind
//
// Each server has a janitor, a shell that waits for the end of the process
// which started the server, whatever ends it (a panic, a time-out, SIGKILL),
// then stops the server and removes its folder. A parent-death signal would do
// less: it fires when the starting thread ends, which in Go is not when the
// process ends, and it removes no folder. No goroutine runs between calls, so
// goleak finds nothing of pgtest.
package pgtest
