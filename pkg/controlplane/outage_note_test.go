package controlplane

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestAnOutageIsLoggedOnceForEachReason(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	o := &outages{log: zap.New(core)}
	refused := fmt.Errorf("SchemaVersion: %w", &berth.DatabaseAccessError{What: "the database refused the login", Remedy: "check it"})
	for _, err := range []error{nil, refused, refused, berth.ErrUnavailable, berth.ErrUnavailable, nil, nil, refused} {
		o.note(err)
	}
	want := []string{"the database refused the login: check it", "the database does not answer", "the database answers again", "the database refused the login: check it"}
	all := logs.All()
	if len(all) != len(want) {
		t.Fatalf("logged %v", all)
	}
	for i, entry := range all {
		if entry.Message != want[i] {
			t.Errorf("line %d is %q, want %q", i, entry.Message, want[i])
		}
	}
}
