package localapi

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// actionBound is how long a direct action may take.
const actionBound = 30 * time.Second

// actionRequest is the body of every action; each takes what it needs of it.
type actionRequest struct {
	URL       string  `json:"url"`
	Selector  string  `json:"selector"`
	X         float64 `json:"x"`
	Y         float64 `json:"y"`
	DX        float64 `json:"dx"`
	DY        float64 `json:"dy"`
	Text      string  `json:"text"`
	Clear     bool    `json:"clear"`
	Key       string  `json:"key"`
	Option    string  `json:"option"`
	TimeoutMS int64   `json:"timeout_ms"`
}

func (r actionRequest) target() runtime.Target {
	return runtime.Target{Selector: r.Selector, X: r.X, Y: r.Y}
}

// action does something with a session; what it returns is the answer, if any.
type action func(context.Context, runtime.Session, actionRequest) (any, error)

// actions are the direct actions by the last part of their path.
func actions() map[string]action {
	return map[string]action{
		"open": onBrowser(func(ctx context.Context, b runtime.Browser, r actionRequest) (any, error) {
			return nil, b.Open(ctx, r.URL)
		}),
		"select": onBrowser(func(ctx context.Context, b runtime.Browser, r actionRequest) (any, error) {
			return nil, b.Select(ctx, r.Selector, r.Option)
		}),
		"read":  onBrowser(read),
		"tap":   onInput(func(ctx context.Context, i runtime.Input, r actionRequest) error { return i.Tap(ctx, r.target()) }),
		"press": onInput(func(ctx context.Context, i runtime.Input, r actionRequest) error { return i.Press(ctx, r.Key) }),
		"scroll": onInput(func(ctx context.Context, i runtime.Input, r actionRequest) error {
			return i.Scroll(ctx, r.target(), r.DX, r.DY)
		}),
		"type": onInput(func(ctx context.Context, i runtime.Input, r actionRequest) error {
			return i.Type(ctx, r.target(), redact.NewString(r.Text), r.Clear)
		}),
	}
}

func onBrowser(do func(context.Context, runtime.Browser, actionRequest) (any, error)) action {
	return func(ctx context.Context, s runtime.Session, r actionRequest) (any, error) {
		b, ok := s.(runtime.Browser)
		if !ok {
			return nil, runtime.ErrUnsupported
		}
		return do(ctx, b, r)
	}
}

func onInput(do func(context.Context, runtime.Input, actionRequest) error) action {
	return func(ctx context.Context, s runtime.Session, r actionRequest) (any, error) {
		i, ok := s.(runtime.Input)
		if !ok {
			return nil, runtime.ErrUnsupported
		}
		return nil, do(ctx, i, r)
	}
}

// read answers with the element of the selector, or with the page without one.
func read(ctx context.Context, b runtime.Browser, r actionRequest) (any, error) {
	if r.Selector == "" {
		p, err := b.Page(ctx)
		return map[string]any{"url": p.URL, "title": p.Title, "text": p.Text}, err
	}
	e, err := b.Query(ctx, r.Selector)
	if err == nil && !e.Found {
		return nil, &runtime.ActionError{Code: runtime.CodeElementMissing, Message: "no element matches the selector"}
	}
	return map[string]any{"visible": e.Visible, "text": e.Text, "value": e.Value, "attributes": e.Attributes}, err
}

// act makes a handler of an action.
func (s *Server) act(do action) echo.HandlerFunc {
	return func(c echo.Context) error {
		var req actionRequest
		if err := decode(c, &req); err != nil {
			return err
		}
		bound := 10 * time.Second
		if req.TimeoutMS > 0 {
			bound = min(time.Duration(req.TimeoutMS)*time.Millisecond, actionBound)
		}
		var answer any
		err := s.direct(c, func(ctx context.Context, session runtime.Session) error {
			ctx, stop := context.WithTimeout(ctx, bound)
			defer stop()
			var err error
			answer, err = do(ctx, session, req)
			return err
		})
		if err != nil {
			return err
		}
		if answer == nil {
			return c.NoContent(http.StatusNoContent)
		}
		return c.JSON(http.StatusOK, answer)
	}
}
