package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// janitorScript waits until the pipe on its standard input closes, which the
// kernel does when the process that holds the other end is gone. Then it stops
// the server of the folder $1, if one still runs there, and removes the folder.
// A postmaster.pid may be stale and its number in use by another program: the
// working folder tells, where the system has /proc.
const janitorScript = `
trap '' INT TERM HUP
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ] && [ -d "/proc/self" ] && [ "$(readlink "/proc/$pid/cwd")" != "$1/data" ]; then
	pid=
fi
if [ -n "$pid" ] && kill -QUIT "$pid" 2>/dev/null; then
	n=0
	while [ -e "$1/data/postmaster.pid" ] && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done
	kill -KILL "$pid" 2>/dev/null
fi
rm -rf "$1"
`

// janitor is the process that cleans up after this one.
type janitor struct {
	cmd *exec.Cmd
	// hold is the end of the pipe that keeps the janitor waiting. It is a bare
	// descriptor: an os.File would be closed by the garbage collector once
	// nobody refers to the server any more, under a test that knows its DSN.
	hold int
}

func startJanitor(folder string) (*janitor, error) {
	var fds [2]int
	syscall.ForkLock.RLock()
	err := syscall.Pipe(fds[:])
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("pipe for the janitor: %w", err)
	}
	read := os.NewFile(uintptr(fds[0]), "janitor")
	defer func() { _ = read.Close() }()

	cmd := exec.Command("/bin/sh", "-c", janitorScript, "pgtest-janitor", folder)
	cmd.Dir = "/"
	cmd.Stdin = read
	// A session of its own, so that what ends the tests' process group (an
	// interrupt at the terminal) leaves the janitor to do its work.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = syscall.Close(fds[1])
		return nil, fmt.Errorf("start the janitor: %w", err)
	}
	return &janitor{cmd: cmd, hold: fds[1]}, nil
}

// release lets the janitor do its work and waits for its end.
func (j *janitor) release() error {
	if err := syscall.Close(j.hold); err != nil {
		return fmt.Errorf("release the janitor: %w", err)
	}
	if err := j.cmd.Wait(); err != nil {
		return fmt.Errorf("janitor: %w", err)
	}
	return nil
}
