package chromium

import (
	"context"

	"github.com/berth-dev/berth/pkg/runtime"
)

const fileInputJS = `function() {
  if (this.tagName !== "INPUT" || this.type !== "file") return "no file input";
  return this.disabled ? "disabled" : "";
}`

// SetFiles implements runtime.Browser. The element need not be visible: pages
// often hide it behind a button of their own.
func (s *session) SetFiles(ctx context.Context, selector string, paths []string) error {
	var answer string
	err := s.on(ctx, selector, func(element string) (bool, string, error) {
		if err := s.apply(ctx, element, fileInputJS, &answer); err != nil {
			return false, "", err
		}
		if answer != "" {
			return answer != "disabled", "did not become enabled", nil
		}
		return true, "", s.call(ctx, "DOM.setFileInputFiles", object{"objectId": element, "files": paths}, nil)
	})
	if err == nil && answer == "no file input" {
		return &runtime.ActionError{Code: runtime.CodeUnsupported, Message: "the selector matches an element that is no file input"}
	}
	return err
}
