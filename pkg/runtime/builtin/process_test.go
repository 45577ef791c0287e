package builtin_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
)

// browserPID finds the shared browser by its place among this process's children.
func browserPID(t *testing.T) int {
	t.Helper()
	for _, pid := range children(t, os.Getpid()) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.Contains(string(b), "--remote-debugging-pipe") {
			return pid
		}
	}
	t.Fatal("no browser runs")
	return 0
}

func children(t *testing.T, parent int) []int {
	t.Helper()
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, d := range dirs {
		b, _ := os.ReadFile(d)
		for _, f := range strings.Fields(string(b)) {
			pid, _ := strconv.Atoi(f)
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func slot(t *testing.T, p redact.Bytes) runtime.Result {
	t.Helper()
	return run(t, t.Context(), runtime.RunRequest{DeviceID: "process-0", Plugin: "process.run", Version: "^1.0.0", Payload: p})
}

func TestProcessRunKeepsOutputFilesAndExitCode(t *testing.T) {
	res := slot(t, payload(t, map[string]any{
		"command": []string{"sh", "-c", `cat; echo "$GREETING" >&2; mkdir -p d; echo content > d/out.txt; pwd; exit 3`},
		"env":     map[string]string{"GREETING": "hello"}, "stdin": "from stdin\n", "files": []string{"d/out.txt"}, "expected_exit_codes": []int{3},
	}))
	want(t, res, runtime.OutcomeSucceeded, "")
	if log := logOf(t, res); !strings.HasPrefix(log, "from stdin\nhello\n/") {
		t.Errorf("log is %q", log)
	}
	if !regexp.MustCompile(`^\{"exit_code":3,"duration_ms":\d+\}$`).Match(res.JSON.Reveal()) {
		t.Errorf("result is %s", res.JSON.Reveal())
	}
	a, b := artifact(t, res, "d_out.txt")
	if string(b) != "content\n" || a.ContentType != "text/plain; charset=utf-8" {
		t.Errorf("artifact %+v holds %q", a, b)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(res.LogPath), "work")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the command's directory is left: %v", err)
	}
}

func TestProcessRunFailures(t *testing.T) {
	for name, c := range map[string]struct {
		payload map[string]any
		outcome runtime.Outcome
		reason  runtime.Code
	}{
		"exit code":    {map[string]any{"command": []string{"false"}}, runtime.OutcomeFailed, runtime.CodeExitCode},
		"signal":       {map[string]any{"command": []string{"sh", "-c", "kill -9 $$"}}, runtime.OutcomeFailed, runtime.CodeExitCode},
		"not allowed":  {map[string]any{"command": []string{"python3", "-c", "1"}}, runtime.OutcomeFailed, runtime.CodeCommandRefused},
		"path":         {map[string]any{"command": []string{"/elsewhere/sh"}}, runtime.OutcomeFailed, runtime.CodeCommandRefused},
		"relative":     {map[string]any{"command": []string{"./sh"}}, runtime.OutcomeFailed, runtime.CodeCommandRefused},
		"timeout":      {map[string]any{"command": []string{"sleep", "60"}, "timeout_ms": 100}, runtime.OutcomeTimedOut, runtime.CodeCommandTimeout},
		"flood":        {map[string]any{"command": []string{"sh", "-c", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"}}, runtime.OutcomeFailed, runtime.CodeOutputLimit},
		"missing file": {map[string]any{"command": []string{"true"}, "files": []string{"none"}}, runtime.OutcomeFailed, runtime.CodeArtifactMissing},
		"file outside": {map[string]any{"command": []string{"sh", "-c", "ln -s /etc/passwd p"}, "files": []string{"p"}}, runtime.OutcomeFailed, runtime.CodeArtifactMissing},
		"fifo":         {map[string]any{"command": []string{"sh", "-c", "mkfifo p"}, "files": []string{"p"}}, runtime.OutcomeFailed, runtime.CodeArtifactMissing},
		"no secret":    {map[string]any{"command": []string{"true"}, "secret_env": map[string]string{"A": "none"}}, runtime.OutcomeFailed, runtime.CodeSecretMissing},
		"wrong device": {map[string]any{"command": []string{"true"}}, runtime.OutcomeFailed, runtime.CodeUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			device := runtime.DeviceID("process-1")
			if name == "wrong device" {
				device = "chromium-0"
			}
			res := run(t, t.Context(), runtime.RunRequest{DeviceID: device, Plugin: "process.run", Payload: payload(t, c.payload)})
			want(t, res, c.outcome, c.reason)
			if res.LogSize > 1<<20+200 {
				t.Errorf("log has %d bytes", res.LogSize)
			}
		})
	}
}

func TestSecretsAreMaskedInTheLogAlsoAcrossWrites(t *testing.T) {
	const secret = "s3cr3t-value-77"
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "process-0", Plugin: "process.run", Secrets: redact.Strings{"token": redact.NewString(secret)},
		Payload: payload(t, map[string]any{
			"secret_env": map[string]string{"TOKEN": "token"},
			"command":    []string{"sh", "-c", `echo "got $TOKEN"; printf s3cr3t; sleep 0.1; printf -- '-value-77 end'; test "$TOKEN" = ` + secret},
		}),
	})
	want(t, res, runtime.OutcomeSucceeded, "")
	if log := logOf(t, res); log != "got [redacted]\n[redacted] end" {
		t.Errorf("log is %q", log)
	}
}

func TestSecretsAreMaskedInFilesThatAreTexts(t *testing.T) {
	const secret = "s3cr3t-value-77"
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "process-0", Plugin: "process.run", Secrets: redact.Strings{"token": redact.NewString(secret)},
		Payload: payload(t, map[string]any{
			"secret_env": map[string]string{"TOKEN": "token"},
			"command":    []string{"sh", "-c", `echo "{\"a\": \"$TOKEN\"}" > r.json; printf "x $TOKEN" > plain; printf "$TOKEN" | base64 > b.txt; printf "\000$TOKEN" > blob`},
			"files":      []string{"r.json", "plain", "b.txt", "blob"},
		}),
	})
	want(t, res, runtime.OutcomeSucceeded, "")
	for name, want := range map[string]string{
		"r.json": "{\"a\": \"[redacted]\"}\n", "plain": "x [redacted]", "b.txt": "[redacted]\n",
		"blob": "\x00" + secret, // masking would break what is no text
	} {
		a, got := artifact(t, res, name)
		if sum := sha256.Sum256(got); string(got) != want || a.Size != int64(len(want)) || a.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%s is %q, %+v", name, got, a)
		}
	}
}

