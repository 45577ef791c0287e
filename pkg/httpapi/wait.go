package httpapi

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// maxWait bounds a long poll, below what proxies allow.
	maxWait = 25 * time.Second
	// pollEvery is how long a lost hint can go unnoticed.
	pollEvery = time.Second
)

// waitFor reads the task until it is finished (or has started, if that is meant),
// or the wait, the request or the server is over; then it returns the task as it
// is.
func (s *Server) waitFor(ctx context.Context, what WaitFor, scope berth.Scope, id berth.TaskID, wait Wait) (berth.Task, error) {
	var t berth.Task
	err := s.poll(ctx, id, min(seconds(wait), maxWait), func() (done bool, err error) {
		t, err = s.cfg.Store.GetTask(ctx, scope, id)
		started := t.State == berth.StateRunning || t.State == berth.StateFailed
		return t.State.Finished() || started && what == Started, err
	})
	return t, err
}

// poll calls read at once and then after each hint about the task, and each
// pollEvery, until it is done or fails, or the time is over. The last reading
// stands.
func (s *Server) poll(ctx context.Context, id berth.TaskID, wait time.Duration, read func() (bool, error)) error {
	if wait <= 0 {
		_, err := read()
		return err
	}
	// Before the first reading, so that no change falls between the two.
	hint, cancel := s.cfg.Store.Subscribe(store.HintTask, string(id))
	defer cancel()
	over := time.NewTimer(wait)
	defer over.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if done, err := read(); done || err != nil {
			return err
		}
		select {
		case <-hint:
		case <-tick.C:
		case <-over.C:
			return nil
		case <-s.stopping:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
