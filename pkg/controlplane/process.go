// Package controlplane is what the programs of the control plane are wired
// from: the common ground of every daemon (log, store, schema gate, health,
// metrics), the workers, and the API. cmd/ and local mode put it together.
package controlplane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/storeopen"
)

// Process is the common ground of a daemon.
type Process struct {
	Log      *zap.Logger
	Store    store.Store
	Registry *prometheus.Registry
	// Gate says whether the schema will do; it asks the database each time.
	Gate daemon.Gate
	// Loops count rounds.
	Loops *daemon.LoopMetrics
	// Timings of the installation.
	Timings berth.Timings
	// Instance names this process in the audit trail.
	Instance string

	common config.Common
}

// Options are for tests.
type Options struct {
	// Store options; Timings are the configuration's.
	Store store.Options
}

// Open opens the store and makes the rest. The database may be down. Logs go to
// stdout. Close it.
func Open(ctx context.Context, name string, c config.Common, o Options, stdout io.Writer) (*Process, error) {
	log, err := logging.New(stdout, c.LogLevel, name)
	if err != nil {
		return nil, err
	}
	if len(c.Unknown) > 0 {
		log.Warn("no program of Berth reads these variables; are they misspelt?", zap.Strings("variables", c.Unknown))
	}
	o.Store.Timings = c.Timings.Berth()
	o.Store.OnBackgroundError = func(err error) { log.Warn("store background work", zap.Error(err)) }
	s, err := storeopen.Open(ctx, c.DatabaseURL, o.Store)
	if err != nil {
		return nil, err
	}
	registry := daemon.NewRegistry()
	return &Process{
		Log: log, Store: s, Registry: registry, Gate: warnOfRights(schema.Gate(&outages{Versioned: s, log: log}), c.DatabaseURL, log), Loops: daemon.NewLoopMetrics(registry),
		Timings: o.Store.Timings, Instance: instanceName(name), common: c,
	}, nil
}

// instanceName tells one process from another for people and in the audit trail.
func instanceName(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%s/%d/%s", name, host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// Close closes the store.
func (p *Process) Close() error { return p.Store.Close() }

// Run serves health and metrics, runs the components until a signal, and closes
// the store, unless something hung that may still use it.
func (p *Process) Run(ctx context.Context, ready *daemon.Readiness, bound func(net.Addr), parts ...daemon.Component) error {
	admin := daemon.NewAdmin(p.common.AdminListen, ready, p.Registry, p.Log, bound)
	all := append([]daemon.Component{admin.Component()}, parts...)
	err := daemon.Run(ctx, daemon.Config{
		Log: p.Log, Components: append(all, ready.Watch()), ShutdownWithin: p.common.ShutdownWithin,
	})
	if errors.Is(err, daemon.ErrHung) {
		return err
	}
	return errors.Join(err, p.Close())
}

// Ready is readiness by the schema gate alone.
func (p *Process) Ready() *daemon.Readiness {
	return daemon.NewReadiness(p.Gate, string(schema.CodeUnreachable))
}

// roundGrace leaves a round that is cancelled at the stop the time to roll back.
func (p *Process) roundGrace() time.Duration { return p.common.ShutdownWithin / 3 }

// Scheduler makes the scheduler's loops.
func (p *Process) Scheduler(c config.SchedulerLoops) []daemon.Component {
	s := scheduler.New(scheduler.Config{
		Store: p.Store, Instance: p.Instance, Log: p.Log, Metrics: scheduler.NewMetrics(p.Registry),
	})
	return s.Components(scheduler.LoopsConfig{
		PlaceInterval: c.Place.Interval, PromoteInterval: c.Promote.Interval, GiveUpInterval: c.GiveUp.Interval, SchedulesInterval: c.Schedules.Interval,
		PlaceDisabled: c.Place.Disabled, PromoteDisabled: c.Promote.Disabled, GiveUpDisabled: c.GiveUp.Disabled, SchedulesDisabled: c.Schedules.Disabled,
		Hints: p.Store, Gate: p.Gate, Metrics: p.Loops, RoundGrace: p.roundGrace(),
	})
}

// Leasekeeper makes the keeper's loops.
func (p *Process) Leasekeeper(c config.KeeperLoops) []daemon.Component {
	k := leasekeeper.New(leasekeeper.Config{
		Store: p.Store, Instance: p.Instance, Log: p.Log, Metrics: leasekeeper.NewMetrics(p.Registry),
	})
	return k.Components(leasekeeper.LoopsConfig{
		ReapInterval: c.Reap.Interval, HostsInterval: c.SilentHosts.Interval, LostTasksInterval: c.LostTasks.Interval, GuessesInterval: c.Guesses.Interval,
		BulkInterval: c.BulkJobs.Interval, BulkDisabled: c.BulkJobs.Disabled,
		ReapDisabled: c.Reap.Disabled, HostsDisabled: c.SilentHosts.Disabled, LostTasksDisabled: c.LostTasks.Disabled, GuessesDisabled: c.Guesses.Disabled,
		Gate: p.Gate, Metrics: p.Loops, RoundGrace: p.roundGrace(),
	})
}
