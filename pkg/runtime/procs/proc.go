package procs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Proc is a started process with all its descendants.
type Proc struct {
	t      *Table
	rec    record
	cmd    *exec.Cmd
	exited chan struct{}
	reap   func() // waits for the leader; may be called again

	mu    sync.Mutex // held while End works
	ended bool
}

// TempRoot is the directory in which TempDir creates; Open empties it.
func (t *Table) TempRoot() string { return filepath.Join(t.dir, "tmp") }

// TempDir creates an empty directory in the table's directory, for a use that
// Start will record.
func (t *Table) TempDir(prefix string) (string, error) {
	return os.MkdirTemp(t.TempRoot(), prefix+"-")
}

const shortPrefix = "berth-tmp-"

// ShortTempDir is TempDir with a path short enough for Unix sockets in it (their
// paths end at 107 bytes), which a table's directory need not be.
func (t *Table) ShortTempDir() (string, error) {
	base := os.TempDir()
	const longest = 32
	if len(base) > longest {
		base = "/tmp"
	}
	return os.MkdirTemp(base, shortPrefix)
}

// Start records a mark, then starts cmd as the leader of its own session with
// the mark in its environment, then records its process id. cmd.Env must be
// set by the caller (it is not inherited); cmd.SysProcAttr is replaced. The
// dirs, made with TempDir or ShortTempDir, are removed when the process ends or is reaped.
func (t *Table) Start(cmd *exec.Cmd, runID string, dirs ...string) (*Proc, error) {
	rec := record{Mark: newMark(), RunID: runID, Boot: bootID(), Dirs: dirs}
	if err := t.write(rec); err != nil {
		return nil, fmt.Errorf("recording the process: %w", err)
	}
	cmd.Env = append(withoutMarks(cmd.Env), EnvRun+"="+runID, EnvMark+"="+rec.Mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if cmd.WaitDelay == 0 {
		// An escaped descendant that holds the output open must not hold up End.
		cmd.WaitDelay = 2 * time.Second
	}
	if err := t.spawn(cmd.Start); err != nil {
		_ = os.Remove(t.path(rec)) // the dirs stay the caller's
		return nil, err
	}
	p := &Proc{t: t, rec: rec, cmd: cmd, exited: make(chan struct{}), reap: sync.OnceFunc(func() { _ = cmd.Wait() })}
	p.rec.PID = cmd.Process.Pid
	if st, err := readStat(p.rec.PID); err == nil {
		p.rec.Start = st.start
	}
	if err := t.write(p.rec); err != nil {
		go p.watch()
		_ = p.End(context.Background(), 0)
		return nil, fmt.Errorf("recording the process: %w", err)
	}
	go p.watch()
	return p, nil
}

// watch learns that the process exited without reaping it: as a zombie it keeps
// its id, so the group and session number cannot be another's while End sweeps.
func (p *Proc) watch() {
	defer close(p.exited)
	for {
		err := unix.Waitid(unix.P_PID, p.rec.PID, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// PID returns the process id of the leader.
func (p *Proc) PID() int { return p.rec.PID }

// Exited is closed when the leader exited; its descendants may live on until End.
func (p *Proc) Exited() <-chan struct{} { return p.exited }

// End asks the process to stop with SIGTERM when grace is positive and gives it
// that long, kills it and all its descendants, and returns when all are dead
// and the directories removed. It may be called again: after an error, which
// means that ctx ended first, it tries again. Until it succeeds the record
// stays, so that a later process tries too.
func (p *Proc) End(ctx context.Context, grace time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	err := p.end(ctx, grace)
	p.ended = err == nil
	return err
}

func (p *Proc) end(ctx context.Context, grace time.Duration) error {
	if grace > 0 {
		p.terminate(ctx, grace)
	}
	_, err := killAll(ctx, p.rec)
	if err != nil {
		// Something cannot be killed (an uninterruptible wait). The leader is
		// reaped when it can be, so that no zombie stays.
		go p.reap()
		return err
	}
	<-p.exited
	p.reap() // how it exited is in its state
	return p.t.forget(p.rec)
}

// terminate sends SIGTERM to the group and waits for the leader, within grace.
func (p *Proc) terminate(ctx context.Context, grace time.Duration) {
	select {
	case <-p.exited:
		return
	default:
	}
	_ = syscall.Kill(-p.rec.PID, syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// State says how the leader exited. Only after End returned without an error.
func (p *Proc) State() *os.ProcessState { return p.cmd.ProcessState }

// Exit is how the leader exited: its code, and the name of the signal that ended
// it or "". A code of -1 is not known. Only after End returned without an error.
func (p *Proc) Exit() (code int, signal string) {
	st := p.State()
	if st == nil {
		return -1, ""
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), unix.SignalName(ws.Signal()) // as shells say it
	}
	return st.ExitCode(), ""
}

// StartFault says why a process did not start, without paths and arguments.
func StartFault(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "it could not be prepared"
}

// SearchPath is where commands named without a slash are looked for, and the
// PATH they get: that of the host's user is none of a task's business.
const SearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// MinimalEnv is the environment that work begins with: nothing of this process's
// own, which may hold secrets of the host.
func MinimalEnv(home string) []string {
	return []string{"PATH=" + SearchPath, "HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}
}

// childNice is how much lower than this process's the priority of what it
// starts is: work that uses up the processor must not keep its host from
// renewing leases.
const childNice = 3

// spawner runs each start on one thread that lives as long as the table: the
// kernel sends Pdeathsig when the starting thread ends, not the process. Its
// children inherit the thread's priority, which could not be raised again, so
// the thread ends with the table.
func (t *Table) spawner() {
	runtime.LockOSThread()
	defer close(t.stopped)
	// The raw call gives 20 less the priority, of this thread.
	if raised, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, min(20-raised+childNice, 19))
	}
	for {
		select {
		case start := <-t.spawns:
			start()
		case <-t.quit:
			return
		}
	}
}

func (t *Table) spawn(start func() error) error {
	done := make(chan error, 1)
	select {
	case t.spawns <- func() { done <- start() }:
		return <-done
	case <-t.quit:
		return os.ErrClosed
	}
}

func withoutMarks(env []string) []string {
	var out []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, EnvRun+"=") && !strings.HasPrefix(kv, EnvMark+"=") {
			out = append(out, kv)
		}
	}
	return out
}
