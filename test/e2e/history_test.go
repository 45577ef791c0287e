package e2e

import (
	"testing"

	"github.com/berth-dev/berth/test/harness"
)

// checkHistory reads the database as it stands: what must never have been.
func checkHistory(t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.CheckHistory(t)
}

// checkJournals reads what the agents wrote before they acted.
func checkJournals(t *testing.T, agents ...*harness.Agent) {
	t.Helper()
	harness.CheckJournals(t, agents...)
}
