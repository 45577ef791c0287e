package harness

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// janitorScript waits for the end of the process that holds the other end of
// the pipe on its standard input. Then it kills whatever has the folder $1 in
// its environment or command line, again until nothing new appears, removes the
// programs, and the folder where no test left anything in it.
const janitorScript = `
trap '' INT TERM HUP
cat >/dev/null
n=0
while [ $n -lt 20 ]; do
	found=
	for p in /proc/[0-9]*; do
		pid=${p#/proc/}
		[ "$pid" = "$$" ] && continue
		if grep -qaF "$1" "$p/environ" "$p/cmdline" 2>/dev/null; then
			kill -KILL "$pid" 2>/dev/null && found=1
		fi
	done
	[ -z "$found" ] && break
	n=$((n + 1))
done
rm -rf "$1/bin"
rmdir "$1" 2>/dev/null
`

// startJanitor leaves the writing end of its pipe open for as long as this
// process lives: a bare descriptor, which no garbage collector closes.
func startJanitor(folder string) error {
	var fds [2]int
	syscall.ForkLock.RLock()
	err := syscall.Pipe(fds[:])
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return fmt.Errorf("pipe for the janitor: %w", err)
	}
	read := os.NewFile(uintptr(fds[0]), "janitor")
	defer func() { _ = read.Close() }()
	// The folder's name comes over as an argument of sh and would be found by
	// the janitor's own children (grep); they end by themselves.
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "harness-janitor", folder)
	cmd.Dir = "/"
	cmd.Stdin = read
	// A session of its own, so that an interrupt at the terminal leaves it to
	// do its work.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = syscall.Close(fds[1])
		return fmt.Errorf("start the janitor: %w", err)
	}
	return nil
}
