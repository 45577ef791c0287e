package enroldir_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/enroldir"
	"github.com/berth-dev/berth/pkg/redact"
)

const ttl = 10 * time.Minute

func pending(t *testing.T, dir string, now time.Time) []string {
	t.Helper()
	names, err := enroldir.Pending(dir, ttl, now)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestAHostAsksAndIsAnswered(t *testing.T) {
	dir := t.TempDir()
	asks, got := make(chan struct{}), make(chan redact.String, 1)
	go func() {
		token, err := enroldir.Ask(t.Context(), dir, "agent-1", func() { close(asks) })
		if err != nil {
			t.Error(err)
		}
		got <- token
	}()
	<-asks
	if names := pending(t, dir, time.Now()); !slices.Equal(names, []string{"agent-1"}) {
		t.Fatalf("pending: %q", names)
	}
	if err := enroldir.Answer(dir, "agent-1", redact.NewString("secret")); err != nil {
		t.Fatal(err)
	}
	if token := <-got; token.Reveal() != "secret" {
		t.Errorf("another token")
	}
	info, err := os.Stat(filepath.Join(dir, "agent-1.token"))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("the token's file: %v, %v", info.Mode(), err)
	}

	// A new process of the same host takes the same token: its enrolment may
	// have been lost half-way.
	again, err := enroldir.Ask(t.Context(), dir, "agent-1", nil)
	if err != nil || again.Reveal() != "secret" {
		t.Errorf("asked again: %v", err)
	}
	if names := pending(t, dir, time.Now()); len(names) != 0 {
		t.Errorf("pending after the answer: %q", names)
	}
	if err := enroldir.Done(dir, "agent-1"); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestATokenThatIsOverIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	if err := enroldir.Answer(dir, "agent-2", redact.NewString("old")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent-2.ask"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if names := pending(t, dir, now); len(names) != 0 {
		t.Errorf("pending while the token is good: %q", names)
	}
	if names := pending(t, dir, now.Add(ttl)); !slices.Equal(names, []string{"agent-2"}) {
		t.Errorf("pending after the token: %q", names)
	}
	if _, err := os.Stat(filepath.Join(dir, "agent-2.token")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old token is still there: %v", err)
	}
}

func TestNamesThatNoHostCanHaveAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"Agent 1.ask", "..ask", "agent*.ask", "notes"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names := pending(t, dir, time.Now()); len(names) != 0 {
		t.Errorf("pending: %q", names)
	}
	if _, err := enroldir.Ask(t.Context(), dir, "../agent", nil); err == nil {
		t.Error("a path was taken for a name")
	}
}

func TestAskingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := enroldir.Ask(ctx, t.TempDir(), "agent-1", cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
