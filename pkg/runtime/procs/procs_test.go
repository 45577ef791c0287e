package procs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string) *Table {
	t.Helper()
	table, _, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return table
}

func command(args ...string) *exec.Cmd {
	return &exec.Cmd{Path: "/bin/" + args[0], Args: args, Env: []string{"PATH=/usr/bin:/bin"}}
}

// stranger is a process that is none of ours, in a session of its own.
func stranger(t *testing.T, env ...string) stat {
	t.Helper()
	cmd := command("sleep", "100")
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	// It dies with the thread that starts it, which a Table's spawner would end if
	// it came to run there.
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	st, err := readStat(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func living(st stat) bool {
	now, err := readStat(st.pid)
	return err == nil && now.start == st.start && !now.dead
}

// leave writes a record as a killed process would have left it.
func leave(t *testing.T, dir string, rec record) {
	t.Helper()
	b, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	procsDir := filepath.Join(dir, "procs")
	if err := os.MkdirAll(procsDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(procsDir, rec.Mark+".json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReapKillsOnlyWhatIsProvablyOurs(t *testing.T) {
	for name, c := range map[string]struct {
		mark   string // in the process's environment
		change func(*record)
		dies   bool
	}{
		"same id and start time":      {"", func(*record) {}, true},
		"the id was recycled":         {"", func(r *record) { r.Start-- }, false},
		"another boot":                {"m", func(r *record) { r.Boot = "other" }, false},
		"marked, another session":     {"m", func(r *record) { r.PID, r.Start = 0, 0 }, true},
		"marked for another":          {"other", func(r *record) { r.PID, r.Start = 0, 0 }, false},
		"a mark that only begins so":  {"m2", func(r *record) { r.PID, r.Start = 0, 0 }, false},
		"marked, the id was recycled": {"m", func(r *record) { r.Start-- }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			if c.mark != "" {
				env = append(env, EnvMark+"="+c.mark)
			}
			st := stranger(t, env...)
			rec := record{Mark: "m", RunID: "r", Boot: bootID(), PID: st.pid, Start: st.start}
			c.change(&rec)
			dir := t.TempDir()
			leave(t, dir, rec)
			report, err := Reap(t.Context(), dir)
			if err != nil || report.Records != 1 {
				t.Fatalf("%+v, %v", report, err)
			}
			if living(st) == c.dies {
				t.Errorf("alive: %v", living(st))
			}
			if again, err := Reap(t.Context(), dir); err != nil || again.Records != 0 {
				t.Errorf("the record is still there: %+v, %v", again, err)
			}
		})
	}
}

func TestReapRemovesOnlyItsOwnDirectories(t *testing.T) {
	dir, foreign := t.TempDir(), t.TempDir()
	own := filepath.Join(dir, "tmp", "x")
	if err := os.MkdirAll(filepath.Join(own, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	leave(t, dir, record{Mark: "m", Boot: bootID(), Dirs: []string{own, foreign, filepath.Join(dir, "tmp", "..", "..", filepath.Base(foreign)), "/", dir}})
	unnamed := filepath.Join(dir, "tmp", "y")
	if err := os.MkdirAll(filepath.Join(unnamed, "locked"), 0o500); err != nil {
		t.Fatal(err)
	}
	if _, err := Reap(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(unnamed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory without a record: %v", err)
	}
	if _, err := os.Stat(own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("own directory: %v", err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("foreign directory: %v", err)
	}
}

func TestDirectoryHasOneOwner(t *testing.T) {
	dir := t.TempDir()
	table := open(t, dir)
	if _, _, err := Open(t.Context(), dir); !errors.Is(err, ErrInUse) {
		t.Errorf("second owner: %v", err)
	}
	if err := table.Close(); err != nil {
		t.Fatal(err)
	}
	if err := table.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := table.Start(command("true"), "r"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("start after Close: %v", err)
	}
	open(t, dir)
}

func TestProcessIsRecordedWhileItLives(t *testing.T) {
	table := open(t, t.TempDir())
	work, err := table.TempDir("w")
	if err != nil {
		t.Fatal(err)
	}
	p, err := table.Start(command("sleep", "100"), "run-7", work)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(table.path(p.rec))
	var rec record
	if err != nil || json.Unmarshal(b, &rec) != nil || rec.PID != p.PID() || rec.Start == 0 || rec.RunID != "run-7" || rec.Boot == "" {
		t.Errorf("record is %s, %v", b, err)
	}
	if !marked(p.PID(), rec.Mark) {
		t.Error("the process carries no mark")
	}
	if err := p.End(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{table.path(p.rec), work} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

func TestFailedStartLeavesNoRecord(t *testing.T) {
	table := open(t, t.TempDir())
	if _, err := table.Start(command("no-such-program"), "r"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("start: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(table.dir, "procs", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestEndAsksBeforeItKills(t *testing.T) {
	table := open(t, t.TempDir())
	var out bytes.Buffer
	cmd := command("sh", "-c", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done`)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	cmd.Stdout = writer
	p, err := table.Start(cmd, "r")
	_ = writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	up := make([]byte, 3)
	if _, err := reader.Read(up); err != nil {
		t.Fatal(err)
	}
	if err := p.End(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	_, _ = out.ReadFrom(reader)
	if !strings.Contains(out.String(), "bye") || p.State().ExitCode() != 0 {
		t.Errorf("said %q, %v", out.String(), p.State())
	}
}

// A crowd that keeps leaving the group is swept to the last one.
func TestEndKillsACrowdThatKeepsForking(t *testing.T) {
	table := open(t, t.TempDir())
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	cmd := command("sh", "-c", `crowd() { n=$1; while [ $n -gt 0 ]; do setsid sh -c 'sleep 100 & sleep 100' & n=$((n-1)); done; }; crowd 20; echo up; while :; do crowd 1; sleep 0.02; done`)
	cmd.Stdout = writer
	p, err := table.Start(cmd, "r")
	_ = writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := p.End(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if left, err := find(p.rec); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// An end that was broken off is made good by the next.
func TestEndMayBeTriedAgain(t *testing.T) {
	table := open(t, t.TempDir())
	p, err := table.Start(command("sleep", "100"), "r")
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.End(over, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("with no time: %v", err)
	}
	for range 2 {
		if err := p.End(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(table.path(p.rec)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record: %v", err)
	}
}

// What runs has a lower priority than its host, so that it cannot starve it.
func TestChildrenGiveWay(t *testing.T) {
	table := open(t, t.TempDir())
	p, err := table.Start(command("sleep", "100"), "r")
	if err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // of this thread
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.Getpriority(unix.PRIO_PROCESS, p.PID())
	if want := max(own-childNice, 1); err != nil || child != want {
		t.Errorf("the child's is %d (%v), this process's %d, want %d", child, err, own, want)
	}
	if err := p.End(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}
