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
	// DefaultLostTasksInterval is between two pages of the sweep for lost tasks, ± 20 %.
	DefaultLostTasksInterval = 5 * time.Second
	// DefaultGuessesInterval is between two sweeps of failed logins and used
	// assertions, ± 20 %.
	DefaultGuessesInterval = time.Minute
	// DefaultBulkInterval is between two looks for bulk jobs, ± 20 %.
	DefaultBulkInterval = time.Second
	// sweepPage is how many tasks one page has: a million are seen in under two hours.
	sweepPage  = 1000
	loopJitter = 0.2
)

// Store is what a Keeper sweeps.
type Store interface {
	store.Keeping
	store.Bulk
	store.Guesses
}

// Config of a Keeper. Store is required.
type Config struct {
	Store Store
	// Instance names this process in the audit trail.
	Instance string
	// Batch bounds one store call; 0: DefaultBatch.
	Batch int
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics *Metrics
}

// Keeper sweeps.
type Keeper struct {
	c Config
	// amnesty is the newest one that was seen, once looked is true. Only the loop
	// reap touches them, only the loop lost_tasks touches swept, its cursor.
	amnesty berth.Amnesty
	looked  bool
	swept   berth.TaskID
}

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
	if err := k.lookAtAmnesty(ctx); err != nil {
		return err
	}
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
	if err := k.lookAtAmnesty(ctx); err != nil && first == nil {
		first = err
	}
	return first
}

// lookAtAmnesty warns once of an amnesty that was granted since the last look, by
// this keeper or by another.
func (k *Keeper) lookAtAmnesty(ctx context.Context) error {
	a, err := k.c.Store.LastAmnesty(ctx)
	if err != nil {
		return fmt.Errorf("look for an amnesty: %w", err)
	}
	if k.looked && !a.GrantedAt.Equal(k.amnesty.GrantedAt) {
		k.c.Metrics.amnestyBegan()
		k.c.Log.Warn("amnesty: running attempts are not ended until it is over, because renewals could not be stored",
			zap.String("reason", a.Reason), zap.Time("until", a.Until))
	}
	k.amnesty, k.looked = a, true
	k.c.Metrics.amnestyUntil(a.Until)
	return nil
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

// GuessesOnce forgets failed logins and used assertions that no longer count, in
// batches.
func (k *Keeper) GuessesOnce(ctx context.Context) error {
	for range maxBatches {
		n, err := k.c.Store.SweepGuesses(ctx, k.c.Batch)
		if err != nil {
			return fmt.Errorf("sweep failed logins: %w", err)
		}
		if n < k.c.Batch || ctx.Err() != nil {
			break
		}
	}
	return ctx.Err()
}

// LoopsConfig says how the loops run. Zero intervals are the defaults.
type LoopsConfig struct {
	ReapInterval, HostsInterval, LostTasksInterval, GuessesInterval, BulkInterval time.Duration
	ReapDisabled, HostsDisabled, LostTasksDisabled, GuessesDisabled, BulkDisabled bool
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
		loop("lost_tasks", c.LostTasksInterval, DefaultLostTasksInterval, c.LostTasksDisabled, k.LostTasksOnce),
		loop("guesses", c.GuessesInterval, DefaultGuessesInterval, c.GuessesDisabled, k.GuessesOnce),
		loop("bulk_jobs", c.BulkInterval, DefaultBulkInterval, c.BulkDisabled, k.BulkOnce),
	}
}

// Metrics count what keepers do. A nil one counts nothing.
type Metrics struct {
	reaps, hosts, lost, amnesties prometheus.Counter
	until                         prometheus.Gauge
	bulks                         *prometheus.CounterVec
}

// NewMetrics registers the keeper's metrics with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leasekeeper_" + name, Help: help})
	}
	m := &Metrics{
		reaps:     counter("ended_total", "Attempts ended because their lease, claim or run time ran out."),
		hosts:     counter("silent_hosts_total", "Hosts taken offline because they were silent."),
		lost:      counter("lost_tasks_total", "Tasks found in no place or in two: always a fault."),
		amnesties: counter("amnesties_total", "Amnesties that began while this keeper looked."),
		until: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_leasekeeper_amnesty_until_timestamp_seconds", Help: "When the newest amnesty ends or ended; 0 without any.",
		}),
	}
	m.bulks = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_leasekeeper_bulk_tasks_total", Help: "Tasks changed by bulk jobs, by act.",
	}, []string{"act"})
	r.MustRegister(m.bulks, m.reaps, m.hosts, m.lost, m.amnesties, m.until)
	return m
}

func (m *Metrics) bulk(act berth.BulkAct, n int) {
	if m != nil {
		m.bulks.WithLabelValues(string(act)).Add(float64(n))
	}
}

func (m *Metrics) lostTasks(n int) {
	if m != nil {
		m.lost.Add(float64(n))
	}
}

func (m *Metrics) amnestyBegan() {
	if m != nil {
		m.amnesties.Inc()
	}
}

func (m *Metrics) amnestyUntil(until time.Time) {
	if m != nil && !until.IsZero() {
		m.until.Set(float64(until.UnixMicro()) / 1e6)
	}
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
