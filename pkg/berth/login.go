package berth

import (
	"net/netip"
	"time"
)

// The bounds of guessing.
const (
	// LoginForget: failures count until none came for so long.
	LoginForget = 15 * time.Minute
	// LoginKnown is how long a client is remembered for a success.
	LoginKnown = 90 * 24 * time.Hour

	// loginFree failures of a name from a client are free of waiting; then each
	// doubles it, from loginFirstWait to loginLongestWait.
	loginFree        = 5
	loginFirstWait   = 2 * time.Second
	loginLongestWait = time.Minute
	// loginClientFree are a client's, over all names.
	loginClientFree = 50
	// A name is pressed from loginPressed failures on, over all clients.
	loginPressed            = 20
	loginPressedFree        = 1
	loginPressedWait        = 30 * time.Second
	loginPressedLongestWait = 5 * time.Minute
)

// LoginBound says whose failures are counted.
type LoginBound string

// The bounds.
const (
	// LoginByPair: of a name from a client.
	LoginByPair LoginBound = "pair"
	// LoginByStranger: of a pressed name from a client that never knew its password.
	LoginByStranger LoginBound = "stranger"
	// LoginByClient: of a client over all names.
	LoginByClient LoginBound = "client"
)

// LoginWait is how long the next attempt must wait after so many failures.
func LoginWait(b LoginBound, failures int) time.Duration {
	free, wait, longest := loginFree, loginFirstWait, loginLongestWait
	switch b {
	case LoginByStranger:
		free, wait, longest = loginPressedFree, loginPressedWait, loginPressedLongestWait
	case LoginByClient:
		free = loginClientFree
	case LoginByPair:
	}
	over := failures - free
	if over < 0 {
		return 0
	}
	return min(wait<<min(over, 10), longest)
}

// LoginCount is what is remembered of failed logins.
type LoginCount struct {
	Failures          int
	LastAt, WaitUntil time.Time
	// KnownAt is when the client last logged in under the name; of pairs alone.
	KnownAt time.Time
}

// Known reports whether the client has logged in under the name not long ago.
func (c LoginCount) Known(now time.Time) bool {
	return !c.KnownAt.IsZero() && now.Sub(c.KnownAt) < LoginKnown
}

func (c LoginCount) fresh(now time.Time) bool { return now.Sub(c.LastAt) < LoginForget }

func (c LoginCount) failures(now time.Time) int {
	if !c.fresh(now) {
		return 0
	}
	return c.Failures
}

func (c LoginCount) failed(now time.Time, wait func(failures int) time.Duration) LoginCount {
	c.Failures = c.failures(now) + 1
	c.LastAt, c.WaitUntil = now, time.Time{}
	if w := wait(c.Failures); w > 0 {
		c.WaitUntil = now.Add(w)
	}
	return c
}

func (c LoginCount) left(now time.Time) time.Duration { return max(0, c.WaitUntil.Sub(now)) }

// LoginCounts are what bounds one login: the failures of its name from its
// client, of its client over all names, and of its name over all clients.
//
// They slow down who guesses, and lock nobody out who knows the password:
//
//   - A client that has logged in under the name before is bounded by its own
//     failures under that name alone, at most a minute at a time. Whatever
//     others do elsewhere does not touch it.
//   - Failures of a name over all clients (one name tried from many addresses)
//     make nobody wait by themselves. They take the free failures of strangers:
//     each client that never logged in under this name has one attempt, then waits
//     half a minute and more. So the owner at a new address gets in at the first
//     attempt, however many others try; a wait for all strangers together would
//     be won by whoever tries most often, which is not the owner.
//   - Failures of a client over all names (one password tried on many names)
//     make its strangers wait together, at most a minute: this touches only who
//     shares the address and never logged in from there.
//
// A success takes back its own failure, not those of others: an account of one's
// own does not pay for guesses at other ones.
type LoginCounts struct{ Pair, Client, Name LoginCount }

// Wait is how long the attempt must wait; 0: it may be made.
func (c LoginCounts) Wait(now time.Time) time.Duration {
	if c.Pair.Known(now) {
		return c.Pair.left(now)
	}
	return max(c.Pair.left(now), c.Client.left(now))
}

// Failed counts one more failure.
func (c LoginCounts) Failed(now time.Time) LoginCounts {
	bound := LoginByPair
	if !c.Pair.Known(now) {
		none := func(int) time.Duration { return 0 }
		c.Name = c.Name.failed(now, none)
		c.Client = c.Client.failed(now, func(n int) time.Duration { return LoginWait(LoginByClient, n) })
		if c.Name.Failures > loginPressed {
			bound = LoginByStranger
		}
	}
	c.Pair = c.Pair.failed(now, func(n int) time.Duration { return LoginWait(bound, n) })
	return c
}

// Succeeded takes the failure back that Failed counted before the password was
// looked at.
func (c LoginCounts) Succeeded(now time.Time) LoginCounts {
	if !c.Pair.Known(now) {
		c.Name.Failures = max(0, c.Name.Failures-1)
		c.Client.Failures = max(0, c.Client.Failures-1)
	}
	c.Pair.Failures, c.Pair.WaitUntil, c.Pair.KnownAt = 0, time.Time{}, now
	return c
}

// ClientNetwork is what stands for a client's address: an IPv4 one itself, of an
// IPv6 one the 64 bits that its network has in common, because one machine has as
// many addresses in there as it likes; false for what is no address.
func ClientNetwork(address string) (network string, ok bool) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return "", false
	}
	if ip = ip.Unmap(); ip.Is6() {
		return netip.PrefixFrom(ip, 64).Masked().String(), true
	}
	return ip.String(), true
}
