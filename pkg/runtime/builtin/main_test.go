package builtin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/runtime/process"
)

// One Runtime with one browser serves all tests of the package.
var (
	shared    *builtin.Runtime
	sharedLog bytes.Buffer
	site      *httptest.Server
	runCount  atomic.Int64
	// deniedHits are the requests that reached an address the policy denies.
	deniedHits sync.Map
)

const contexts = 4

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashChild()
	}
	code, err := withShared(m)
	if err == nil && code == 0 {
		err = goleak.Find()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withShared(m *testing.M) (int, error) {
	if _, err := chromium.Find(""); err != nil {
		return 1, fmt.Errorf("these tests need a real browser: %w", err)
	}
	dir, err := os.MkdirTemp("", "berth-builtin-test-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	site = httptest.NewServer(siteHandler())
	defer site.Close()
	log := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&sharedLog), zapcore.DebugLevel))
	shared, err = builtin.New(context.Background(), config(dir, log))
	if err != nil {
		return 1, err
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		return 1, err
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	if len(left) > 0 {
		return 1, fmt.Errorf("the state directory still holds %v", left)
	}
	http.DefaultClient.CloseIdleConnections()
	return code, nil
}

func config(dir string, log *zap.Logger) builtin.Config {
	return builtin.Config{
		StateDir: dir, ProcessSlots: 2, BrowserContexts: contexts, Logger: log,
		Process:  process.Config{Grace: 300 * time.Millisecond, OutputBytes: 1 << 20},
		Chromium: chromium.Config{Policy: chromium.Policy{AllowLoopback: true, Deny: []string{"127.0.0.9", "denied.localhost"}}},
		Labels:   map[string]string{"rack": "a1"},
	}
}

// siteHandler serves the demo page and the pages that single tests need.
func siteHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", demo.Handler())
	html := func(path, body string) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write([]byte("<!doctype html><html lang=en><title>Page " + path + "</title>" + body))
		})
	}
	html("/cookie", `<p id=c></p><script>c.textContent = "cookies: " + document.cookie + localStorage.getItem("k"); document.cookie = "who=me"; localStorage.setItem("k", "v")</script>`)
	html("/steps", stepsPage)
	html("/busy", `<p>busy</p><script>setTimeout(() => { while (true) {} }, 50)</script>`)
	html("/alert", `<p id=p>before</p><script>alert("stop"); p.textContent = "after"</script>`)
	html("/hop", `<script>location.replace("/steps")</script>`)
	mux.HandleFunc("/redirect-out", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
	})
	mux.HandleFunc("/denied", func(_ http.ResponseWriter, r *http.Request) { deniedHits.Store(r.URL.RawQuery, true) })
	mux.HandleFunc("/frames", func(w http.ResponseWriter, r *http.Request) {
		_, port, _ := net.SplitHostPort(r.Host)
		_, _ = fmt.Fprintf(w, `<!doctype html><p>frames</p>
<iframe src="http://denied.localhost:%[1]s/denied?frame"></iframe>
<iframe src="http://other.localhost:%[1]s/bounce?http://denied.localhost:%[1]s/denied?redirect"></iframe>
<iframe src="http://other.localhost:%[1]s/leave?http://denied.localhost:%[1]s/denied?leave"></iframe>
<script>%[2]s</script>`, port, `if (location.search === "?popup") open("/steps")`)
	})
	mux.HandleFunc("/bounce", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.RawQuery, http.StatusFound) })
	mux.HandleFunc("/leave", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, `<script>setTimeout(() => { location = %q }, 100)</script>`, r.URL.RawQuery)
	})
	mux.HandleFunc("/never", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then the server sees that the client leaves
		<-r.Context().Done()
	})
	// Pages of TestIdleWaitsForThePagesOwnRequests.
	html("/idle/hop", `<p>hop</p><script>fetch("/never"); new Image().src = "/never"; setTimeout(() => location.replace("/hop"), 50)</script>`)
	mux.HandleFunc("/idle/unended", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, `<!doctype html><script>location.replace("/steps")</script>`+strings.Repeat(" ", 4096))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	html("/idle/workers", `<script>
new Worker("/idle/worker.js"); new SharedWorker("/idle/worker.js"); new Worker(URL.createObjectURL(new Blob(["1"], {type: "text/javascript"})))</script>`)
	mux.HandleFunc("/idle/worker.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = fmt.Fprint(w, `1`)
	})
	html("/idle/aside", `<link rel=icon href=/never><link rel=prefetch href=/never><script>navigator.sendBeacon("/never", "x")</script>`)
	html("/idle/streams", `<script>new EventSource("/idle/events"); new WebSocket("ws://" + location.host + "/never")</script>`)
	mux.HandleFunc("/idle/events", func(w http.ResponseWriter, _ *http.Request) { // ends at once and is asked for again
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "retry: 50\n\n")
	})
	html("/idle/poll", `<script>fetch("/never")</script>`)
	html("/idle/refresh", `<script>setInterval(() => fetch("/favicon.ico").then((r) => r.text()), 100)</script>`)
	return mux
}

