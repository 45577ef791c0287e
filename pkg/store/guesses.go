package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

// MaxLoginCounts is how many counts of failed logins a sweep leaves, the newest.
const MaxLoginCounts = 100_000

// Guesses slow down those who guess, for all processes together. The counts
// outlive a restart.
type Guesses interface {
	// CountLogin counts a login as failed before the password is looked at, so that
	// attempts at the same instant do not pass together: berth.LoginCounts has the
	// rule. While waiting is asked it counts nothing and is a *berth.TooManyError.
	// nameHash is never zero and client never empty.
	CountLogin(ctx context.Context, nameHash [32]byte, client string) error
	// ForgetLogins takes back what CountLogin counted for a login that succeeded,
	// and remembers that the client knows the password.
	ForgetLogins(ctx context.Context, nameHash [32]byte, client string) error
	// UseAssertion notes for ttl that a host's assertion was used; again is
	// berth.ErrUsed.
	UseAssertion(ctx context.Context, host berth.HostID, jti string, ttl time.Duration) error
	// SweepGuesses deletes counts that are older than berth.LoginForget and of
	// clients that are not known (berth.LoginKnown) any more, the oldest counts of
	// strangers beyond MaxLoginCounts, and assertions that are over: at most limit
	// rows of each kind.
	SweepGuesses(ctx context.Context, limit int) (deleted int, err error)
}
