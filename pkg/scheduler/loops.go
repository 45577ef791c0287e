package scheduler

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/store"
)

// Defaults of the loops.
const (
	DefaultPlaceInterval     = 500 * time.Millisecond
	DefaultPromoteInterval   = 500 * time.Millisecond
	DefaultGiveUpInterval    = 5 * time.Second
	DefaultSchedulesInterval = time.Second
	loopJitter               = 0.2
)

// LoopsConfig says how the loops run. Zero intervals are the defaults.
type LoopsConfig struct {
	PlaceInterval, PromoteInterval, GiveUpInterval, SchedulesInterval time.Duration
	PlaceDisabled, PromoteDisabled, GiveUpDisabled, SchedulesDisabled bool
	// Hints wake the placement loop; nil: it polls only.
	Hints store.Hints
	// Gate shuts all loops while the schema will not do; nil: never.
	Gate    daemon.Gate
	Metrics *daemon.LoopMetrics
	// RoundGrace as in daemon.LoopConfig.
	RoundGrace time.Duration
}

// Components are the scheduler's loops, to be started and stopped by a daemon.
func (s *Scheduler) Components(c LoopsConfig) []daemon.Component {
	loop := func(name string, interval, standard time.Duration, disabled bool, run func(context.Context) error) daemon.LoopConfig {
		if interval <= 0 {
			interval = standard
		}
		return daemon.LoopConfig{
			Name: name, Interval: interval, Jitter: loopJitter, Disabled: disabled,
			Gate: c.Gate, RunOnce: run, Log: s.c.Log, Metrics: c.Metrics, RoundGrace: c.RoundGrace,
		}
	}
	return []daemon.Component{
		daemon.NewLoop(loop("promote", c.PromoteInterval, DefaultPromoteInterval, c.PromoteDisabled, s.PromoteOnce)).Component(),
		daemon.NewLoop(loop("give_up", c.GiveUpInterval, DefaultGiveUpInterval, c.GiveUpDisabled, s.GiveUpOnce)).Component(),
		daemon.NewLoop(loop("schedules", c.SchedulesInterval, DefaultSchedulesInterval, c.SchedulesDisabled, s.FireOnce)).Component(),
		woken(c.Hints, loop("place", c.PlaceInterval, DefaultPlaceInterval, c.PlaceDisabled, s.PlaceOnce)),
	}
}

// woken is a loop that hints about work wake, subscribed while it runs.
func woken(hints store.Hints, c daemon.LoopConfig) daemon.Component {
	if hints == nil || c.Disabled {
		return daemon.NewLoop(c).Component()
	}
	wake, unsubscribe := hints.Subscribe(store.HintWork, "")
	c.Wake = wake
	component := daemon.NewLoop(c).Component()
	stop := component.Stop
	component.Stop = func(ctx context.Context) error {
		unsubscribe()
		return stop(ctx)
	}
	return component
}
