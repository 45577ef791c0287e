package harness

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// Command says what to run.
type Command struct {
	// Name of the process, for its log files.
	Name string
	Path string
	Args []string
	// Env beyond PATH, HOME and what marks the process as the harness's.
	Env map[string]string
}

// Process is a running, or ended, program.
type Process struct {
	Name string
	// LogPath and ErrPath hold its standard output and error.
	LogPath, ErrPath string

	cmd  *exec.Cmd
	done chan struct{}
}

// Run starts a process in a process group of its own, with its output in files
// of folder. It is killed when the test ends; a test that failed prints the end
// of its output.
func Run(tb testing.TB, folder string, c Command) *Process {
	tb.Helper()
	p := &Process{Name: c.Name, done: make(chan struct{})}
	out, err := os.CreateTemp(folder, c.Name+"-*.log")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	p.LogPath = out.Name()
	p.ErrPath = p.LogPath[:len(p.LogPath)-len("log")] + "err"
	stderr, err := os.Create(p.ErrPath)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = stderr.Close() }()
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Dir = folder
	p.cmd.Stdout, p.cmd.Stderr = out, stderr
	p.cmd.Env = environment(folder, c.Env)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", c.Name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	tb.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if tb.Failed() {
			tb.Logf("%s ended with %s; %s ends with:\n%s%s", p.Name, p.cmd.ProcessState, p.LogPath, tail(p.LogPath, 1500), tail(p.ErrPath, 1500))
		}
	})
	return p
}

// environment holds nothing of the tests' own but the way to programs.
func environment(folder string, more map[string]string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "BERTH_HARNESS=" + folder, "LANG=C.UTF-8", "TZ=UTC"}
	for _, k := range slices.Sorted(maps.Keys(more)) {
		env = append(env, k+"="+more[k])
	}
	return env
}

func (p *Process) signal(s syscall.Signal) {
	select {
	case <-p.done: // its number may be another's by now
	default:
		_ = p.cmd.Process.Signal(s)
	}
}

// Pid of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Terminate sends SIGTERM and does not wait.
func (p *Process) Terminate() { p.signal(syscall.SIGTERM) }

// Pause stops the process where it is (SIGSTOP), Continue lets it go on.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Continue lets a paused process go on (SIGCONT).
func (p *Process) Continue() { p.signal(syscall.SIGCONT) }

// Kill ends the process by SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Exit waits for the end and returns the exit code; -1 for one that a signal
// ended.
func (p *Process) Exit(within time.Duration) (int, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-timer.C:
		return 0, fmt.Errorf("%s has not ended within %v", p.Name, within)
	}
}

// MustExit waits for the end and fails the test where the exit code is another.
func (p *Process) MustExit(tb testing.TB, within time.Duration, code int) {
	tb.Helper()
	got, err := p.Exit(within)
	if err != nil {
		tb.Fatal(err)
	}
	if got != code {
		tb.Fatalf("%s ended with %d, want %d:\n%s%s", p.Name, got, code, tail(p.LogPath, 2000), tail(p.ErrPath, 2000))
	}
}

// Stop ends the process by SIGTERM and fails the test unless it exits with 0.
func (p *Process) Stop(tb testing.TB) {
	tb.Helper()
	p.Terminate()
	p.MustExit(tb, Patience, 0)
}

// Output is what a process that ended has written to both streams.
func (p *Process) Output(tb testing.TB) (stdout, stderr string) {
	tb.Helper()
	o, err := os.ReadFile(p.LogPath)
	e, err2 := os.ReadFile(p.ErrPath)
	if err = errors.Join(err, err2); err != nil {
		tb.Fatal(err)
	}
	return string(o), string(e)
}

func tail(path string, most int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("--- %s\n%s\n", filepath.Base(path), b[max(0, len(b)-most):])
}
