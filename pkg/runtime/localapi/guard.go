package localapi

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
)

// guard refuses what a web page can make somebody's browser send to this port.
//
//   - Host must be a loopback name: a page that had its own name resolve to
//     127.0.0.1 (DNS rebinding) still sends that name.
//   - Origin and Sec-Fetch-Site must not tell of another site.
//   - A request that changes something must have a JSON content type: a page
//     cannot send that elsewhere without asking first, and is never answered yes.
func (s *Server) guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		c.Response().Header().Set("X-Content-Type-Options", "nosniff")
		c.Response().Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		if !s.cfg.AllowRemote && !loopbackHost(r.Host) {
			return &problem{
				Status: http.StatusForbidden, Code: "foreign_host", Title: "the request is addressed to another host",
				Remedy: "use the address 127.0.0.1 or localhost, or start with --allow-remote",
			}
		}
		if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
			return foreignSite()
		}
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			return foreignSite()
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				return &problem{
					Status: http.StatusUnsupportedMediaType, Code: "json_required", Title: "the body must be JSON",
					Remedy: "send the header Content-Type: application/json",
				}
			}
		}
		return next(c)
	}
}

func foreignSite() error {
	return &problem{Status: http.StatusForbidden, Code: "foreign_site", Title: "web pages may not use the local Runtime"}
}

func loopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// logRequests logs route, status and time, and no address, body or query.
func (s *Server) logRequests(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		if err := next(c); err != nil {
			c.Error(err)
		}
		s.cfg.Logger.Info("request", zap.String("method", c.Request().Method), zap.String("route", c.Path()),
			zap.Int("status", c.Response().Status), zap.Duration("took", time.Since(began)))
		return nil
	}
}

const maxBody = 4 << 20

// decode reads a JSON body into v, strictly. An empty body leaves v as it is.
func decode(c echo.Context, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(c.Response(), c.Request().Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil && err != io.EOF {
		return badRequest("the body is not the JSON object expected, has unknown fields, or is larger than 4 MiB", "")
	}
	if _, err := dec.Token(); err != io.EOF {
		return badRequest("the body holds more than one JSON document", "")
	}
	return nil
}

func encode(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

func typeName(err error) string { return fmt.Sprintf("%T", err) }
