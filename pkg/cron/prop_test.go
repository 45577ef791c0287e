package cron

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var zones = []string{
	"Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu",
	"Africa/Cairo", "UTC", "Africa/Casablanca", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Antarctica/Troll",
}

// changes are instants with a change of some zone close by.
var changes = []time.Time{
	time.Date(2025, 3, 30, 1, 0, 0, 0, time.UTC), time.Date(2025, 10, 26, 1, 0, 0, 0, time.UTC),
	time.Date(2025, 3, 9, 7, 0, 0, 0, time.UTC), time.Date(2025, 11, 2, 6, 0, 0, 0, time.UTC),
	time.Date(2018, 2, 18, 2, 0, 0, 0, time.UTC), time.Date(2018, 11, 4, 3, 0, 0, 0, time.UTC),
	time.Date(2025, 4, 5, 15, 0, 0, 0, time.UTC), time.Date(2025, 10, 4, 15, 30, 0, 0, time.UTC),
	time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC), time.Date(1985, 12, 31, 18, 30, 0, 0, time.UTC),
	time.Date(2025, 4, 24, 22, 0, 0, 0, time.UTC), time.Date(2025, 10, 30, 21, 0, 0, 0, time.UTC),
	time.Date(1994, 12, 31, 10, 0, 0, 0, time.UTC),
}

func drawField(t *rapid.T, i int, label string) string {
	f := fields[i]
	high := f.high
	if i == dayOfMonth {
		high = 28 // so that it comes each month
	}
	value := rapid.IntRange(f.low, high)
	switch rapid.IntRange(0, 4).Draw(t, label) {
	case 0:
		return "*"
	case 1:
		return fmt.Sprintf("*/%d", rapid.IntRange(1, 5).Draw(t, label))
	case 2:
		a, b := value.Draw(t, label), value.Draw(t, label)
		return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
	}
	var list []string
	for range rapid.IntRange(1, 4).Draw(t, label) {
		list = append(list, fmt.Sprint(value.Draw(t, label)))
	}
	return strings.Join(list, ",")
}

// drawSpec draws expressions that fire often, and mostly at night, when clocks
// change.
func drawSpec(t *rapid.T) Spec {
	words := []string{drawField(t, minute, "minute"), drawField(t, hour, "hour"), "*", "*", "*"}
	if rapid.Bool().Draw(t, "at night") {
		words[hour] = rapid.SampledFrom([]string{"0", "1", "2", "3", "0-3", "1,2", "23,0,1", "2,3"}).Draw(t, "night")
	}
	if rapid.IntRange(0, 3).Draw(t, "days") == 0 {
		words[dayOfMonth], words[dayOfWeek] = drawField(t, dayOfMonth, "day"), drawField(t, dayOfWeek, "weekday")
	}
	s, err := Parse(strings.Join(words, " "), rapid.SampledFrom(zones).Draw(t, "zone"))
	if err != nil {
		t.Skip(err) // a step that is too long, days that never meet
	}
	return s
}

func drawInstant(t *rapid.T) time.Time {
	near := rapid.SampledFrom(changes).Draw(t, "change")
	return near.Add(time.Duration(rapid.Int64Range(int64(-40*time.Hour), int64(40*time.Hour)).Draw(t, "off")))
}

// TestNext: slots strictly increase, keys are unique, and a preview that is cut
// anywhere and taken up again is the same.
func TestNext(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, begin := drawSpec(t), drawInstant(t)
		slots := s.Preview(begin, 40)
		if len(slots) != 40 {
			t.Fatalf("%s has %d slots only", s, len(slots))
		}
		keys := map[Key]bool{}
		before := begin
		for _, slot := range slots {
			if !slot.At.After(before) || keys[slot.Key] {
				t.Fatalf("%s: %+v after %s", s, slot, before)
			}
			if stored, err := s.Stored(slot.At, slot.Key); err != nil || stored != slot {
				t.Fatalf("%s: %+v is stored as %+v: %v", s, slot, stored, err)
			}
			before, keys[slot.Key] = slot.At, true
		}
		split := begin.Add(time.Duration(rapid.Int64Range(0, int64(slots[39].At.Sub(begin))-1).Draw(t, "split")))
		next, ok := s.Next(split)
		latest, has := s.Latest(split)
		for i, slot := range slots {
			if slot.At.After(split) {
				if !ok || next != slot {
					t.Fatalf("%s: after %s comes %+v, want %+v", s, split, next, slot)
				}
				if i > 0 && (!has || latest != slots[i-1]) {
					t.Fatalf("%s: the latest up to %s is %+v, want %+v", s, split, latest, slots[i-1])
				}
				return
			}
		}
		t.Fatal("the split is past all slots")
	})
}

