// Command hostagent is Berth's Host Agent: it makes this machine's devices
// available to a Berth and runs the tasks that are placed on them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/runtime/process"
	"github.com/berth-dev/berth/pkg/tlsfiles"
)

// version is set at build time.
var version = "dev"

func main() {
	if err := run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "hostagent:", err)
		}
		os.Exit(1)
	}
}

// run works until ctx ends or a signal comes. Logs go to stdout.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, err := parse(args, environ, stderr)
	if err != nil {
		return err
	}
	log, err := logging.New(stdout, c.LogLevel, "hostagent")
	if err != nil {
		return err
	}
	if len(c.unknown) > 0 {
		log.Warn("no program of Berth reads these variables; are they misspelt?", zap.Strings("variables", c.unknown))
	}
	if c.StateRoot != "" {
		lock, err := c.inSlot()
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }()
	}
	if err := c.ask(ctx, log); err != nil {
		if errors.Is(err, context.Canceled) {
			return nil // a signal
		}
		return err
	}
	if err := checkBrowser(c, log); err != nil {
		return err
	}
	// Whatever an earlier agent left running here is dead when this returns.
	rt, err := builtin.New(ctx, builtin.Config{
		StateDir: c.StateDir, ProcessSlots: c.Processes, BrowserContexts: c.Browsers, Labels: c.labels, Logger: log, CloseTimeout: hostagent.CloseWithin,
		PluginDir: c.PluginDir, Process: process.Config{Allow: c.Commands},
		Chromium: chromium.Config{Path: c.ChromiumPath, Policy: chromium.Policy{
			AllowLoopback: c.AllowLoopback, Allow: c.AllowHosts, Deny: []string{c.AdminListen}, ControlPlane: []string{chromium.Endpoint(c.Server), c.AdminListen},
		}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = rt.Close() }()
	if n := rt.Leftovers.Killed; n > 0 {
		log.Warn("killed what an earlier agent left running", zap.Int("processes", n))
	}
	secure, err := tlsfiles.Client{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.ClientKeyFile}.Config(func(err error) {
		log.Warn("the certificate's files changed and cannot be read; the old one is shown on", zap.Error(err))
	})
	if err != nil {
		return err
	}
	registry := daemon.NewRegistry()
	agent, err := hostagent.New(hostagent.Config{
		Metrics: hostagent.NewMetrics(registry),
		Server:  c.Server, StateDir: c.StateDir, Name: c.Name, EnrolmentToken: c.token, Runtime: rt.Runtime, Version: version, Logger: log,
		InputCache: int64(c.InputCacheMiB) << 20, KeyMaxAge: c.KeyMaxAge, TLS: secure,
	})
	if err != nil {
		return err
	}
	go func() {
		<-agent.Synced()
		c.tidy(log)
	}()
	ready := daemon.NewReadiness(func(context.Context) string { return agent.Condition() }, hostagent.ConditionUnreachable)
	return daemon.Run(ctx, daemon.Config{Log: log, ShutdownWithin: hostagent.StopBound, Components: []daemon.Component{
		daemon.NewAdmin(c.AdminListen, ready, registry, log, nil).Component(),
		agent.Component(),
	}})
}

// checkBrowser refuses a browser that was named and is none. Where none was
// named and none is found the agent goes on, for its other devices, and says so.
func checkBrowser(c config, log *zap.Logger) error {
	if c.Browsers == 0 {
		return nil
	}
	_, err := chromium.Find(c.ChromiumPath)
	if err != nil && c.ChromiumPath == "" {
		log.Warn("the browser devices cannot be used: " + runtime.Words(err) + "; or pass --browser-contexts 0")
		return nil
	}
	if err != nil {
		return errors.New(runtime.Words(err))
	}
	return nil
}
