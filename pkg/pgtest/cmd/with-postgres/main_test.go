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
	err := run(t.Context(), []string{"sh", "-c", `echo "$` + pgtest.EnvURL + `"; exit 7`}, plain(), &out)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("got %v, want the command's exit code 7", err)
	}
	if !strings.HasPrefix(out.String(), "postgres://postgres:") {
		t.Errorf("the command saw %d bytes that are no DSN", out.Len())
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
