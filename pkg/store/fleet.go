package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Fleet are the operations on pools, hosts, devices, plugins and enrolment.
type Fleet interface {
	// CreatePool makes a pool; a taken name is berth.ErrExists. It obeys Once: a
	// repeat returns the pool that the first call made, as it is now.
	CreatePool(ctx context.Context, p CreatePoolParams) (berth.Pool, error)
	// GetPool finds a pool by name, or berth.ErrNotFound.
	GetPool(ctx context.Context, name string) (berth.Pool, error)
	// ListPools by name; the cursor is the name.
	ListPools(ctx context.Context, page Page) (pools []berth.Pool, next string, err error)

	// GetDevice returns a device, or berth.ErrNotFound.
	GetDevice(ctx context.Context, id berth.DeviceID) (berth.Device, error)
	// ListDevices by id.
	ListDevices(ctx context.Context, filter DeviceFilter, page Page) (devices []berth.Device, next string, err error)

	// GetHost returns a host, or berth.ErrNotFound.
	GetHost(ctx context.Context, id berth.HostID) (berth.Host, error)
	// ListHosts by id; pool "" is every pool.
	ListHosts(ctx context.Context, pool berth.PoolID, page Page) (hosts []berth.Host, next string, err error)

	// CreateEnrolment stores a token's hash. An unknown pool is
	// berth.ErrNotFound, a known hash berth.ErrExists. It obeys Once: a repeat
	// returns the token that the first call stored, as it is now; one with
	// another hash is berth.ErrExists.
	CreateEnrolment(ctx context.Context, p CreateEnrolmentParams) (berth.EnrolmentToken, error)
	// ListEnrolments by id.
	ListEnrolments(ctx context.Context, page Page) (tokens []berth.EnrolmentToken, next string, err error)
	// RevokeEnrolment ends an unused token; again is no error; a used one is
	// berth.ErrWrongState, an unknown one berth.ErrNotFound.
	RevokeEnrolment(ctx context.Context, actor berth.Actor, id berth.EnrolmentID) error

	// RegisterPlugins adds versions that are not there, enabled or not as they
	// say, and leaves those that are; an existing one that was only reported
	// (disabled and without a schema) is completed and takes Enabled.
	// Idempotent, also with several processes at once.
	RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error
	// ListPlugins by name, then version as text; the cursor is "name@version".
	ListPlugins(ctx context.Context, page Page) (plugins []berth.Plugin, next string, err error)
	// PluginVersions returns every registered version of one plugin, empty when
	// there is none.
	PluginVersions(ctx context.Context, name string) ([]berth.Plugin, error)

	// ListAudit returns audit rows after the id, ascending: the trail of one
	// target (kind and id) or, with kind "", of everything.
	ListAudit(ctx context.Context, targetKind, targetID string, after int64, limit int) ([]berth.AuditEvent, error)
}

// DeviceFilter narrows a list of devices; zero fields pass everything.
type DeviceFilter struct {
	Pool      berth.PoolID
	Host      berth.HostID
	Driver    string
	Health    berth.Health
	Admin     berth.AdminState
	Occupancy berth.Occupancy
}

// CreatePoolParams of CreatePool.
type CreatePoolParams struct {
	Actor berth.Actor
	Pool  berth.Pool
	Once  Once
}

// CreateEnrolmentParams of CreateEnrolment.
type CreateEnrolmentParams struct {
	Actor     berth.Actor
	ID        berth.EnrolmentID
	Pool      berth.PoolID
	Pattern   string
	TokenHash [32]byte
	TTL       time.Duration
	Once      Once
}

// Accounts are the operations behind login and tokens.
type Accounts interface {
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

	// SigningKeys lists all keys, newest first.
	SigningKeys(ctx context.Context) ([]SigningKey, error)
	// AddSigningKey stores a key if no key is newer than olderThan ago, and
	// returns the newest key, which may be another process's. So several
	// processes that start at once agree on one key.
	AddSigningKey(ctx context.Context, key SigningKey, olderThan time.Duration) (SigningKey, error)

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
