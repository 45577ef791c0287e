package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/pgtest"
)

// plain is this process's environment without a server for the tests.
func plain() []string {
	env := []string{}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, pgtest.EnvURL+"=") {
			env = append(env, entry)
		}
	}
	return env
}

func TestCommandSeesAServerAndItsExitCodeCounts(t *testing.T) {
	var out bytes.Buffer
	err := run(t.Context(), []string{"sh", "-c", `cat "$` + pgtest.EnvFile + `"; exit 7`}, plain(), &out)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("got %v, want the command's exit code 7", err)
	}
	if !strings.HasPrefix(out.String(), "postgres://postgres:") {
		t.Errorf("the command saw %d bytes that are no DSN", out.Len())
	}
}

func TestPathStaysWhileDSNChanges(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	first, err := newHandover("/checkout", "postgres://first")
	if err != nil {
		t.Fatal(err)
	}
	beside, err := newHandover("/checkout", "postgres://beside")
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(first.path); err != nil || string(text) != "postgres://first" {
		t.Errorf("a second run at once changed the first one's file to %q, %v", text, err)
	}
	for _, h := range []*handover{first, beside} {
		if err := h.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(h.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left behind", h.path)
		}
	}
	later, err := newHandover("/checkout", "postgres://later")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = later.close() }()
	if later.path != first.path {
		t.Errorf("the next run has the path %s, want %s", later.path, first.path)
	}
}

func TestGivenServerIsPassedOn(t *testing.T) {
	var out bytes.Buffer
	env := append(plain(), pgtest.EnvURL+"=postgres://given")
	if err := run(t.Context(), []string{"sh", "-c", `echo "$` + pgtest.EnvURL + `"`}, env, &out); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(out.String()); got != "postgres://given" {
		t.Errorf("the command saw %q", got)
	}
}

func TestNoCommandIsAnError(t *testing.T) {
	if err := run(t.Context(), nil, plain(), &bytes.Buffer{}); err == nil {
		t.Error("no error without a command")
	}
}
