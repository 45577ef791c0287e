package chromium

import (
	"context"
	"encoding/json"

	"github.com/berth-dev/berth/pkg/runtime"
)

// The functions below run in the page, in our own world; "this" is the element.
const (
	// visibleJS: laid out, not hidden, and of some size.
	visibleJS = `function() {
  if (!this.isConnected) return false;
  const style = getComputedStyle(this);
  if (style.visibility !== "visible" || style.display === "none") return false;
  const box = this.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}`

	// aimJS scrolls the element into view and says where to click it, or why not yet.
	aimJS = `function() {
  const visible = ` + visibleJS + `;
  if (!visible.call(this)) return {why: "hidden"};
  if (this.disabled) return {why: "disabled"};
  this.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  const box = this.getBoundingClientRect();
  const left = Math.max(box.left, 0), right = Math.min(box.right, innerWidth);
  const top = Math.max(box.top, 0), bottom = Math.min(box.bottom, innerHeight);
  if (left >= right || top >= bottom) return {why: "outside"};
  const x = (left + right) / 2, y = (top + bottom) / 2;
  let hit = document.elementFromPoint(x, y);
  while (hit && hit.shadowRoot && hit.shadowRoot.elementFromPoint(x, y) && hit !== hit.shadowRoot.elementFromPoint(x, y)) hit = hit.shadowRoot.elementFromPoint(x, y);
  const label = hit && hit.closest("label");
  if (!hit || !(hit === this || this.contains(hit) || hit.contains(this) && hit.tagName === "LABEL" || label && label.control === this)) return {why: "covered"};
  return {x, y};
}`

	describeJS = `function() {
  const visible = ` + visibleJS + `;
  const attributes = {};
  for (const a of this.attributes) attributes[a.name] = a.value;
  return {Found: true, Visible: visible.call(this), Text: this.innerText ?? this.textContent ?? "", Value: String(this.value ?? ""), Attributes: attributes};
}`

	focusJS = `function(clear) {
  this.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  this.focus();
  if (!clear) return true;
  if (typeof this.select === "function") this.select();
  else { const range = document.createRange(); range.selectNodeContents(this); const sel = getSelection(); sel.removeAllRanges(); sel.addRange(range); }
  return true;
}`

	selectJS = `function(option) {
  if (this.tagName !== "SELECT") return "no select";
  const options = Array.from(this.options);
  const chosen = options.find(o => o.value === option) || options.find(o => o.text.trim() === option.trim());
  if (!chosen || chosen.disabled) return "no option";
  if (this.multiple) chosen.selected = true; else this.value = chosen.value, chosen.selected = true;
  this.dispatchEvent(new Event("input", {bubbles: true}));
  this.dispatchEvent(new Event("change", {bubbles: true}));
  return "";
}`

	scrollJS = `function(dx, dy) {
  this.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
  this.scrollBy({left: dx, top: dy, behavior: "instant"});
  return true;
}`
)

// find returns the first element that matches at once, or "" when none does.
func (s *session) find(ctx context.Context, selector string) (string, error) {
	quoted, err := json.Marshal(selector)
	if err != nil {
		return "", err
	}
	var id string
	err = s.retryStale(ctx, func() error {
		world, err := s.world(ctx)
		if err != nil {
			return err
		}
		var ev evaluation
		if err := s.call(ctx, "Runtime.evaluate", object{
			"expression": "document.querySelector(" + string(quoted) + ")", "contextId": world,
		}, &ev); err != nil {
			return err
		}
		if ev.Exception != nil {
			return &runtime.ActionError{Code: runtime.CodeBadSelector, Message: "the selector is no valid CSS selector"}
		}
		id = ev.Result.ObjectID
		return nil
	})
	return id, err
}

// apply calls a function on an element and decodes what it returns.
func (s *session) apply(ctx context.Context, element, function string, out any, args ...any) error {
	arguments := make([]object, 0, len(args))
	for _, a := range args {
		arguments = append(arguments, object{"value": a})
	}
	var ev evaluation
	if err := s.call(ctx, "Runtime.callFunctionOn", object{
		"objectId": element, "functionDeclaration": function, "arguments": arguments, "returnByValue": true,
	}, &ev); err != nil {
		return err
	}
	if ev.Exception != nil {
		return errScript
	}
	if out == nil || len(ev.Result.Value) == 0 {
		return nil
	}
	return json.Unmarshal(ev.Result.Value, out)
}

// on waits for the element and does try with it, again and again until try is
// done or ctx ends; why then says what was still missing.
func (s *session) on(ctx context.Context, selector string, try func(element string) (done bool, why string, err error)) error {
	code, why := runtime.CodeElementMissing, "no element matches the selector"
	for {
		element, err := s.find(ctx, selector)
		if err == nil && element != "" {
			var done bool
			var reason string
			done, reason, err = try(element)
			if err == nil && done {
				return nil
			}
			if err == nil || isStale(err) {
				err = nil
				code, why = runtime.CodeElementHidden, "the element "+orElse(reason, "kept changing")
			}
		}
		if err == nil {
			err = s.pause(ctx, pollEvery)
		}
		if err != nil {
			if ctx.Err() != nil {
				return &runtime.ActionError{Code: code, Message: why + " in time", Err: ctx.Err()}
			}
			return err
		}
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// point is a place in the viewport in CSS pixels.
type point struct{ x, y float64 }

// aim waits until the element can be clicked and returns where.
func (s *session) aim(ctx context.Context, selector string) (point, error) {
	reasons := map[string]string{
		"hidden": "did not become visible", "disabled": "did not become enabled",
		"outside": "could not be scrolled into view", "covered": "was covered by another one and did not become free",
	}
	var at point
	err := s.on(ctx, selector, func(element string) (bool, string, error) {
		var a struct {
			Why  string
			X, Y float64
		}
		if err := s.apply(ctx, element, aimJS, &a); err != nil {
			return false, "", err
		}
		at = point{a.X, a.Y}
		return a.Why == "", reasons[a.Why], nil
	})
	return at, err
}

// Query implements runtime.Browser.
func (s *session) Query(ctx context.Context, selector string) (runtime.Element, error) {
	var e runtime.Element
	err := s.retryStale(ctx, func() error {
		e = runtime.Element{}
		id, err := s.find(ctx, selector)
		if err != nil || id == "" {
			return err
		}
		return s.apply(ctx, id, describeJS, &e)
	})
	return e, err
}
