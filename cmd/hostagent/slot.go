package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/enroldir"
)

// maxSlots bounds the agents that share a --state-root.
const maxSlots = 1000

// takeSlot takes the first free numbered directory below root, making it if
// need be, and returns its number. It is this process's until it ends, however
// it ends; the file keeps the lock and is to be kept. So agents that are started
// alike, as replicas of a container are, become hosts of their own, and one that
// is started anew becomes a host that there was before.
func takeSlot(root string) (number int, lock *os.File, err error) {
	for number = 1; number <= maxSlots; number++ {
		dir := filepath.Join(root, strconv.Itoa(number))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return 0, nil, fmt.Errorf("state root: %w", err)
		}
		lock, err := os.OpenFile(filepath.Join(dir, "slot.lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return 0, nil, fmt.Errorf("state root: %w", err)
		}
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return number, lock, nil
		}
		_ = lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return 0, nil, fmt.Errorf("state root: lock %s: %w", dir, err)
		}
	}
	return 0, nil, fmt.Errorf("state root: all %d directories of %s are in use: stop some agents", maxSlots, root)
}

// inSlot gives the agent a state directory below its state root, and a name
// with its number.
func (c *config) inSlot() (*os.File, error) {
	number, lock, err := takeSlot(c.StateRoot)
	if err != nil {
		return nil, err
	}
	c.StateDir = filepath.Join(c.StateRoot, strconv.Itoa(number))
	c.Name += "-" + strconv.Itoa(number)
	return lock, nil
}

// enrolled reports whether the state directory says who this host is.
func (c *config) enrolled() bool {
	_, err := os.Stat(filepath.Join(c.StateDir, "host.json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// ask asks for a token in the enrolment directory, where there is one and the
// host needs one. It returns ctx's error when a signal comes first.
func (c *config) ask(ctx context.Context, log *zap.Logger) error {
	if c.EnrolmentDir == "" || !c.token.IsZero() || c.enrolled() {
		return nil
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	c.token, err = enroldir.Ask(ctx, c.EnrolmentDir, c.Name, func() {
		log.Info("asked to be let in; `berth host admit` answers", zap.String("directory", c.EnrolmentDir), zap.String("name", c.Name))
	})
	return err
}

// tidy removes what ask left, once the host has been let in.
func (c *config) tidy(log *zap.Logger) {
	if c.EnrolmentDir == "" {
		return
	}
	if err := enroldir.Done(c.EnrolmentDir, c.Name); err != nil {
		log.Warn("cannot remove this host's files from the enrolment directory", zap.Error(err))
	}
}
