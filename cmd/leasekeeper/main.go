// Command leasekeeper ends attempts whose lease, claim or run time ran
// out, takes silent hosts offline, and frees the space of inputs and blobs that
// nobody uses. Any number may run; each may be
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
		fmt.Fprintln(os.Stderr, "leasekeeper:", err)
		os.Exit(1)
	}
}

// run works until ctx ends or a signal comes; it starts, and waits unready,
// while the database is down or its schema will not do. Logs go to stdout.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, err := config.LoadLeasekeeper(args, environ, stderr)
	if err != nil {
		return err
	}
	p, err := controlplane.Open(ctx, "leasekeeper", c.Common, controlplane.Options{}, stdout)
	if err != nil {
		return err
	}
	blobs, err := p.OpenBlobs(ctx, c.Blobs)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	return p.Run(ctx, p.Ready(), nil, append(p.Leasekeeper(c.Loops), p.BlobKeeper(c.BlobLoops, blobs)...)...)
}
