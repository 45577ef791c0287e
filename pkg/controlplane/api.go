package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/config"
	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/schema"
)

// CodeStarting is the API's readiness code until the first administrator, the
// signing key and the built-in plugins are in the database.
const CodeStarting = "starting"

// API is the HTTP side of the control plane: both routers, health, and what has
// to be in the database before the first request.
type API struct {
	p        *Process
	c        config.API
	identity *identity.Service
	blobs    blob.Store
	drain    *httpserver.Drain
	echo     *echo.Echo
	ready    *daemon.Readiness
	prepared atomic.Bool
}

// API wires the API. version is told by GET /api/v1/health.
func (p *Process) API(c config.API, version string) (*API, error) {
	key, err := identity.ParseMasterKey(c.MasterKey.Reveal())
	if err != nil {
		return nil, fmt.Errorf("BERTH_MASTER_KEY: %w", err)
	}
	old, err := identity.ParseMasterKeys(c.OldMasterKeys.Reveal())
	if err != nil {
		return nil, fmt.Errorf("BERTH_MASTER_KEY_OLD: %w", err)
	}
	var issuers []identity.Issuer
	if c.IssuersFile != "" {
		if issuers, err = identity.LoadIssuers(c.IssuersFile); err != nil {
			return nil, err
		}
	}
	blobs, err := p.OpenBlobs(context.Background(), c.Blobs)
	if err != nil {
		return nil, err
	}
	ids, err := identity.New(p.Store, p.Store, identity.Config{
		MasterKey: key, OldMasterKeys: old, SigningKeyMaxAge: c.SigningKeyMaxAge, Issuers: issuers, Logger: p.Log,
	})
	if err != nil {
		return nil, err
	}
	a := &API{p: p, c: c, identity: ids, blobs: blobs, drain: httpserver.NewDrain()}
	a.ready = daemon.NewReadiness(a.gate, string(schema.CodeUnreachable))
	return a, a.route(version)
}

// gate is the schema's, then CodeStarting until the database is prepared.
func (a *API) gate(ctx context.Context) string {
	code := a.p.Gate(ctx)
	if code == "" && !a.prepared.Load() {
		return CodeStarting
	}
	return code
}

// Ready is the API's readiness.
func (a *API) Ready() *daemon.Readiness { return a.ready }

// Blobs is the store of artifacts, logs and inputs.
func (a *API) Blobs() blob.Store { return a.blobs }

func (a *API) route(version string) error {
	public, err := httpapi.New(httpapi.Config{
		Store: a.p.Store, Blob: a.blobs, Identity: a.identity, Logger: a.p.Log, Drain: a.drain, Version: version,
		Limits: httpserver.Limits{PrincipalRate: a.c.PrincipalRate, AddressRate: a.c.AddressRate, Streams: a.c.MaxStreams},
	})
	if err != nil {
		return err
	}
	agents, err := agentapi.New(agentapi.Config{
		Store: a.p.Store, Blobs: a.blobs, Identity: a.identity, Logger: a.p.Log, Timings: a.p.Timings,
		ApprovePlugins: a.c.ApprovePlugins, Drain: a.drain, ClientCertificates: a.c.AgentClientCA != "",
		AddressRate: a.c.AddressRate,
	})
	if err != nil {
		return err
	}
	kinds := agents.Kinds()
	for route, kind := range httpapi.Kinds() {
		kinds[route] = kind
	}
	ungated := httpapi.Ungated()
	ungated[httpserver.Route{Method: echo.GET, Path: "/livez"}] = true
	ungated[httpserver.Route{Method: echo.GET, Path: "/readyz"}] = true
	a.echo = httpserver.New(httpserver.Options{
		Logger: a.p.Log, Kinds: kinds, Gate: a.ready.Known, Ungated: ungated, TrustedProxies: a.c.Proxies,
		ServerNames: a.c.ServerNames, Origins: a.c.CORSOrigins,
	})
	a.echo.GET("/livez", echo.WrapHandler(http.HandlerFunc(daemon.Livez)))
	a.echo.GET("/readyz", echo.WrapHandler(a.ready))
	return errors.Join(public.Register(a.echo), agents.Register(a.echo))
}

// Components prepare the database as soon as it will do, and serve. bound, if
// set, is told the public address.
func (a *API) Components(bound func(net.Addr)) []daemon.Component {
	return []daemon.Component{a.preparation(), a.keys(), a.server(bound)}
}

// keys is the loop that follows the signing keys.
func (a *API) keys() daemon.Component {
	return daemon.NewLoop(daemon.LoopConfig{
		Name: "signing_keys", Interval: identity.KeysEvery, Log: a.p.Log, Metrics: a.p.Loops, Gate: a.gate, RunOnce: a.identity.TendKeys,
	}).Component()
}

