package httpapi

import (
	"slices"

	"github.com/labstack/echo/v4"
)

// guarded registers every route behind the same middleware. It is no
// echo.Group: a group with middleware answers 404 where 405 is right.
type guarded struct {
	echo       *echo.Echo
	middleware []echo.MiddlewareFunc
}

func (g guarded) add(method, path string, h echo.HandlerFunc, m []echo.MiddlewareFunc) *echo.Route {
	return g.echo.Add(method, path, h, slices.Concat(g.middleware, m)...)
}

// The methods of the generated EchoRouter.

func (g guarded) CONNECT(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.CONNECT, path, h, m)
}

func (g guarded) DELETE(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.DELETE, path, h, m)
}

func (g guarded) GET(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.GET, path, h, m)
}

func (g guarded) HEAD(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.HEAD, path, h, m)
}

func (g guarded) OPTIONS(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.OPTIONS, path, h, m)
}

func (g guarded) PATCH(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.PATCH, path, h, m)
}

func (g guarded) POST(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.POST, path, h, m)
}

func (g guarded) PUT(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.PUT, path, h, m)
}

func (g guarded) TRACE(path string, h echo.HandlerFunc, m ...echo.MiddlewareFunc) *echo.Route {
	return g.add(echo.TRACE, path, h, m)
}
