// Command runtime is the local Runtime of Berth: it serves this machine's
// devices over HTTP on a loopback address, without any control plane and
// without keeping anything.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/localapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "runtime:", err)
		os.Exit(1)
	}
}

// drainBound is how long ending may take after a signal.
const drainBound = 25 * time.Second

// run serves until ctx ends, then kills what runs and returns.
func run(ctx context.Context, args []string, env func(string) string, stdout io.Writer) (err error) {
	cfg, err := parseFlags(args, env, stdout)
	if errors.Is(err, errHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.Lock(os.Stderr), cfg.logLevel))
	cfg.devices.Logger = log
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return fmt.Errorf("cannot listen: %w; choose another address with --listen", err)
	}
	rt, err := builtin.New(ctx, cfg.devices)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	api, err := localapi.New(localapi.Config{
		Runtime: rt.Runtime, RunsDir: filepath.Join(cfg.devices.StateDir, "runs"), AllowRemote: cfg.allowRemote, Logger: log,
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { err = errors.Join(err, api.Close()) }()
	if rt.Leftovers.Records > 0 {
		log.Info("killed what an earlier Runtime left", zap.Int("uses", rt.Leftovers.Records), zap.Int("processes", rt.Leftovers.Killed))
	}
	_, _ = fmt.Fprintf(stdout, "listening on http://%s\n", listener.Addr())
	return serve(ctx, listener, api, rt)
}

// serve answers requests until ctx ends. Runs are killed first, so that their
// streams end by themselves with a result.
func serve(ctx context.Context, listener net.Listener, api *localapi.Server, rt *builtin.Runtime) error {
	server := &http.Server{Handler: api, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	api.Drain()
	bound, stop := context.WithTimeout(context.Background(), drainBound)
	defer stop()
	err := rt.Runtime.Close()
	err = errors.Join(err, server.Shutdown(bound))
	<-failed
	return err
}
