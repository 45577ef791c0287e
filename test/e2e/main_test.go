// Package e2e tests Berth as a whole: real programs as processes of their own
// on real databases, driven through the public API and the agent protocol.
package e2e

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
