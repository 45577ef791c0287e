package chromium

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/runtime"
)

// Remedy tells an operator what to do where no browser is found.
const Remedy = "install Chromium (Debian, Ubuntu: apt-get install chromium) or configure its path"

// candidates are the names looked for in PATH, in this order.
func candidates() []string { return []string{"chromium", "chromium-browser", "google-chrome"} }

// Find returns the path of the browser: the configured one, which must exist, or
// the first of chromium, chromium-browser and google-chrome in PATH. The error
// is an *runtime.ActionError with CodeBrowserMissing that names the remedy.
func Find(configured string) (string, error) {
	if configured != "" {
		if fi, err := os.Stat(configured); err != nil || fi.IsDir() || fi.Mode()&0o111 == 0 {
			return "", &runtime.ActionError{
				Code:    runtime.CodeBrowserMissing,
				Message: fmt.Sprintf("the configured browser %s is not an executable file; %s", configured, Remedy),
			}
		}
		return filepath.Abs(configured)
	}
	for _, name := range candidates() {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", &runtime.ActionError{
		Code:    runtime.CodeBrowserMissing,
		Message: fmt.Sprintf("no browser was found (looked for %s in PATH); %s", strings.Join(candidates(), ", "), Remedy),
	}
}

var majorPattern = regexp.MustCompile(`\b(\d+)\.\d+\.\d+`)

// majorVersion asks the binary for its version.
func majorVersion(ctx context.Context, path string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	m := majorPattern.FindSubmatch(out)
	if err != nil || m == nil {
		return "", &runtime.ActionError{
			Code:    runtime.CodeBrowserStart,
			Message: fmt.Sprintf("%s --version does not answer as Chromium does; %s", path, Remedy), Err: err,
		}
	}
	return string(m[1]), nil
}
