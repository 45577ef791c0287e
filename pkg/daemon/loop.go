package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/logging"
)

// Defaults of loops.
const (
	// DefaultRoundGrace is how long a round may go on by itself at shutdown.
	DefaultRoundGrace = 5 * time.Second
	// DefaultMaxBackoff bounds the wait after failures in a row.
	DefaultMaxBackoff = 5 * time.Second
)

// ErrPanic is wrapped by the error of a round that panicked.
var ErrPanic = errors.New("panic")

// Gate says why no work may be done now, in a fixed code such as
// schema_behind; "" lets it be done.
type Gate func(ctx context.Context) (code string)

// LoopConfig describes a Loop. Name, Interval and RunOnce are required.
type LoopConfig struct {
	Name string
	// Interval between the end of a round and the next, ± Jitter (0.2: 20 %).
	Interval time.Duration
	Jitter   float64
	// Disabled loops never run.
	Disabled bool
	// Wake starts the next round early, but not while the loop backs off or its
	// gate is shut; nil: never.
	Wake <-chan struct{}
	// Gate is asked before each round; nil: always open.
	Gate Gate
	// RunOnce is one round. It bounds its own work and returns ctx's error soon
	// after ctx ended.
	RunOnce func(ctx context.Context) error
	// MaxBackoff bounds the wait after failures in a row; 0: DefaultMaxBackoff,
	// and never below Interval.
	MaxBackoff time.Duration
	// RoundGrace is how long a round may go on at Stop before its context is
	// cancelled; 0: DefaultRoundGrace.
	RoundGrace time.Duration
	// Log and Metrics may be nil.
	Log     *zap.Logger
	Metrics *LoopMetrics
}

// Loop runs rounds from Start to Stop.
type Loop struct {
	c        LoopConfig
	stopping chan struct{}
	stopOnce sync.Once
	mu       sync.Mutex // guards done
	done     chan struct{}
	shutCode string // the gate's last answer; the loop's goroutine alone
}

// NewLoop makes a loop that does not run yet.
func NewLoop(c LoopConfig) *Loop {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	c.Log = c.Log.With(zap.String("loop", c.Name))
	if c.MaxBackoff <= 0 {
		c.MaxBackoff = DefaultMaxBackoff
	}
	c.MaxBackoff = max(c.MaxBackoff, c.Interval)
	if c.RoundGrace <= 0 {
		c.RoundGrace = DefaultRoundGrace
	}
	return &Loop{c: c, stopping: make(chan struct{})}
}

// Component lets Run start and stop the loop.
func (l *Loop) Component() Component {
	return Component{Name: "loop " + l.c.Name, Start: l.Start, Stop: l.Stop}
}

// Start begins the rounds, the first at once. ctx ends nothing: Stop does.
// Starting a running, stopped or disabled loop does nothing.
func (l *Loop) Start(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.c.Disabled || l.done != nil || l.stopped() {
		return nil
	}
	if l.c.RunOnce == nil || l.c.Interval <= 0 {
		return fmt.Errorf("loop %s: RunOnce and a positive Interval are required", l.c.Name)
	}
	l.done = make(chan struct{})
	go l.run(l.done)
	return nil
}

// Stop lets the round in progress end, cancels its context after RoundGrace,
// and returns when the loop has ended; nil at once when it does not run. When
// ctx ends first it returns ctx's error. It may be called twice.
func (l *Loop) Stop(ctx context.Context) error {
	l.stopOnce.Do(func() { close(l.stopping) })
	l.mu.Lock()
	done := l.done
	l.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Loop) stopped() bool {
	select {
	case <-l.stopping:
		return true
	default:
		return false
	}
}

func (l *Loop) run(done chan<- struct{}) {
	defer close(done)
	failures := 0
	for !l.stopped() {
		switch l.round() {
		case resultOK:
			failures = 0
			l.wait(l.jittered(l.c.Interval), l.c.Wake)
		case resultGated:
			l.wait(l.jittered(l.c.Interval), nil)
		default:
			failures++
			l.wait(l.jittered(l.backoff(failures)), nil)
		}
	}
}

// backoff is the wait after n failures in a row: the interval, doubled by each.
func (l *Loop) backoff(n int) time.Duration {
	d := l.c.Interval
	for range n {
		if d *= 2; d >= l.c.MaxBackoff {
			return l.c.MaxBackoff
		}
	}
	return d
}

func (l *Loop) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - l.c.Jitter + 2*l.c.Jitter*rand.Float64()))
}

func (l *Loop) wait(d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-l.stopping:
	}
}

// The results of a round, as the metric names them.
const (
	resultOK    = "ok"
	resultError = "error"
	resultPanic = "panic"
	resultGated = "gated"
)

// round asks the gate, runs one round and tells of it.
func (l *Loop) round() (result string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go l.cancelAfterGrace(ended, cancel)

	begun := time.Now()
	if !l.open(ctx) {
		l.c.Metrics.record(l.c.Name, resultGated, 0)
		return resultGated
	}
	err := l.protected(ctx)
	switch {
	case err == nil:
		result = resultOK
	case errors.Is(err, ErrPanic):
		result = resultPanic
	case ctx.Err() != nil:
		// Broken off by the stop; what it had not committed is rolled back.
		l.c.Log.Info("round broken off by the shutdown")
		return resultOK
	default:
		result = resultError
		l.c.Log.Error("round failed", zap.Error(err))
	}
	l.c.Metrics.record(l.c.Name, result, time.Since(begun))
	return result
}

// cancelAfterGrace cancels a round that goes on RoundGrace after the stop.
func (l *Loop) cancelAfterGrace(ended <-chan struct{}, cancel func()) {
	select {
	case <-ended:
		return
	case <-l.stopping:
	}
	timer := time.NewTimer(l.c.RoundGrace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		cancel()
	}
}

// open asks the gate and logs when its answer changed.
func (l *Loop) open(ctx context.Context) bool {
	code := ""
	if l.c.Gate != nil {
		code = l.c.Gate(ctx)
	}
	if code != l.shutCode {
		if code == "" {
			l.c.Log.Info("rounds go on")
		} else {
			l.c.Log.Warn("rounds wait", zap.String("code", code))
		}
		l.shutCode = code
	}
	return code == ""
}

// protected turns a panic of the round into an error, and logs where it was.
func (l *Loop) protected(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %s", ErrPanic, logging.PanicText(v))
			l.c.Log.Error("round panicked", zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return l.c.RunOnce(ctx)
}
