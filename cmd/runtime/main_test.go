package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
)

// mainEnv makes this test binary be the command.
const mainEnv = "BERTH_TEST_BE_RUNTIME"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// daemon is a running Runtime process.
type daemon struct {
	cmd   *exec.Cmd
	url   string
	state string
	log   *bytes.Buffer
}

func startDaemon(t *testing.T, flags ...string) *daemon {
	t.Helper()
	if _, err := chromium.Find(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	d := &daemon{state: filepath.Join(t.TempDir(), "state"), log: &bytes.Buffer{}}
	d.cmd = exec.Command(os.Args[0], append([]string{"--listen", "127.0.0.1:0", "--state-dir", d.state, "--allow-loopback", "--log-level", "debug"}, flags...)...)
	d.cmd.Env = append(os.Environ(), mainEnv+"=1")
	d.cmd.Stderr = d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.cmd.Process.Kill(); _ = d.cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatalf("the Runtime said %q, %v", line, err)
	}
	d.url = url
	return d
}

// request sends one and returns status, content type and body.
func (d *daemon) request(t *testing.T, method, path, body string, header map[string]string) (int, string, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		if k == "Host" {
			req.Host = v
		} else {
			req.Header.Set(k, v)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), b
}

// post sends an action and fails the test unless it is answered with status.
func (d *daemon) post(t *testing.T, path string, body any, status int) []byte {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	got, _, answer := d.request(t, http.MethodPost, path, string(b), nil)
	if got != status {
		t.Fatalf("POST %s: %d, want %d: %s", path, got, status, answer)
	}
	return answer
}

type object = map[string]any

func checkBanner(t *testing.T, shot []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	want := color.NRGBA{demo.BannerRed, demo.BannerGreen, demo.BannerBlue, 255}
	for x := 1; x < img.Bounds().Dx(); x += 100 {
		if got := color.NRGBAModel.Convert(img.At(x, demo.BannerHeight/2)); got != want {
			t.Fatalf("pixel %d is %v, want %v", x, got, want)
		}
	}
}

