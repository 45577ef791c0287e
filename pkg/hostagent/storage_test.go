package hostagent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
)

// smallDisk is a file system of some MiB of its own: fill leaves no byte of it,
// empty makes room again. To mount it takes root or `sudo -n`, as CI does.
func smallDisk(t *testing.T) (dir string, fill, empty func()) {
	t.Helper()
	dir = t.TempDir()
	const options = "size=8m,mode=0777"
	if err := unix.Mount("berth-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err == nil {
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	} else {
		if out, err := exec.Command("sudo", "-n", "mount", "-t", "tmpfs", "-o", "nosuid,nodev,"+options, "berth-test", dir).CombinedOutput(); err != nil {
			t.Fatalf("a file system must be mounted, as root or with sudo -n: %v: %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("sudo", "-n", "umount", "-l", dir).Run() })
	}
	filler := filepath.Join(dir, "filler")
	fill = func() {
		f, err := os.Create(filler)
		must(t, err)
		for _, size := range []int{64 << 10, 1 << 10, 1} {
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, size))
			}
		}
		_ = f.Close()
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("filling the disk: %v", err)
		}
	}
	return dir, fill, func() { must(t, os.Remove(filler)) }
}

// A full state directory: the agent takes nothing more and says so once, what
// runs is renewed and reported, the server places nothing there, and when there
// is room the agent goes on.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fill, empty func()
	w.dir, fill, empty = smallDisk(t)
	w.change = func(c *Config) { c.MinFree = 1 << 20 }
	w.agent(2)
	goFile, pidFile := filepath.Join(t.TempDir(), "go"), filepath.Join(t.TempDir(), "pid")
	runs := w.submit("echo $$ > "+pidFile+"; while [ ! -e "+goFile+" ]; do sleep 0.05; done; echo a line that finds no room", func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	w.awaitState(runs, berth.StateRunning)
	// The last that its start has to write is that it has this process.
	pid := pidOf(t, pidFile)
	await(t, "its process is recorded", func() bool {
		records, err := filepath.Glob(filepath.Join(w.dir, "procs", "*.json"))
		return err == nil && slices.ContainsFunc(records, func(path string) bool {
			b, _ := os.ReadFile(path)
			return strings.Contains(string(b), fmt.Sprintf(`"pid":%d,`, pid))
		})
	})

	fill()
	await(t, "the agent drains", func() bool { return w.host().Draining })
	if got := w.last.Condition(); got != ConditionStorage {
		t.Errorf("its condition is %q", got)
	}
	waits := w.submit("exit 0")
	full := time.Now()
	await(t, "a lease's length passed", func() bool { return time.Since(full) > w.timings.LeaseTTL+w.timings.ReapGrace })
	if at := w.attempts(runs)[0]; !at.Live() {
		t.Fatalf("what ran was not renewed: %+v", at)
	}
	if len(w.attempts(waits)) != 0 {
		t.Errorf("attempts of the other task: %+v", w.attempts(waits))
	}
	must(t, os.WriteFile(goFile, nil, 0o600))
	w.awaitState(runs, berth.StateSucceeded) // its end is reported, though it could not be journaled
	if n := w.said("no new attempts are taken until it can"); n != 1 {
		t.Errorf("it was said %d times", n)
	}

	empty()
	w.awaitState(waits, berth.StateSucceeded)
	await(t, "the host takes work", func() bool { return !w.host().Draining && w.last.Condition() == "" })
	if n := w.said("has room again"); n != 1 {
		t.Errorf("it was said %d times that there is room", n)
	}
}

// A disk that fills up while the work leaves files is the host's fault: the
// attempt is tried again, and the reason says why.
func TestWorkThatFindsNoRoomForItsFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dir, _, _ = smallDisk(t)
	w.change = func(c *Config) { c.MinFree = 1 }
	w.agent(1)
	// 5 MiB in its directory, and the same again as an artifact.
	id := w.submit("", func(n *berth.NewTask) {
		n.Retry.MaxAttempts = 1
		n.Payload = redact.NewBytes([]byte(`{"command": ["sh", "-c", "head -c 5242880 /dev/zero > big"], "files": ["big"]}`))
	})
	w.awaitState(id, berth.StateDeadLetter)
	if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeInfraFailed || at.Reason != string(runtime.CodeDiskFull) {
		t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
	}
}

// An agent that starts on a full disk goes on with the journal that there is,
// and one that has none says what to do.
func TestStartingOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir, fill, empty := smallDisk(t)
	used, fresh := filepath.Join(dir, "used"), filepath.Join(dir, "fresh")
	must(t, os.MkdirAll(filepath.Join(fresh, "runs"), 0o700))
	must(t, os.Mkdir(used, 0o700))
	j, err := OpenJournal(used)
	must(t, err)
	must(t, j.Append(Record{Epoch: 7, Device: "process/0", Fence: 4}))
	must(t, j.Close())
	f, err := os.OpenFile(filepath.Join(used, "journal.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(`{"torn":`)
	must(t, err)
	must(t, f.Close())
	fill()

	j, err = OpenJournal(used)
	must(t, err)
	if j.Epoch() != 7 || j.Fence("process/0") != 4 {
		t.Errorf("epoch %d, fence %d", j.Epoch(), j.Fence("process/0"))
	}
	for err = nil; err == nil; { // to the end of the file's last page
		err = j.Append(Record{Device: "process/0", Fence: 5, Reason: strings.Repeat("x", 500)})
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("append: %v", err)
	}
	empty()
	must(t, j.Append(Record{Device: "process/0", Fence: 6}))
	must(t, j.Close())
	records, err := ReadJournal(used)
	if err != nil || records[len(records)-1].Fence != 6 {
		t.Errorf("%v, %d records", err, len(records))
	}

	fill()
	_, err = New(Config{Server: "http://127.0.0.1:1", StateDir: fresh, Name: "h"})
	if want := "the state directory " + fresh + " is full: free space there and start again"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("err = %v", err)
	}
}
