// Command api serves Berth's public API and the Host Agents' protocol. It is
// stateless; any number may run on one Postgres. In local mode it also runs the
// workers that --workers names.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"

	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/controlplane"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/localmode"
)

// version is set at build time.
var version = "dev"

func main() {
	if err := run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil && !errors.Is(err, config.ErrHelp) {
		fmt.Fprintln(os.Stderr, "api:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends or a signal comes; it starts, and answers 503 with
// the reason, while the database is down or its schema will not do. Logs go to
// stdout.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, err := config.LoadAPI(args, environ, stderr)
	if err != nil {
		return err
	}
	p, err := controlplane.Open(ctx, "api", c.Common, controlplane.Options{}, stdout)
	if err != nil {
		return err
	}
	api, err := p.API(c, version)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	var address atomic.Value
	parts := api.Components(func(a net.Addr) { address.Store(localmode.BaseURL(a)) })
	return p.Run(ctx, api.Ready(), nil, append(parts, workers(p, c, api, func() string { return address.Load().(string) })...)...)
}

// workers are the duties that this process takes over.
func workers(p *controlplane.Process, c config.API, api *controlplane.API, server func() string) []daemon.Component {
	var parts []daemon.Component
	if c.Has(config.WorkerScheduler) {
		parts = append(parts, p.Scheduler(c.Scheduler)...)
	}
	if c.Has(config.WorkerLeasekeeper) {
		parts = append(parts, p.Leasekeeper(c.Keeper)...)
		parts = append(parts, p.BlobKeeper(c.BlobLoops, api.Blobs())...)
	}
	if c.Has(config.WorkerAgent) {
		parts = append(parts, localmode.Agent(localmode.AgentConfig{
			Store: p.Store, Server: server, Ready: api.Ready().Known, StateDir: c.Agent.StateDir, Version: version, Log: p.Log,
			Processes: c.Agent.Processes, Browsers: c.Agent.Browsers, ChromiumPath: c.Agent.Chromium,
		}))
	}
	return parts
}