// preparation is a loop that ends its work with the first round that succeeds.
// What waiting cannot mend ends the daemon.
func (a *API) preparation() daemon.Component {
	failed := make(chan error, 1)
	loop := daemon.NewLoop(daemon.LoopConfig{
		Name: "prepare", Interval: time.Second, Log: a.p.Log, Metrics: a.p.Loops,
		Gate: func(ctx context.Context) string {
			if a.prepared.Load() {
				return ""
			}
			return a.p.Gate(ctx)
		},
		RunOnce: func(ctx context.Context) error {
			if a.prepared.Load() {
				return nil
			}
			err := a.prepare(ctx)
			if errors.Is(err, identity.ErrMasterKey) || errors.Is(err, berth.ErrInvalid) {
				select {
				case failed <- err:
				default:
				}
			}
			return err
		},
	})
	c := loop.Component()
	c.Failed = failed
	return c
}

// prepare puts into the database what the API needs: a signing key that all
// processes share, the first administrator, the built-in plugins. Every part is
// idempotent, also with several processes at once.
func (a *API) prepare(ctx context.Context) error {
	if err := a.identity.Open(ctx); errors.Is(err, identity.ErrMasterKey) {
		return err // it says all
	} else if err != nil {
		return fmt.Errorf("signing key: %w", err)
	}
	if !a.c.AdminPassword.IsZero() {
		created, err := a.identity.BootstrapAdmin(ctx, a.c.AdminName, a.c.AdminPassword)
		if err != nil {
			return fmt.Errorf("first administrator: %w", err)
		}
		if created {
			a.p.Log.Info("made the first administrator", zap.String("name", a.c.AdminName))
		}
	}
	var plugins []berth.Plugin
	for _, m := range manifest.Builtins() {
		plugins = append(plugins, berth.Plugin{
			PluginVersion: berth.PluginVersion{Name: m.Name, Version: m.Version},
			Enabled:       true, Schema: m.Schema, ResultSchema: m.ResultSchema, Requires: m.Selector(), Description: m.Description,
		})
	}
	if err := a.p.Store.RegisterPlugins(ctx, berth.Daemon(berth.ActorSystem, a.p.Instance), plugins); err != nil {
		return fmt.Errorf("built-in plugins: %w", err)
	}
	if err := a.warnWithoutAdministrator(ctx); err != nil {
		return err
	}
	a.prepared.Store(true)
	a.ready.Refresh()
	a.ready.Code(ctx) // open the gate of the routes now
	return nil
}

// warnWithoutAdministrator logs where nobody may be able to log in: no password
// is configured, and there is no user of the first administrator's name.
func (a *API) warnWithoutAdministrator(ctx context.Context) error {
	if !a.c.AdminPassword.IsZero() {
		return nil
	}
	_, _, err := a.p.Store.UserByName(ctx, a.c.AdminName)
	if errors.Is(err, berth.ErrNotFound) {
		a.p.Log.Warn("there is no administrator of this name: unless there is one of another name, set BERTH_ADMIN_PASSWORD_FILE and start again",
			zap.String("name", a.c.AdminName))
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the administrator: %w", err)
	}
	return nil
}

// secure is what the public address is secured with; nil: it is not.
func (a *API) secure() (*tls.Config, error) {
	if !a.c.TLS.On() {
		return nil, nil
	}
	return a.c.TLS.Files().Config(func(err error) {
		a.p.Log.Error("the certificate's files changed and cannot be read; what was read before counts on", zap.Error(err))
	})
}

// server serves the public address until it is stopped.
func (a *API) server(bound func(net.Addr)) daemon.Component {
	var stop context.CancelFunc
	failed, done := make(chan error, 1), make(chan error, 1)
	return daemon.Component{
		Name: "api",
		Start: func(ctx context.Context) error {
			listener, err := daemon.Listen(ctx, a.c.Listen)
			if err != nil {
				return err
			}
			secure, err := a.secure()
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			var serving context.Context
			serving, stop = context.WithCancel(context.WithoutCancel(ctx))
			server := httpserver.Server{Handler: a.echo, Drain: a.drain, Grace: a.c.ShutdownWithin / 2, Logger: a.p.Log, TLS: secure, MaxConns: a.c.MaxConns}
			go func() {
				err := server.Serve(serving, listener)
				if serving.Err() == nil {
					failed <- err
				}
				done <- err
				close(done)
			}()
			a.p.Log.Info("listening", zap.String("server", "api"), zap.Stringer("address", listener.Addr()))
			if bound != nil {
				bound(listener.Addr())
			}
			return nil
		},
		Stop: func(ctx context.Context) error {
			stop()
			select {
			case err := <-done:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		Failed: failed,
	}
}
