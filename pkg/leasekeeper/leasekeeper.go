// Package leasekeeper ends what should have ended by itself: leases that ran
// out, assignments that nobody claimed, work past its time limit, and the
// presence of hosts that fell silent. What follows for the task is decided by
// the domain (berth.Timings.Reap, berth.After) on the locked rows; the keeper
// only sweeps. Any number of keepers may run.
package leasekeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// DefaultBatch is how many attempts or hosts one store call takes.
	DefaultBatch = 200
	// maxBatches bounds one RunOnce.
	maxBatches = 100

	// DefaultReapInterval is between two sweeps for expired attempts, ± 20 %.
	DefaultReapInterval = 5 * time.Second
	// DefaultHostsInterval is between two looks for silent hosts, ± 20 %.
	DefaultHostsInterval = 5 * time.Second
	loopJitter           = 0.2
)

// Config of a Keeper. Store is required.
type Config struct {
	Store store.Keeping
	// Instance names this process in the audit trail.
	Instance string
	// Batch bounds one store call; 0: DefaultBatch.
	Batch int
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics *Metrics
}

// Keeper sweeps.
type Keeper struct{ c Config }

// New makes a Keeper.
func New(c Config) *Keeper {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Batch <= 0 {
		c.Batch = DefaultBatch
	}
	return &Keeper{c: c}
}

func (k *Keeper) actor() berth.Actor {
	actor := berth.Daemon(berth.ActorLeasekeeper, k.c.Instance)
	actor.RequestID = uuid.NewString()
	return actor
}

// ReapOnce ends every live attempt that is over, in batches. An attempt that
// cannot be ended does not keep it from the others; the first such error is
// returned when no batch makes progress any more.
func (k *Keeper) ReapOnce(ctx context.Context) error {
	actor := k.actor()
	var first error
	for range maxBatches {
		transitions, err := k.c.Store.ReapLeases(ctx, actor, k.c.Batch)
		logging.Transitions(k.c.Log, transitions)
		k.c.Metrics.reaped(len(transitions))
		if err != nil && first == nil {
			first = fmt.Errorf("end expired attempts: %w", err)
		}
		if ctx.Err() != nil {
			return errors.Join(first, ctx.Err())
		}
		if len(transitions) == 0 || (err == nil && len(transitions) < k.c.Batch) {
			break
		}
	}
	return first
}

// SilentHostsOnce takes hosts offline that have not been heard of, in batches.
// Their attempts are left to their leases.
func (k *Keeper) SilentHostsOnce(ctx context.Context) error {
	actor := k.actor()
	for range maxBatches {
		hosts, err := k.c.Store.MarkSilentHosts(ctx, actor, k.c.Batch)
		for _, host := range hosts {
			k.c.Log.Warn("host is offline: it has not been heard of", zap.String("host_id", string(host)))
		}
		k.c.Metrics.silent(len(hosts))
		if err != nil {
			return fmt.Errorf("mark silent hosts: %w", err)
		}
		if len(hosts) < k.c.Batch {
			return nil
		}
	}
	return nil
}

// LoopsConfig says how the loops run. Zero intervals are the defaults.
type LoopsConfig struct {
	ReapInterval, HostsInterval time.Duration
	ReapDisabled, HostsDisabled bool
	// Gate shuts the loops while the schema will not do; nil: never.
	Gate    daemon.Gate
	Metrics *daemon.LoopMetrics
	// RoundGrace as in daemon.LoopConfig.
	RoundGrace time.Duration
}

// Components are the keeper's loops, to be started and stopped by a daemon.
func (k *Keeper) Components(c LoopsConfig) []daemon.Component {
	loop := func(name string, interval, standard time.Duration, disabled bool, run func(context.Context) error) daemon.Component {
		if interval <= 0 {
			interval = standard
		}
		return daemon.NewLoop(daemon.LoopConfig{
			Name: name, Interval: interval, Jitter: loopJitter, Disabled: disabled,
			Gate: c.Gate, RunOnce: run, Log: k.c.Log, Metrics: c.Metrics, RoundGrace: c.RoundGrace,
		}).Component()
	}
	return []daemon.Component{
		loop("reap", c.ReapInterval, DefaultReapInterval, c.ReapDisabled, k.ReapOnce),
		loop("silent_hosts", c.HostsInterval, DefaultHostsInterval, c.HostsDisabled, k.SilentHostsOnce),
	}
}

// Metrics count what keepers do. A nil one counts nothing.
type Metrics struct{ reaps, hosts prometheus.Counter }

// NewMetrics registers the keeper's counters with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		reaps: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_ended_total", Help: "Attempts ended because their lease, claim or run time ran out."}),
		hosts: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_silent_hosts_total", Help: "Hosts taken offline because they were silent."}),
	}
	r.MustRegister(m.reaps, m.hosts)
	return m
}

func (m *Metrics) reaped(n int) {
	if m != nil {
		m.reaps.Add(float64(n))
	}
}

func (m *Metrics) silent(n int) {
	if m != nil {
		m.hosts.Add(float64(n))
	}
}
