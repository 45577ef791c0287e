package hostagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// The agent takes no work that it could not journal, and leaves room for what
// runs: below minFree bytes in the state directory, or after a write there
// failed, it drains until there is room again.
const (
	minFree      = 16 << 20
	storageEvery = time.Second
	// probeBytes are written to see whether there is room.
	probeBytes = 64 << 10
)

// record journals, and begins to drain when that fails.
func (a *Agent) record(records ...Record) error {
	err := a.journal.Append(records...)
	if err != nil {
		a.storageFailed(err)
	}
	return err
}

// storageFailed has the agent drain because the state directory cannot be
// written; storageLoop ends that.
func (a *Agent) storageFailed(err error) {
	if a.setDrain(drainStorage, true) {
		a.inputs.purge()
		a.log.Error("the state directory cannot be written: no new attempts are taken until it can, what runs goes on; free space there",
			zap.String("state_dir", a.cfg.StateDir), zap.Int64("free_bytes", freeBytes(a.cfg.StateDir)), zap.String("error", faultOf(err)))
	}
}

// storageLoop watches the room in the state directory.
func (a *Agent) storageLoop(ctx context.Context) {
	for sleep(ctx, jitter(storageEvery, 0.2)) {
		a.watchStorage()
	}
}

func (a *Agent) watchStorage() {
	free := freeBytes(a.cfg.StateDir)
	a.metrics.room(free)
	a.mu.Lock()
	full := a.drains[drainStorage]
	a.mu.Unlock()
	switch {
	case !full && free < a.cfg.MinFree:
		a.storageFailed(syscall.ENOSPC)
	case full && free >= a.cfg.MinFree+a.cfg.MinFree/4 && a.probeStorage() == nil:
		a.log.Info("the state directory has room again", zap.String("state_dir", a.cfg.StateDir), zap.Int64("free_bytes", free))
		a.setDrain(drainStorage, false)
	}
}

// probeStorage writes as a run and as the journal do.
func (a *Agent) probeStorage() error {
	path := filepath.Join(a.cfg.StateDir, "runs", ".room")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	err = errors.Join(err, f.Sync(), f.Close(), os.Remove(path))
	if err != nil {
		return err
	}
	return a.journal.Append(Record{})
}

// storageFull reports whether the agent drains for want of room.
func (a *Agent) storageFull() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.drains[drainStorage]
}

// faultOf is the reason of a failed write, without paths.
func faultOf(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

// freeBytes is the room in a directory for who is no root, or 0.
func freeBytes(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}
