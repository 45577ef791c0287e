package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
	"github.com/berth-dev/berth/pkg/schedule"
)

var start = time.Date(2026, 3, 28, 22, 0, 0, 0, time.UTC)

func spec(tb interface{ Fatal(...any) }, expr string) cron.Spec {
	s, err := cron.Parse(expr, "Europe/Berlin")
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func short(a schedule.Answer) string {
	var out []string
	for _, f := range a.Skipped {
		out = append(out, fmt.Sprintf("%s-%s %s %d", f.SlotAt.Format("15:04"), f.LastSlotAt.Format("15:04"), f.Reason, f.Slots))
	}
	for _, s := range a.Fire {
		out = append(out, s.At.Format("15:04"))
	}
	if a.Cancel {
		out = append(out, "cancel")
	}
	if a.Waiting {
		out = append(out, "waits "+a.Next.At.Format("15:04"))
	}
	return strings.Join(out, ", ")
}

func TestDecide(t *testing.T) {
	s := spec(t, "0 * * * *")
	first, _ := s.Next(start) // 23:00
	for _, c := range []struct {
		name string
		s    berth.Schedule
		late time.Duration // after the first slot
		busy bool
		hold string
		want string
	}{
		{"nothing is due", berth.Schedule{CatchUp: berth.CatchUpLatest}, -time.Second, false, "", ""},
		{"on time", berth.Schedule{CatchUp: berth.CatchUpNone}, 59 * time.Second, false, "", "23:00"},
		{"a minute late", berth.Schedule{CatchUp: berth.CatchUpNone}, time.Minute, false, "", "23:00-23:00 missed 1"},
		{"latest within its window", berth.Schedule{CatchUp: berth.CatchUpLatest, CatchUpWindow: time.Hour}, 150 * time.Minute, false, "", "23:00-00:00 missed 2, 01:00"},
		{"latest outside", berth.Schedule{CatchUp: berth.CatchUpLatest, CatchUpWindow: 10 * time.Minute}, 150 * time.Minute, false, "", "23:00-01:00 missed 3"},
		{"all that may", berth.Schedule{CatchUp: berth.CatchUpAll, CatchUpLimit: 2, Overlap: berth.OverlapAllow}, 150 * time.Minute, false, "", "23:00-23:00 missed 1, 00:00, 01:00"},
		{"all, but one at a time", berth.Schedule{CatchUp: berth.CatchUpAll, CatchUpLimit: 9, Overlap: berth.OverlapSkip}, 150 * time.Minute, false, "", "23:00-00:00 overlap 2, 01:00"},
		{"all while busy", berth.Schedule{CatchUp: berth.CatchUpAll, CatchUpLimit: 9, Overlap: berth.OverlapSkip}, 150 * time.Minute, true, "", "23:00-01:00 overlap 3"},
		{"cancel", berth.Schedule{CatchUp: berth.CatchUpLatest, Overlap: berth.OverlapCancelRunning}, 0, true, "", "23:00, cancel"},
		{"nothing to cancel", berth.Schedule{CatchUp: berth.CatchUpLatest, Overlap: berth.OverlapCancelRunning}, 0, false, "", "23:00"},
		{"wait", berth.Schedule{CatchUp: berth.CatchUpLatest, Overlap: berth.OverlapQueueOne}, 0, true, "", "waits 23:00"},
		{"a newer one waits", berth.Schedule{CatchUp: berth.CatchUpLatest, CatchUpWindow: time.Minute, Overlap: berth.OverlapQueueOne, Waiting: true}, 130 * time.Minute, true, "", "23:00-00:00 overlap 2, waits 01:00"},
		{"what waited fires late", berth.Schedule{CatchUp: berth.CatchUpNone, Overlap: berth.OverlapQueueOne, Waiting: true}, 59 * time.Minute, false, "", "23:00"},
		{"settled", berth.Schedule{CatchUp: berth.CatchUpAll, CatchUpLimit: 9, Overlap: berth.OverlapQueueOne}, 70 * time.Minute, true, "edited", "23:00-23:00 overlap 1, 00:00-00:00 edited 1"},
	} {
		a := schedule.Decide(schedule.Question{Schedule: c.s, Spec: s, Next: first, Now: first.At.Add(c.late), Busy: c.busy, Settle: c.hold})
		if got := short(a); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestEachSlotIsDecidedOnce: whatever the schedule says and whenever somebody looks,
// what fires, what is skipped and what waits or comes next are all slots, in order.
func TestEachSlotIsDecidedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sp := spec(t, rapid.SampledFrom([]string{"*/15 * * * *", "30 2 * * *", "0 * * * *", "0,30 1-3 * * *"}).Draw(t, "cron"))
		s := berth.Schedule{
			CatchUp:       rapid.SampledFrom([]berth.CatchUp{berth.CatchUpNone, berth.CatchUpLatest, berth.CatchUpAll}).Draw(t, "catch-up"),
			Overlap:       rapid.SampledFrom([]berth.Overlap{berth.OverlapSkip, berth.OverlapAllow, berth.OverlapQueueOne, berth.OverlapCancelRunning}).Draw(t, "overlap"),
			CatchUpWindow: time.Duration(rapid.IntRange(0, 300).Draw(t, "window")) * time.Minute, CatchUpLimit: rapid.IntRange(1, 5).Draw(t, "limit"),
		}
		now := start
		first, _ := sp.Next(now)
		s = schedule.Decided(s, schedule.Answer{Next: first}, now)
		var keys []string
		for range rapid.IntRange(1, 20).Draw(t, "looks") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "minutes")) * time.Minute)
			next, err := schedule.Next(s, sp)
			if err != nil {
				t.Fatal(err)
			}
			settle := rapid.SampledFrom([]string{"", "", "edited"}).Draw(t, "settle")
			a := schedule.Decide(schedule.Question{Schedule: s, Spec: sp, Next: next, Now: now, Busy: rapid.Bool().Draw(t, "busy"), Settle: settle})
			for _, f := range a.Skipped {
				at, n := f.SlotAt, 1
				keys = append(keys, f.Key)
				for at.Before(f.LastSlotAt) {
					slot, _ := sp.Next(at)
					at, n = slot.At, n+1
					keys = append(keys, string(slot.Key))
				}
				if n != f.Slots {
					t.Fatalf("%+v has %d slots", f, n)
				}
			}
			for _, slot := range a.Fire {
				keys = append(keys, string(slot.Key))
			}
			if a.Waiting && settle != "" {
				t.Fatal("it waits, and should be settled")
			}
			s = schedule.Decided(s, a, now)
		}
		want := sp.Preview(start, len(keys)+1)
		for i, key := range append(keys, s.NextKey) {
			if key != string(want[i].Key) {
				t.Fatalf("slot %d is %s, decided was %s", i, want[i].Key, key)
			}
		}
	})
}
