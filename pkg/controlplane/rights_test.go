package controlplane_test

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/pgtest/runtimedb"
)

// TestADaemonWithTooManyRightsSaysSo: once, with the remedy, and never the URL.
func TestADaemonWithTooManyRightsSaysSo(t *testing.T) {
	runtime, owner := runtimedb.New(t)
	for target, warns := range map[string]int{runtime: 0, owner: 1, enginetest.SQLite(t).Target: 0} {
		p := start(t, "scheduler", "BERTH_DATABASE_URL="+target)
		for range 3 {
			becomes(t, p.url("admin")+"/readyz", 200, "ready")
		}
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(p.said(), "berth migrate grants"); n != warns || strings.Contains(p.said(), target) {
			t.Errorf("%d warnings, should be %d:\n%s", n, warns, p.said())
		}
	}
}
