package browserscript

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// pollEvery is how often a condition is looked at.
const pollEvery = 50 * time.Millisecond

func (a *gotoStep) do(p *player) error { return p.page.Open(p.ctx, a.URL) }

func (a *clickStep) do(p *player) error {
	return p.page.Tap(p.ctx, runtime.Target{Selector: a.Selector})
}

func (a *typeStep) do(p *player) error {
	text := redact.NewString(a.Text)
	if a.Secret != "" {
		var ok bool
		if text, ok = p.secrets[a.Secret]; !ok {
			return &runtime.ActionError{Code: runtime.CodeSecretMissing, Message: "the secret that the step names was not granted to the task"}
		}
	}
	return p.page.Type(p.ctx, runtime.Target{Selector: a.Selector}, text, a.Clear == nil || *a.Clear)
}

func (a *pressStep) do(p *player) error {
	if a.Selector != "" { // typing nothing gives the focus
		if err := p.page.Type(p.ctx, runtime.Target{Selector: a.Selector}, redact.String{}, false); err != nil {
			return err
		}
	}
	return p.page.Press(p.ctx, a.Key)
}

func (a *selectStep) do(p *player) error { return p.page.Select(p.ctx, a.Selector, a.Option) }

func (a *uploadStep) do(p *player) error {
	path, ok := p.inputs[a.Input]
	if !ok {
		return &runtime.ActionError{Code: runtime.CodeInputMissing, Message: "the task has no input of the name that the step gives"}
	}
	return p.page.SetFiles(p.ctx, a.Selector, []string{path})
}

func (a *scrollStep) do(p *player) error {
	return p.page.Scroll(p.ctx, runtime.Target{Selector: a.Selector}, a.DX, a.DY)
}

func (a *waitStep) do(p *player) error {
	switch {
	case a.Visible != "":
		return p.until(runtime.CodeWaitTimeout, func() (string, error) {
			e, err := p.page.Query(p.ctx, a.Visible)
			return unless(e.Visible, describeMissing(e)), err
		})
	case a.Hidden != "":
		return p.until(runtime.CodeWaitTimeout, func() (string, error) {
			e, err := p.page.Query(p.ctx, a.Hidden)
			return unless(!e.Visible, "the element is still visible"), err
		})
	case a.Text != nil:
		return p.until(runtime.CodeWaitTimeout, func() (string, error) {
			info, err := p.page.Page(p.ctx)
			return unless(strings.Contains(info.Text, *a.Text), "the page does not show the text"), err
		})
	}
	return p.page.WaitIdle(p.ctx, time.Duration(a.IdleMS)*time.Millisecond)
}

func (a *assertStep) do(p *player) error {
	return p.until(runtime.CodeAssertion, func() (string, error) { return a.check(p) })
}

// check returns what does not hold, without the texts compared.
func (a *assertStep) check(p *player) (string, error) {
	info, err := p.page.Page(p.ctx)
	if err != nil {
		return "", err
	}
	text := info.Text
	if a.Selector != "" {
		e, err := p.page.Query(p.ctx, a.Selector)
		if err != nil {
			return "", err
		}
		text = e.Text
		switch {
		case a.Visible != nil && e.Visible != *a.Visible:
			return map[bool]string{true: "visible: " + describeMissing(e), false: "visible: the element is visible"}[*a.Visible], nil
		case !e.Found && (a.Text != nil || a.Value != nil):
			return "no element matches the selector", nil
		case a.Value != nil && e.Value != *a.Value:
			return "value: the element has another value", nil
		}
	}
	switch {
	case a.Text != nil && !strings.Contains(text, *a.Text):
		return "text: it does not contain the expected text", nil
	case a.Title != nil && !strings.Contains(info.Title, *a.Title):
		return "title: it does not contain the expected text", nil
	case a.URL != nil && !strings.Contains(info.URL, *a.URL):
		return "url: it does not contain the expected text", nil
	}
	return "", nil
}

func (a *readStep) do(p *player) error {
	value, err := a.read(p)
	if err == nil {
		p.reads[a.Name] = value
	}
	return err
}

func (a *readStep) read(p *player) (string, error) {
	if a.Selector == "" || a.What == "title" || a.What == "url" {
		info, err := p.page.Page(p.ctx)
		return map[string]string{"title": info.Title, "url": info.URL}[a.What] + unless(a.What == "title" || a.What == "url", info.Text), err
	}
	var e runtime.Element
	err := p.until(runtime.CodeElementMissing, func() (string, error) {
		var err error
		e, err = p.page.Query(p.ctx, a.Selector)
		return unless(e.Found, "no element matches the selector"), err
	})
	switch a.What {
	case "value":
		return e.Value, err
	case "attribute":
		return e.Attributes[a.Attribute], err
	}
	return e.Text, err
}

func (a *screenshotStep) do(p *player) error { return p.screenshot(p.ctx, a.Name) }

func (p *player) screenshot(ctx context.Context, name string) error {
	png, err := p.page.Screenshot(ctx)
	if err != nil {
		return err
	}
	return p.keep(name, runtime.ClassScreenshot, "image/png", png.Reveal())
}

func (a *uiTreeStep) do(p *player) error {
	tree, err := p.page.UITree(p.ctx)
	if err != nil {
		return err
	}
	tree.Mask(p.secrets)
	doc, err := json.MarshalIndent(tree, "", " ")
	if err != nil {
		return &runtime.ActionError{Code: runtime.CodeInternal, Message: "the UI tree could not be encoded"}
	}
	return p.keep(a.Name, runtime.ClassUITree, "application/json", doc)
}

func (p *player) keep(name string, class runtime.ArtifactClass, contentType string, content []byte) error {
	w, err := p.out.Artifact(name, class, contentType)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// until repeats check until it finds nothing missing or the step's time is over;
// the error then says what was missing last.
func (p *player) until(code runtime.Code, check func() (missing string, err error)) error {
	last := "the page did not answer"
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-p.ctx.Done():
			return &runtime.ActionError{Code: code, Message: last, Err: p.ctx.Err()}
		}
		missing, err := check()
		switch {
		case err != nil && p.ctx.Err() == nil:
			return err
		case err == nil && missing == "":
			return nil
		case err == nil:
			last = missing
		}
		timer.Reset(pollEvery)
	}
}

// unless returns text, or nothing when the condition holds.
func unless(condition bool, text string) string {
	if condition {
		return ""
	}
	return text
}

func describeMissing(e runtime.Element) string {
	if !e.Found {
		return "no element matches the selector"
	}
	return "the element is not visible"
}