func TestRuntimeAloneServesDevicesActionsAndRuns(t *testing.T) {
	site := httptest.NewServer(demo.Handler())
	defer site.Close()
	d := startDaemon(t, "--browsers", "2", "--slots", "1", "--label", "rack=b2")

	var list struct {
		Devices []struct {
			ID     string
			Labels map[string]string
		}
	}
	_, _, b := d.request(t, http.MethodGet, "/v1/devices", "", nil)
	if err := json.Unmarshal(b, &list); err != nil || len(list.Devices) != 3 || list.Devices[0].Labels["rack"] != "b2" {
		t.Fatalf("devices: %v %s", err, b)
	}
	if status, _, b := d.request(t, http.MethodGet, "/v1/devices/chromium-1", "", nil); status != 200 || !strings.Contains(string(b), `"health":"good"`) {
		t.Errorf("device: %d %s", status, b)
	}

	const typed = "typed-marker-42"
	d.post(t, "/v1/devices/chromium-0/open", object{"url": site.URL + "/"}, 204)
	status, kind, shot := d.request(t, http.MethodGet, "/v1/devices/chromium-0/screenshot", "", nil)
	if status != 200 || kind != "image/png" {
		t.Fatalf("screenshot: %d %s", status, kind)
	}
	checkBanner(t, shot)
	d.post(t, "/v1/devices/chromium-0/type", object{"selector": "#vessel", "text": typed}, 204)
	d.post(t, "/v1/devices/chromium-0/select", object{"selector": "#length", "option": "large"}, 204)
	d.post(t, "/v1/devices/chromium-0/scroll", object{"dy": 10}, 204)
	d.post(t, "/v1/devices/chromium-0/tap", object{"selector": "#order"}, 204)
	if b := d.post(t, "/v1/devices/chromium-0/read", object{"selector": "#result"}, 200); !strings.Contains(string(b), "Berth 12 is reserved for "+typed) {
		t.Errorf("read: %s", b)
	}
	d.post(t, "/v1/devices/chromium-0/press", object{"key": "Escape"}, 204)
	if _, _, b := d.request(t, http.MethodGet, "/v1/devices/chromium-0/ui-tree", "", nil); !strings.Contains(string(b), typed) || !strings.Contains(string(b), demo.Title) {
		t.Errorf("ui tree: %s", b)
	}
	d.post(t, "/v1/devices/chromium-0/clean", object{}, 204)
	if b := d.post(t, "/v1/devices/chromium-0/read", object{}, 200); strings.Contains(string(b), demo.Title) {
		t.Errorf("after clean the page is still there: %s", b)
	}

	d.firstTask(t, site.URL+"/")
	if strings.Contains(d.stop(t), typed) {
		t.Error("the log reveals typed text")
	}
	if left, _ := filepath.Glob(filepath.Join(d.state, "*", "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// firstTask runs the demo script and fetches what it left.
func (d *daemon) firstTask(t *testing.T, page string) {
	t.Helper()
	stream := d.post(t, "/v1/runs", object{"device_id": "chromium-0", "plugin": "browser.script", "payload": json.RawMessage(demo.FirstTask(page))}, 200)
	lines := strings.Split(strings.TrimSpace(string(stream)), "\n")
	var first, last struct {
		Type   string
		RunID  string `json:"run_id"`
		Result struct {
			Outcome   string
			Result    struct{ Reads map[string]string }
			Artifacts []struct{ Name string }
		}
	}
	if json.Unmarshal([]byte(lines[0]), &first) != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &last) != nil ||
		first.Type != "started" || last.Type != "result" || last.Result.Outcome != "succeeded" || len(last.Result.Artifacts) != 2 ||
		last.Result.Result.Reads["confirmation"] != demo.ResultText {
		t.Fatalf("stream: %s", stream)
	}
	for _, kind := range []string{`"progress"`, `"log"`, `"artifact"`} {
		if !strings.Contains(string(stream), kind) {
			t.Errorf("the stream has no %s", kind)
		}
	}
	base := "/v1/runs/" + first.RunID
	status, kind, shot := d.request(t, http.MethodGet, base+"/artifacts/"+demo.ScreenshotName, "", nil)
	if status != 200 || kind != "image/png" {
		t.Fatalf("artifact: %d %s", status, kind)
	}
	checkBanner(t, shot)
	if _, _, b := d.request(t, http.MethodGet, base+"/artifacts/"+demo.UITreeName, "", nil); !strings.Contains(string(b), demo.ResultText) {
		t.Errorf("tree: %s", b)
	}
	if _, _, b := d.request(t, http.MethodGet, base+"/log", "", nil); !strings.Contains(string(b), "step 9 ui_tree: ok") {
		t.Errorf("log: %s", b)
	}
}

// stop ends the process with SIGTERM and returns what it logged.
func (d *daemon) stop(t *testing.T) string {
	t.Helper()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("exit: %v\n%s", err, d.log)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not end after SIGTERM")
	}
	return d.log.String()
}

func TestRefusalsAreProblemsWithACode(t *testing.T) {
	d := startDaemon(t, "--browsers", "0", "--slots", "1", "--allow-command", "sleep", "--allow-command", "true")
	run := `{"device_id":"process-0","plugin":"process.run","payload":{"command":["true"]}}`
	for name, c := range map[string]struct {
		method, path, body string
		header             map[string]string
		status             int
		code               string
	}{
		"rebinding":       {"GET", "/v1/devices", "", map[string]string{"Host": "evil.example:7720"}, 403, "foreign_host"},
		"foreign origin":  {"POST", "/v1/runs", run, map[string]string{"Origin": "https://evil.example"}, 403, "foreign_site"},
		"local page":      {"POST", "/v1/runs", run, map[string]string{"Origin": "http://localhost:3000"}, 403, "foreign_site"},
		"image of a page": {"GET", "/v1/devices", "", map[string]string{"Sec-Fetch-Site": "cross-site"}, 403, "foreign_site"},
		"form":            {"POST", "/v1/runs", run, map[string]string{"Content-Type": "text/plain"}, 415, "json_required"},
		"unknown device":  {"GET", "/v1/devices/none", "", nil, 404, "unknown_device"},
		"unknown plugin":  {"POST", "/v1/runs", `{"device_id":"process-0","plugin":"x"}`, nil, 404, "unknown_plugin"},
		"bad payload":     {"POST", "/v1/runs", `{"device_id":"process-0","plugin":"process.run","payload":{}}`, nil, 422, "invalid_payload"},
		"unknown field":   {"POST", "/v1/runs", `{"device":"process-0"}`, nil, 400, "invalid_request"},
		"wrong device":    {"POST", "/v1/devices/process-0/open", `{"url":"http://x"}`, nil, 409, "unsupported_by_device"},
		"no screen":       {"GET", "/v1/devices/process-0/screenshot", "", nil, 409, "unsupported_by_device"},
		"unknown run":     {"GET", "/v1/runs/none/log", "", nil, 404, "unknown_run"},
		"unknown route":   {"GET", "/v2", "", nil, 404, "http_error"},
	} {
		t.Run(name, func(t *testing.T) {
			status, kind, body := d.request(t, c.method, c.path, c.body, c.header)
			var p struct{ Code string }
			if err := json.Unmarshal(body, &p); err != nil || status != c.status || p.Code != c.code || kind != "application/problem+json" {
				t.Errorf("got %d %s %s", status, kind, body)
			}
		})
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if status, _, _ := d.request(t, http.MethodGet, path, "", nil); status != 204 {
			t.Errorf("%s: %d", path, status)
		}
	}
	t.Run("sigterm ends a running stream", func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/v1/runs", strings.NewReader(strings.Replace(run, `"true"`, `"sleep","1000"`, 1)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req) // answered with the first progress line
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		d.stop(t)
		rest, err := io.ReadAll(resp.Body)
		if err != nil || !strings.Contains(string(rest), `"outcome":"cancelled","reason":"killed"`) {
			t.Errorf("stream ended with %v: %s", err, rest)
		}
	})
}

