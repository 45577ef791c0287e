package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// handover is the file through which the tests learn the server's DSN.
//
// A DSN in the environment would do, but for go's cache of test results: a
// result counts only while the environment variables that the test read are the
// same, and each server has another port and password. So the variable holds a
// path that is the same in each run of one working folder.
type handover struct {
	path string
	lock *os.File // nil where path is not the usual one
	temp string   // the folder of an unusual path
}

// newHandover writes dsn to a file that only this user may read. Where another
// run in the same working folder holds the usual path, it takes a path of its
// own, and its results are not cached.
func newHandover(workingFolder, dsn string) (_ *handover, err error) {
	h := &handover{}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	folder, ok := h.usualFolder(workingFolder)
	if !ok {
		if h.temp, err = os.MkdirTemp("", "berth-with-postgres-"); err != nil {
			return nil, fmt.Errorf("folder for the server's address: %w", err)
		}
		folder = h.temp
	}
	h.path = filepath.Join(folder, "url")
	// A file left by a killed run may have other rights: never write into it.
	if err := os.Remove(h.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the server's address: %w", err)
	}
	if err := os.WriteFile(h.path, []byte(dsn), 0o600); err != nil {
		return nil, fmt.Errorf("the server's address: %w", err)
	}
	return h, nil
}

// usualFolder returns this working folder's place below the user's cache and
// locks it, or false where that cannot be done.
func (h *handover) usualFolder(workingFolder string) (string, bool) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", false
	}
	digest := sha256.Sum256([]byte(workingFolder))
	folder := filepath.Join(cache, "berth", "with-postgres", hex.EncodeToString(digest[:8]))
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", false
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", false
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return "", false
	}
	h.lock = lock
	return folder, true
}

// close removes the file, then lets the next run have its path.
func (h *handover) close() error {
	var errs []error
	if h.path != "" {
		errs = append(errs, os.Remove(h.path))
	}
	if h.temp != "" {
		errs = append(errs, os.RemoveAll(h.temp))
	}
	if h.lock != nil {
		errs = append(errs, h.lock.Close())
	}
	return errors.Join(errs...)
}
