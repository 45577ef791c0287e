package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Accounts are the operations behind login, tokens and API keys.
type Accounts interface {
	Users
	Sessions
	SigningKeys
}

// Users are the operations on people and services.
type Users interface {
	// BootstrapAdmin makes the user with role admin if there is no user of that
	// name, and reports whether it did. With several processes at once exactly
	// one does. An existing user is left as it is.
	BootstrapAdmin(ctx context.Context, id berth.UserID, name string, passwordHash redact.String) (created bool, err error)
	// CreateUser adds a user; a taken name is berth.ErrExists.
	CreateUser(ctx context.Context, actor berth.Actor, user berth.User, passwordHash redact.String) error
	// UserByName returns a user and the password's hash, or berth.ErrNotFound.
	UserByName(ctx context.Context, name string) (berth.User, redact.String, error)
	// UserByID returns a user, or berth.ErrNotFound.
	UserByID(ctx context.Context, id berth.UserID) (berth.User, error)
	// RecordLogin writes the audit row of a login (ok) or of a refused one; its
	// target is the user's id. A name that is no user's is not written down
	// (UnknownUser stands for it): people type passwords into that field.
	RecordLogin(ctx context.Context, actor berth.Actor, name string, ok bool) error
}

// Sessions are the operations on refresh tokens. A family of them is a session.
type Sessions interface {
	// AddRefreshToken stores the hash of the first token of a family.
	AddRefreshToken(ctx context.Context, t RefreshToken) error
	// RotateRefreshToken replaces old by next (same family and user) and returns
	// the user. An unknown token is berth.ErrNotFound, an old or revoked one
	// berth.ErrExpired. A token that was rotated before is answered again
	// (another successor is added) within RefreshGrace if it is the immediate
	// predecessor of the family's newest; otherwise its family is revoked and
	// berth.ErrUsed returned. A disabled user is berth.ErrNotFound.
	RotateRefreshToken(ctx context.Context, old, next [32]byte, ttl time.Duration) (berth.User, error)
	// RevokeRefreshFamily ends the family of a token (logout); unknown is no
	// error.
	RevokeRefreshFamily(ctx context.Context, token [32]byte) error
}

// SigningKeys are the operations on the keys that sign access tokens.
type SigningKeys interface {
	// SigningKeys lists all keys, newest first.
	SigningKeys(ctx context.Context) ([]SigningKey, error)
	// AddSigningKey stores a key if no key is newer than olderThan ago, and
	// returns the newest key, which may be another process's. So several
	// processes that start at once agree on one key.
	AddSigningKey(ctx context.Context, key SigningKey, olderThan time.Duration) (SigningKey, error)
}

// UserAdmin are an administrator's acts on users.
type UserAdmin interface {
	// ListUsers by name; the cursor is the name. name, if set, is the one to find.
	ListUsers(ctx context.Context, name string, page Page) (users []berth.User, next string, err error)
	// AddUser is CreateUser under Once: a repeat returns the user that the first
	// call made, as it is now. A zero hash makes a service that cannot log in.
	AddUser(ctx context.Context, p AddUserParams) (berth.User, error)
	// ProvisionUser returns the user of an external issuer and makes it, under the
	// first free of the names, when it is seen first; several at once make one.
	ProvisionUser(ctx context.Context, p ProvisionParams) (berth.User, error)
	// ChangeUser sets roles or disables and enables. What would leave nobody who
	// is enabled, has a password and is an administrator is berth.ErrWrongState;
	// another Version than p.Version (where set) is berth.ErrWrongState too.
	// Disabling ends the user's sessions. Without a change: no audit row.
	ChangeUser(ctx context.Context, p ChangeUserParams) (berth.User, error)
	// SetPassword replaces the password's hash and ends the user's sessions but
	// p.KeepSession. A user of an issuer is berth.ErrWrongState.
	SetPassword(ctx context.Context, p SetPasswordParams) (berth.User, error)
	// SessionUser returns the user of a living session: its family is not revoked
	// and not over, and the user is not disabled; otherwise berth.ErrNotFound.
	SessionUser(ctx context.Context, session string, user berth.UserID) (berth.User, error)
}

