package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
)

// Bounds of a request's head, below what the server itself takes.
const (
	maxURI         = 8 << 10
	maxHeaders     = 100
	maxQueryParams = 100
	maxQueryValue  = 4 << 10
	maxRange       = 64 // "bytes=" and two numbers
)

// hardHeaders stand on every answer, errors too: an API's answer is no page, is
// shown in no frame, runs nothing, is loaded by no other site, and is kept by no
// cache, unless a handler says otherwise.
func hardHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		if c.Request().TLS != nil {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		return next(c)
	}
}

// limitHead refuses what no client of ours sends, before anybody reads it.
// Bodies are never decompressed: a small one could stand for gigabytes.
func limitHead(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if len(r.RequestURI) > maxURI {
			return &problem.Error{
				Status: http.StatusRequestURITooLong, Code: problem.CodeURITooLong, Title: "URL too long",
				Detail: "The URL has more than the 8192 bytes that are allowed.", Remedy: "Use fewer or shorter parameters.",
			}
		}
		n := 0
		for _, values := range r.Header {
			n += len(values)
		}
		if n > maxHeaders {
			return &problem.Error{
				Status: http.StatusRequestHeaderFieldsTooLarge, Code: problem.CodeHeadersTooLarge, Title: "Too many headers",
				Detail: "The request has more than the 100 headers that are allowed.", Remedy: "Leave out those that are not needed.",
			}
		}
		for _, encoding := range r.Header.Values("Content-Encoding") {
			if encoding != "" && !strings.EqualFold(encoding, "identity") {
				return &problem.Error{
					Status: http.StatusUnsupportedMediaType, Code: problem.CodeUnsupportedMedia, Title: "Unsupported content encoding",
					Detail: "Compressed bodies are not read.", Remedy: "Send the body as it is, without Content-Encoding.",
				}
			}
		}
		if err := limitQuery(r.URL.RawQuery); err != nil {
			return err
		}
		if err := limitRange(r.Header.Values("Range")); err != nil {
			return err
		}
		return next(c)
	}
}

// limitRange lets one range pass: many cost the server more than they spare
// anybody, and no client of ours asks for them.
func limitRange(asked []string) error {
	if len(asked) == 0 || len(asked) == 1 && len(asked[0]) <= maxRange && !strings.Contains(asked[0], ",") {
		return nil
	}
	return &problem.Error{
		Status: http.StatusRequestedRangeNotSatisfiable, Code: problem.CodeRange, Title: "More than one range",
		Detail: "The request asks for more than one range of bytes.", Remedy: "Ask for one at a time, or for everything.",
	}
}

func limitQuery(raw string) error {
	if strings.Count(raw, "&") >= maxQueryParams {
		return berth.Invalid("", "the query has more than 100 parameters", "use fewer")
	}
	for pair := range strings.SplitSeq(raw, "&") {
		if len(pair) > maxQueryValue {
			return berth.Invalid("", "a parameter of the query has more than 4096 bytes", "use a shorter one")
		}
	}
	return nil
}

// guardHost refuses a request that came to a loopback address under the name of
// another host: a page in somebody's browser that had its own name resolve to
// 127.0.0.1 (DNS rebinding) would be of the same origin as this server. names
// are those of this server beside the loopback ones; a trusted proxy may pass on
// any.
func guardHost(names []string, proxies []*net.IPNet) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
			if !ok || !at.IP.IsLoopback() || isOwn(r.Host, names) || isTrusted(r.RemoteAddr, proxies) {
				return next(c)
			}
			return &problem.Error{
				Status: http.StatusMisdirectedRequest, Code: problem.CodeForeignHost, Title: "Addressed to another host",
				Detail: "This server listens on a loopback address, and the request names another host.",
				Remedy: "Use 127.0.0.1 or localhost; for a proxy on this machine name the host in BERTH_SERVER_NAMES, or the proxy in BERTH_TRUSTED_PROXIES.",
			}
		}
	}
}

func isOwn(host string, names []string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	if host == "localhost" || slices.Contains(names, host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

func isTrusted(peer string, proxies []*net.IPNet) bool {
	host, _, err := net.SplitHostPort(peer)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && slices.ContainsFunc(proxies, func(n *net.IPNet) bool { return n.Contains(ip) })
}

// guardOrigin refuses a request that a page of another site makes a browser
// send, where it could change something.
func guardOrigin(origins []string) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			r := c.Request()
			switch r.Method {
			case http.MethodGet, http.MethodHead, http.MethodOptions:
				return next(c)
			}
			for _, origin := range r.Header.Values(echo.HeaderOrigin) {
				u, err := url.Parse(origin)
				own := err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
				if !own && !slices.Contains(origins, origin) {
					return &problem.Error{
						Status: http.StatusForbidden, Code: problem.CodeForeignOrigin, Title: "Page of another site",
						Detail: "A page of another origin sent this.", Remedy: "Name the origin in BERTH_CORS_ORIGINS if it is yours.",
					}
				}
			}
			return next(c)
		}
	}
}

// cors lets the pages of these origins, exactly, call the API and read its
// answers. Browsers send them no cookies of ours.
func cors(origins []string) echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		AllowOrigins: origins,
		AllowMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete},
		AllowHeaders: []string{
			echo.HeaderAuthorization, echo.HeaderContentType, "Idempotency-Key", "If-Match", "If-None-Match", "Range", echo.HeaderXRequestID, "X-Correlation-Id", "Traceparent",
		},
		ExposeHeaders: []string{
			echo.HeaderXRequestID, "ETag", "Retry-After", "Content-Disposition", "Content-Range", "Digest", "Berth-Next-Offset", "Berth-Log-Ended",
		},
		MaxAge: 600,
	})
}

// ValidOrigin reports whether s is an origin as browsers send it: a scheme, a
// host and perhaps a port, nothing else and no wildcard.
func ValidOrigin(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && s == u.Scheme+"://"+strings.ToLower(u.Host) && !strings.ContainsAny(s, "*?@")
}
