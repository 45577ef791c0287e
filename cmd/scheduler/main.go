// Command scheduler places queued tasks on devices, moves what is due
// into the queue, and gives up what has waited too long. Any number may run; each may be
// killed at any time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/controlplane"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil && !errors.Is(err, config.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		os.Exit(1)
	}
}

// run works until ctx ends or a signal comes; it starts, and waits unready,
// while the database is down or its schema will not do. Logs go to stdout.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, err := config.LoadScheduler(args, environ, stderr)
	if err != nil {
		return err
	}
	p, err := controlplane.Open(ctx, "scheduler", c.Common, controlplane.Options{}, stdout)
	if err != nil {
		return err
	}
	return p.Run(ctx, p.Ready(), nil, p.Scheduler(c.Loops)...)
}
