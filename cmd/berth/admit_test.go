package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/enroldir"
	"github.com/berth-dev/berth/pkg/store"
)

// quiet collects what a command writes from another goroutine.
type quiet struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (q *quiet) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.b.Write(p)
}

func (q *quiet) String() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.b.String()
}

func TestHostsThatAskAreLetIn(t *testing.T) {
	sh := newShell(t)
	sh.s.User("doorman", berth.RoleAdmin)
	dir, password := t.TempDir(), filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte(apitest.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out quiet
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{
			"host", "admit", dir, "--name", "doorman", "--password-file", password, "--name-pattern", "agent-*", "--admin-listen", "127.0.0.1:0",
		}, sh.env, strings.NewReader(""), &out, &out)
	}()

	asking, give := context.WithTimeout(ctx, 30*time.Second)
	defer give()
	stranger := filepath.Join(dir, "stranger.ask")
	if err := os.WriteFile(stranger, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent-1", "agent-2"} {
		token, err := enroldir.Ask(asking, dir, name, nil)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out.String())
		}
		if strings.Contains(out.String(), token.Reveal()) {
			t.Error("the token is in the log")
		}
	}
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d\n%s", code, out.String())
	}
	if _, err := os.Stat(stranger); err == nil {
		t.Error("the request of a stranger is still there")
	}

	// Each token is good for one name alone.
	tokens, _, err := sh.s.Store.ListEnrolments(t.Context(), store.Page{})
	if err != nil || len(tokens) != 2 {
		t.Fatalf("%d tokens, %v", len(tokens), err)
	}
	for i, want := range []string{"agent-1", "agent-2"} {
		if e := tokens[i]; e.Pattern != want || e.PoolName != berth.DefaultPool || e.ExpiresAt.Sub(e.CreatedAt) != admitTTL {
			t.Errorf("token %d is for %q in %q, good for %v", i, e.Pattern, e.PoolName, e.ExpiresAt.Sub(e.CreatedAt))
		}
	}
}

func TestHealthcheck(t *testing.T) {
	ready := true
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("schema_behind\n"))
		}
	}))
	defer s.Close()
	sh := &shell{t: t}
	sh.wants(exitOK, sh.run("healthcheck", s.URL))
	ready = false
	if got := sh.wants(exitError, sh.run("healthcheck", s.URL)); !strings.Contains(got.err, "schema_behind") {
		t.Errorf("the code is not told: %s", got.err)
	}
	sh.wants(exitUsage, sh.run("healthcheck", "here"))
	s.Close()
	sh.wants(exitError, sh.run("healthcheck", s.URL))
}
