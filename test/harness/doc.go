// Package harness runs Berth as its users do: real processes of the real
// programs, on a real PostgreSQL or on an SQLite file, with their logs kept in
// files.
//
//	c := harness.NewCluster(t, harness.Options{Engine: harness.Postgres, APIs: 2})
//	c.AddAgent(t, harness.AgentOptions{Name: "one", Processes: 4})
//	task := c.Submit(t, client.TaskSpec{...})
//
// The programs are built once for a test process. Each test has a folder of its
// own, which is removed when the test passed and named when it failed. Nothing
// waits for a length of time: everything is polled with a deadline, or read
// from a log.
//
// Whatever ends the test process, a janitor (a shell) then kills every process
// that was started and everything these started: all of them carry the folder
// in their environment or on their command line.
package harness