func TestASecretIsNoArtifactsName(t *testing.T) {
	const secret = "s3cr3t-value-77"
	res := run(t, t.Context(), runtime.RunRequest{
		DeviceID: "process-0", Plugin: "process.run", Secrets: redact.Strings{"token": redact.NewString(secret)},
		Payload: payload(t, map[string]any{
			"command": []string{"sh", "-c", "echo x > of-" + secret + ".txt"}, "files": []string{"of-" + secret + ".txt"},
		}),
	})
	want(t, res, runtime.OutcomeFailed, runtime.CodeArtifactLimit)
	if len(res.Artifacts) != 0 || strings.Contains(res.Message, secret) {
		t.Errorf("kept as %+v: %s", res.Artifacts, res.Message)
	}
}

// tree is a command that starts a child ignoring SIGTERM, one in a session of
// its own, one with an empty environment, and one that is both in its own
// session and ignores SIGTERM, then says their process ids.
const tree = `
sh -c 'trap "" TERM; echo pid $$; while :; do sleep 1; done' &
setsid sh -c 'echo pid $$; while :; do sleep 1; done' &
env -i sh -c 'echo pid $$; while :; do sleep 1; done' &
setsid sh -c 'trap "" TERM; (echo pid $$; while :; do sleep 1; done) & exit' &
trap "" TERM
while [ "$(ls go 2>/dev/null)" = "" ]; do sleep 0.05; done
`

var pidLine = regexp.MustCompile(`pid (\d+)`)

func TestCancelKillsTheWholeProcessTree(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := &pidListener{listener: listen("all"), n: 4}
	done := start(t, ctx, runtime.RunRequest{DeviceID: "process-0", Plugin: "process.run", Payload: command(t, "bash", "-c", tree), Sink: l})
	pids := l.pids(t)
	cancel()
	want(t, within(t, 10*time.Second, done), runtime.OutcomeCancelled, runtime.CodeCancelled)
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
}

// pidListener waits until n process ids were logged.
type pidListener struct {
	*listener
	n int
}

func (l *pidListener) Log(_ int64, chunk redact.Bytes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	had := len(pidLine.FindAllString(l.log.String(), -1))
	l.log.Write(chunk.Reveal())
	if had < l.n && len(pidLine.FindAllString(l.log.String(), -1)) >= l.n {
		close(l.seen)
	}
}

func (l *pidListener) pids(t *testing.T) []int {
	t.Helper()
	return parsePIDs(l.wait(t))
}

func parsePIDs(text string) []int {
	var pids []int
	for _, m := range pidLine.FindAllStringSubmatch(text, -1) {
		pid, _ := strconv.Atoi(m[1])
		pids = append(pids, pid)
	}
	return pids
}

func TestDaemonisedChildrenDieWithACommandThatExited(t *testing.T) {
	res := slot(t, command(t, "sh", "-c", `setsid sh -c 'echo pid $$; exec sleep 100' & sleep 0.3`))
	want(t, res, runtime.OutcomeSucceeded, "")
	pids := parsePIDs(logOf(t, res))
	if len(pids) != 1 || alive(pids[0]) {
		t.Errorf("daemonised children: %v, alive", pids)
	}
}

