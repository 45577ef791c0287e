package localmode

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
)

// passwordFile keeps the first administrator's password, 0600.
const passwordFile = "admin-password"

// dataDir is where a local Berth keeps everything.
type dataDir string

func openDataDir(path string) (dataDir, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		why := err.Error()
		var errno syscall.Errno
		if errors.As(err, &errno) {
			why = errno.Error()
		}
		return "", &berth.SetupError{What: "the data directory " + abs + " cannot be made (" + why + ")", Remedy: "choose another with --data-dir"}
	}
	return dataDir(abs), nil
}

func (d dataDir) path(name string) string { return filepath.Join(string(d), name) }

// roomy says what to do about a full disk; any other error, and nil, it leaves.
func (d dataDir) roomy(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return &berth.SetupError{What: "no space left on the disk of the data directory " + string(d), Remedy: "free space there, or choose another with --data-dir"}
}

// secrets of a local installation.
type secrets struct {
	masterKey, password redact.String
	// fresh: the password was made just now.
	fresh bool
}

// secrets reads the master key and the password, and makes them at first.
func (d dataDir) secrets() (s secrets, err error) {
	key := d.path("master.key")
	if _, err := identity.LoadOrCreateMasterKey(key); err != nil {
		return s, err
	}
	if s.masterKey, err = readSecret(key); err != nil {
		return s, err
	}
	s.password, err = readSecret(d.path(passwordFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	s.password, s.fresh = redact.NewString(rand.Text()), true
	if err := os.WriteFile(d.path(passwordFile), []byte(s.password.Reveal()+"\n"), 0o600); err != nil {
		return s, fmt.Errorf("keep the password: %w", err)
	}
	return s, nil
}

func readSecret(path string) (redact.String, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return redact.String{}, fmt.Errorf("read a secret: %w", err)
	}
	return redact.NewString(strings.TrimRight(string(b), "\r\n")), nil
}
