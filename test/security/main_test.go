// Package security attacks Berth from outside: real servers, real tokens, and
// callers who mean no good.
package security

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
