package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/enroldir"
	"github.com/berth-dev/berth/pkg/redact"
)

func TestAgentsStartedAlikeBecomeHostsOfTheirOwn(t *testing.T) {
	root := t.TempDir()
	take := func() (config, *os.File) {
		t.Helper()
		c := config{StateRoot: root, Name: "agent"}
		lock, err := c.inSlot()
		if err != nil {
			t.Fatal(err)
		}
		return c, lock
	}
	first, firstLock := take()
	second, secondLock := take()
	defer func() { _ = secondLock.Close() }()
	if first.Name != "agent-1" || second.Name != "agent-2" || first.StateDir == second.StateDir || filepath.Dir(first.StateDir) != root {
		t.Fatalf("%s in %s, %s in %s", first.Name, first.StateDir, second.Name, second.StateDir)
	}
	// One that is started anew is the host that there was before.
	_ = firstLock.Close()
	again, againLock := take()
	defer func() { _ = againLock.Close() }()
	if again.Name != first.Name || again.StateDir != first.StateDir {
		t.Errorf("%s in %s, want %s in %s", again.Name, again.StateDir, first.Name, first.StateDir)
	}
}

func TestAHostAsksForATokenOnceInItsLife(t *testing.T) {
	c := config{StateDir: t.TempDir(), EnrolmentDir: t.TempDir(), Name: "agent-1"}
	if err := enroldir.Answer(c.EnrolmentDir, c.Name, redact.NewString("secret")); err != nil {
		t.Fatal(err)
	}
	if err := c.ask(t.Context(), zap.NewNop()); err != nil || c.token.Reveal() != "secret" {
		t.Fatalf("no token: %v", err)
	}
	c.tidy(zap.NewNop())
	if left, _ := os.ReadDir(c.EnrolmentDir); len(left) != 0 {
		t.Errorf("left in the enrolment directory: %v", left)
	}

	// Enrolled: nobody answers, and nobody is asked.
	c.token = redact.String{}
	if err := os.WriteFile(filepath.Join(c.StateDir, "host.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.ask(t.Context(), zap.NewNop()); err != nil || !c.token.IsZero() {
		t.Errorf("asked again: %v", err)
	}
}

func TestAStateRootThatCannotBeUsedIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config{StateRoot: file}
	if _, err := c.inSlot(); err == nil || !strings.Contains(err.Error(), "state root") {
		t.Errorf("%v", err)
	}
}
