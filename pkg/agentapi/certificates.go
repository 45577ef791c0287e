package agentapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
)

// certified lets only those pass who have shown a certificate, where one is asked
// for. It says that a machine is one of the installation's; which host it is, the
// host's key says. The two have lives of their own: certificates come from an
// authority that need not know Berth's names, and are renewed without it; a host is
// shut out by revoking it here. So no name in a certificate is held against the host.
func (a *API) certified(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !a.ClientCertificates {
			return next(c)
		}
		now := time.Now()
		if !certificateHolds(c.Request(), now.Add(reconnectBefore)) {
			// On a new connection the agent shows the one that follows.
			c.Response().Header().Set(echo.HeaderConnection, "close")
		}
		if !certificateHolds(c.Request(), now) {
			return &problem.Error{
				Status: http.StatusForbidden, Code: protocol.CodeClientCertificate, Title: "Client certificate required",
				Detail: "Host Agents must show a client certificate here, of an authority that this server trusts.",
				Remedy: "Start the agent with --client-cert-file and --client-key-file.",
				Err:    berth.ErrForbidden,
			}
		}
		return next(c)
	}
}

// reconnectBefore is how long before the end of a client's certificate its
// connection is given up: agents keep one for days, and a renewed certificate counts
// from the next one.
const reconnectBefore = 10 * time.Minute

// certificateHolds reports whether the connection's certificate was verified when it
// began, and is not over at a time after that: a connection may last.
func certificateHolds(r *http.Request, now time.Time) bool {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return false
	}
	for _, cert := range r.TLS.VerifiedChains[0] {
		if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
			return false
		}
	}
	return true
}
