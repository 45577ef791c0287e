// Package agentapi is the server's side of the Host Agent protocol: the routes
// of /agent/v1 (docs/protocol.md tells the story, pkg/protocol is the wire).
//
// Who calls is read from the token alone: no body and no path names a host. What
// belongs to another host, or to none, is berth.ErrNotFound, one answer for
// both. Every rule of leases, epochs and fences is the store's; this package
// checks the form of what it is sent, moves bytes into the blob store, and logs
// the transitions.
package agentapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

// Store is what the routes need of the store.
type Store interface {
	store.Agents
	store.HostKeyring
	store.Inputs
	store.Hints
	// SecretValues of store.Secrets.
	SecretValues(ctx context.Context, call store.AgentCall, attempts []berth.AttemptID) (map[berth.AttemptID][]store.SealedValue, error)
}

// Config of New. Store, Blobs and Identity are required.
type Config struct {
	Store    Store
	Blobs    blob.Store
	Identity *identity.Service
	// Logger may be nil.
	Logger *zap.Logger
	// Timings that agents are told at sync; zero: berth.DefaultTimings.
	Timings berth.Timings
	// ApprovePlugins registers what hosts report (local mode).
	ApprovePlugins bool
	// Drain ends long polls when the server stops; nil: they end by themselves.
	Drain *httpserver.Drain
	// ClientCertificates: a caller must have shown a certificate that the server's
	// listener verified (mutual TLS).
	ClientCertificates bool
	// AddressRate is how many requests a second of one network the routes take that
	// need no token; 0: no limit.
	AddressRate int
	// PollEvery is how often a waiting claim looks without a hint, ±20 %; 0: 1 s.
	PollEvery time.Duration
}

// API serves /agent/v1.
type API struct {
	Config
	completions *group[store.CompleteParams, store.CompleteManyAnswer]
	renewals    *group[store.RenewParams, store.RenewManyAnswer]
	bodies      *httpserver.Bodies
}

// New makes the API. A configuration that cannot work is an error that names
// every fault.
func New(c Config) (*API, error) {
	if c.Store == nil || c.Blobs == nil || c.Identity == nil {
		return nil, errors.New("agentapi: Store, Blobs and Identity are required")
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.Timings == (berth.Timings{}) {
		c.Timings = berth.DefaultTimings()
	}
	if err := c.Timings.Validate(); err != nil {
		return nil, fmt.Errorf("agentapi: timings: %w", err)
	}
	if c.Drain == nil {
		c.Drain = httpserver.NewDrain()
	}
	if c.PollEvery <= 0 {
		c.PollEvery = time.Second
	}
	return &API{Config: c, completions: newCompletions(c.Store), renewals: newRenewals(c.Store), bodies: httpserver.NewBodies(allBodies)}, nil
}

// prefix of all routes.
const prefix = "/agent/v1"

// route is one call of the protocol.
type route struct {
	method, path string
	access       identity.Access
	kind         httpserver.Kind
	handler      echo.HandlerFunc
	// body is what its JSON may have in bytes.
	body int64
}

func (a *API) routes() []route {
	host := identity.AtLeast(berth.RoleHost)
	post := func(path string, handler echo.HandlerFunc) route {
		return route{http.MethodPost, path, host, httpserver.Plain, handler, smallBody}
	}
	lists := func(r route) route { r.body = listBody; return r }
	results := func(r route) route { r.body = resultBody; return r }
	public := func(r route) route { r.access = identity.Public(); return r }
	return []route{
		public(post(protocol.PathEnrol, a.enrol)),
		public(post(protocol.PathToken, a.token)),
		results(post(protocol.PathSync, a.sync)),
		lists(post(protocol.PathHeartbeat, a.heartbeat)),
		post(protocol.PathKeys, a.offerKey),
		{http.MethodPost, protocol.PathClaims, host, httpserver.Stream, a.claim, smallBody},
		lists(post(protocol.PathStart, a.start)),
		lists(post(protocol.PathRenew, a.renew)),
		results(post(protocol.PathComplete, a.complete)),
		lists(post(protocol.PathRelease, a.release)),
		post(protocol.PathClean, a.clean),
		{http.MethodPut, protocol.PathLog, host, httpserver.Upload, a.putLog, smallBody},
		{http.MethodPut, protocol.PathArtifact, host, httpserver.Upload, a.putArtifact, smallBody},
		{http.MethodGet, protocol.PathInput, host, httpserver.Stream, a.getInput, smallBody},
	}
}

// Kinds are the routes' kinds, for httpserver.Options.
func (a *API) Kinds() map[httpserver.Route]httpserver.Kind {
	kinds := map[httpserver.Route]httpserver.Kind{}
	for _, r := range a.routes() {
		kinds[httpserver.Route{Method: r.method, Path: pattern(r.path)}] = r.kind
	}
	return kinds
}

// Register adds the routes to e, which httpserver.New made with Kinds. It fails
// when a route has no row in the table of roles.
func (a *API) Register(e *echo.Echo) error {
	table := identity.Routes{}
	for _, r := range a.routes() {
		table[identity.Route{Method: r.method, Path: pattern(r.path)}] = r.access
	}
	require := a.Identity.Require(table)
	address := httpserver.ByAddress(a.AddressRate)
	claims, waits := httpserver.AtOnce(maxClaims, hostKey), httpserver.AtOnce(maxWaits, hostKey)
	for _, r := range a.routes() {
		chain := []echo.MiddlewareFunc{a.certified, require, noStore, a.takes(r.body)}
		if r.access.Role() == "" {
			chain = slices.Insert(chain, 0, address)
		}
		switch {
		case r.path == protocol.PathClaims:
			chain = append(chain, claims)
		case r.kind == httpserver.Stream:
			chain = append(chain, waits)
		}
		e.Add(r.method, pattern(r.path), r.handler, chain...)
	}
	return table.Check(e, prefix)
}

// maxClaims and maxWaits bound the claims and the downloads that a host has open at
// a time in one process. An agent claims in one request; one that was restarted, or
// whose connections broke, can leave a few behind.
const maxClaims, maxWaits = 4, 64

func hostKey(c echo.Context) string {
	who, _ := identity.CallerOf(c)
	return string(who.Host())
}

// noStore keeps assignments and tokens out of every cache.
func noStore(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
		return next(c)
	}
}

// log writes the transitions that a store operation committed.
func (a *API) log(transitions []berth.Transition) { logging.Transitions(a.Logger, transitions) }

// caller is the calling host with the epoch that the call carries.
func caller(c echo.Context) (store.AgentCall, error) {
	call, err := callerWithoutEpoch(c)
	if err != nil {
		return call, err
	}
	n, err := headerNumber(c, protocol.HeaderEpoch)
	call.Epoch = berth.Epoch(n)
	return call, err
}

// callerWithoutEpoch is for sync, which asks for the epoch.
func callerWithoutEpoch(c echo.Context) (store.AgentCall, error) {
	who, ok := identity.CallerOf(c)
	if !ok || who.Host() == "" {
		return store.AgentCall{}, berth.ErrUnauthenticated
	}
	return store.AgentCall{Actor: who.Actor(httpserver.RequestID(c), c.RealIP()), Host: who.Host()}, nil
}
