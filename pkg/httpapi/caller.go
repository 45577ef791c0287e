package httpapi

import (
	"context"
	"net/http"
	"net/url"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
)

// request is what handlers need to know of a request beside its input.
type request struct {
	id     string
	client string // address
	header http.Header
	url    *url.URL
	caller identity.Caller
}

type requestKey struct{}

// inContext hands the request's facts to the generated code, which passes
// handlers a context and no echo.Context.
func (s *Server) inContext(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := request{id: httpserver.RequestID(c), client: c.RealIP(), header: c.Request().Header, url: c.Request().URL}
		r.caller, _ = identity.CallerOf(c)
		c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), requestKey{}, r)))
		return next(c)
	}
}

func requestOf(ctx context.Context) request {
	r, _ := ctx.Value(requestKey{}).(request)
	return r
}

func actorOf(ctx context.Context) berth.Actor {
	r := requestOf(ctx)
	return r.caller.Actor(r.id, r.client)
}

// reads is which tasks the caller may see: all ([berth.SeesAll]), or its own.
func reads(ctx context.Context) berth.Scope {
	c := requestOf(ctx).caller
	return berth.Scope{All: berth.SeesAll(c.Roles), Owner: c.Principal}
}

// writes is which tasks the caller may change: its own, or as an operator all.
func writes(ctx context.Context) berth.Scope {
	c := requestOf(ctx).caller
	return berth.Scope{All: c.Can(berth.RoleOperator), Owner: c.Principal}
}
