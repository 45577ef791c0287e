package hostagent

import (
	"context"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/protocol"
)

// drain is a reason for which the agent takes no new attempts.
type drain string

// The reasons. They come and go by themselves; the agent drains while there is
// one.
const (
	drainAsked    drain = "asked"    // the server's directive
	drainStopping drain = "stopping" // SIGTERM
	drainStorage  drain = "storage"  // the state directory takes nothing more
)

// drained reports whether the agent drains, and a channel that is closed when
// that changes.
func (a *Agent) drained() (bool, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.drains) > 0, a.drainTurn
}

func (a *Agent) draining() bool {
	is, _ := a.drained()
	return is
}

// setDrain adds or takes away a reason to drain. When the first one comes, the
// claim that waits is broken off, what has not begun to start is handed back,
// and a heartbeat tells the server, which places nothing more here; what runs
// goes on. It reports whether the reason is new, or was there.
func (a *Agent) setDrain(why drain, on bool) (changed bool) {
	a.mu.Lock()
	was := len(a.drains) > 0
	changed = a.drains[why] != on
	if on {
		a.drains[why] = true
	} else {
		delete(a.drains, why)
	}
	is := len(a.drains) > 0
	if was != is {
		close(a.drainTurn)
		a.drainTurn = make(chan struct{})
	}
	a.mu.Unlock()
	if was == is {
		return changed
	}
	if is {
		a.log.Info("draining: no new attempts are taken", zap.String("reason", string(why)))
		for _, h := range a.held() {
			h.endUnasked(errDraining)
		}
	} else {
		a.log.Info("attempts are taken again")
	}
	a.poke()
	return changed
}

// poke has a heartbeat sent now.
func (a *Agent) poke() {
	select {
	case a.beatNow <- struct{}{}:
	default:
	}
}

// while is ctx, and ends also when the agent drains no more, or begins to.
func (a *Agent) while(ctx context.Context, draining bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	is, turn := a.drained()
	if is != draining {
		cancel()
		return ctx, cancel
	}
	go func() {
		select {
		case <-turn:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// handBackAssigned hands back what was assigned to this host before the server
// knew that it drains. It is called when a heartbeat has told so.
func (a *Agent) handBackAssigned(ctx context.Context) {
	// The claim of an agent that takes work again waits for long, and this must
	// not wait for it.
	claiming, stop := a.while(ctx, true)
	assigned, err := a.claim(claiming, 0)
	over := claiming.Err() != nil
	stop()
	switch {
	case err != nil && over:
		return
	case err != nil:
		a.log.Warn("what was assigned could not be asked for; the leasekeeper takes it back", zap.Error(err))
		return
	}
	for _, as := range assigned {
		if !a.holding(as.Attempt) {
			a.decline(ctx, as, reasonDraining, true)
		}
	}
}

// sayStopping tells the server that this host drains, a last time, and hands back what
// was assigned meanwhile.
func (a *Agent) sayStopping(ctx context.Context) {
	ctx, stop := context.WithTimeout(ctx, min(a.cfg.StopWithin, 2*a.conf().RequestTimeout.Duration()))
	defer stop()
	if err := a.beat(ctx); err != nil {
		a.log.Warn("the server was not told that this host stops", zap.Error(unwanted(err)))
	}
}

// beat sends one heartbeat and does what its answer says.
func (a *Agent) beat(ctx context.Context) error {
	var res protocol.HeartbeatResponse
	req := protocol.HeartbeatRequest{Draining: a.draining(), Health: a.healths()}
	if err := a.call(ctx, http.MethodPost, protocol.PathHeartbeat, req, &res, a.timeout()); err != nil {
		return err
	}
	a.healthsTold(req.Health)
	if res.Resync {
		a.askSync()
	}
	a.mu.Lock()
	if d := res.Interval.Duration(); d >= 100*time.Millisecond {
		a.beatEvery = d
	}
	directives := a.version >= 2
	a.mu.Unlock()
	// A server that was put back to version 1 ends no drain that a newer one
	// asked for.
	a.setDrain(drainAsked, directives && res.Drain)
	if res.RotateKey {
		a.askRotation()
	}
	if req.Draining {
		a.handBackAssigned(ctx)
	}
	return nil
}

// heartbeatLoop tells the server that the host is alive. When one is answered
// after one that was not, the agent syncs: meanwhile the server's database may
// have been put back to an older state.
func (a *Agent) heartbeatLoop(ctx context.Context) {
	missed := false
	for {
		a.mu.Lock()
		every := a.beatEvery
		a.mu.Unlock()
		if every == 0 {
			every = a.conf().HeartbeatEvery.Duration()
		}
		t := time.NewTimer(jitter(every, 0.1))
		select {
		case <-ctx.Done():
		case <-a.beatNow:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
		err := a.beat(ctx)
		a.setReady(err == nil)
		if err == nil && missed {
			a.askSync()
		}
		missed = err != nil
		if err != nil && ctx.Err() == nil {
			a.log.Warn("heartbeat failed", zap.Error(unwanted(err)))
			if !sleep(ctx, pauseAfter(err, 0, every)) {
				return
			}
		}
	}
}
