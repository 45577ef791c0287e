package berth_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

// TestRepairsLeadToOnePlace: whatever a task was found in, the repair leaves an
// unfinished one in exactly one place and a finished one in none, takes no live
// attempt's work away, and does nothing to what is right.
func TestRepairsLeadToOnePlace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := berth.Places{
			Final:   rapid.SampledFrom([]berth.TaskState{"", berth.StateSucceeded, berth.StateDeadLetter, berth.StateCancelled}).Draw(t, "final"),
			Queued:  rapid.Bool().Draw(t, "queued"),
			Delayed: rapid.SampledFrom([]berth.TaskState{"", berth.StateScheduled, berth.StateFailed}).Draw(t, "delayed"),
			Live:    rapid.SampledFrom([]berth.AttemptState{"", berth.AttemptAssigned, berth.AttemptRunning}).Draw(t, "live"),
		}
		count := func(p berth.Places) int {
			n := 0
			for _, here := range []bool{p.Queued, p.Delayed != "", p.Live != ""} {
				if here {
					n++
				}
			}
			return n
		}
		want := 1
		if p.Final != "" {
			want = 0
		}
		fix, wrong := p.Repair()
		if wrong != (count(p) != want) {
			t.Fatalf("%+v is wrong: %v", p, wrong)
		}
		if fix.DropQueued && !p.Queued || fix.DropDelayed && p.Delayed == "" || fix.Queue && count(p) != 0 {
			t.Fatalf("%+v cannot be repaired by %+v", p, fix)
		}
		after := p
		after.Queued = p.Queued && !fix.DropQueued || fix.Queue
		if fix.DropDelayed {
			after.Delayed = ""
		}
		beyond := p.Final != "" && p.Live != "" // nothing safe can be done
		if (fix == berth.Repair{}) != (!wrong || beyond) {
			t.Fatalf("%+v: %+v", p, fix)
		}
		if !beyond && count(after) != want {
			t.Fatalf("%+v becomes %+v", p, after)
		}
		if wrong && !beyond && (!fix.To.Valid() || fix.Reason == "" || (fix.From == "") != (fix.Reason == berth.ReasonFoundLost)) {
			t.Fatalf("%+v: %+v", p, fix)
		}
	})
}
