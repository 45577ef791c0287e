package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// session is the exclusive use of a slot.
type session struct {
	driver *Driver
	device runtime.Device
	opts   runtime.OpenOptions
	life   context.Context // ends with Close
	stop   context.CancelFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	stuck   []*procs.Proc // commands that could not be killed
}

// killBound is how long killing may take before the slot counts as unclean.
const killBound = 10 * time.Second

// Device implements runtime.Session.
func (s *session) Device() runtime.Device { return s.device }

// Lost implements runtime.Session; a slot is never lost.
func (s *session) Lost() <-chan struct{} { return nil }

// Dir implements runtime.Commander.
func (s *session) Dir() string { return s.opts.WorkDir }

// Close implements runtime.Session.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }() // ends: each command ends within killBound
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("%w: a command does not die: %w", runtime.ErrUnclean, ctx.Err())
	}
	s.mu.Lock()
	stuck := s.stuck
	s.mu.Unlock()
	for _, p := range stuck {
		if err := p.End(ctx, 0); err != nil {
			return fmt.Errorf("%w: %w", runtime.ErrUnclean, err)
		}
	}
	s.driver.mu.Lock()
	if s.driver.open[s.device.ID] == s {
		delete(s.driver.open, s.device.ID)
	}
	s.driver.mu.Unlock()
	return nil
}

// Command implements runtime.Commander.
func (s *session) Command(ctx context.Context, c runtime.Command) (runtime.Exit, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return runtime.Exit{}, runtime.ErrClosed
	}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()

	path, err := s.driver.allowed(c.Args)
	if err == nil {
		err = allowedEnv(c.Env)
	}
	if err != nil {
		return runtime.Exit{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	limit := s.driver.cfg.MaxDuration
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, limit, &runtime.ActionError{
			Code: runtime.CodeCommandTimeout, Message: fmt.Sprintf("the host allows a command %v", limit),
		})
		defer stop()
	}
	out := &boundedWriter{w: c.Output, left: s.driver.cfg.OutputBytes, full: make(chan struct{})}
	cmd := s.command(path, c, out)
	began := time.Now()
	p, err := s.driver.cfg.Procs.Start(cmd, string(s.opts.RunID))
	if full := runtime.DiskFull(err); full != nil {
		return runtime.Exit{}, full
	}
	if err != nil {
		// The error holds the path only, which is on the allow-list.
		return runtime.Exit{}, &runtime.ActionError{Code: runtime.CodeCommandStart, Message: "the command could not be started: " + procs.StartFault(err), Err: err}
	}
	var stopped error
	grace := time.Duration(0)
	select {
	case <-p.Exited():
	case <-ctx.Done():
		stopped, grace = stopCause(ctx), s.opts.Grace(s.driver.cfg.Grace)
	case <-out.full:
		stopped = &runtime.ActionError{Code: runtime.CodeOutputLimit, Message: fmt.Sprintf("the command wrote more than %d bytes and was killed", s.driver.cfg.OutputBytes)}
	}
	killCtx, done := context.WithTimeout(context.Background(), grace+killBound)
	defer done()
	if err := p.End(killCtx, grace); err != nil {
		s.mu.Lock()
		s.stuck = append(s.stuck, p)
		s.mu.Unlock()
		return runtime.Exit{}, fmt.Errorf("%w: %w", runtime.ErrUnclean, err)
	}
	exit := runtime.Exit{Duration: time.Since(began)}
	exit.Code, exit.Signal = p.Exit()
	if stopped == nil && out.overflowed() {
		stopped = &runtime.ActionError{Code: runtime.CodeOutputLimit, Message: fmt.Sprintf("the command wrote more than %d bytes", s.driver.cfg.OutputBytes)}
	}
	return exit, stopped
}

// stopCause is the reason for which the command was stopped: an ActionError of
// this package, or the context's error.
func stopCause(ctx context.Context) error {
	var a *runtime.ActionError
	if errors.As(context.Cause(ctx), &a) {
		return a
	}
	return ctx.Err()
}

// Coordinates implements runtime.Coordinated.
func (s *session) Coordinates() map[string]string { return map[string]string{"dir": s.Dir()} }

