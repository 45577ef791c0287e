// Package storeopen opens the storage engine that a database URL names. It is
// where the wiring of the daemons keeps a second control plane off an SQLite
// file; store.Open of the engine itself does not.
package storeopen

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

// ErrInUse is wrapped when another process has the SQLite file.
var ErrInUse = errors.New("SQLite file in use")

// Open opens the store at url (schema.ParseTarget). A Postgres that is down is
// no error: its operations are berth.ErrUnavailable until it is up. An SQLite
// file is made when it is missing, and locked for this process until Close; a
// second one gets an error that wraps ErrInUse and names the first. No
// migration is applied, and no error holds the URL.
func Open(ctx context.Context, url redact.String, opts store.Options) (store.Store, error) {
	dialect, where, err := schema.ParseTarget(url.Reveal())
	if err != nil {
		return nil, err
	}
	if dialect == schema.Postgres {
		return postgres.Open(ctx, where, opts)
	}
	lock, err := lockFile(where)
	if err != nil {
		return nil, err
	}
	s, err := sqlite.Open(ctx, where, opts)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &locked{Store: s, lock: lock}, nil
}

// locked is an SQLite store with its lock.
type locked struct {
	store.Store
	lock *os.File
}

// Close closes the store, then lets the file go.
func (l *locked) Close() error {
	err := l.Store.Close()
	if cerr := l.lock.Close(); !errors.Is(cerr, os.ErrClosed) {
		err = errors.Join(err, cerr)
	}
	return err
}

// lockFile takes the OS lock on <path>.lock, which the kernel frees when the
// process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, schema.FileError(err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w: another Berth control plane (pid %s) uses this file; SQLite mode allows one; use Postgres for more", ErrInUse, holder(f))
		return nil, errors.Join(err, f.Close())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the SQLite file: %w", err), f.Close())
	}
	return f, nil
}

// holder reads the pid that the one who holds the lock wrote.
func holder(f *os.File) string {
	b := make([]byte, 20)
	n, _ := f.ReadAt(b, 0)
	pid := strings.TrimSpace(string(b[:n]))
	if _, err := strconv.Atoi(pid); err != nil {
		return "unknown"
	}
	return pid
}
