package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func guessChecks() []check {
	return []check{
		in("failed logins are counted for all processes, also at once", countLogins),
		in("a refused login counts nothing and a success takes its own back", forgetLogins),
		in("a client that knew the password is not slowed down by others", knownClient),
		in("an assertion is used once, also at once through two handles", useAssertion),
		in("what no longer counts is swept", sweepGuesses),
		in("a login whose old counts are swept under it is counted", sweepUnderLogin),
	}
}

// login is one attempt through a handle; it returns what it must wait.
func (w *world) login(s store.Store, name, client string, right bool) time.Duration {
	w.t.Helper()
	err := s.CountLogin(bg(), hashOf(name), client)
	var many *berth.TooManyError
	if errors.As(err, &many) {
		return many.RetryAfter
	}
	w.must("count", err)
	if right {
		w.must("forget", s.ForgetLogins(bg(), hashOf(name), client))
	}
	return 0
}

func countLogins(w *world) {
	other := w.second()
	// Twenty at the same instant through two handles: five pass.
	var calls []func() (time.Duration, error)
	for i := range 20 {
		s := w.Store
		if i%2 == 0 {
			s = other
		}
		calls = append(calls, func() (time.Duration, error) {
			err := s.CountLogin(bg(), hashOf("ann"), "192.0.2.1")
			var many *berth.TooManyError
			if errors.As(err, &many) {
				return many.RetryAfter, nil
			}
			return 0, err
		})
	}
	passed := 0
	for _, r := range both(calls...) {
		w.must("count", r.err)
		if r.value == 0 {
			passed++
		} else if r.value != 2*time.Second {
			w.t.Errorf("waits %v", r.value)
		}
	}
	if passed != 5 {
		w.t.Errorf("%d of 20 passed", passed)
	}
	if d := w.login(w.second(), "ann", "192.0.2.1", true); d != 2*time.Second {
		w.t.Errorf("after a restart it waits %v", d)
	}
	if d := w.login(w.Store, "ann", "192.0.2.2", true); d != 0 {
		w.t.Errorf("another client waits %v", d)
	}
	w.Clock.Advance(2*time.Second - time.Microsecond)
	if d := w.login(w.Store, "ann", "192.0.2.1", true); d != time.Microsecond {
		w.t.Errorf("before the end it waits %v", d)
	}
	w.Clock.Advance(time.Microsecond)
	if d := w.login(w.Store, "ann", "192.0.2.1", false); d != 0 {
		w.t.Errorf("after the wait: %v", d)
	}
	if d := w.login(w.Store, "ann", "192.0.2.1", false); d != 4*time.Second {
		w.t.Errorf("the next wait is %v", d)
	}
}

func forgetLogins(w *world) {
	for range 3 {
		for range 4 {
			if d := w.login(w.Store, "ann", "c", false); d != 0 {
				w.t.Fatalf("waits %v", d)
			}
		}
		if d := w.login(w.Store, "ann", "c", true); d != 0 {
			w.t.Fatalf("the right password waits %v", d)
		}
	}
	for range 5 {
		w.login(w.Store, "bob", "c", false)
	}
	for range 10 {
		w.login(w.Store, "bob", "c", false) // refused
	}
	w.Clock.Advance(2 * time.Second)
	w.login(w.Store, "bob", "c", false)
	if d := w.login(w.Store, "bob", "c", false); d != 4*time.Second {
		w.t.Errorf("refused attempts were counted: the next wait is %v", d)
	}
}

