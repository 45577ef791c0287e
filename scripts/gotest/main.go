// Command gotest runs `go test` with the given arguments and reports as go test
// does without -v: one line a package, and all that a failing test said. Two
// things it adds: a skipped test fails the run, for a test that silently does
// not run proves nothing, and a closing line counts the tests.
//
//	gotest -timeout 10m ./...
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // go test gets it too, and ends first
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args, env []string, stdout io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = env
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	sum, reportErr := report(events, stdout)
	if reportErr != nil {
		// Let go test end: nobody reads its output any more.
		_, _ = io.Copy(io.Discard, events)
	}
	testErr := cmd.Wait()
	fmt.Fprintln(stdout, sum)
	switch {
	case reportErr != nil:
		return reportErr
	case testErr != nil:
		return fmt.Errorf("go test: %w", testErr)
	default:
		return sum.verdict()
	}
}
