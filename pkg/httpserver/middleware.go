package httpserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/problem"
)

// Options of New. Zero values work.
type Options struct {
	// Logger gets one line a request; nil logs nothing.
	Logger *zap.Logger
	// Kinds of the routes that are not Plain.
	Kinds map[Route]Kind
	// BodyLimit of Plain and Stream routes in bytes, above what each bounds by itself
	// with Bodies; 0: 8 MiB.
	BodyLimit int64
	// Timeout of Plain routes; 0: 30 s.
	Timeout time.Duration
	// Gate returns "" when the database can be used, otherwise the code that
	// every route but those of Ungated answers with (problem.SchemaUnusable). It
	// is called for each request and must not wait. nil: no gate.
	Gate func() string
	// Ungated routes answer whatever the gate says (health).
	Ungated map[Route]bool
	// TrustedProxies may say in X-Forwarded-For who the client is; empty:
	// the peer's own address counts.
	TrustedProxies []*net.IPNet
	// ServerNames are names of this server by which it may be asked at a loopback
	// address, beside the loopback ones.
	ServerNames []string
	// Origins (ValidOrigin) whose pages may call the API; empty: none but its own.
	Origins []string
}

// New returns an echo with the shared middleware and the error handler of
// package problem.
func New(o Options) *echo.Echo {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.BodyLimit == 0 {
		o.BodyLimit = 8 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = problem.Handler(o.Logger)
	e.IPExtractor = echo.ExtractIPDirect()
	if len(o.TrustedProxies) > 0 {
		trust := []echo.TrustOption{echo.TrustLoopback(false), echo.TrustLinkLocal(false), echo.TrustPrivateNet(false)}
		for _, n := range o.TrustedProxies {
			trust = append(trust, echo.TrustIPRange(n))
		}
		e.IPExtractor = echo.ExtractIPFromXFFHeader(trust...)
	}
	kindOf := func(c echo.Context) Kind { return o.Kinds[routeOf(c)] }
	e.Pre(requestID)
	e.Use(logRequests(o.Logger), recoverPanics(o.Logger))
	e.Use(hardHeaders, guardHost(o.ServerNames, o.TrustedProxies))
	if len(o.Origins) > 0 {
		e.Use(cors(o.Origins))
	}
	e.Use(guardOrigin(o.Origins), limitHead)
	if o.Gate != nil {
		e.Use(gate(o.Gate, o.Ungated))
	}
	e.Use(limitBody(o.BodyLimit, kindOf), limitTime(o.Timeout, kindOf))
	return e
}

func routeOf(c echo.Context) Route { return Route{Method: c.Request().Method, Path: c.Path()} }

// RequestID is the id of the request, as logged and answered.
func RequestID(c echo.Context) string { return c.Response().Header().Get(echo.HeaderXRequestID) }

// requestID takes the client's request id when it is harmless, and makes one
// otherwise.
func requestID(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		id := c.Request().Header.Get(echo.HeaderXRequestID)
		if !validRequestID(id) {
			id = uuid.NewString()
			c.Request().Header.Set(echo.HeaderXRequestID, id)
		}
		c.Response().Header().Set(echo.HeaderXRequestID, id)
		return next(c)
	}
}

func validRequestID(id string) bool {
	if id == "" || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		b := id[i]
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '.', b == '_', b == '-':
		default:
			return false
		}
	}
	return true
}

// logRequests writes one line a request: the route's pattern, never the path,
// the query, the headers or the body.
func logRequests(logger *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			began := time.Now()
			if err := next(c); err != nil {
				c.Error(err) // the status is known only after the error handler
			}
			route := c.Path()
			if route == "" {
				route = "(none)"
			}
			logger.Info("request",
				zap.String("method", method(c.Request().Method)),
				zap.String("route", route),
				zap.Int("status", c.Response().Status),
				zap.Duration("duration", time.Since(began)),
				zap.Int64("bytes", c.Response().Size),
				zap.String("request_id", RequestID(c)))
			return nil
		}
	}
}

// method keeps a client from writing words of its own into the log.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// recoverPanics turns a panic into a 500. What was panicked with may hold
// content, so only its type is logged, unless it is the Go runtime's own.
func recoverPanics(logger *zap.Logger) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
			defer func() {
				r := recover()
				if r == nil {
					return
				}
				if err, ok := r.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(r) // net/http's own way to break a connection off
				}
				logger.Error("a request panicked",
					zap.String("panic", logging.PanicText(r)),
					zap.String("route", c.Path()),
					zap.String("request_id", RequestID(c)),
					zap.ByteString("stack", debug.Stack()))
				err = &problem.Error{
					Status: http.StatusInternalServerError, Code: problem.CodeInternal, Title: "Internal error",
					Remedy: "Tell the operator the request id; the log explains it.",
				}
			}()
			return next(c)
		}
	}
}

func gate(code func() string, ungated map[Route]bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if ungated[routeOf(c)] {
				return next(c)
			}
			if code := code(); code != "" {
				return problem.SchemaUnusable(code)
			}
			return next(c)
		}
	}
}

func limitBody(limit int64, kindOf func(echo.Context) Kind) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if kindOf(c) == Upload {
				return next(c)
			}
			r := c.Request()
			if r.ContentLength > limit {
				return &http.MaxBytesError{Limit: limit}
			}
			r.Body = http.MaxBytesReader(c.Response(), r.Body, limit)
			return next(c)
		}
	}
}

func limitTime(limit time.Duration, kindOf func(echo.Context) Kind) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if kindOf(c) != Plain {
				return next(c)
			}
			ctx, cancel := context.WithTimeout(c.Request().Context(), limit)
			defer cancel()
			c.SetRequest(c.Request().WithContext(ctx))
			return next(c)
		}
	}
}

// Extend lets a request that takes long by nature go on for d from now: the
// server's time-outs are set anew, those that it has. A stream calls it before
// each write, an upload before each read.
func Extend(c echo.Context, d time.Duration) {
	rc := http.NewResponseController(c.Response())
	deadline := time.Now().Add(d)
	// A writer without deadlines (a recorder in a test) has no time-outs either.
	_ = rc.SetReadDeadline(deadline)
	// Without a WriteTimeout nothing takes the deadline back before the next
	// request of the connection.
	if server, ok := c.Request().Context().Value(http.ServerContextKey).(*http.Server); ok && server.WriteTimeout > 0 {
		_ = rc.SetWriteDeadline(deadline)
	}
}
