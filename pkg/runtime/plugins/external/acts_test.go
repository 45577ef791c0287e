package external_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var runs atomic.Int64

// host makes a Runtime with one process slot and the plugins of dir. When the
// test ends, nothing may be left of what it started.
func host(t *testing.T, dir string) *builtin.Runtime {
	t.Helper()
	state := t.TempDir()
	rt, err := builtin.New(t.Context(), builtin.Config{StateDir: state, ProcessSlots: 1, PluginDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(state, "*", "*")); len(left) > 0 {
			t.Errorf("left of processes: %v", left)
		}
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

func request(t *testing.T, plugin string, payload any) runtime.RunRequest {
	t.Helper()
	b, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RunRequest{
		RunID: runtime.RunID(fmt.Sprintf("run-%d", runs.Add(1))), DeviceID: "process-0", Plugin: plugin, Payload: redact.NewBytes(b),
		Dir: filepath.Join(t.TempDir(), "run"), Task: "task-7", Attempt: 2, StopWithin: func() time.Duration { return time.Minute },
	}
}

func act(t *testing.T, name string) runtime.RunRequest {
	return request(t, "test.acts", map[string]any{"act": name})
}

func do(t *testing.T, rt *builtin.Runtime, req runtime.RunRequest) runtime.Result {
	t.Helper()
	res, err := rt.Run(t.Context(), req)
	if err != nil {
		t.Fatalf("the run was refused: %v", err)
	}
	return res
}

func logOf(t *testing.T, res runtime.Result) string {
	t.Helper()
	b, err := os.ReadFile(res.LogPath)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func artifacts(t *testing.T, res runtime.Result) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, a := range res.Artifacts {
		b, err := os.ReadFile(a.Path)
		if err != nil {
			t.Fatal(err)
		}
		out[a.Name] = string(b)
	}
	return out
}

// ending is a line of the table of endings in docs/plugins.md.
type ending struct {
	act     string
	outcome runtime.Outcome
	reason  runtime.Code
	message string // a part of it
	log     string // a part of it
}

func endings() []ending {
	const (
		ok     = runtime.OutcomeSucceeded
		failed = runtime.OutcomeFailed
		infra  = runtime.OutcomeInfraFailed
	)
	return []ending{
		{"ok", ok, "", "", "from stdout\n"},
		{"no-newline", ok, "", "", ""},
		{"closes-stdout-after-result", ok, "", "", "on\n"},
		{"hang-after-result", ok, "", "", "[the plugin did not exit within 5s of its result and was killed]"},
		{"daemon", ok, "", "", ""},
		{"escapes", ok, "", "", ""},
		{"silent-symlink", ok, "", "", `["link" in the artifacts directory is no regular file and is not kept]`},
		{"failed", failed, runtime.CodePluginFailed, "the light is red", ""},
		{"infra", infra, runtime.CodePluginInfraFailed, "the board is dark", ""},
		{"exit-0", failed, runtime.CodePluginNoResult, "without a result", ""},
		{"closes-stdout", failed, runtime.CodePluginNoResult, "without a result", "on\n"},
		{"exit-3", failed, runtime.CodeExitCode, "exited with code 3 and gave no result", ""},
		{"segv", failed, runtime.CodeExitCode, "ended by SIGSEGV", ""},
		{"kill", infra, runtime.CodePluginKilled, "SIGKILL", ""},
		{"exit-1-after-success", failed, runtime.CodeExitCode, "exited with code 1 after it said that it succeeded", ""},
		{"broken", failed, runtime.CodePluginOutput, "line 3 of the plugin's standard output is not one JSON object", "good\n"},
		{"print", failed, runtime.CodePluginOutput, "line 1 of", ""},
		{"garbage", failed, runtime.CodePluginOutput, "line 1 of", ""},
		{"garbage-flood", failed, runtime.CodePluginOutput, "line 1 of the plugin's standard output is longer than 1 MiB", ""},
		{"huge-line", failed, runtime.CodePluginOutput, "line 1 of the plugin's standard output is longer than 1 MiB", ""},
		{"log-flood", failed, runtime.CodeOutputLimit, "more than 67108864 bytes", "[log limit reached"},
		{"stderr-flood", failed, runtime.CodeOutputLimit, "more than 67108864 bytes", "[log limit reached"},
		{"two-results", failed, runtime.CodePluginOutput, "line 2 of the plugin's standard output comes after the result", ""},
		{"log-after-result", failed, runtime.CodePluginOutput, "line 2 of", ""},
		{"bad-result", failed, runtime.CodeBadResult, "breaks its own schema: /n (must be integer)", ""},
		{"large-result", failed, runtime.CodePluginOutput, "more than 256 KiB", ""},
		{"many-artifacts", failed, runtime.CodeArtifactLimit, "at most 100 artifacts", "is not kept"},
		{"symlink", failed, runtime.CodeArtifactMissing, "no regular file", `[artifact "link" is not kept`},
		{"symlinked-folder", failed, runtime.CodeArtifactMissing, "no regular file", ""},
		{"outside", failed, runtime.CodeArtifactMissing, "no regular file", ""},
		{"absolute", failed, runtime.CodeArtifactMissing, "no regular file", ""},
		{"missing-artifact", failed, runtime.CodeArtifactMissing, "no regular file", ""},
		{"twice", failed, runtime.CodeArtifactLimit, "of that name already", ""},
	}
}

// However a plugin's process ends, the run ends as documented, the device is
// clean and takes the next run, nothing of the process is left, and what it
// wrote takes no memory.
func TestEndings(t *testing.T) {
	rt := host(t, "testdata/plugins")
	for _, e := range endings() {
		t.Run(e.act, func(t *testing.T) {
			before := heap()
			began := time.Now()
			res := do(t, rt, act(t, e.act))
			if res.Outcome != e.outcome || res.Reason != e.reason || !strings.Contains(res.Message, e.message) {
				t.Errorf("%s %s: %s", res.Outcome, res.Reason, res.Message)
			}
			if !res.DeviceClean {
				t.Error("the device is unclean")
			}
			log := logOf(t, res)
			if !strings.Contains(log, e.log) {
				t.Errorf("log: %.2000s", log)
			}
			for _, text := range []string{res.Message, log} {
				if strings.Contains(text, "sesame") || strings.Contains(text, "root:") {
					t.Errorf("content of the output is in %.2000q", text)
				}
			}
			if res.LogSize > 16<<20+200 {
				t.Errorf("the log has %d bytes", res.LogSize)
			}
			for name, content := range artifacts(t, res) {
				if strings.Contains(content, "root:") {
					t.Errorf("artifact %s is a file of the host", name)
				}
			}
			if more := heap() - before; more > 100<<20 {
				t.Errorf("%d MiB more memory", more>>20)
			}
			limit := 2 * time.Minute
			if e.act == "escapes" {
				limit = 12 * time.Second // what escaped holds the output open for longer
			}
			if took := time.Since(began); took > limit {
				t.Errorf("it took %v", took)
			}
			for _, pid := range pids(log) {
				if alive(pid) {
					t.Errorf("process %d lives on", pid)
				}
			}
		})
	}
}

// heap is the memory that this process holds for Go.
func heap() int64 {
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapSys)
}

var pidLine = regexp.MustCompile(`pid (\d+)`)

func pids(log string) []int {
	var out []int
	for _, m := range pidLine.FindAllStringSubmatch(log, -1) {
		pid, _ := strconv.Atoi(m[1])
		out = append(out, pid)
	}
	return out
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestTheManifestsOwnLimits(t *testing.T) {
	rt := host(t, "testdata/plugins")
	for _, e := range []ending{
		{"wait", runtime.OutcomeTimedOut, runtime.CodePluginTimeout, "its own limit of 2s", "waiting"},
		{"stderr-flood", runtime.OutcomeFailed, runtime.CodeOutputLimit, "more than 100000 bytes", ""},
		{"three-artifacts", runtime.OutcomeFailed, runtime.CodeArtifactLimit, "at most 2 artifacts", ""},
		{"large-artifact", runtime.OutcomeFailed, runtime.CodeArtifactLimit, "at most 10 bytes", ""},
	} {
		res := do(t, rt, request(t, "test.limited", map[string]any{"act": e.act}))
		if res.Outcome != e.outcome || res.Reason != e.reason || !strings.Contains(res.Message, e.message) || !strings.Contains(logOf(t, res), e.log) || !res.DeviceClean {
			t.Errorf("%s: %+v", e.act, res)
		}
		if e.act == "three-artifacts" && len(res.Artifacts) != 2 {
			t.Errorf("kept %v", res.Artifacts)
		}
	}
	res := do(t, rt, request(t, "test.nostart", map[string]any{}))
	if res.Outcome != runtime.OutcomeInfraFailed || res.Reason != runtime.CodePluginStart || !strings.HasSuffix(res.Message, "no such file or directory") || !res.DeviceClean {
		t.Errorf("a program that does not start: %+v", res)
	}
	deaf := act(t, "ok")
	deaf.Task = "deaf"
	deaf.Payload = redact.NewBytes([]byte(`{"act":"ok","much":"` + strings.Repeat("x", 250_000) + `"}`))
	if res := do(t, rt, deaf); res.Outcome != runtime.OutcomeSucceeded {
		t.Errorf("one that does not read its input: %+v", res)
	}
}

// listener waits until the log holds n times a text.
type listener struct {
	runtime.Discard
	want string
	n    int
	seen chan struct{}
	once sync.Once
	mu   sync.Mutex
	log  strings.Builder
}

func listen(want string, n int) *listener {
	return &listener{want: want, n: n, seen: make(chan struct{})}
}

func (l *listener) Log(_ int64, chunk redact.Bytes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log.Write(chunk.Reveal())
	if strings.Count(l.log.String(), l.want) >= l.n {
		l.once.Do(func() { close(l.seen) })
	}
}

// A run that is cancelled, or whose time is over, ends with all that its plugin
// started, whatever that does about SIGTERM.
func TestStoppedPlugins(t *testing.T) {
	rt := host(t, "testdata/plugins")
	for _, c := range []struct {
		act, until string
		n          int
		log        string
	}{
		{"wait", "waiting", 1, ""},
		{"polite", "waiting", 1, "cleaned up\n"},
		{"deaf-to-term", "waiting", 1, ""},
		{"forks", "pid ", 4, ""},
	} {
		t.Run(c.act, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := listen(c.until, c.n)
			req := act(t, c.act)
			req.Sink = l
			done := make(chan runtime.Result, 1)
			go func() {
				res, err := rt.Run(ctx, req)
				if err != nil {
					t.Error(err)
				}
				done <- res
			}()
			await(t, l.seen)
			cancel()
			var res runtime.Result
			select {
			case res = <-done:
			case <-time.After(time.Minute):
				t.Fatal("it does not stop")
			}
			log := logOf(t, res)
			if res.Outcome != runtime.OutcomeCancelled || !res.DeviceClean || !strings.Contains(log, c.log) {
				t.Errorf("%+v, log %q", res, log)
			}
			if c.act != "wait" && c.act != "polite" && len(pids(log)) != c.n {
				t.Errorf("log %q", log)
			}
			for _, pid := range pids(log) {
				if alive(pid) {
					t.Errorf("process %d lives on", pid)
				}
			}
		})
	}
	req := act(t, "wait")
	req.Timeout = 500 * time.Millisecond
	if res := do(t, rt, req); res.Outcome != runtime.OutcomeTimedOut || res.Reason != runtime.CodeRunTimeout || !res.DeviceClean {
		t.Errorf("after its time: %+v", res)
	}
}

func await(t *testing.T, seen <-chan struct{}) {
	t.Helper()
	select {
	case <-seen:
	case <-time.After(time.Minute):
		t.Fatal("the plugin did not get so far")
	}
}

func TestWhatAPluginLeaves(t *testing.T) {
	rt := host(t, "testdata/plugins")
	p := &progress{}
	req := act(t, "ok")
	req.Sink = p
	res := do(t, rt, req)
	kept := artifacts(t, res)
	if len(kept) != 3 || kept["renamed.json"] != "{\"a\": 1}\n" || kept["deep.txt"] != "deep\n" || kept["left.txt"] != "left\n" {
		t.Errorf("artifacts %v", kept)
	}
	for _, a := range res.Artifacts {
		want := map[string][2]string{
			"renamed.json": {"report", "application/json"}, "deep.txt": {"file", "text/plain; charset=utf-8"}, "left.txt": {"file", "text/plain; charset=utf-8"},
		}[a.Name]
		if string(a.Class) != want[0] || a.ContentType != want[1] {
			t.Errorf("%+v", a)
		}
	}
	if string(res.JSON.Reveal()) != `{"n":1}` || !strings.Contains(logOf(t, res), "from stderr\n") {
		t.Errorf("%+v", res)
	}
	if p.last != "half 0.5" {
		t.Errorf("progress %q", p.last)
	}
}

type progress struct {
	runtime.Discard
	last string
}

func (p *progress) Progress(fraction float64, note string) { p.last = fmt.Sprint(note, " ", fraction) }

// The process gets the document that docs/plugins.md shows, and of the host's
// environment nothing.
func TestWhatAPluginGets(t *testing.T) {
	t.Setenv("HOST_SECRET", "of-the-host")
	rt := host(t, "testdata/plugins")
	input := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(input, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	req := act(t, "document")
	req.Inputs = map[string]string{"app.txt": input}
	req.Secrets = redact.Strings{"token": redact.NewString("s3cr3t-value-77")}
	req.Timeout = time.Hour
	began := time.Now()
	res := do(t, rt, req)
	kept := artifacts(t, res)
	var doc map[string]any
	if err := json.Unmarshal([]byte(kept["document.json"]), &doc); err != nil {
		t.Fatalf("%v, %+v, %s", err, res, logOf(t, res))
	}
	deadline, err := time.Parse(time.RFC3339, fmt.Sprint(doc["deadline"]))
	if left := deadline.Sub(began); err != nil || left < 59*time.Minute || left > 61*time.Minute {
		t.Errorf("deadline %v, %v", doc["deadline"], err)
	}
	work := filepath.Join(req.Dir, "work")
	device := doc["device"].(map[string]any)
	if device["id"] != "process-0" || device["driver"] != "process" || device["labels"].(map[string]any)["driver"] != "process" ||
		device["coordinates"].(map[string]any)["dir"] != work {
		t.Errorf("device %v", device)
	}
	for member, want := range map[string]any{
		"protocol": 1.0, "run_id": string(req.RunID), "task_id": "task-7", "attempt": 2.0, "work_dir": filepath.Join(work, "work"),
		"artifacts_dir": filepath.Join(work, "artifacts"), "inputs_dir": filepath.Join(req.Dir, "inputs"),
	} {
		if doc[member] != want {
			t.Errorf("%s is %v, want %v", member, doc[member], want)
		}
	}
	if fmt.Sprint(doc["payload"]) != "map[act:document]" || fmt.Sprint(doc["inputs"]) != "map[app.txt:"+filepath.Join(req.Dir, "inputs", "app.txt")+"]" ||
		fmt.Sprint(doc["plugin"]) != "map[name:test.acts version:1.0.0]" {
		t.Errorf("document %v", doc)
	}
	if fmt.Sprint(doc["secrets"]) != "map[token:[redacted]]" { // masked in the artifact
		t.Errorf("secrets %v", doc["secrets"])
	}
	var names []string
	for line := range strings.Lines(kept["env.txt"]) {
		name, _, _ := strings.Cut(line, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"BERTH_PLUGIN_ARTIFACTS_DIR", "BERTH_PLUGIN_ATTEMPT", "BERTH_PLUGIN_COORDINATE_DIR", "BERTH_PLUGIN_DEADLINE", "BERTH_PLUGIN_DEVICE_DRIVER",
		"BERTH_PLUGIN_DEVICE_ID", "BERTH_PLUGIN_HOME", "BERTH_PLUGIN_INPUTS_DIR", "BERTH_PLUGIN_NAME", "BERTH_PLUGIN_PROTOCOL", "BERTH_PLUGIN_TASK_ID",
		"BERTH_PLUGIN_VERSION", "BERTH_PLUGIN_WORK_DIR", "BERTH_RUN_ID", "BERTH_RUN_MARK", "HOME", "LANG", "PATH", "TMPDIR",
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "PWD" || n == "OLDPWD" || n == "_" || n == "SHLVL" }) // the shell's own
	if !slices.Equal(names, want) {
		t.Errorf("environment %v", names)
	}
	if !strings.HasSuffix(kept["args.txt"], "/run\none argument\n") {
		t.Errorf("arguments %q", kept["args.txt"])
	}
}

// A secret reaches the process by its standard input alone, and nobody else.
func TestSecretsOfPluginsAreMasked(t *testing.T) {
	const secret = "s3cr3t-value-77"
	rt := host(t, "testdata/plugins")
	p := &progress{}
	req := act(t, "secret")
	req.Secrets = redact.Strings{"token": redact.NewString(secret)}
	req.Sink = p
	res := do(t, rt, req)
	kept := artifacts(t, res)
	for where, text := range map[string]string{
		"log": logOf(t, res), "message": res.Message, "result": string(res.JSON.Reveal()), "note": p.last, "artifact": kept["file.txt"],
		"environment": kept["environ.txt"], "arguments": kept["cmdline.txt"],
	} {
		if text == "" || strings.Contains(text, secret) {
			t.Errorf("%s: %q", where, text)
		}
		if masked := strings.Contains(text, redact.Placeholder); masked != (where != "environment" && where != "arguments") {
			t.Errorf("%s: %q", where, text)
		}
	}
}

// The examples are what docs/plugins.md sends people to.
func TestExamples(t *testing.T) {
	rt := host(t, "../../../../examples/plugins")
	input := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(input, []byte("the ship and the berth\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		plugin   string
		payload  map[string]any
		result   string
		artifact string
		content  string
	}{
		{"text.words", map[string]any{"top": 2}, `{"files": 1, "words": 5, "top": ["the", "and"]}`, "words.json", `"berth": 1`},
		{"files.checksum", map[string]any{}, `{"files":1}`, "checksums.txt", "527e744a817d871dd2d20e1448258a5d"},
		{"files.checksum", map[string]any{"algorithm": "sha512"}, `{"files":1}`, "checksums.txt", "x.txt"},
	} {
		req := request(t, c.plugin, c.payload)
		req.Inputs = map[string]string{"x.txt": input}
		res := do(t, rt, req)
		content := artifacts(t, res)[c.artifact]
		if res.Outcome != runtime.OutcomeSucceeded || string(res.JSON.Reveal()) != c.result || !strings.Contains(content, c.content) {
			t.Errorf("%s: %s %s (%s), result %s, artifact %q, log %q", c.plugin, res.Outcome, res.Reason, res.Message, res.JSON.Reveal(), content, logOf(t, res))
		}
		if res := do(t, rt, request(t, c.plugin, c.payload)); res.Outcome != runtime.OutcomeFailed || res.Reason != runtime.CodePluginFailed || !strings.Contains(res.Message, "no inputs") {
			t.Errorf("%s without inputs: %+v", c.plugin, res)
		}
		if _, err := rt.Run(t.Context(), request(t, c.plugin, map[string]any{"top": "many", "algorithm": "md5"})); !errors.Is(err, runtime.ErrInvalidPayload) {
			t.Errorf("%s takes a payload against its schema: %v", c.plugin, err)
		}
	}
}
