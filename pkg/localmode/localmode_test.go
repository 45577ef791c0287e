package localmode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/daemon"
	"github.com/berth-dev/berth/pkg/storeopen"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is what a person would see.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// running is a local Berth inside the test.
type running struct {
	Running
	said *output
	stop func() error
}

// start runs Up until it is ready. Without browsers, so that no Chromium is
// needed.
func start(t *testing.T, dir string, change func(*Options)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan Running, 1), make(chan error, 1)
	o := Options{DataDir: dir, Listen: "127.0.0.1:0", DemoListen: "127.0.0.1:0", Processes: 1, LogLevel: "debug", Ready: func(r Running) { ready <- r }}
	if change != nil {
		change(&o)
	}
	r := &running{said: &output{}}
	go func() { ended <- Up(ctx, o, r.said) }()
	var once sync.Once
	var result error
	r.stop = func() error {
		once.Do(func() { cancel(); result = <-ended })
		return result
	}
	t.Cleanup(func() {
		_ = r.stop()
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case r.Running = <-ready:
	case err := <-ended:
		once.Do(cancel)
		t.Fatalf("ended early: %v\n%s", err, r.said)
	case <-time.After(2 * time.Minute):
		t.Fatalf("not ready:\n%s", r.said)
	}
	return r
}

// post sends JSON and decodes the answer.
func post(t *testing.T, url, token string, body []byte, into any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
	}
	return resp.StatusCode
}

func (r *running) login(t *testing.T) string {
	t.Helper()
	password, err := os.ReadFile(r.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(map[string]string{"name": r.AdminName, "password": strings.TrimSpace(string(password))})
	var tokens struct {
		AccessToken string `json:"access_token"`
	}
	if status := post(t, r.URL+"/api/v1/auth/login", "", body, &tokens); status != 200 || tokens.AccessToken == "" {
		t.Fatalf("login gives %d", status)
	}
	return tokens.AccessToken
}

// runFirstTask submits what was written for a new user and waits for its end.
func (r *running) runFirstTask(t *testing.T) {
	t.Helper()
	spec, err := os.ReadFile(r.TaskFile)
	if err != nil {
		t.Fatal(err)
	}
	var task struct{ ID, State, Reason string }
	if status := post(t, r.URL+"/api/v1/tasks?wait=25", r.login(t), spec, &task); status != 201 || task.State != "succeeded" {
		t.Fatalf("%d %+v", status, task)
	}
}

func TestFirstStartAndRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data dir")
	r := start(t, dir, nil)
	password, err := os.ReadFile(r.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.TrimSpace(string(password))
	for _, want := range []string{"Made a new database", "Berth is up at " + r.URL, secret, r.DemoURL, "login", "task submit -f", "curl", "1 process"} {
		if !strings.Contains(r.said.String(), want) {
			t.Errorf("%q was not said:\n%s", want, r.said)
		}
	}
	r.runFirstTask(t)
	second := start2(t, dir)
	if !errors.Is(second, storeopen.ErrInUse) {
		t.Errorf("a second one on the directory: %v", second)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}

	again := start(t, dir, nil)
	if said := again.said.String(); strings.Contains(said, secret) || strings.Contains(said, "new database") {
		t.Errorf("the second start said:\n%s", said)
	}
	again.runFirstTask(t)
	if err := again.stop(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	checkFiles(t, dir, secret)
}

// start2 runs Up where it must fail.
func start2(t *testing.T, dir string) error {
	t.Helper()
	return Up(t.Context(), Options{DataDir: dir, Listen: "127.0.0.1:0", DemoListen: "127.0.0.1:0"}, io.Discard)
}

// checkFiles: what is secret is readable by its owner alone, and in no log.
func checkFiles(t *testing.T, dir, secret string) {
	t.Helper()
	for _, name := range []string{".", passwordFile, "master.key", "berth.db", "berth.log", "agent"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	log, err := os.ReadFile(filepath.Join(dir, "berth.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), secret) || strings.Contains(string(log), "Hello from Berth") || strings.Contains(string(log), "eyJ") {
		t.Error("the log holds a secret or content")
	}
	for _, event := range []string{"assigned", "claimed", "completed"} {
		if !strings.Contains(string(log), `"message":"`+event+`"`) {
			t.Errorf("the log has no %s event", event)
		}
	}
}

func TestTheCurlVariantWorks(t *testing.T) {
	r := start(t, filepath.Join(t.TempDir(), "d"), nil)
	var script strings.Builder
	for line := range strings.Lines(r.said.String()) {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "TOKEN=") || strings.HasPrefix(trimmed, "curl ") {
			script.WriteString(trimmed + "\n")
		}
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-euc", script.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"state":"succeeded"`) {
		t.Fatalf("%v: %s\n%s", err, out, script.String())
	}
}

func TestWithoutABrowserItSaysSoAndGoesOn(t *testing.T) {
	r := start(t, filepath.Join(t.TempDir(), "d"), func(o *Options) {
		o.Browsers, o.ChromiumPath = 1, "/does/not/exist/chromium"
	})
	if r.Browsers != 0 || !strings.Contains(r.said.String(), "No browser devices") {
		t.Errorf("said:\n%s", r.said)
	}
	r.runFirstTask(t)
}

func TestWithoutAnAgent(t *testing.T) {
	r := start(t, filepath.Join(t.TempDir(), "d"), func(o *Options) { o.NoAgent = true })
	if !strings.Contains(r.said.String(), "--no-agent") {
		t.Errorf("said:\n%s", r.said)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
}

func TestATakenPortIsOneSentenceWithTheRemedy(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, o := range []Options{
		{Listen: taken.Addr().String(), DemoListen: "127.0.0.1:0"},
		{Listen: "127.0.0.1:0", DemoListen: taken.Addr().String()},
	} {
		o.DataDir = filepath.Join(t.TempDir(), "d")
		err := Up(t.Context(), o, io.Discard)
		if !errors.Is(err, daemon.ErrAddressTaken) || !strings.Contains(err.Error(), "--listen") || !strings.Contains(err.Error(), taken.Addr().String()) {
			t.Errorf("%v", err)
		}
	}
}
