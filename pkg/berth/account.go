package berth

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RefreshGrace is how long the immediate predecessor of a refresh token may be
// used again, for clients that refresh twice at once or lose an answer.
const RefreshGrace = 10 * time.Second

// APIKeyUseStep is how exactly the last use of an API key is noted.
const APIKeyUseStep = time.Minute

// RefreshToken is what the rule of refreshing knows of a token that is shown.
type RefreshToken struct {
	ExpiresAt time.Time
	// Zero where it was not.
	RotatedAt, RevokedAt time.Time
	// Settled: one of its successors was rotated, so somebody has got its answer.
	Settled bool
	// SessionLives: a token of its session is neither rotated nor revoked.
	SessionLives bool
}

// Use says whether the token may be rotated now: nil, [ErrExpired], or [ErrUsed]
// for one that was replaced and must be taken for stolen.
//
// A token that was rotated is used again by honest clients too: they lose an
// answer, or refresh many times at once. Each such use adds a successor, a
// sibling of the first. All siblings are good, and each goes on as a line of its
// own: what one line does later says nothing about the others. So the grace is
// the token's own: it lasts RefreshGrace from its first rotation, and ends
// before, once a successor is used in turn (Settled); then it is no immediate
// predecessor any more, and whoever shows it did not get it from that client.
func (t RefreshToken) Use(now time.Time) error {
	switch {
	case !t.RevokedAt.IsZero(), !now.Before(t.ExpiresAt):
		return fmt.Errorf("refresh token: %w", ErrExpired)
	case t.RotatedAt.IsZero():
		return nil
	case !t.SessionLives:
		return fmt.Errorf("session: %w", ErrExpired)
	case t.Settled, now.Sub(t.RotatedAt) > RefreshGrace:
		return fmt.Errorf("refresh token: %w", ErrUsed)
	}
	return nil
}

// KeepsTheKeys reports whether u can let everybody else in: an enabled
// administrator with a password. One such user always stays.
func (u User) KeepsTheKeys() bool {
	return !u.Disabled && u.HasPassword && slices.Contains(u.Roles, RoleAdmin)
}

// UserChange is what an administrator asks of a user; nil fields stay.
type UserChange struct {
	Roles    []Role
	Disabled *bool
	// Version that the change is based on; 0: any.
	Version int
}

// Changed is u after a change, with the next version, or u itself where it is so
// already. otherKeepers says whether somebody else KeepsTheKeys.
func (u User) Changed(c UserChange, otherKeepers bool) (User, error) {
	next := u
	if c.Roles != nil {
		next.Roles = SortedRoles(c.Roles)
	}
	if c.Disabled != nil {
		next.Disabled = *c.Disabled
	}
	switch {
	case u.Disabled == next.Disabled && SameRoles(u.Roles, next.Roles):
		return u, nil // also for a repeat, whose version is no longer the user's
	case u.Issuer != "" && !SameRoles(u.Roles, next.Roles):
		return u, &WrongStateError{Thing: "user", State: "an external issuer's", Message: "its roles are what the issuer's tokens map to (BERTH_ISSUERS_FILE)"}
	case c.Version != 0 && c.Version != u.Version:
		return u, &WrongStateError{Thing: "user", State: "of version " + strconv.Itoa(u.Version), Message: "somebody changed it meanwhile; read it again and decide anew"}
	case u.KeepsTheKeys() && !next.KeepsTheKeys() && !otherKeepers:
		return u, &WrongStateError{Thing: "user", State: "the last administrator who can log in", Message: "make another user with a password an administrator first"}
	}
	next.Version++
	return next, nil
}

// SeenWith is a user of an external issuer after a token that maps to roles, with
// the next version where that changes something. Without roles nothing changes.
func (u User) SeenWith(roles []Role) User {
	if len(roles) > 0 && !SameRoles(u.Roles, roles) {
		u.Roles = SortedRoles(roles)
		u.Version++
	}
	return u
}

// SortedRoles is roles without repeats, least first.
func SortedRoles(roles []Role) []Role {
	out := slices.Clone(roles)
	slices.SortFunc(out, func(a, b Role) int {
		return cmp.Or(cmp.Compare(slices.Index(Roles(), a), slices.Index(Roles(), b)), cmp.Compare(a, b))
	})
	return slices.Compact(out)
}

// SameRoles reports whether two lists name the same roles.
func SameRoles(a, b []Role) bool { return slices.Equal(SortedRoles(a), SortedRoles(b)) }

// Facts of a user for the audit trail: what administrators change of it.
func (u User) Facts() Facts {
	return NewFacts(map[string]string{"roles": roleText(u.Roles), "disabled": strconv.FormatBool(u.Disabled)})
}

// Facts of an API key for the audit trail.
func (k APIKey) Facts() Facts {
	expires := "never"
	if !k.ExpiresAt.IsZero() {
		expires = k.ExpiresAt.UTC().Format(time.RFC3339)
	}
	return NewFacts(map[string]string{"name": k.Name, "prefix": k.Prefix, "user": string(k.User), "roles": roleText(k.Roles), "expires_at": expires})
}

func roleText(roles []Role) string {
	var out []string
	for _, r := range SortedRoles(roles) {
		out = append(out, string(r))
	}
	return strings.Join(out, ",")
}

// SessionCredential names a session as what a caller proved itself with.
func SessionCredential(session string) Credential { return Credential("session:" + session) }

// KeyCredential names an API key as what a caller proved itself with.
func KeyCredential(id APIKeyID) Credential { return Credential("key:" + string(id)) }

// Session is the session that a credential names, or "".
func (c Credential) Session() string { return c.named("session:") }

// APIKey is the API key that a credential names, or "".
func (c Credential) APIKey() APIKeyID { return APIKeyID(c.named("key:")) }

func (c Credential) named(prefix string) string {
	if rest, ok := strings.CutPrefix(string(c), prefix); ok {
		return rest
	}
	return ""
}

// ActorOr is the actor, or where it has no id yet somebody else with the same
// request.
func (a Actor) ActorOr(p Principal, c Credential) Actor {
	if a.ID == "" {
		a.Principal, a.Credential = p, c
	}
	return a
}

// System is the actor of what Berth does by itself, and nobody asked for.
func System() Actor { return Daemon(ActorSystem, "berth") }

// MayHavePassword says whether u may be given a new password here: nil, or
// [ErrWrongState]. hash is the one in force, was the one that the caller has
// checked, "" for none.
func (u User) MayHavePassword(hash, was string) error {
	switch {
	case u.Issuer != "":
		return &WrongStateError{Thing: "user", State: "an external issuer's", Message: "its password is changed where it logs in"}
	case was != "" && hash != was:
		return &WrongStateError{Thing: "password", State: "another one by now", Message: "somebody changed it at the same time; log in again"}
	}
	return nil
}

// MayHaveAPIKeys says whether u may have another API key: nil, [ErrNotFound] for
// somebody who is disabled, or [ErrWrongState]. Users of an issuer may not:
// nobody here hears of their leaving, and a key would outlive it.
func (u User) MayHaveAPIKeys() error {
	switch {
	case u.Disabled:
		return fmt.Errorf("user: %w", ErrNotFound)
	case u.Issuer != "":
		return &WrongStateError{Thing: "user", State: "an external issuer's", Message: "an administrator can make a service, and API keys for that"}
	}
	return nil
}
