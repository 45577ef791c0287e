package harness

import (
	"testing"
	"time"
)

// Patience is how long a condition is waited for that should come at once, on a
// machine that has a lot else to do.
const Patience = 60 * time.Second

const pollEvery = 25 * time.Millisecond

// Eventually waits until condition holds and fails the test when it has not
// within the time. what says what was waited for.
func Eventually(tb testing.TB, within time.Duration, what string, condition func() bool) {
	tb.Helper()
	if !poll(within, condition) {
		tb.Fatalf("not within %v: %s", within, what)
	}
}

// poll reports whether condition held within the time.
func poll(within time.Duration, condition func() bool) bool {
	end := time.NewTimer(within)
	defer end.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if condition() {
			return true
		}
		select {
		case <-end.C:
			return condition()
		case <-tick.C:
		}
	}
}
