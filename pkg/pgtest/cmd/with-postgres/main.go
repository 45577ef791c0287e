// Command with-postgres runs a command beside a PostgreSQL server of its own:
//
//	with-postgres go test ./...
//
// All test processes below the command share the server: they find its DSN in
// the file that BERTH_TEST_POSTGRES_FILE names. Where BERTH_TEST_POSTGRES_URL is
// set, that server is used and none is started. The exit code is that of the
// command.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/pkg/pgtest"
)

func main() {
	// An interrupt at the terminal reaches the command by itself; this process
	// outlives it to stop the server. It is caught, not ignored: the command
	// would inherit that. A SIGTERM reaches only this process and is passed on.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout)
	stop()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		os.Exit(exit.ExitCode())
	default:
		fmt.Fprintln(os.Stderr, "with-postgres:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args, env []string, stdout io.Writer) (err error) {
	if len(args) == 0 {
		return errors.New("usage: with-postgres command [argument ...]")
	}
	if !provided(env) {
		server, startErr := pgtest.StartServer(pgtest.Options{})
		if startErr != nil {
			return startErr
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		folder, wdErr := os.Getwd()
		if wdErr != nil {
			return wdErr
		}
		address, handErr := newHandover(folder, server.DSN("postgres"))
		if handErr != nil {
			return handErr
		}
		defer func() { err = errors.Join(err, address.close()) }()
		env = append(env, pgtest.EnvFile+"="+address.path)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, stdout, os.Stderr
	return cmd.Run()
}

// provided reports whether env names a server.
func provided(env []string) bool {
	for _, entry := range env {
		if name, value, _ := strings.Cut(entry, "="); name == pgtest.EnvURL && value != "" {
			return true
		}
	}
	return false
}