func knownClient(w *world) {
	w.login(w.Store, "ann", "home", true)
	for i := range 30 { // from many clients
		if d := w.login(w.Store, "ann", fmt.Sprint("c", i), false); d != 0 {
			w.t.Fatalf("stranger %d waits %v", i, d)
		}
	}
	if d := w.login(w.Store, "ann", "c29", false); d != 30*time.Second {
		w.t.Errorf("a stranger under a pressed name waits %v", d)
	}
	if d := w.login(w.Store, "ann", "new", true); d != 0 {
		w.t.Errorf("the owner at a new place waits %v", d)
	}
	for i := range 60 { // over many names
		w.login(w.Store, fmt.Sprint("n", i), "home", false)
	}
	if d := w.login(w.Store, "bob", "home", true); d <= 0 {
		w.t.Errorf("who guesses over many names does not wait")
	}
	for range 4 {
		if d := w.login(w.Store, "ann", "home", false); d != 0 {
			w.t.Errorf("the owner waits %v", d)
		}
	}
	if d := w.login(w.Store, "ann", "home", true); d != 0 {
		w.t.Errorf("the owner waits %v", d)
	}
}

func useAssertion(w *world) {
	other := w.second()
	a, b := newID[berth.HostID](w.Env), newID[berth.HostID](w.Env)
	for i := range 5 {
		jti := fmt.Sprint("assertion ", i)
		got := both(
			func() (int, error) { return 0, w.Store.UseAssertion(bg(), a, jti, time.Minute) },
			func() (int, error) { return 0, other.UseAssertion(bg(), a, jti, time.Minute) },
		)
		if (got[0].err == nil) == (got[1].err == nil) {
			w.t.Fatalf("at once: %v and %v", got[0].err, got[1].err)
		}
		w.fails("the second", errors.Join(got[0].err, got[1].err), berth.ErrUsed)
	}
	w.must("another host's", w.Store.UseAssertion(bg(), b, "assertion 0", time.Minute))
}

func sweepGuesses(w *world) {
	sweep := func(limit int) int {
		n, err := w.Store.SweepGuesses(bg(), limit)
		w.must("sweep", err)
		return n
	}
	w.login(w.Store, "ann", "home", true) // three rows: the pair, the client, the name
	w.login(w.Store, "bob", "home", false)
	w.must("use", w.Store.UseAssertion(bg(), newID[berth.HostID](w.Env), "assertion", time.Minute))
	w.Clock.Advance(time.Minute - time.Microsecond)
	if n := sweep(100); n != 0 {
		w.t.Errorf("%d too early", n)
	}
	w.Clock.Advance(time.Microsecond)
	if n := sweep(100); n != 1 {
		w.t.Errorf("%d, want the assertion", n)
	}
	w.Clock.Advance(berth.LoginForget - time.Minute)
	if n := sweep(1) + sweep(1); n != 2 {
		w.t.Errorf("%d in two sweeps of one", n)
	}
	if n := sweep(100); n != 2 {
		w.t.Errorf("%d, want the other two of bob, home and ann", n)
	}
	if d := w.login(w.Store, "ann", "home", false); d != 0 {
		w.t.Errorf("waits %v", d)
	}
	w.Clock.Advance(berth.LoginKnown)
	if n := sweep(100); n != 1 {
		w.t.Errorf("%d, want the client that was known", n)
	}
}

// sweepUnderLogin: the sweep takes the counts that a login has found, before each
// of its statements in turn. SQLite has no such moment: there the sweep waits.
func sweepUnderLogin(w *world) {
	s, h := w.hooked()
	for at := 1; ; at++ {
		name := fmt.Sprint("ann", at)
		w.login(w.Store, name, "home", false)
		w.Clock.Advance(berth.LoginForget)
		h.arm(at, func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, sweepWaits)
			defer stop()
			_, _ = w.Store.SweepGuesses(ctx, 100)
			return nil
		})
		w.must("count", s.CountLogin(bg(), hashOf(name), "home"))
		if acted, _ := h.disarm(); !acted {
			return
		}
		if d := w.login(w.Store, name, "home", false); d != 0 {
			w.t.Errorf("waits %v", d)
		}
	}
}

// sweepWaits is how long a sweep in the middle of a login waits for its turn.
const sweepWaits = 100 * time.Millisecond
