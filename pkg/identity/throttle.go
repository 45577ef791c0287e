package identity

import (
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

const (
	// freeFailures may follow each other before waiting begins.
	freeFailures = 5
	// firstWait doubles with each further failure, up to longestWait.
	firstWait   = 2 * time.Second
	longestWait = time.Minute
	// forgetAfter is how long a failure counts.
	forgetAfter = 15 * time.Minute
	// maxTracked bounds the memory.
	maxTracked = 10_000
)

// throttle slows down those who guess passwords: it counts failures by user
// name and client, in this process.
type throttle struct {
	mu      sync.Mutex
	entries map[throttleKey]*failures
}

type throttleKey struct{ name, client string }

type failures struct {
	count int
	last  time.Time
	until time.Time
}

func newThrottle() *throttle { return &throttle{entries: map[throttleKey]*failures{}} }

// begin counts the attempt as failed and refuses it while waiting is asked; a
// success takes the count back ([throttle.succeeded]). Counting first keeps
// attempts at the same instant from passing together.
func (t *throttle) begin(k throttleKey, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.entries[k]
	if f == nil || now.Sub(f.last) > forgetAfter {
		t.makeRoom(now)
		f = &failures{}
		t.entries[k] = f
	}
	if now.Before(f.until) {
		return &berth.TooManyError{RetryAfter: f.until.Sub(now)}
	}
	f.count++
	f.last = now
	if over := f.count - freeFailures; over >= 0 {
		wait := longestWait
		if over < 5 {
			wait = min(firstWait<<over, longestWait)
		}
		f.until = now.Add(wait)
	}
	return nil
}

// succeeded forgets the failures.
func (t *throttle) succeeded(k throttleKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.entries, k)
}

// makeRoom drops what is over, and, when that is not enough, a tenth of all:
// which ones is left to chance, so that a flood costs little and cannot choose.
func (t *throttle) makeRoom(now time.Time) {
	if len(t.entries) < maxTracked {
		return
	}
	for k, f := range t.entries {
		if now.Sub(f.last) > forgetAfter {
			delete(t.entries, k)
		}
	}
	for k := range t.entries {
		if len(t.entries) <= maxTracked*9/10 {
			return
		}
		delete(t.entries, k)
	}
}
