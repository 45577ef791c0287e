package berth_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

// TestRepairsLeadToOnePlace: whatever a task was found in, its repair leaves it
// in exactly one place, takes no live attempt's work away, and starts nothing
// anew that was asked to stop or has no tries left.
func TestRepairsLeadToOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := berth.Places{
			Final:   rapid.SampledFrom([]berth.TaskState{"", berth.StateSucceeded, berth.StateDeadLetter, berth.StateCancelled}).Draw(t, "final"),
			Queued:  rapid.Bool().Draw(t, "queued"),
			Delayed: rapid.Bool().Draw(t, "delayed"),
			Live:    rapid.SampledFrom([]berth.AttemptState{"", berth.AttemptAssigned, berth.AttemptRunning}).Draw(t, "live"),
		}
		if p.Delayed {
			p.Kind = rapid.SampledFrom([]berth.TaskState{berth.StateScheduled, berth.StateFailed}).Draw(t, "kind")
		}
		tries, cancelled, ahead := rapid.IntRange(0, 3).Draw(t, "tries"), rapid.Bool().Draw(t, "cancelled"), rapid.Bool().Draw(t, "ahead")
		const budget = 2
		fix, ok := berth.RepairOf(p, tries, budget, cancelled, ahead)
		if beyond := p.Final != "" && p.Live != ""; ok != (p.Wrong() && !beyond) {
			t.Fatalf("%+v is repaired: %v", p, ok)
		}
		if !ok {
			return
		}
		after := p
		after.Queued, after.Delayed = p.Queued && !fix.DropQueued || fix.Requeue, p.Delayed && !fix.DropDelayed || fix.Schedule
		if fix.Final != "" {
			after.Final = fix.Final
		}
		if after.Wrong() || !fix.To.Valid() || fix.Reason == "" {
			t.Fatalf("%+v becomes %+v by %+v", p, after, fix)
		}
		if (fix.Requeue || fix.Schedule) && (cancelled || tries >= budget || fix.Schedule != ahead) {
			t.Fatalf("%+v with %d tries, cancelled %v, ahead %v: %+v", p, tries, cancelled, ahead, fix)
		}
	})
}