// APIKeys are the operations on API keys.
type APIKeys interface {
	// CreateAPIKey stores a key's hash; it obeys Once as CreateEnrolment does. A
	// disabled or unknown user is berth.ErrNotFound.
	CreateAPIKey(ctx context.Context, p CreateAPIKeyParams) (berth.APIKey, error)
	// ListAPIKeys by id: of one user, or with "" of all.
	ListAPIKeys(ctx context.Context, user berth.UserID, page Page) (keys []berth.APIKey, next string, err error)
	// RevokeAPIKey ends a key for ever, at once; again is no error. owner, if set,
	// is whose it must be: otherwise berth.ErrNotFound, as an unknown one.
	RevokeAPIKey(ctx context.Context, actor berth.Actor, owner berth.UserID, id berth.APIKeyID) error
	// UseAPIKey returns the key of a hash with its user, and notes the use at most
	// once a minute. An unknown, expired or revoked key and a disabled user are
	// berth.ErrNotFound.
	UseAPIKey(ctx context.Context, hash [32]byte) (berth.APIKey, berth.User, error)
}

// Guesses slow down those who guess, for all processes together.
type Guesses interface {
	// CountLogin counts a login as failed, by name and client, before the password
	// is looked at, so that attempts at the same instant do not pass together. It
	// is a *berth.TooManyError while waiting is asked (berth.LoginWait).
	CountLogin(ctx context.Context, nameHash [32]byte, client string) error
	// ForgetLogins takes the counts back after a login that succeeded.
	ForgetLogins(ctx context.Context, nameHash [32]byte, client string) error
	// UseAssertion notes that a host's assertion was used; again is
	// berth.ErrUsed.
	UseAssertion(ctx context.Context, host berth.HostID, jti string, ttl time.Duration) error
	// SweepGuesses deletes what is over, at most limit rows of each.
	SweepGuesses(ctx context.Context, limit int) (deleted int, err error)
}

// Sealed are the values in the database that the master key seals.
type Sealed interface {
	// SealedValues lists them by kind and id after a cursor ("" at first).
	SealedValues(ctx context.Context, after string, limit int) (values []SealedValue, next string, err error)
	// ReplaceSealed replaces a value by the same one sealed anew, if it is still
	// the old one: otherwise nothing is done and replaced is false.
	ReplaceSealed(ctx context.Context, actor berth.Actor, old, anew SealedValue) (replaced bool, err error)
}

// The kinds of sealed values.
const (
	SealedSecret     = "secret"
	SealedSigningKey = "signing_key"
)

// SealedValue is a value under the master key.
type SealedValue struct {
	// Kind is SealedSigningKey or SealedSecret, ID the key's id or the secret's
	// name.
	Kind, ID string
	// Version of a secret; 0 for keys.
	Version int
	// Public part of a signing key.
	Public []byte
	Value  redact.Bytes
}

// UnknownUser is the audit target of a login under a name that nobody has.
const UnknownUser = "unknown"

// RefreshGrace is how long the immediate predecessor may be used again, for
// clients that refresh twice at once or lose an answer.
const RefreshGrace = 10 * time.Second

// SigningKey signs access tokens.
type SigningKey struct {
	ID        string // kid
	Algorithm string // EdDSA
	Public    []byte
	// Private is sealed under the master key.
	Private   redact.Bytes
	CreatedAt time.Time
}

// RefreshToken is a stored refresh token: its hash only.
type RefreshToken struct {
	Hash   [32]byte
	Family string // a UUID
	User   berth.UserID
	TTL    time.Duration
}

// AddUserParams of AddUser.
type AddUserParams struct {
	Actor        berth.Actor
	User         berth.User
	PasswordHash redact.String
	Once         Once
}

// ProvisionParams of ProvisionUser.
type ProvisionParams struct {
	ID              berth.UserID
	Issuer, Subject string
	// Names to take the first free one of.
	Names []string
	Actor berth.Actor
}

// ChangeUserParams of ChangeUser; nil fields stay.
type ChangeUserParams struct {
	Actor    berth.Actor
	User     berth.UserID
	Roles    []berth.Role
	Disabled *bool
	// Version that the caller has seen; 0: any.
	Version int
}

// SetPasswordParams of SetPassword.
type SetPasswordParams struct {
	Actor berth.Actor
	User  berth.UserID
	Hash  redact.String
	// KeepSession goes on; "": none.
	KeepSession string
}

// CreateAPIKeyParams of CreateAPIKey.
type CreateAPIKeyParams struct {
	Actor berth.Actor
	Key   berth.APIKey
	Hash  [32]byte
	// TTL; 0: does not expire.
	TTL  time.Duration
	Once Once
}
