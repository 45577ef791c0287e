package procs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// EnvRun and EnvMark are set in the environment of each started process. EnvRun
// is for people; EnvMark is what a sweep looks for.
const (
	EnvRun  = "BERTH_RUN_ID"
	EnvMark = "BERTH_RUN_MARK"
)

// ErrInUse is returned when another process, or another Table of this one,
// holds the directory.
var ErrInUse = errors.New("the directory is used by another process")

// Table records what was started in a directory, so that it can be killed later.
type Table struct {
	dir     string
	lock    *os.File
	spawns  chan func()
	quit    chan struct{}
	stop    sync.Once
	stopped chan struct{}
}

// Report says what Open or Reap found.
type Report struct {
	// Records is the number of uses that an earlier process did not end.
	Records int
	// Killed is the number of processes that were still alive and were killed.
	Killed int
}

// record is the file that outlives this process.
type record struct {
	Mark  string `json:"mark"`
	RunID string `json:"run_id"`
	Boot  string `json:"boot_id"`
	// PID leads the session; 0 when the process was not started yet.
	PID int `json:"pid,omitempty"`
	// Start is the process's start time in clock ticks since boot.
	Start uint64 `json:"start_time,omitempty"`
	// Dirs are removed with the record; see owns.
	Dirs []string `json:"dirs,omitempty"`
}

// Open locks dir, creating it if needed, kills what an earlier process left
// behind there and removes its directories. ErrInUse when another process
// holds dir.
func Open(ctx context.Context, dir string) (*Table, Report, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, Report{}, err
	}
	for _, d := range []string{dir, filepath.Join(dir, "procs"), filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, Report{}, err
		}
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, Report{}, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, Report{}, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	t := &Table{dir: dir, lock: lock, spawns: make(chan func()), quit: make(chan struct{}), stopped: make(chan struct{})}
	report, err := t.reap(ctx)
	if err != nil {
		_ = lock.Close()
		return nil, report, err
	}
	go t.spawner()
	return t, report, nil
}

// Reap kills what an earlier process left behind in dir and removes its
// directories. ErrInUse when a process holds dir: then nothing is left over.
func Reap(ctx context.Context, dir string) (Report, error) {
	t, report, err := Open(ctx, dir)
	if err != nil {
		return report, err
	}
	return report, t.Close()
}

// Close lets go of the directory. What is still running stays recorded; the
// kernel kills what Start started directly.
func (t *Table) Close() error {
	var err error
	t.stop.Do(func() {
		close(t.quit)
		<-t.stopped
		err = t.lock.Close()
	})
	return err
}

// reap handles each record that is there; the lock is held.
func (t *Table) reap(ctx context.Context) (Report, error) {
	var report Report
	entries, err := os.ReadDir(filepath.Join(t.dir, "procs"))
	if err != nil {
		return report, err
	}
	for _, e := range entries {
		path := filepath.Join(t.dir, "procs", e.Name())
		if !strings.HasSuffix(e.Name(), ".json") {
			_ = os.Remove(path) // a record that was never completed
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return report, err
		}
		var rec record
		if err := json.Unmarshal(b, &rec); err != nil || rec.Mark == "" {
			// Records are renamed into place whole, so this is none of ours.
			continue
		}
		report.Records++
		if rec.Boot == bootID() {
			n, err := killAll(ctx, rec)
			report.Killed += n
			if err != nil {
				return report, fmt.Errorf("leftovers of run %s: %w", rec.RunID, err)
			}
		}
		if err := t.forget(rec); err != nil {
			return report, err
		}
	}
	// What no record names was made by a process that died before it could start
	// something in it.
	left, err := os.ReadDir(t.TempRoot())
	for _, e := range left {
		err = errors.Join(err, removeAll(filepath.Join(t.TempRoot(), e.Name())))
	}
	return report, err
}

// forget removes a record's directories and then the record.
func (t *Table) forget(rec record) error {
	for _, d := range rec.Dirs {
		if !t.owns(d) {
			continue // never remove what is not ours, whatever the file says
		}
		if err := removeAll(d); err != nil {
			return err
		}
	}
	return os.Remove(t.path(rec))
}

// owns reports whether a directory was made by TempDir or ShortTempDir.
func (t *Table) owns(dir string) bool {
	if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), shortPrefix) {
		return true
	}
	rel, err := filepath.Rel(t.TempRoot(), dir)
	return err == nil && filepath.IsLocal(rel) && rel != "."
}

func (t *Table) path(rec record) string {
	return filepath.Join(t.dir, "procs", rec.Mark+".json")
}

// write stores a record under its final name at once. It is not synced to disk:
// it must survive this process, not the machine, whose end kills all anyway.
func (t *Table) write(rec record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	tmp := t.path(rec) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, t.path(rec))
}

// newMark returns a text that nothing else carries.
func newMark() string { return strings.ToLower(rand.Text()) }

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// removeAll removes a directory, also one whose permissions forbid it.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}