const stepsPage = `
<style>#late, #gone-soon { padding: 4px } #pass { width: 200px }</style>
<input id=name value=old> <input id=pass type=password> <textarea id=area></textarea>
<select id=sel><option value=a>Alpha</option><option value=b>Beta</option></select>
<button id=go disabled>Go</button> <p id=out data-kind=answer></p> <p id=late hidden>late text</p> <p id=gone>soon gone</p>
<div id=cover style="position:absolute; left:0; top:300px; width:200px; height:50px; background:#ccc; z-index:2"></div>
<button id=under style="position:absolute; left:10px; top:310px">under</button>
<input id=file type=file hidden>
<div style="height:3000px"></div><button id=far>far away</button>
<script>
  setTimeout(() => { go.disabled = false; late.hidden = false; gone.remove() }, 150);
  go.onclick = () => { out.textContent = name_() + "/" + sel.value };
  const name_ = () => document.getElementById("name").value;
  document.getElementById("name").onkeydown = (e) => { if (e.key === "Enter") out.textContent = "entered " + name_() };
  file.onchange = async () => { out.textContent = file.files[0].name + ": " + await file.files[0].text() };
  far.onclick = () => { out.textContent = "far clicked" };
</script>`

// run runs a plugin on the shared Runtime and fails the test when it is refused.
func run(t *testing.T, ctx context.Context, req runtime.RunRequest) runtime.Result {
	t.Helper()
	res, err := shared.Run(ctx, fill(t, req))
	if err != nil {
		t.Fatalf("run was refused: %v", err)
	}
	return res
}

// fill adds what every request needs.
func fill(t *testing.T, req runtime.RunRequest) runtime.RunRequest {
	t.Helper()
	if req.RunID == "" {
		req.RunID = runtime.RunID(fmt.Sprintf("run-%d", runCount.Add(1)))
	}
	if req.Dir == "" {
		req.Dir = filepath.Join(t.TempDir(), "run")
	}
	return req
}

type steps []map[string]any

func script(t *testing.T, s steps) redact.Bytes {
	return payload(t, map[string]any{"steps": s, "step_timeout_ms": 5000})
}

func payload(t *testing.T, v any) redact.Bytes {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return redact.NewBytes(b)
}

func browse(t *testing.T, device string, s steps) runtime.Result {
	t.Helper()
	return run(t, t.Context(), runtime.RunRequest{DeviceID: runtime.DeviceID(device), Plugin: "browser.script", Payload: script(t, s)})
}

func command(t *testing.T, args ...string) redact.Bytes {
	return payload(t, map[string]any{"command": args})
}

func want(t *testing.T, res runtime.Result, outcome runtime.Outcome, reason runtime.Code) {
	t.Helper()
	if res.Outcome != outcome || res.Reason != reason {
		t.Fatalf("got %s %q (%s), want %s %q\nresult %s\nlog:\n%s", res.Outcome, res.Reason, res.Message, outcome, reason, res.JSON.Reveal(), logOf(t, res))
	}
	if !res.DeviceClean {
		t.Fatal("the device is not clean")
	}
}

func logOf(t *testing.T, res runtime.Result) string {
	t.Helper()
	b, err := os.ReadFile(res.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != res.LogSize {
		t.Fatalf("log has %d bytes, the result says %d", len(b), res.LogSize)
	}
	return string(b)
}

func artifact(t *testing.T, res runtime.Result, name string) (runtime.Artifact, []byte) {
	t.Helper()
	for _, a := range res.Artifacts {
		if a.Name == name {
			b, err := os.ReadFile(a.Path)
			if err != nil {
				t.Fatal(err)
			}
			return a, b
		}
	}
	t.Fatalf("no artifact %q among %v", name, res.Artifacts)
	return runtime.Artifact{}, nil
}

func picture(t *testing.T, b []byte) image.Image {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// reads returns what the read steps of a script left in the result.
func reads(t *testing.T, res runtime.Result) map[string]string {
	t.Helper()
	var r struct{ Reads map[string]string }
	if err := json.Unmarshal(res.JSON.Reveal(), &r); err != nil {
		t.Fatal(err)
	}
	return r.Reads
}

// listener is a Sink that signals when the log holds a text.
type listener struct {
	runtime.Discard
	mu   sync.Mutex
	log  strings.Builder
	want string
	seen chan struct{}
}

func listen(text string) *listener { return &listener{want: text, seen: make(chan struct{})} }

func (l *listener) Log(_ int64, chunk redact.Bytes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := strings.Contains(l.log.String(), l.want)
	l.log.Write(chunk.Reveal())
	if !had && strings.Contains(l.log.String(), l.want) {
		close(l.seen)
	}
}

// wait waits for the text.
func (l *listener) wait(t *testing.T) string {
	t.Helper()
	select {
	case <-l.seen:
	case <-time.After(20 * time.Second):
		t.Fatalf("the log never held %q", l.want)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.String()
}

// start begins a run and returns a channel that gets its result.
func start(t *testing.T, ctx context.Context, req runtime.RunRequest) <-chan runtime.Result {
	t.Helper()
	req = fill(t, req)
	done := make(chan runtime.Result, 1)
	go func() {
		res, err := shared.Run(ctx, req)
		if err != nil {
			t.Errorf("run was refused: %v", err)
		}
		done <- res
	}()
	return done
}

func within(t *testing.T, d time.Duration, done <-chan runtime.Result) runtime.Result {
	t.Helper()
	select {
	case res := <-done:
		return res
	case <-time.After(d):
		t.Fatalf("the run did not end within %v", d)
		return runtime.Result{}
	}
}
