package berth_test

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestWaitsDoubleAndAreBounded(t *testing.T) {
	for _, c := range []struct {
		bound           berth.LoginBound
		free            int
		first, longest  time.Duration
		doublingsToHold int
	}{
		{berth.LoginByPair, 5, 2 * time.Second, time.Minute, 4},
		{berth.LoginByStranger, 1, 30 * time.Second, 5 * time.Minute, 3},
		{berth.LoginByClient, 50, 2 * time.Second, time.Minute, 4},
	} {
		if w := berth.LoginWait(c.bound, c.free-1); w != 0 {
			t.Errorf("%s: %v within the free ones", c.bound, w)
		}
		for i := range c.doublingsToHold + 1 {
			if w := berth.LoginWait(c.bound, c.free+i); w != c.first<<i {
				t.Errorf("%s: %v after %d", c.bound, w, c.free+i)
			}
		}
		for _, n := range []int{c.free + 10, c.free + 100, 1 << 40} {
			if w := berth.LoginWait(c.bound, n); w != c.longest {
				t.Errorf("%s: %v after %d", c.bound, w, n)
			}
		}
	}
}

// logins is one installation's memory.
type logins struct {
	t              *testing.T
	now            time.Time
	pairs          map[[2]string]berth.LoginCount
	clients, names map[string]berth.LoginCount
}

func newLogins(t *testing.T) *logins {
	return &logins{
		t: t, now: time.Unix(1_800_000_000, 0), pairs: map[[2]string]berth.LoginCount{},
		clients: map[string]berth.LoginCount{}, names: map[string]berth.LoginCount{},
	}
}

// try is one attempt; it returns what it was told to wait.
func (l *logins) try(name, client string, right bool) time.Duration {
	c := berth.LoginCounts{Pair: l.pairs[[2]string{name, client}], Client: l.clients[client], Name: l.names[name]}
	if w := c.Wait(l.now); w > 0 {
		return w
	}
	c = c.Failed(l.now)
	if right {
		c = c.Succeeded(l.now)
	}
	l.pairs[[2]string{name, client}], l.clients[client], l.names[name] = c.Pair, c.Client, c.Name
	return 0
}

func TestManyAddressesDoNotLockTheOwnerOut(t *testing.T) {
	l := newLogins(t)
	if w := l.try("ann", "home", true); w != 0 {
		t.Fatalf("waits %v", w)
	}
	// A thousand addresses guess at once, for an hour.
	guesses := 0
	for range 3600 {
		l.now = l.now.Add(time.Second)
		for i := range 1000 {
			if l.try("ann", string(rune('a'+i)), false) == 0 {
				guesses++
			}
		}
	}
	if most := 1000 * 20; guesses > most {
		t.Errorf("%d guesses in an hour, want at most %d", guesses, most)
	}
	if w := l.try("ann", "home", false); w != 0 {
		t.Errorf("the owner's own client waits %v", w)
	}
	if w := l.try("ann", "home", true); w != 0 {
		t.Errorf("the owner's own client waits %v", w)
	}
	if w := l.try("ann", "a new place", true); w != 0 {
		t.Errorf("the owner's first attempt at a new place waits %v", w)
	}
}

func TestOneClientOverManyNamesIsSlowedDownAndWhoLoggedInThereIsNot(t *testing.T) {
	l := newLogins(t)
	l.try("ann", "office", true)
	guesses := 0
	for i := range 1000 {
		// An account of the guesser's own does not pay for the others.
		l.try("mallory", "office", true)
		if l.try("name "+string(rune('a'+i)), "office", false) == 0 {
			guesses++
		}
	}
	if guesses != 50 {
		t.Errorf("%d guesses in an instant", guesses)
	}
	if w := l.try("ann", "office", true); w != 0 {
		t.Errorf("who logged in there before waits %v", w)
	}
	if w := l.try("bob", "office", true); w <= 0 || w > time.Minute {
		t.Errorf("who never did waits %v", w)
	}
	if w := l.try("bob", "elsewhere", true); w != 0 {
		t.Errorf("elsewhere waits %v", w)
	}
}

func TestFailuresAreForgottenAndKnownClientsRemembered(t *testing.T) {
	l := newLogins(t)
	for range 5 {
		l.try("ann", "home", false)
	}
	if w := l.try("ann", "home", true); w != 2*time.Second {
		t.Errorf("waits %v", w)
	}
	pair := [2]string{"ann", "home"}
	l.now = l.now.Add(berth.LoginForget)
	for range 4 {
		if w := l.try("ann", "home", false); w != 0 {
			t.Errorf("waits %v", w)
		}
	}
	l.try("ann", "home", true)
	if l.pairs[pair].Failures != 0 || !l.pairs[pair].Known(l.now.Add(89*24*time.Hour)) {
		t.Errorf("after the success: %+v", l.pairs[pair])
	}
	if l.pairs[pair].Known(l.now.Add(90 * 24 * time.Hour)) {
		t.Error("known for ever")
	}
}
