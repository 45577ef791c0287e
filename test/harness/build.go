package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// EnvBin names the environment variable with a folder of programs to test
// instead of building them.
const EnvBin = "BERTH_TEST_BIN"

const buildLimit = 8 * time.Minute

// bench is what the tests of a process share: the folder and the programs.
type bench struct{ root, bin string }

// shared builds once a process. It ends with the process, by the janitor.
var shared = sync.OnceValues(func() (bench, error) {
	root, err := os.MkdirTemp("", "berth-harness-")
	if err != nil {
		return bench{}, fmt.Errorf("folder: %w", err)
	}
	if err := startJanitor(root); err != nil {
		return bench{}, err
	}
	if bin := os.Getenv(EnvBin); bin != "" {
		return bench{root: root, bin: bin}, nil
	}
	b := bench{root: root, bin: filepath.Join(root, "bin")}
	return b, b.build()
})

func (b bench) build() error {
	ctx, cancel := context.WithTimeout(context.Background(), buildLimit)
	defer cancel()
	gomod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	args := append([]string{"build", "-ldflags=-s -w"}, buildFlags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", b.bin+"/", "./cmd/...")...)
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(gomod)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/...: %w\n%s", err, out)
	}
	return nil
}

// Program returns the path of a built program of cmd/.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	b, err := shared()
	if err != nil {
		tb.Fatalf("harness: %v", err)
	}
	return filepath.Join(b.bin, name)
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Folder makes a folder for the test. It is removed when the test passed, and
// named when it failed.
func Folder(tb testing.TB) string {
	tb.Helper()
	b, err := shared()
	if err != nil {
		tb.Fatalf("harness: %v", err)
	}
	dir, err := os.MkdirTemp(b.root, notInNames.ReplaceAllString(tb.Name(), "-")+"-")
	if err != nil {
		tb.Fatalf("harness: %v", err)
	}
	tb.Cleanup(func() {
		if err := endLeftovers(dir); err != nil {
			tb.Errorf("harness: %v", err)
		}
		if tb.Failed() {
			tb.Logf("harness: logs and state are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("harness: %v", err)
		}
	})
	return dir
}
