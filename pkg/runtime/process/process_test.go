package process_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/process"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// slot opens the first slot of a driver with the given configuration.
func slot(t *testing.T, cfg process.Config) runtime.Commander {
	t.Helper()
	table, _, err := procs.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Procs = table
	d, err := process.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), d.Close(), table.Close()); err != nil {
			t.Error(err)
		}
	})
	s, err := d.Open(t.Context(), "process-0", runtime.OpenOptions{RunID: "r", WorkDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), "process-0", runtime.OpenOptions{}); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("second open: %v", err)
	}
	return s.(runtime.Commander)
}

func shell(script string) runtime.Command { return runtime.Command{Args: []string{"sh", "-c", script}} }

func TestAllowList(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\nexit 7\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := slot(t, process.Config{Allow: []string{"true", tool, "not-installed-here"}})
	for name, want := range map[string]runtime.Code{
		"true": "", tool: "", filepath.Dir(tool) + "/./tool": "", "/usr/bin/true": "",
		"false": runtime.CodeCommandRefused, "tool": runtime.CodeCommandRefused, "/elsewhere/true": runtime.CodeCommandRefused,
		"../true": runtime.CodeCommandRefused, "": runtime.CodeCommandRefused, "not-installed-here": runtime.CodeCommandStart,
	} {
		_, err := s.Command(t.Context(), runtime.Command{Args: []string{name}})
		if (want == "") != (err == nil) || (err != nil && runtime.CodeOf(err) != want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
	if exit, err := s.Command(t.Context(), runtime.Command{Args: []string{tool}}); err != nil || exit.Code != 7 {
		t.Errorf("exit %+v, %v", exit, err)
	}
	none := slot(t, process.Config{Allow: []string{}})
	if _, err := none.Command(t.Context(), shell("true")); runtime.CodeOf(err) != runtime.CodeCommandRefused {
		t.Errorf("empty list: %v", err)
	}
}

func TestEnvironmentIsMinimal(t *testing.T) {
	t.Setenv("HOST_SECRET", "of-the-host")
	s := slot(t, process.Config{})
	var out bytes.Buffer
	c := shell("env")
	c.Env, c.Output = redact.Strings{"MINE": redact.NewString("x"), procs.EnvMark: redact.NewString("forged")}, &out
	if _, err := s.Command(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(out.String()) {
		name, _, _ := strings.Cut(line, "=")
		if !slices.Contains([]string{"PATH", "HOME", "TMPDIR", "LANG", "PWD", "MINE", "_", "BERTH_DEVICE", procs.EnvRun, procs.EnvMark}, name) {
			t.Errorf("unexpected %s", line)
		}
	}
	if strings.Contains(out.String(), "forged") || !strings.Contains(out.String(), "HOME="+s.Dir()) {
		t.Errorf("environment:\n%s", out.String())
	}
}

func TestResourceLimits(t *testing.T) {
	s := slot(t, process.Config{Limits: process.Limits{FileBytes: 1 << 20, OpenFiles: 20, CPU: time.Second, MemoryBytes: 1 << 30}})
	var out bytes.Buffer
	c := shell("ulimit -f; ulimit -n; ulimit -t; ulimit -v")
	c.Output = &out
	if _, err := s.Command(t.Context(), c); err != nil || out.String() != "2048\n20\n1\n1048576\n" {
		t.Errorf("limits %q, %v", out.String(), err)
	}
	exit, err := s.Command(t.Context(), shell("head -c 2000000 /dev/zero > big"))
	if fi, serr := os.Stat(filepath.Join(s.Dir(), "big")); err != nil || exit.Code == 0 || serr != nil || fi.Size() > 1<<20 {
		t.Errorf("exit %+v, %v, %v", exit, err, serr)
	}
	exit, err = s.Command(t.Context(), shell("while :; do :; done"))
	if err != nil || exit.Signal == "" {
		t.Errorf("a command that spins: %+v, %v", exit, err)
	}
}

func TestHostsOwnTimeLimit(t *testing.T) {
	s := slot(t, process.Config{MaxDuration: 100 * time.Millisecond})
	if _, err := s.Command(t.Context(), shell("sleep 100")); runtime.CodeOf(err) != runtime.CodeCommandTimeout {
		t.Errorf("got %v", err)
	}
}

func TestCloseEndsACommand(t *testing.T) {
	s := slot(t, process.Config{Grace: 50 * time.Millisecond})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = reader.Close(), writer.Close() }()
	c := shell("trap '' TERM; echo up; while :; do sleep 0.1; done")
	c.Output = writer
	done := make(chan error, 1)
	go func() {
		_, err := s.Command(context.Background(), c)
		done <- err
	}()
	if _, err := reader.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	session := s.(runtime.Session)
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the command ended with %v", err)
	}
	if _, err := s.Command(t.Context(), shell("true")); !errors.Is(err, runtime.ErrClosed) {
		t.Errorf("command after Close: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	s := slot(t, process.Config{OutputBytes: 1000})
	var out bytes.Buffer
	c := shell("head -c 5000 /dev/zero; exit 0")
	c.Output = &out
	if _, err := s.Command(t.Context(), c); runtime.CodeOf(err) != runtime.CodeOutputLimit || out.Len() != 1000 {
		t.Errorf("%d bytes, %v", out.Len(), err)
	}
}

// TestTheEnvironmentBringsNoOtherCode: what an allowed program is told to load
// would run, whatever the allow-list says.
func TestTheEnvironmentBringsNoOtherCode(t *testing.T) {
	dir := t.TempDir()
	source, library, proof := filepath.Join(dir, "x.c"), filepath.Join(dir, "x.so"), filepath.Join(dir, "proof")
	code := fmt.Sprintf(`#include <stdio.h>
__attribute__((constructor)) static void run(void) { FILE *f = fopen(%q, "w"); if (f) fclose(f); }`, proof)
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v: %s", err, out)
	}
	s := slot(t, process.Config{Allow: []string{"true"}})
	for name, value := range map[string]string{
		"LD_PRELOAD": library, "LD_AUDIT": library, "LD_LIBRARY_PATH": dir, "GCONV_PATH": dir, "BASH_ENV": source, "ENV": source, "SHELLOPTS": "xtrace", "PS4": "$(x)",
	} {
		_, err := s.Command(t.Context(), runtime.Command{Args: []string{"true"}, Env: redact.Strings{name: redact.NewString(value)}})
		if runtime.CodeOf(err) != runtime.CodeCommandRefused || !strings.Contains(runtime.MessageOf(err, ""), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(proof); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the library was loaded into the allowed command: %v", err)
	}
	if _, err := s.Command(t.Context(), runtime.Command{Args: []string{"true"}, Env: redact.Strings{"PATH": redact.NewString(dir), "A": redact.NewString("b")}}); err != nil {
		t.Errorf("other variables: %v", err)
	}
}
