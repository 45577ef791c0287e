// Package enroldir lets hosts ask for enrolment tokens through a directory that
// they share with one who may make them: the replicas of an agent beside each
// other on one machine, say, which nobody enrols by hand. The credential that
// makes tokens is then nowhere near the hosts, on which tasks run.
//
// A host asks by making <name>.ask, and takes its token from <name>.token. Both
// files may be left behind by either side at any time: what is there is used or
// made again. A name is a host's (berth.ValidName), so it is safe in a path.
package enroldir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

const (
	asked  = ".ask"
	answer = ".token"
	// poll is how often Ask looks for its answer.
	poll = 250 * time.Millisecond
)

// Ask asks for a token for the host of this name and waits for it. waiting, if
// set, is called once when there is none yet. It returns ctx's error when ctx
// ends first. The token's file stays, for an enrolment whose answer is lost and
// that is repeated by a new process; see Done.
func Ask(ctx context.Context, dir, name string, waiting func()) (redact.String, error) {
	if !berth.ValidName(name) {
		return redact.String{}, fmt.Errorf("ask for an enrolment token: %q cannot name a host", berth.Clip(name, 63))
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		b, err := os.ReadFile(filepath.Join(dir, name+answer))
		if err == nil && len(b) > 0 {
			return redact.NewString(strings.TrimSpace(string(b))), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return redact.String{}, fmt.Errorf("ask for an enrolment token: %w", err)
		}
		// Again in each round: whoever tidies up may remove it.
		if err := os.WriteFile(filepath.Join(dir, name+asked), nil, 0o600); err != nil {
			return redact.String{}, fmt.Errorf("ask for an enrolment token: %w", err)
		}
		if waiting != nil {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return redact.String{}, ctx.Err()
		case <-ticker.C:
		}
	}
}

// Done removes what a host that has been let in left in the directory.
func Done(dir, name string) error {
	if !berth.ValidName(name) {
		return nil
	}
	return errors.Join(remove(filepath.Join(dir, name+asked)), remove(filepath.Join(dir, name+answer)))
}

// Pending lists the names of the hosts that ask and have no token, sorted, and
// removes tokens older than ttl: they are good for nothing any more.
func Pending(dir string, ttl time.Duration, now time.Time) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look who asks for an enrolment token: %w", err)
	}
	var ask, have []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), asked); ok && berth.ValidName(name) {
			ask = append(ask, name)
		}
		name, ok := strings.CutSuffix(e.Name(), answer)
		if !ok {
			continue
		}
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("look who asks for an enrolment token: %w", err)
		case now.Sub(info.ModTime()) >= ttl:
			if err := remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		default:
			have = append(have, name)
		}
	}
	ask = slices.DeleteFunc(ask, func(name string) bool { return slices.Contains(have, name) })
	slices.Sort(ask)
	return ask, nil
}

// Answer hands a token to the host that asked.
func Answer(dir, name string, token redact.String) error {
	f, err := os.CreateTemp(dir, ".token-*") // mode 0600
	if err != nil {
		return fmt.Errorf("hand out an enrolment token: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.WriteString(token.Reveal() + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name+answer))
	}
	if err != nil {
		return fmt.Errorf("hand out an enrolment token: %w", err)
	}
	return remove(filepath.Join(dir, name+asked))
}

// Refuse takes a request away that will not be answered.
func Refuse(dir, name string) error { return remove(filepath.Join(dir, name+asked)) }

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
