package httpapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/store"
)

// Store is what the public API needs of the storage contract.
type Store interface {
	store.Tasks
	store.Bulk
	store.Fleet
	store.Audit
	store.Operators
	store.HostKeyring
	store.Inputs
	store.Accounts
	store.Secrets
	store.Schedules
	store.Health
	store.Hints
}

// Config of New.
type Config struct {
	Store    Store
	Blob     blob.Store
	Identity *identity.Service
	// Logger gets a line a transition; nil logs nothing.
	Logger *zap.Logger
	// Drain wakes long polls when the server stops; may be nil.
	Drain *httpserver.Drain
	// Version of the program, for GET /health.
	Version string
	// Limits of what a caller may ask of this process; zero: none.
	Limits httpserver.Limits
}

// Server answers the routes of /api/v1. Its methods may be called by several
// goroutines.
type Server struct {
	cfg      Config
	document *document
	inputs   *inputs.Service
	schemas  schemas
	roles    identity.Routes
	stopping <-chan struct{}
	readings readings
	bodies   *httpserver.Bodies
}

// New reads the OpenAPI document and compiles its schemas (about 0.2 s).
func New(cfg Config) (*Server, error) {
	if cfg.Store == nil || cfg.Blob == nil || cfg.Identity == nil {
		return nil, errors.New("httpapi: store, blob and identity are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	d, err := readDocument()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, document: d, inputs: inputs.New(cfg.Store, cfg.Blob, cfg.Logger), bodies: httpserver.NewBodies(allBodies)}
	if cfg.Drain != nil {
		s.stopping = cfg.Drain.C()
	}
	if s.roles, err = d.roles(); err != nil {
		return nil, err
	}
	return s, nil
}

// Routes is the table of roles of /api/v1, as the document says.
func (s *Server) Routes() identity.Routes { return s.roles }

// Register adds the routes to e, which httpserver.New made. It fails when a
// route has no role or a role no route.
func (s *Server) Register(e *echo.Echo) error {
	l := s.cfg.Limits
	router := guarded{e, []echo.MiddlewareFunc{
		httpserver.ByAddress(l.AddressRate), s.cfg.Identity.Require(s.roles), httpserver.ByCaller(l.PrincipalRate, callerKey),
		httpserver.AtOnce(l.Streams, streamKey()), s.inContext, s.validate,
	}}
	RegisterHandlersWithBaseURL(router, NewStrictHandler(s, nil), BaseURL)
	return s.roles.Check(e, BaseURL)
}

func (d *document) roles() (identity.Routes, error) {
	out := identity.Routes{}
	for r, op := range d.operations {
		key := identity.Route{Method: r.method, Path: r.path}
		role := berth.Role(op.role)
		switch {
		case op.role == rolePublic:
			out[key] = identity.Public()
		case role.Includes(berth.RoleViewer):
			out[key] = identity.AtLeast(role)
			if op.login {
				out[key] = out[key].WithLogin()
			}
		default:
			return nil, fmt.Errorf("openapi document: %s %s: x-berth-role %q is no role", r.method, r.path, op.role)
		}
	}
	return out, nil
}

// Kinds names the routes that wait or stream, for httpserver.Options.
func Kinds() map[httpserver.Route]httpserver.Kind {
	at := func(method, path string) httpserver.Route {
		return httpserver.Route{Method: method, Path: BaseURL + path}
	}
	return map[httpserver.Route]httpserver.Kind{
		at(echo.POST, "/tasks"):                                     httpserver.Stream, // wait=
		at(echo.GET, "/tasks/:id"):                                  httpserver.Stream, // wait=
		at(echo.GET, "/tasks/:id/attempts/:number/log"):             httpserver.Stream,
		at(echo.GET, "/tasks/:id/attempts/:number/artifacts/:name"): httpserver.Stream,
		at(echo.PATCH, "/inputs/:digest"):                           httpserver.Upload,
		at(echo.GET, "/inputs/:digest/content"):                     httpserver.Stream,
	}
}

// callerKey is who calls, for limits.
func callerKey(c echo.Context) string {
	caller, ok := identity.CallerOf(c)
	if !ok {
		return ""
	}
	return string(caller.Kind) + " " + caller.ID
}

// streamKey is callerKey for what may stay open: a wait, a followed log, a
// download.
func streamKey() func(echo.Context) string {
	kinds := Kinds()
	return func(c echo.Context) string {
		if kinds[httpserver.Route{Method: c.Request().Method, Path: c.Path()}] != httpserver.Stream {
			return ""
		}
		switch c.Path() {
		case BaseURL + "/tasks", BaseURL + "/tasks/:id":
			if c.QueryParam("wait") == "" {
				return ""
			}
		}
		return callerKey(c)
	}
}

// Ungated names the routes that answer while the database cannot be used.
func Ungated() map[httpserver.Route]bool {
	return map[httpserver.Route]bool{{Method: echo.GET, Path: BaseURL + "/health"}: true}
}

// GetHealth answers GET /health. A database that does not answer is 503.
func (s *Server) GetHealth(ctx context.Context, _ GetHealthRequestObject) (GetHealthResponseObject, error) {
	now, err := s.cfg.Store.Now(ctx)
	if err != nil {
		return nil, err
	}
	return GetHealth200JSONResponse{Status: Ok, Version: s.cfg.Version, Time: now.UTC()}, nil
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }
