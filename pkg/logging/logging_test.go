package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
)

func TestTransitionsCarryEveryIdentifier(t *testing.T) {
	var out bytes.Buffer
	logger, err := logging.New(&out, "debug", "api")
	if err != nil {
		t.Fatal(err)
	}
	logging.Transitions(logger, []berth.Transition{
		{
			Event: berth.EventRetried, Task: "t", From: berth.StateRunning, To: berth.StateFailed, Attempt: "a", Number: 2,
			Device: "d", Host: "h", Fence: 9, Outcome: berth.OutcomeFailed, Reason: "r", Pool: "p", CorrelationID: "c",
		},
		{Event: berth.EventRenewed, Task: "t"},
	})
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 2 {
		t.Fatalf("%d lines", len(lines))
	}
	var got map[string]any
	if err := json.Unmarshal(lines[0], &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"message": "retried", "level": "info", "service": "api", "task_id": "t", "host_id": "h", "device_id": "d",
		"attempt_id": "a", "lease_id": "a", "correlation_id": "c", "fence": 9.0, "number": 2.0, "from": "running",
		"to": "failed", "outcome": "failed", "reason": "r", "pool_id": "p",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: got %v, want %v", k, got[k], v)
		}
	}
	if !bytes.Contains(lines[1], []byte(`"level":"debug"`)) || !bytes.Contains(lines[1], []byte(`"message":"renewed"`)) {
		t.Errorf("renewed: %s", lines[1])
	}
}

func TestTheLevelIsKept(t *testing.T) {
	var out bytes.Buffer
	logger, err := logging.New(&out, "info", "api")
	if err != nil {
		t.Fatal(err)
	}
	logging.Transitions(logger, []berth.Transition{{Event: berth.EventRenewed}})
	if out.Len() != 0 {
		t.Errorf("logged %s", out.String())
	}
	if _, err := logging.New(&out, "loud", "api"); !errors.Is(err, berth.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}