// command prepares the process. Limits are set by a shell that then becomes the
// command, so that they hold from its first instruction.
func (s *session) command(path string, c runtime.Command, out io.Writer) *exec.Cmd {
	args := slices.Clone(c.Args)
	if script := s.driver.cfg.Limits.script(); script != "" {
		args = append([]string{"sh", "-c", script + `exec "$@"`, "sh", path}, c.Args[1:]...)
		path = "/bin/sh"
	}
	cmd := &exec.Cmd{
		Path: path, Args: args, Dir: s.opts.WorkDir,
		// Which slot it is: commands side by side need ports and files of their own.
		Env:    append(procs.MinimalEnv(s.opts.WorkDir), "BERTH_DEVICE="+s.device.Driver+"/"+s.device.HardwareID),
		Stdout: out, Stderr: out,
	}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value.Reveal())
	}
	if !c.Stdin.IsZero() {
		cmd.Stdin = bytes.NewReader(c.Stdin.Reveal())
	}
	return cmd
}

// script sets the limits in a POSIX shell, or is empty.
func (l Limits) script() string {
	var b strings.Builder
	set := func(flag string, n int64) {
		if n > 0 {
			b.WriteString("ulimit -" + flag + " " + strconv.FormatInt(n, 10) + "; ")
		}
	}
	set("t", int64((l.CPU+time.Second-1)/time.Second))
	set("v", l.MemoryBytes/1024)
	set("f", l.FileBytes/512)
	set("n", int64(l.OpenFiles))
	return b.String()
}

// allowed resolves the command and checks it against the allow-list. The error
// does not name the command, which is part of a payload.
func (d *Driver) allowed(args []string) (string, error) {
	refused := &runtime.ActionError{
		Code:    runtime.CodeCommandRefused,
		Message: "the command is not on this host's allow-list; choose one that is, or have the host's operator add it",
	}
	if len(args) == 0 || args[0] == "" {
		return "", refused
	}
	name := args[0]
	if filepath.IsAbs(name) {
		name = filepath.Clean(name)
		for _, a := range d.cfg.Allow {
			if a == name || (!strings.Contains(a, "/") && a == filepath.Base(name) && lookUp(a) == name) {
				return name, nil
			}
		}
		return "", refused
	}
	if strings.Contains(name, "/") || !slices.Contains(d.cfg.Allow, name) {
		return "", refused
	}
	path := lookUp(name)
	if path == "" {
		return "", &runtime.ActionError{Code: runtime.CodeCommandStart, Message: "the command is allowed but not installed on this host"}
	}
	return path, nil
}

// allowedEnv refuses variables that bring other code into whatever program is
// started, or into the shell that sets its limits: the dynamic loader's and the C
// library's, and a shell's own. What may run is the allow-list's to say. Variables
// by which one program finds others (PATH, PYTHONPATH) are a matter of the programs
// on the list.
func allowedEnv(env redact.Strings) error {
	for name := range env {
		if strings.HasPrefix(name, "LD_") || strings.HasPrefix(name, "DYLD_") || strings.HasPrefix(name, "BASH_") || slices.Contains(steering(), name) {
			return &runtime.ActionError{
				Code:    runtime.CodeCommandRefused,
				Message: "the environment variable " + name + " brings other code into the command; where this host allows a shell, set it in a script of that",
			}
		}
	}
	return nil
}

func steering() []string {
	return []string{"GCONV_PATH", "GLIBC_TUNABLES", "HOSTALIASES", "LOCPATH", "NLSPATH", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "IFS"}
}

// lookUp finds an executable of the base name in the standard directories.
func lookUp(name string) string {
	for _, dir := range strings.Split(procs.SearchPath, ":") {
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// boundedWriter passes on at most left bytes and closes full at the first more.
type boundedWriter struct {
	mu   sync.Mutex
	w    io.Writer
	left int64
	over bool
	full chan struct{}
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := p
	if int64(len(keep)) > b.left {
		keep = keep[:b.left]
		if !b.over {
			b.over = true
			close(b.full)
		}
	}
	b.left -= int64(len(keep))
	if len(keep) > 0 && b.w != nil {
		_, _ = b.w.Write(keep)
	}
	return len(p), nil // the command must not see that nobody listens
}

func (b *boundedWriter) overflowed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}