func TestFlagsAreRefusedAllAtOnce(t *testing.T) {
	env := func(string) string { return "" }
	_, err := parseFlags([]string{"--listen", "0.0.0.0:1", "--browsers", "-1", "extra"}, env, io.Discard)
	for _, part := range []string{"--allow-remote", "--browsers", "extra"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error does not name %s: %v", part, err)
		}
	}
	if _, err := parseFlags([]string{"--listen", "0.0.0.0:1", "--allow-remote"}, env, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestMissingBrowserIsSaidWithTheRemedy(t *testing.T) {
	d := startDaemon(t, "--chromium", "/nonexistent/chromium", "--browsers", "1", "--slots", "0")
	_, _, b := d.request(t, http.MethodGet, "/v1/devices", "", nil)
	if !strings.Contains(string(b), `"health":"unavailable"`) || !strings.Contains(string(b), "apt-get install chromium") {
		t.Errorf("devices: %s", b)
	}
	status, _, b := d.request(t, http.MethodGet, "/v1/devices/chromium-0/screenshot", "", nil)
	if status != 422 || !strings.Contains(string(b), "browser_missing") || !strings.Contains(string(b), "apt-get install chromium") {
		t.Errorf("screenshot: %d %s", status, b)
	}
}

// The local Runtime must stay what it is: no control plane, no persistence.
func TestImportsNoControlPlane(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, dep := range strings.Fields(string(out)) {
		if dep == "database/sql" { // semver brings database/sql/driver, an interface only
			t.Error("cmd/runtime depends on database/sql")
		}
		for _, banned := range []string{
			"berth/pkg/store", "berth/pkg/scheduler", "berth/pkg/leasekeeper", "berth/pkg/identity", "berth/pkg/hostagent", "berth/pkg/agentapi",
			"berth/pkg/httpapi", "berth/pkg/client", "berth/db", "jackc/pgx", "mattn/go-sqlite3", "golang-migrate",
		} {
			if strings.Contains(dep, banned) {
				t.Errorf("cmd/runtime depends on %s", dep)
			}
		}
	}
	if !strings.Contains(string(out), "github.com/berth-dev/berth/pkg/runtime/chromium") {
		t.Error("the list of dependencies is not that of this command")
	}
}
