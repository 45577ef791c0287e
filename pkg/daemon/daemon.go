package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
)

// DefaultShutdownWithin bounds the stopping of all components together.
const DefaultShutdownWithin = 15 * time.Second

// ErrHung is wrapped by Run's error when a component did not stop in time; the
// process should exit, for its goroutines still run.
var ErrHung = errors.New("did not stop in time")

// Component is a part of a daemon. Start returns when the part runs, or with
// the reason why it cannot. Stop returns when it has stopped, at the latest
// soon after ctx ended, and may be called twice.
type Component struct {
	Name  string
	Start func(ctx context.Context) error
	// Stop may be nil.
	Stop func(ctx context.Context) error
	// Failed delivers the error of a part that cannot go on; nil: it never
	// fails once it runs.
	Failed <-chan error
}

// Config of Run. Its zero value waits for a signal and ends.
type Config struct {
	// Log; nil logs nothing.
	Log *zap.Logger
	// Components in the order of their start.
	Components []Component
	// ShutdownWithin bounds the stopping; 0: DefaultShutdownWithin.
	ShutdownWithin time.Duration
	// Started, if set, is called when every component runs.
	Started func()
}

// Run starts the components in order, waits for SIGTERM, SIGINT, the end of ctx
// or the failure of a component, and stops what was started in reverse order.
// It returns nil after an orderly end, the component's error after a failure,
// and an error that wraps ErrHung and names the component that did not stop.
func Run(ctx context.Context, c Config) error {
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.ShutdownWithin <= 0 {
		c.ShutdownWithin = DefaultShutdownWithin
	}
	ctx, stopSignals := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stopSignals()

	var started []Component
	err := func() error {
		for _, part := range c.Components {
			if err := part.Start(ctx); err != nil {
				return fmt.Errorf("start %s: %w", part.Name, err)
			}
			started = append(started, part)
		}
		if c.Started != nil {
			c.Started()
		}
		return waitForEnd(ctx, started)
	}()
	if ctx.Err() != nil {
		c.Log.Info("stopping", zap.Duration("within", c.ShutdownWithin))
		if errors.Is(err, context.Canceled) {
			err = nil // a start that the signal broke off
		}
	}
	// From here a second signal ends the process.
	stopSignals()
	return errors.Join(err, stop(context.WithoutCancel(ctx), c, started))
}

// waitForEnd returns nil when ctx ends, or the first failure.
func waitForEnd(ctx context.Context, parts []Component) error {
	failed := make(chan error)
	done := make(chan struct{})
	defer close(done)
	for _, part := range parts {
		if part.Failed == nil {
			continue
		}
		go func() {
			select {
			case err := <-part.Failed:
				var setup *berth.SetupError
				if !errors.As(err, &setup) { // which says all to the operator
					err = fmt.Errorf("%s: %w", part.Name, err)
				}
				select {
				case failed <- err:
				case <-done:
				}
			case <-done:
			}
		}()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// stop stops parts in reverse within the bound.
func stop(ctx context.Context, c Config, parts []Component) error {
	ctx, cancel := context.WithTimeout(ctx, c.ShutdownWithin)
	defer cancel()
	var errs []error
	for i := len(parts) - 1; i >= 0; i-- {
		part := parts[i]
		if part.Stop == nil {
			continue
		}
		begun := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- part.Stop(ctx) }()
		select {
		case err := <-ended:
			if errors.Is(err, context.DeadlineExceeded) {
				return hung(c, part, begun, errs)
			}
			if err != nil {
				c.Log.Error("component stopped with an error", zap.String("component", part.Name), zap.Error(err))
				errs = append(errs, fmt.Errorf("stop %s: %w", part.Name, err))
			}
		case <-ctx.Done():
			return hung(c, part, begun, errs)
		}
	}
	return errors.Join(errs...)
}

func hung(c Config, part Component, since time.Time, errs []error) error {
	c.Log.Error("component did not stop in time", zap.String("component", part.Name),
		zap.Duration("waited", time.Since(since)), zap.Duration("bound", c.ShutdownWithin))
	return errors.Join(append(errs, fmt.Errorf("%s %w (%v for everything)", part.Name, ErrHung, c.ShutdownWithin))...)
}
