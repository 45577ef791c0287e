package hostagent

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/daemon"
)

// CloseWithin is what the Runtime should allow for giving a device back after
// work that ended by itself. What the agent ends, by a fence or a cancel, has
// the time that the installation's settings leave.
const CloseWithin = 8 * time.Second

// StopBound is what a daemon should allow for an agent's end: killing what
// runs, and handing in what there is.
const StopBound = 45 * time.Second

// Component lets daemon.Run start and stop the agent. An end that was not asked
// for is a failure.
func (a *Agent) Component() daemon.Component {
	failed := make(chan error, 1)
	done := make(chan struct{})
	var stop context.CancelFunc
	return daemon.Component{
		Name: "host agent",
		Start: func(ctx context.Context) error {
			var runCtx context.Context
			runCtx, stop = context.WithCancel(context.WithoutCancel(ctx))
			go func() {
				defer close(done)
				if err := a.Run(runCtx); err != nil {
					failed <- err
				}
			}()
			return nil
		},
		Stop: func(ctx context.Context) error {
			if stop == nil {
				return nil
			}
			stop()
			select {
			case <-done:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Failed: failed,
	}
}
