package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/redact"
)

// ending bounds what comes after the end of a run's context. Whatever a plugin
// or a driver does then, the run returns when hard ends.
type ending struct {
	// soft ends when the plugin should have returned: half of the time.
	soft context.Context
	// hard ends when the work must be dead and the device given back.
	hard context.Context
	over func()

	mu sync.Mutex
	at time.Time // when hard ends; zero before that is known
}

// closing is a context for giving a device back: for limit, and not beyond the
// hard end. Its deadline tells that where it is known.
func (e *ending) closing(limit time.Duration) (context.Context, context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	by := time.Now().Add(limit)
	if !e.at.IsZero() && e.at.Before(by) {
		by = e.at
	}
	return context.WithDeadline(e.hard, by)
}

// endOf watches ctx; within is asked once, when it ended. over must be called.
func endOf(ctx context.Context, within func() time.Duration) *ending {
	e := &ending{}
	var endSoft, endHard context.CancelFunc
	e.soft, endSoft = context.WithCancel(context.Background())
	e.hard, endHard = context.WithCancel(context.Background())
	over, done := make(chan struct{}), make(chan struct{})
	e.over = sync.OnceFunc(func() { close(over); <-done })
	go func() {
		defer close(done)
		defer endSoft()
		defer endHard()
		select {
		case <-ctx.Done():
		case <-over:
			return
		}
		limit := max(within(), 0)
		e.mu.Lock()
		e.at = time.Now().Add(limit)
		e.mu.Unlock()
		t := time.NewTimer(limit / 2)
		defer t.Stop()
		for _, end := range []context.CancelFunc{endSoft, endHard} {
			select {
			case <-t.C:
				end()
				t.Reset(limit - limit/2)
			case <-over:
				return
			}
		}
	}()
	return e
}

// open opens the device. A driver that does not return by the hard end is left
// alone; what it opens later is closed at once.
func (r *Runtime) open(ctx context.Context, end *ending, d Driver, id DeviceID, opts OpenOptions, h *hold) (Session, error) {
	type opened struct {
		s   Session
		err error
	}
	done := make(chan opened, 1)
	go func() {
		s, err := d.Open(ctx, id, opts)
		done <- opened{s, err}
	}()
	select {
	case o := <-done:
		return o.s, o.err
	case <-end.hard.Done():
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if o := <-done; o.err == nil {
			ctx, stop := context.WithTimeout(context.Background(), r.closeTimeout)
			defer stop()
			_ = o.s.Close(ctx)
		}
	}()
	r.leave(h, closed)
	r.log.Error("the driver does not open the device and does not give up", zap.String("device_id", string(id)))
	return nil, errOpenStuck
}

// errOpenStuck: the device is unclean, since it may be opened yet.
var errOpenStuck = errors.Join(ErrUnclean, &ActionError{Code: CodeDeviceOpen, Message: "the driver did not open the device and did not give up"})

// closing is a session that is being given back, once.
type closing struct {
	s    Session
	once sync.Once
	done chan struct{}
	err  error // when done is closed
}

// giveBack closes a session and reports whether the device is clean. It waits
// for closeTimeout, and not beyond the hard end of the run.
func (r *Runtime) giveBack(end *ending, c *closing, h *hold) bool {
	c.once.Do(func() {
		c.done = make(chan struct{})
		ctx, stop := end.closing(r.closeTimeout)
		go func() {
			defer close(c.done)
			defer stop()
			c.err = c.s.Close(ctx)
		}()
		select {
		case <-c.done:
			return
		case <-ctx.Done():
		}
		// It knows that its time is over; one that says so at once is not stuck.
		t := time.NewTimer(closeSlack)
		defer t.Stop()
		select {
		case <-c.done:
		case <-t.C:
			r.leave(h, c.done)
		}
	})
	log := r.log.With(zap.String("device_id", string(c.s.Device().ID)))
	select {
	case <-c.done:
	default:
		log.Error("device is unclean: the driver does not give it back")
		return false
	}
	if c.err != nil {
		log.Warn("device is unclean", zap.String("reason", string(CodeOf(c.err))))
		return false
	}
	return true
}

// closeSlack is how long after the end of its time a driver may take to say so.
const closeSlack = 100 * time.Millisecond

// leave counts something that goes on at the device until done is closed.
func (r *Runtime) leave(h *hold, done <-chan struct{}) {
	r.mu.Lock()
	h.left++
	r.mu.Unlock()
	go func() {
		<-done
		r.mu.Lock()
		h.left--
		r.mu.Unlock()
	}()
}

// left is how much goes on at the device that nobody waits for.
func (r *Runtime) left(h *hold) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return h.left
}

// diskFull is what people are told.
const diskFull = "the host's disk is full; free space where the host keeps its state"

// isFull reports whether err means that there is no room.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// DiskFull is the failure of an action for which there was no room, or nil when
// err is something else. A run that fails with it is OutcomeInfraFailed.
func DiskFull(err error) *ActionError {
	if !isFull(err) {
		return nil
	}
	return &ActionError{Code: CodeDiskFull, Message: diskFull, Err: err}
}

var codePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// isObject reports whether b is a JSON object, or nothing.
func isObject(b redact.Bytes) bool {
	var v map[string]json.RawMessage
	return b.IsZero() || json.Unmarshal(b.Reveal(), &v) == nil
}

// wellFormed mends a result that no caller could take: a plugin may be wrong.
func wellFormed(res Result) Result {
	known := []Outcome{OutcomeSucceeded, OutcomeFailed, OutcomeInfraFailed, OutcomeTimedOut, OutcomeCancelled}
	switch {
	case !slices.Contains(known, res.Outcome):
		res.Outcome, res.Reason, res.Message = OutcomeFailed, CodeBadResult, "the plugin gave no outcome that there is"
	case !isObject(res.JSON):
		res.Outcome, res.Reason, res.Message = OutcomeFailed, CodeBadResult, "the plugin's result is no JSON object"
	}
	if !isObject(res.JSON) {
		res.JSON = redact.Bytes{}
	}
	if res.Reason != "" && !codePattern.MatchString(string(res.Reason)) {
		res.Reason = CodeInternal
	}
	// What ran into a full disk has not said no.
	if res.Outcome == OutcomeFailed && res.Reason == CodeDiskFull {
		res.Outcome = OutcomeInfraFailed
	}
	return res
}
