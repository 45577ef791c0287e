package identity

import (
	"fmt"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Caller is who sent a request.
type Caller struct {
	berth.Principal
	Roles []berth.Role
	// Credential that the caller proved itself with.
	Credential berth.Credential
}

// Can reports whether one of the caller's roles includes role.
func (c Caller) Can(role berth.Role) bool {
	return slices.ContainsFunc(c.Roles, func(r berth.Role) bool { return r.Includes(role) })
}

// Actor is the caller in the course of one request from an address.
func (c Caller) Actor(requestID, client string) berth.Actor {
	return berth.Actor{Principal: c.Principal, RequestID: requestID, Client: client, Credential: c.Credential}
}

// Host is the calling host, or "".
func (c Caller) Host() berth.HostID {
	if c.Kind != berth.ActorHost {
		return ""
	}
	return berth.HostID(c.ID)
}

// User is the calling person, or "".
func (c Caller) User() berth.UserID {
	if c.Kind != berth.ActorUser {
		return ""
	}
	return berth.UserID(c.ID)
}

// Access says who may call a route.
type Access struct {
	role   berth.Role
	public bool
	login  bool
}

// Public lets everybody in, without a token.
func Public() Access { return Access{public: true} }

// AtLeast lets in who has a role that includes role.
func AtLeast(role berth.Role) Access { return Access{role: role} }

// WithLogin is the same for those who have logged in: API keys are refused.
func (a Access) WithLogin() Access {
	a.login = true
	return a
}

// NeedsLogin reports whether API keys are refused.
func (a Access) NeedsLogin() bool { return a.login }

// Role is the least role; "" for a public route.
func (a Access) Role() berth.Role { return a.role }

// Route names a route as echo does: GET and /api/v1/tasks/:id.
type Route struct{ Method, Path string }

// Routes is the table of roles: the single source of who may call what.
type Routes map[Route]Access

// Check reports every route of e below prefix that has no row, and every row
// that has no route, in one error. Call it once all routes are registered, and
// do not start when it fails.
func (r Routes) Check(e *echo.Echo, prefix string) error {
	registered := map[Route]bool{}
	var faults []string
	for _, route := range e.Routes() {
		if route.Method == echo.RouteNotFound || !strings.HasPrefix(route.Path, prefix) {
			continue
		}
		key := Route{route.Method, route.Path}
		registered[key] = true
		if row, ok := r[key]; !ok || row == (Access{}) {
			faults = append(faults, key.Method+" "+key.Path+" has no role")
		}
	}
	for key := range r {
		if !registered[key] {
			faults = append(faults, key.Method+" "+key.Path+" has a role and is no route")
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return fmt.Errorf("table of roles: %s", strings.Join(faults, "; "))
}

// callerKey is where the middleware leaves the caller.
const callerKey = "berth.caller"

// CallerOf is who sent the request; ok is false on public routes.
func CallerOf(c echo.Context) (caller Caller, ok bool) {
	caller, ok = c.Get(callerKey).(Caller)
	return caller, ok
}

// Require lets only those in whom the table lets in: no or a bad token is
// berth.ErrUnauthenticated, a role that is too small berth.ErrForbidden, an API
// key where a login is needed berth.ErrLoginNeeded. A route without a row is refused for everybody.
func (s *Service) Require(routes Routes) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			row, ok := routes[Route{c.Request().Method, c.Path()}]
			if !ok || row == (Access{}) {
				return refuseUnlisted(c, next)
			}
			if row.public {
				return next(c)
			}
			token, ok := bearer(c)
			if !ok {
				return berth.ErrUnauthenticated
			}
			caller, err := s.Verify(c.Request().Context(), token)
			if err != nil {
				return err
			}
			if !caller.Can(row.role) {
				return &berth.RoleError{Needs: row.role}
			}
			if row.login && caller.Credential.APIKey() != "" {
				return berth.ErrLoginNeeded
			}
			c.Set(callerKey, caller)
			return next(c)
		}
	}
}

// refuseUnlisted lets echo answer what is no route (404, 405) and fails on a
// route that somebody registered without a role.
func refuseUnlisted(c echo.Context, next echo.HandlerFunc) error {
	for _, r := range c.Echo().Routes() {
		if r.Method == c.Request().Method && r.Path == c.Path() {
			return fmt.Errorf("route %s %s has no role", r.Method, r.Path)
		}
	}
	return next(c)
}

// bearer is the token of the request's one Authorization header.
func bearer(c echo.Context) (redact.String, bool) {
	values := c.Request().Header.Values(echo.HeaderAuthorization)
	if len(values) != 1 {
		return redact.String{}, false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return redact.String{}, false
	}
	return redact.NewString(token), true
}