func TestDeviceTakesOneUseAtATime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := listen("up")
	done := start(t, ctx, runtime.RunRequest{DeviceID: "process-0", Plugin: "process.run", Payload: command(t, "sh", "-c", "echo up; sleep 100"), Sink: l})
	l.wait(t)
	_, err := shared.Run(ctx, fill(t, runtime.RunRequest{DeviceID: "process-0", Plugin: "process.run", Payload: command(t, "true")}))
	if !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("second run: %v", err)
	}
	if err := shared.Clean(ctx, "process-0"); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("clean: %v", err)
	}
	if dev, err := shared.Device(ctx, "process-0"); err != nil || !dev.Busy {
		t.Errorf("device: %+v, %v", dev, err)
	}
	cancel()
	within(t, 10*time.Second, done)
	if err := shared.Clean(t.Context(), "process-0"); err != nil {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	good := runtime.RunRequest{DeviceID: "process-0", Plugin: "process.run", Payload: command(t, "true")}
	for name, c := range map[string]struct {
		change func(*runtime.RunRequest)
		want   error
	}{
		"device":         {func(r *runtime.RunRequest) { r.DeviceID = "process-9" }, runtime.ErrUnknownDevice},
		"plugin":         {func(r *runtime.RunRequest) { r.Plugin = "no.such" }, runtime.ErrUnknownPlugin},
		"version":        {func(r *runtime.RunRequest) { r.Version = "^2" }, runtime.ErrUnknownPlugin},
		"version syntax": {func(r *runtime.RunRequest) { r.Version = "x y" }, runtime.ErrInvalidRequest},
		"payload":        {func(r *runtime.RunRequest) { r.Payload = payload(t, map[string]any{"command": "secret-marker"}) }, runtime.ErrInvalidPayload},
		"no json":        {func(r *runtime.RunRequest) { r.Payload = redact.NewBytes([]byte("secret-marker")) }, runtime.ErrInvalidPayload},
		"run id":         {func(r *runtime.RunRequest) { r.RunID = "../x" }, runtime.ErrInvalidRequest},
		"dir":            {func(r *runtime.RunRequest) { r.Dir = "relative" }, runtime.ErrInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			req := fill(t, good)
			c.change(&req)
			_, err := shared.Run(t.Context(), req)
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-marker") {
				t.Errorf("the error reveals the payload: %v", err)
			}
		})
	}
}

func TestDevicesAreLabelled(t *testing.T) {
	devices, err := shared.Devices(t.Context())
	if err != nil || len(devices) != 2+contexts {
		t.Fatalf("%d devices, %v", len(devices), err)
	}
	for _, d := range devices {
		if d.Labels["driver"] != d.Driver || d.Labels["rack"] != "a1" || d.Labels["os"] != "linux" || d.Labels["arch"] == "" || d.Health != runtime.HealthGood {
			t.Errorf("device %+v", d)
		}
		if d.Driver == "chromium" && (d.Labels["browser"] != "chromium" || !regexp.MustCompile(`^\d+$`).MatchString(d.Labels["browser_version"])) {
			t.Errorf("labels %v", d.Labels)
		}
	}
}

const crashEnv = "BERTH_TEST_CRASH_STATE"

// crashChild is this test binary as a Runtime that will be killed: it starts a
// browser and a process tree and says their ids.
func crashChild() {
	rt, err := builtin.New(context.Background(), config(os.Getenv(crashEnv), nil))
	if err != nil {
		fmt.Println("cannot start:", err)
		os.Exit(1)
	}
	base := os.Getenv(crashEnv) + "-runs"
	go func() {
		_, _ = rt.Run(context.Background(), runtime.RunRequest{
			RunID: "crash-1", DeviceID: "process-0", Plugin: "process.run", Dir: base + "/1",
			Payload: redact.NewBytes([]byte(fmt.Sprintf(`{"command":["bash","-c",%q]}`, tree))), Sink: toStdout{},
		})
	}()
	err = rt.Direct(context.Background(), "chromium-0", func(context.Context, runtime.Session) error {
		fmt.Println("browser up")
		return nil
	})
	fmt.Println("direct:", err)
	select {}
}

type toStdout struct{ runtime.Discard }

func (toStdout) Log(_ int64, chunk redact.Bytes) { fmt.Printf("%s", chunk.Reveal()) }

func TestReapKillsWhatACrashedProcessLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if strings.Contains(text.String(), "direct:") && len(parsePIDs(text.String())) >= 4 {
			break
		}
	}
	if !strings.Contains(text.String(), "direct: <nil>") {
		t.Fatalf("child said %q", text.String())
	}
	if _, err := runtime.Reap(t.Context(), dir); !errors.Is(err, runtime.ErrStateDirInUse) {
		t.Errorf("reap beside a living process: %v", err)
	}
	var everything []int
	for _, pid := range children(t, cmd.Process.Pid) {
		everything = append(everything, pid)
		everything = append(everything, children(t, pid)...)
	}
	everything = append(everything, parsePIDs(text.String())...)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	report, err := runtime.Reap(t.Context(), dir)
	if err != nil || report.Records != 2 || report.Killed == 0 {
		t.Errorf("reap: %+v, %v", report, err)
	}
	for _, pid := range everything {
		if alive(pid) {
			t.Errorf("process %d lives on", pid)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	again, err := builtin.New(t.Context(), config(dir, zap.NewNop()))
	if err != nil || again.Leftovers.Records != 0 {
		t.Fatalf("the directory cannot be used again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
