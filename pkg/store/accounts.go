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
	UserAdmin
	Sessions
	APIKeys
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
	// RefuseLogin writes the audit row of a login that was refused; its target is
	// the user's id. A name that is no user's is not written down (UnknownUser
	// stands for it): people type passwords into that field.
	RefuseLogin(ctx context.Context, actor berth.Actor, name string) error
}

// Sessions are the operations on logins. A session is a family of refresh
// tokens, of which each replaces the one before; it lives while one of them is
// neither rotated nor revoked nor over. Their cost does not grow with the number
// of tokens that were rotated. The user's row is locked first, so that no token
// comes into being beside the end of the user's sessions.
type Sessions interface {
	// AddRefreshToken starts a session with the hash of its first token, and
	// writes the audit row of the login. An unknown or disabled user, and one with
	// another password than the login was checked against, is berth.ErrNotFound.
	AddRefreshToken(ctx context.Context, t RefreshToken) error
	// RotateRefreshToken replaces a token by p.Next and returns the user and the
	// session. Whether the token may be used is asked of berth.RefreshToken.Use:
	// an unknown one is berth.ErrNotFound, one that is over, revoked or of an ended
	// session berth.ErrExpired. A token that was rotated before is answered again
	// (it gets another successor) while it is the immediate predecessor, and later
	// is a stolen one: the session ends and berth.ErrUsed is returned. A disabled
	// user is berth.ErrNotFound.
	RotateRefreshToken(ctx context.Context, p RotateParams) (user berth.User, session string, err error)
	// RevokeRefreshFamily ends the session of a token (logout); unknown or ended
	// is no error. An actor without an id is the session's user.
	RevokeRefreshFamily(ctx context.Context, actor berth.Actor, token [32]byte) error
	// SessionUser returns the user of a living session, or berth.ErrNotFound: also
	// when the session is another user's or the user is disabled. It is one
	// indexed read.
	SessionUser(ctx context.Context, session string, user berth.UserID) (berth.User, error)
}

// UserAdmin are an administrator's acts on users.
type UserAdmin interface {
	// ListUsers by name; the cursor is the name. name, if set, is the one to find.
	ListUsers(ctx context.Context, name string, page Page) (users []berth.User, next string, err error)
	// AddUser is CreateUser under Once: a repeat returns the user that the first
	// call made, as it is now. A zero hash makes a service that cannot log in.
	AddUser(ctx context.Context, p AddUserParams) (berth.User, error)
	// ProvisionUser returns the user of an external issuer, who may be disabled, and
	// makes it under the first free of the names when it is seen first; several at
	// once make one. Its roles become p.Roles, so that grants to a role count while
	// nobody is there to show a token; without any they stay. Where no name is free
	// it is berth.ErrExists.
	ProvisionUser(ctx context.Context, p ProvisionParams) (berth.User, error)
	// ChangeUser sets roles or disables and enables. What would leave nobody who
	// is enabled, has a password and is an administrator is berth.ErrWrongState;
	// another Version than p.Version (where set) is berth.ErrWrongState, unless the
	// user is already as asked. Disabling ends the user's sessions. Without a
	// change: no audit row.
	ChangeUser(ctx context.Context, p ChangeUserParams) (berth.User, error)
	// SetPassword replaces the password's hash and ends the user's sessions but
	// p.KeepSession. A user of an issuer is berth.ErrWrongState; with p.Was, another
	// hash in force than that one is berth.ErrWrongState, too.
	SetPassword(ctx context.Context, p SetPasswordParams) (berth.User, error)
}

// APIKeys are the operations on API keys.
type APIKeys interface {
	// CreateAPIKey stores a key's hash; it obeys Once as CreateEnrolment does. A
	// disabled or unknown user is berth.ErrNotFound, one of an external issuer
	// berth.ErrWrongState.
	CreateAPIKey(ctx context.Context, p CreateAPIKeyParams) (berth.APIKey, error)
	// ListAPIKeys by id: of one user, or with "" of all.
	ListAPIKeys(ctx context.Context, user berth.UserID, page Page) (keys []berth.APIKey, next string, err error)
	// RevokeAPIKey ends a key for ever, at once; again is no error. owner, if set,
	// is whose it must be: otherwise berth.ErrNotFound, as an unknown one.
	RevokeAPIKey(ctx context.Context, actor berth.Actor, owner berth.UserID, id berth.APIKeyID) error
	// UseAPIKey returns the key of a hash with its user, and notes the use at most
	// once a minute: otherwise it is one indexed read. An unknown, expired or
	// revoked key and a disabled user are berth.ErrNotFound.
	UseAPIKey(ctx context.Context, hash [32]byte) (berth.APIKey, berth.User, error)
}

// UnknownUser is the audit target of a login under a name that nobody has.
const UnknownUser = "unknown"

// RefreshToken is the first token of a session: its hash only.
type RefreshToken struct {
	Hash   [32]byte
	Family string // the session: a UUID
	User   berth.UserID
	TTL    time.Duration
	// PasswordHash that the login was checked against; zero: any.
	PasswordHash redact.String
	// Actor without an id is the user.
	Actor berth.Actor
}

// RotateParams of RotateRefreshToken.
type RotateParams struct {
	// Actor without an id is the session's user.
	Actor     berth.Actor
	Old, Next [32]byte
	TTL       time.Duration
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
	// Roles that its newest token maps to.
	Roles []berth.Role
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
	// Was is the hash that the user's current password was checked against; zero:
	// any.
	Was redact.String
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
