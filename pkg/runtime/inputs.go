package runtime

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
)

// Inputs are files that a caller (the Host Agent) has and a run may read. They
// are linked into the run's directory, so that they cost no space and no time,
// and are read-only: work that shares the caller's user could still write to
// one, which the caller has to notice. Direct actions and the local API have none:
// whoever uses those is on the machine and names files by their paths.

var inputNamePattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

// EnvInputs is the variable that names the directory of the inputs to commands.
const EnvInputs = "BERTH_INPUTS"

func checkInputs(inputs map[string]string) error {
	for name, path := range inputs {
		if !inputNamePattern.MatchString(name) || !filepath.IsAbs(path) {
			return fmt.Errorf("%w: an input is named by letters, digits, '.', '_' and '-', and its path is absolute", ErrInvalidRequest)
		}
	}
	return nil
}

// inputsDir is where a run's inputs are; "" when it has none.
func inputsDir(req RunRequest) string {
	if len(req.Inputs) == 0 {
		return ""
	}
	return filepath.Join(req.Dir, "inputs")
}

// seenInputs are the paths as the run sees them.
func seenInputs(req RunRequest) map[string]string {
	seen := make(map[string]string, len(req.Inputs))
	for name := range req.Inputs {
		seen[name] = filepath.Join(inputsDir(req), name)
	}
	return seen
}

// layInputs puts the inputs into the run's directory.
func layInputs(req RunRequest) error {
	dir := inputsDir(req)
	if dir == "" {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for name, path := range req.Inputs {
		to := filepath.Join(dir, name)
		if err := os.Link(path, to); err == nil {
			continue
		}
		if err := copyInput(path, to); err != nil { // another file system, or one without links
			return err
		}
	}
	return nil
}

func copyInput(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o400)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// removeInputs removes the run's own names of the inputs.
func removeInputs(req RunRequest) error {
	dir := inputsDir(req)
	if dir == "" {
		return nil
	}
	return os.RemoveAll(dir)
}