// TestWallTimes: between two instants each due wall time of a fixed schedule has
// one slot: its own or, in a gap, that of the first one in it.
func TestWallTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, begin := drawSpec(t), drawInstant(t)
		if s.Kind() != Fixed {
			t.Skip("an interval")
		}
		slots := s.Preview(begin, 20)
		plain := Spec{expression: s.expression, location: time.UTC, kind: Fixed}
		high := s.highest(begin)
		for _, slot := range slots {
			wall, _ := plain.Next(high)
			if slot.Local != wall.Local {
				t.Fatalf("%s: %+v, but the next wall time is %s", s, slot, wall.Local)
			}
			shown := s.wall(slot.At)
			if shown.Before(wall.At) || s.highest(slot.At.Add(-time.Second)).After(wall.At) {
				t.Fatalf("%s: %+v at %s is not when the clock reached it first", s, slot, shown)
			}
			high = shown
		}
	})
}

// TestMissed: what is missed and what comes next are all slots, at any instant,
// and the newest are the last of them.
func TestMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, begin := drawSpec(t), drawInstant(t)
		next, _ := s.Next(begin)
		n := rapid.IntRange(0, 30).Draw(t, "missed")
		all := append([]Slot{next}, s.Preview(next.At, 31)...)
		now := begin
		if n > 0 {
			room := all[n].At.Sub(all[n-1].At)
			now = all[n-1].At.Add(time.Duration(rapid.Int64Range(0, int64(room)-1).Draw(t, "late")))
		}
		keep := rapid.IntRange(0, 35).Draw(t, "keep")
		m := s.Missed(next, now, keep)
		if m.Count != n || m.AtLeast || len(m.Newest) != min(keep, n) {
			t.Fatalf("%s: %d missed (at least: %v), %d kept of %d, want %d", s, m.Count, m.AtLeast, len(m.Newest), keep, n)
		}
		for i, slot := range m.Newest {
			if want := all[n-len(m.Newest)+i]; slot != want {
				t.Fatalf("%s: kept %+v, want %+v", s, slot, want)
			}
		}
	})
}

// TestMissedIsBounded: a year of each minute costs no more than the limit.
func TestMissedIsBounded(t *testing.T) {
	s := must(t, "* * * * *", "Europe/Berlin")
	begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	next, _ := s.Next(begin)
	now := begin.AddDate(1, 0, 0)
	m := s.Missed(next, now, 3)
	if m.Count != CountLimit || !m.AtLeast || len(m.Newest) != 3 || !m.Newest[2].At.Equal(now) {
		t.Errorf("got %+v", m)
	}
	if m := s.Missed(next, next.At.Add((CountLimit-1)*time.Minute), 0); m.Count != CountLimit || m.AtLeast {
		t.Errorf("exactly the limit: got %+v", m)
	}
	// A pending slot by an edit has an instant that the expression does not know.
	odd := Slot{At: begin.Add(90 * time.Second), Local: Local{2024, 12, 31, 9, 0}, Key: "2024-12-31T09:00"}
	if m := s.Missed(odd, begin.Add(2*time.Minute), 5); m.Count != 2 || m.Newest[0] != odd {
		t.Errorf("with a slot by an edit: got %+v", m)
	}
}

func BenchmarkMissedYear(b *testing.B) {
	for _, expr := range []string{"* * * * *", "*/5 * * * *", "0 9,17 * * *", "* * 1 1 *", "0 0 29 2 *"} {
		s := must(b, expr, "Europe/Berlin")
		begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
		next, _ := s.Next(begin)
		b.Run(expr, func(b *testing.B) {
			for b.Loop() {
				s.Missed(next, begin.AddDate(1, 0, 0), 10)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		must(b, "30 2 * * MON-FRI", "Europe/Berlin")
	}
}

func BenchmarkNext(b *testing.B) {
	for _, expr := range []string{"*/15 * * * *", "30 2 * * *", "*/15 2 29 2 *", "0 0 29 2 *"} {
		s := must(b, expr, "Europe/Berlin")
		b.Run(expr, func(b *testing.B) {
			for b.Loop() {
				s.Next(time.Date(2025, 3, 30, 0, 10, 0, 0, time.UTC))
			}
		})
	}
}

func FuzzCron(f *testing.F) {
	for _, c := range refused {
		f.Add(c.expr, c.zone, int64(1_761_440_400))
	}
	for i, c := range accepted {
		f.Add(c.expr, zones[i%len(zones)], int64(1_761_440_400))
	}
	f.Fuzz(func(t *testing.T, expr, zone string, seconds int64) {
		s, err := Parse(expr, zone)
		if err != nil {
			return
		}
		again, err := Parse(s.Expression(), s.Zone())
		if err != nil || again.String() != s.String() || again.Kind() != s.Kind() {
			t.Fatalf("%q is read as %q, and that as %q: %v", expr, s, again, err)
		}
		// From 2000 to 2100, with the silence of 29 February beyond it.
		after := time.Unix(946_684_800+int64(uint64(seconds)%3_155_673_600), 0)
		for range 3 {
			slot, ok := s.Next(after)
			if !ok || !slot.At.After(after) || slot.At.Sub(after) > horizon {
				t.Fatalf("%s: after %s comes %+v (%v)", s, after, slot, ok)
			}
			if latest, ok := s.Latest(slot.At); !ok || latest != slot {
				t.Fatalf("%s: the latest up to %+v is %+v", s, slot, latest)
			}
			after = slot.At
		}
	})
}
