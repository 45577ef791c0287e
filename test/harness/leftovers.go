package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// endLeftovers kills whatever still has the folder in its environment or command
// line, such as the browser of an agent that was itself killed, and returns when
// it is gone: until then it may write into the folder.
func endLeftovers(folder string) error {
	deadline := time.Now().Add(Patience)
	for {
		pids := having(folder)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := end(pid, time.Until(deadline)); err != nil {
				return err
			}
		}
	}
}

// having finds the processes of a folder.
func having(folder string) []int {
	var pids []int
	whole := regexp.MustCompile(regexp.QuoteMeta(folder) + `([^0-9]|$)`) // the folder's number may begin another's
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil || pid == os.Getpid() {
			continue
		}
		for _, file := range []string{"environ", "cmdline"} {
			text, err := os.ReadFile(filepath.Join(d, file))
			if err == nil && whole.Match(text) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// end kills a process that is not a child of this one and waits for its end.
func end(pid int, within time.Duration) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // it is gone
	}
	defer func() { _ = unix.Close(fd) }()
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(within, 0).Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err == unix.EINTR: //nolint:errorlint // an errno
		case err != nil:
			return fmt.Errorf("wait for the end of process %d: %w", pid, err)
		default:
			return fmt.Errorf("process %d outlives SIGKILL", pid)
		}
	}
}
