package cron

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain takes the zone data of the Go toolchain, so that the tests say the
// same whatever the machine's own is.
func TestMain(m *testing.M) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		panic(err)
	}
	zones := filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip")
	if _, err := os.Stat(zones); err != nil {
		panic(err)
	}
	if err := os.Setenv("ZONEINFO", zones); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func must(t testing.TB, expr, zone string) Spec {
	t.Helper()
	s, err := Parse(expr, zone)
	if err != nil {
		t.Fatalf("Parse(%q, %q): %v", expr, zone, err)
	}
	return s
}
