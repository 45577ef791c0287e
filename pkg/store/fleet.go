package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
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
	// say, and leaves those that are but for what berth.Plugin.Registered says.
	// Idempotent, also with several processes at once.
	RegisterPlugins(ctx context.Context, actor berth.Actor, plugins []berth.Plugin) error
	// ListPlugins by name, then version as text; the cursor is "name@version".
	ListPlugins(ctx context.Context, page Page) (plugins []berth.Plugin, next string, err error)
	// PluginVersions returns every registered version of one plugin, empty when
	// there is none.
	PluginVersions(ctx context.Context, name string) ([]berth.Plugin, error)
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
