package storeopen_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/storeopen"
)

// envHold makes the test binary a control plane that holds a file until its
// standard input ends.
const envHold = "BERTH_TEST_HOLD"

func TestMain(m *testing.M) {
	if target := os.Getenv(envHold); target != "" {
		if _, err := storeopen.Open(context.Background(), redact.NewString(target), store.Options{}); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		fmt.Println("open")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		os.Exit(0) // without Close, as a process that is killed
	}
	goleak.VerifyTestMain(m)
}

// hold starts another process on target; release ends it.
func hold(t *testing.T, target string) (said string, pid int, release func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envHold+"="+target)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, _ = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(said), cmd.Process.Pid, func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

func TestASecondControlPlaneOnAnSQLiteFileIsRefused(t *testing.T) {
	target := "sqlite://" + filepath.Join(t.TempDir(), "berth.db")
	if err := schema.Up(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	said, pid, release := hold(t, target)
	if said != "open" {
		t.Fatal(said)
	}
	_, err := storeopen.Open(t.Context(), redact.NewString(target), store.Options{})
	want := fmt.Sprintf("another Berth control plane (pid %d) uses this file; SQLite mode allows one; use Postgres for more", pid)
	if !errors.Is(err, storeopen.ErrInUse) || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v, want %q", err, want)
	}
	release() // killed, in effect: the kernel frees the lock

	s, err := storeopen.Open(t.Context(), redact.NewString(target), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	said, _, release = hold(t, target)
	release()
	if !strings.Contains(said, fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("the other process said %q", said)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	said, _, release = hold(t, target)
	release()
	if said != "open" {
		t.Errorf("after Close the other process said %q", said)
	}
}

func TestADatabaseThatIsDownIsNoErrorYet(t *testing.T) {
	s, err := storeopen.Open(t.Context(), redact.NewString("postgres://berth:hunter2@127.0.0.1:1/berth"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, berth.ErrUnavailable) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnusableURLs(t *testing.T) {
	for _, url := range []string{"", "mysql://u:hunter2@h/d", "sqlite:///does/not/exist/berth.db"} {
		_, err := storeopen.Open(t.Context(), redact.NewString(url), store.Options{})
		if strings.HasPrefix(url, "sqlite") && (err == nil || !strings.Contains(err.Error(), "directory of the SQLite file does not exist: make it")) {
			t.Errorf("%q: %v", url, err)
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", url, err)
		}
	}
}
