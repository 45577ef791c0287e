package localapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/runtime"
)

// problem is an error as RFC 9457 wants it. This file alone knows status codes
// of failures.
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Title  string `json:"title"`
	// Detail says more, without content.
	Detail string `json:"detail,omitempty"`
	// Remedy says what the caller can do.
	Remedy string `json:"remedy,omitempty"`
}

// Error returns the title.
func (p *problem) Error() string { return p.Title }

func badRequest(detail, remedy string) *problem {
	return &problem{Status: http.StatusBadRequest, Code: "invalid_request", Title: "the request is not well formed", Detail: detail, Remedy: remedy}
}

// explain turns any error into a problem; an unknown one becomes a bare 500.
func explain(err error) *problem {
	var p *problem
	var a *runtime.ActionError
	var h *echo.HTTPError
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, runtime.ErrUnknownDevice):
		return &problem{Status: http.StatusNotFound, Code: "unknown_device", Title: "no such device", Remedy: "GET /v1/devices lists the devices"}
	case errors.Is(err, runtime.ErrUnknownRun):
		return &problem{Status: http.StatusNotFound, Code: "unknown_run", Title: "no such run or artifact", Remedy: "files are kept of the last runs only, while the Runtime lives"}
	case errors.Is(err, runtime.ErrUnknownPlugin):
		return &problem{Status: http.StatusNotFound, Code: "unknown_plugin", Title: "no such plugin in that version", Remedy: "GET /v1/plugins lists the plugins"}
	case errors.Is(err, runtime.ErrInvalidPayload):
		return &problem{Status: http.StatusUnprocessableEntity, Code: "invalid_payload", Title: "the payload does not satisfy the plugin's schema", Detail: err.Error(), Remedy: "GET /v1/plugins shows the schema"}
	case errors.Is(err, runtime.ErrInvalidRequest):
		return badRequest(err.Error(), "")
	case errors.Is(err, runtime.ErrBusy):
		return &problem{Status: http.StatusConflict, Code: "device_busy", Title: "the device is in use", Remedy: "wait, use another device, or POST .../kill"}
	case errors.Is(err, runtime.ErrUnclean):
		return &problem{Status: http.StatusConflict, Code: "device_unclean", Title: "the device could not be cleaned after its last use", Remedy: "POST .../clean"}
	case errors.Is(err, runtime.ErrUnsupported):
		return &problem{Status: http.StatusConflict, Code: "unsupported_by_device", Title: "the device has no such action", Remedy: "use a device of another driver"}
	case errors.Is(err, runtime.ErrDeviceLost):
		return &problem{Status: http.StatusBadGateway, Code: "device_lost", Title: "the device went away", Remedy: "try again: it is started anew"}
	case errors.Is(err, runtime.ErrClosed):
		return &problem{Status: http.StatusServiceUnavailable, Code: "shutting_down", Title: "the Runtime is shutting down"}
	case errors.As(err, &a):
		return &problem{Status: http.StatusUnprocessableEntity, Code: string(a.Code), Title: "the action failed", Detail: a.Message}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{Status: http.StatusGatewayTimeout, Code: "action_timeout", Title: "the device did not answer in time", Remedy: "POST .../clean gives a fresh device"}
	case errors.Is(err, context.Canceled):
		return &problem{Status: http.StatusConflict, Code: "killed", Title: "the action was killed on request"}
	case errors.As(err, &h):
		return &problem{Status: h.Code, Code: "http_error", Title: http.StatusText(h.Code)}
	}
	return &problem{Status: http.StatusInternalServerError, Code: "internal_error", Title: "something went wrong"}
}

// writeProblem is echo's error handler.
func (s *Server) writeProblem(err error, c echo.Context) {
	if c.Response().Committed {
		return // echo may call this twice, and a stream cannot be taken back
	}
	p := explain(err)
	if p.Status == http.StatusInternalServerError {
		// The type and not the text, which could hold content.
		s.cfg.Logger.Error("request failed", zap.String("route", c.Path()), zap.String("error_type", typeName(err)))
	}
	c.Response().Header().Set(echo.HeaderContentType, "application/problem+json")
	c.Response().WriteHeader(p.Status)
	if c.Request().Method != http.MethodHead {
		_ = encode(c.Response(), p)
	}
}
