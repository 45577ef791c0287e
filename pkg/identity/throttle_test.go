package identity

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestTheThrottleForgetsAndIsBounded(t *testing.T) {
	th := newThrottle()
	now := time.Unix(1_800_000_000, 0)
	k := throttleKey{name: "admin", client: "192.0.2.1"}
	var waits []time.Duration
	for range 12 {
		if err := th.begin(k, now); err != nil {
			t.Fatalf("after the wait: %v", err)
		}
		var many *berth.TooManyError
		if err := th.begin(k, now); errors.As(err, &many) {
			waits = append(waits, many.RetryAfter)
			now = now.Add(many.RetryAfter)
		}
	}
	if len(waits) < 6 || waits[0] != firstWait || waits[1] != 2*firstWait || waits[len(waits)-1] != longestWait {
		t.Errorf("waits: %v", waits)
	}
	now = now.Add(forgetAfter + time.Second)
	for range freeFailures {
		if err := th.begin(k, now); err != nil {
			t.Fatalf("not forgotten: %v", err)
		}
	}
	for i := range 2 * maxTracked {
		if err := th.begin(throttleKey{name: fmt.Sprint(i)}, now.Add(time.Duration(i))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(th.entries); n > maxTracked {
		t.Errorf("%d entries", n)
	}
}
