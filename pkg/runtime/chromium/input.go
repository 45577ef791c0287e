package chromium

import (
	"context"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Tap implements runtime.Input.
func (s *session) Tap(ctx context.Context, t runtime.Target) error {
	at := point{t.X, t.Y}
	if t.Selector != "" {
		var err error
		if at, err = s.aim(ctx, t.Selector); err != nil {
			return err
		}
	}
	for _, e := range []struct {
		kind            string
		button          string
		buttons, clicks int
	}{
		{"mouseMoved", "none", 0, 0}, {"mousePressed", "left", 1, 1}, {"mouseReleased", "left", 0, 1},
	} {
		if err := s.call(ctx, "Input.dispatchMouseEvent", object{
			"type": e.kind, "x": at.x, "y": at.y, "button": e.button, "buttons": e.buttons, "clickCount": e.clicks,
		}, nil); err != nil {
			return err
		}
	}
	return nil
}

// Type implements runtime.Input.
func (s *session) Type(ctx context.Context, t runtime.Target, text redact.String, clear bool) error {
	if err := s.focus(ctx, t, clear); err != nil {
		return err
	}
	if text.IsZero() {
		if clear && t.Selector != "" {
			return s.Press(ctx, "Backspace")
		}
		return nil
	}
	return s.call(ctx, "Input.insertText", object{"text": text.Reveal()}, nil)
}

// focus gives the target the focus, and selects its text when clear is set.
func (s *session) focus(ctx context.Context, t runtime.Target, clear bool) error {
	if t.Selector == "" {
		if t.X != 0 || t.Y != 0 {
			return s.Tap(ctx, t)
		}
		return nil
	}
	return s.on(ctx, t.Selector, func(element string) (bool, string, error) {
		var visible bool
		if err := s.apply(ctx, element, visibleJS, &visible); err != nil || !visible {
			return false, "did not become visible", err
		}
		return true, "", s.apply(ctx, element, focusJS, nil, clear)
	})
}

// Press implements runtime.Input.
func (s *session) Press(ctx context.Context, name string) error {
	k, err := parseKey(name)
	if err != nil {
		return err
	}
	down := "rawKeyDown"
	if k.text != "" {
		down = "keyDown"
	}
	for _, kind := range []string{down, "keyUp"} {
		params := object{
			"type": kind, "key": k.key, "code": k.code, "modifiers": k.modifiers,
			"windowsVirtualKeyCode": k.virtual, "nativeVirtualKeyCode": k.virtual,
		}
		if kind != "keyUp" && k.text != "" {
			params["text"], params["unmodifiedText"] = k.text, k.text
		}
		if kind != "keyUp" && k.command != "" {
			params["commands"] = []string{k.command}
		}
		if err := s.call(ctx, "Input.dispatchKeyEvent", params, nil); err != nil {
			return err
		}
	}
	return nil
}

// Scroll implements runtime.Input.
func (s *session) Scroll(ctx context.Context, t runtime.Target, dx, dy float64) error {
	if t.Selector == "" {
		return s.on(ctx, "html", func(element string) (bool, string, error) {
			return true, "", s.apply(ctx, element, `function(dx, dy) { window.scrollBy({left: dx, top: dy, behavior: "instant"}); return true; }`, nil, dx, dy)
		})
	}
	return s.on(ctx, t.Selector, func(element string) (bool, string, error) {
		return true, "", s.apply(ctx, element, scrollJS, nil, dx, dy)
	})
}

// Select implements runtime.Browser.
func (s *session) Select(ctx context.Context, selector, option string) error {
	var answer string
	err := s.on(ctx, selector, func(element string) (bool, string, error) {
		if err := s.apply(ctx, element, selectJS, &answer, option); err != nil {
			return false, "", err
		}
		// Options often come later than their select element: keep trying.
		return answer != "no option", "has no such option", nil
	})
	switch {
	case answer == "no option":
		return &runtime.ActionError{Code: runtime.CodeOptionMissing, Message: "the select element has no such option that is enabled", Err: err}
	case answer == "no select":
		return &runtime.ActionError{Code: runtime.CodeUnsupported, Message: "the selector matches an element that is no select element"}
	}
	return err
}
