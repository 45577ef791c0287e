package chromium

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Open implements runtime.Browser.
func (s *session) Open(ctx context.Context, url string) error {
	if err := s.driver.cfg.Policy.check(ctx, url); err != nil {
		return err
	}
	s.mu.Lock()
	s.refused = nil
	s.mu.Unlock()
	var nav struct {
		LoaderID  string `json:"loaderId"`
		ErrorText string `json:"errorText"`
	}
	if err := s.call(ctx, "Page.navigate", object{"url": url}, &nav); err != nil {
		if isStale(err) {
			return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the browser does not take the address"}
		}
		return s.navigationEnded(ctx, err)
	}
	if nav.ErrorText != "" {
		s.mu.Lock()
		refused, asked := s.refused, s.asked
		s.mu.Unlock()
		if refused != nil {
			return refused
		}
		return s.notLoaded(asked, nav.ErrorText)
	}
	if nav.LoaderID == "" {
		return nil // the same document, another fragment
	}
	return s.waitLoad(ctx, nav.LoaderID)
}

func (s *session) navigationEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the page did not answer in time", Err: ctx.Err()}
	}
	return err
}

// notLoaded says why a document could not be had: the gate knows more than the
// browser, which sees only that it was refused a connection.
func (s *session) notLoaded(asked, errorText string) error {
	host, port := hostOf(asked)
	why := s.browser.gate.why(host, port)
	var refused *runtime.ActionError
	var gone errUnreachable
	switch {
	case !strings.HasPrefix(errorText, "net::ERR_SOCKS_"):
	case errors.As(why, &refused):
		return refused
	case errors.As(why, &gone):
		errorText = string(gone)
	}
	return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the page could not be loaded: " + netError(errorText)}
}

// netError passes on Chromium's own name of a network error, and nothing else.
func netError(text string) string {
	if strings.HasPrefix(text, "net::ERR_") && !strings.ContainsAny(text, " /?") {
		return text
	}
	return "network error"
}

func (s *session) waitLoad(ctx context.Context, loader string) error {
	for {
		s.mu.Lock()
		done, next := s.hasLoaded(loader), s.loaded
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-next:
		case <-s.lost:
			return runtime.ErrDeviceLost
		case <-s.life.Done():
			return runtime.ErrClosed
		case <-ctx.Done():
			return &runtime.ActionError{Code: runtime.CodeNavigation, Message: "the page did not finish loading in time", Err: ctx.Err()}
		}
	}
}

// SetViewport implements runtime.Browser.
func (s *session) SetViewport(ctx context.Context, width, height int, scale float64) error {
	return s.call(ctx, "Emulation.setDeviceMetricsOverride", metrics(width, height, scale), nil)
}

// Screenshot implements runtime.Screen.
func (s *session) Screenshot(ctx context.Context) (redact.Bytes, error) {
	var shot struct {
		Data []byte `json:"data"` // encoding/json decodes the base64
	}
	// Refused while an error page takes the place of one that did not load.
	if err := s.retryStale(ctx, func() error {
		return s.call(ctx, "Page.captureScreenshot", object{"format": "png"}, &shot)
	}); err != nil {
		return redact.Bytes{}, err
	}
	return redact.NewBytes(shot.Data), nil
}

// Page implements runtime.Browser.
func (s *session) Page(ctx context.Context) (runtime.PageInfo, error) {
	var info runtime.PageInfo
	err := s.evaluate(ctx, `({URL: location.href, Title: document.title, Text: document.body ? document.body.innerText : ""})`, &info)
	return info, err
}

// WaitIdle implements runtime.Browser.
func (s *session) WaitIdle(ctx context.Context, quiet time.Duration) error {
	for {
		s.mu.Lock()
		busy, since := s.traffic.kinds(), time.Since(s.traffic.last)
		s.mu.Unlock()
		if len(busy) == 0 && since >= quiet {
			return nil
		}
		if err := s.pause(ctx, pollEvery); err != nil {
			if ctx.Err() != nil {
				return &runtime.ActionError{Code: runtime.CodeWaitTimeout, Message: notAtRest(busy), Err: ctx.Err()}
			}
			return err
		}
	}
}

func notAtRest(busy []string) string {
	const message = "the page's requests did not come to rest"
	if len(busy) == 0 {
		return message + ": it keeps on asking"
	}
	return message + ": still under way at the end: " + strings.Join(busy, ", ")
}

// pollEvery is how often a condition of the page is looked at.
const pollEvery = 40 * time.Millisecond

// pause waits a little, or returns why waiting is over.
func (s *session) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.lost:
		return runtime.ErrDeviceLost
	case <-s.life.Done():
		return runtime.ErrClosed
	}
}

// world returns the execution context of a world of our own in the main frame:
// the page's scripts cannot change what our scripts see there. The browser
// returns the same world as long as the document stays.
func (s *session) world(ctx context.Context) (int64, error) {
	var w struct {
		ID int64 `json:"executionContextId"`
	}
	err := s.call(ctx, "Page.createIsolatedWorld", object{"frameId": s.targetID, "worldName": "berth"}, &w)
	return w.ID, err
}

// remote is a value in the page.
type remote struct {
	Type     string          `json:"type"`
	Subtype  string          `json:"subtype"`
	ObjectID string          `json:"objectId"`
	Value    json.RawMessage `json:"value"`
}

type evaluation struct {
	Result    remote `json:"result"`
	Exception *struct {
		Exception struct {
			ClassName string `json:"className"`
		} `json:"exception"`
	} `json:"exceptionDetails"`
}

var errScript = errors.New("a script failed in the page")

// evaluate runs an expression in our world and decodes its value into out.
func (s *session) evaluate(ctx context.Context, expression string, out any) error {
	return s.retryStale(ctx, func() error {
		world, err := s.world(ctx)
		if err != nil {
			return err
		}
		var ev evaluation
		if err := s.call(ctx, "Runtime.evaluate", object{"expression": expression, "contextId": world, "returnByValue": true}, &ev); err != nil {
			return err
		}
		if ev.Exception != nil {
			return errScript
		}
		if out == nil || len(ev.Result.Value) == 0 {
			return nil
		}
		return json.Unmarshal(ev.Result.Value, out)
	})
}

// retryStale repeats do while the browser refuses it because the page changes
// under it, until ctx ends.
func (s *session) retryStale(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !isStale(err) {
			return err
		}
		if perr := s.pause(ctx, pollEvery); perr != nil {
			return perr
		}
	}
}
