package builtin_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/runtime"
)

// input is a file that a caller has for a run, as the Host Agent's cache does.
func input(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0123abcd")
	if err := os.WriteFile(path, []byte(content), 0o400); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProcessRunSeesInputsAsReadOnlyFiles(t *testing.T) {
	path := input(t, "the app's bytes")
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "process-0", Plugin: "process.run", Version: "^1.1.0", Inputs: map[string]string{"app.apk": path, "again.bin": path},
		Payload: payload(t, map[string]any{
			"command": []string{"sh", "-c", `cd "$BERTH_INPUTS" && ls && cat app.apk && stat -c %a app.apk`},
			"env":     map[string]string{"BERTH_INPUTS": "/not/this"},
		}),
	})
	want(t, res, runtime.OutcomeSucceeded, "")
	log, err := os.ReadFile(res.LogPath)
	if err != nil || string(log) != "again.bin\napp.apk\nthe app's bytes400\n" {
		t.Errorf("%q, %v", log, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(res.LogPath), "inputs")); !os.IsNotExist(err) {
		t.Errorf("the run's inputs are left: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "the app's bytes" {
		t.Errorf("the caller's file: %q, %v", b, err)
	}
	res = slot(t, payload(t, map[string]any{"command": []string{"sh", "-c", `echo "${BERTH_INPUTS-none}"`}}))
	if log, err := os.ReadFile(res.LogPath); err != nil || string(log) != "none\n" {
		t.Errorf("without inputs: %q, %v", log, err)
	}
}

func TestAnInputIsRefusedByItsNameOrPath(t *testing.T) {
	for name, path := range map[string]string{"../up": input(t, "x"), "a/b": input(t, "x"), ".hidden": input(t, "x"), "": input(t, "x"), "relative": "some/file"} {
		_, err := shared.Run(t.Context(), fill(t, runtime.RunRequest{
			DeviceID: "process-0", Plugin: "process.run", Inputs: map[string]string{name: path},
			Payload: payload(t, map[string]any{"command": []string{"true"}}),
		}))
		if err == nil || !strings.Contains(err.Error(), "an input is named by") {
			t.Errorf("%q at %q: %v", name, path, err)
		}
	}
}

func TestBrowserScriptUploadsAnInput(t *testing.T) {
	upload := func(t *testing.T, step map[string]any) runtime.Result {
		return run(t, t.Context(), runtime.RunRequest{
			DeviceID: "chromium-0", Plugin: "browser.script", Version: "^1.1.0", Inputs: map[string]string{"report.txt": input(t, "hello file")},
			Payload: payload(t, map[string]any{"step_timeout_ms": (10 * time.Second).Milliseconds(), "steps": []any{
				map[string]any{"goto": map[string]any{"url": site.URL + "/steps"}},
				step,
				map[string]any{"assert": map[string]any{"selector": "#out", "text": "report.txt: hello file"}},
			}}),
		})
	}
	step := func(selector, name string) map[string]any {
		return map[string]any{"upload": map[string]any{"selector": selector, "input": name}, "timeout_ms": 2000}
	}
	want(t, upload(t, step("#file", "report.txt")), runtime.OutcomeSucceeded, "")
	want(t, upload(t, step("#file", "other.txt")), runtime.OutcomeFailed, runtime.CodeInputMissing)
	want(t, upload(t, step("#name", "report.txt")), runtime.OutcomeFailed, runtime.CodeUnsupported)
	want(t, upload(t, step("#nothing", "report.txt")), runtime.OutcomeFailed, runtime.CodeElementMissing)
}
