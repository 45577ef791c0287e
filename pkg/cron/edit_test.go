package cron

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestEdits are the examples of docs/adr/0009-cron.md.
func TestEdits(t *testing.T) {
	for _, c := range []struct {
		name, expr, zone, toExpr, toZone, now string
		at, local                             string
	}{
		{
			"west, after today's fire: the wall time has been", "0 9 * * *", "Europe/Berlin", "0 9 * * *", "America/New_York",
			"2026-06-01T08:00:00Z", "2026-06-02T13:00:00Z", "2026-06-02T09:00",
		},
		{
			"west, before today's fire", "0 9 * * *", "Europe/Berlin", "0 9 * * *", "America/New_York",
			"2026-06-01T06:00:00Z", "2026-06-01T13:00:00Z", "2026-06-01T09:00",
		},
		{
			"east, past the wall time that was next: due at the next minute", "0 9 * * *", "America/New_York", "0 9 * * *", "Europe/Berlin",
			"2026-06-01T10:00:20Z", "2026-06-01T10:01:00Z", "2026-06-01T09:00",
		},
		{
			"east, before it", "0 9 * * *", "America/New_York", "0 9 * * *", "Europe/Berlin",
			"2026-06-01T05:00:00Z", "2026-06-01T07:00:00Z", "2026-06-01T09:00",
		},
		{
			"the expression: what it would have had before does not count", "0 9 * * *", "UTC", "0 10 * * *", "UTC",
			"2026-06-01T15:00:00Z", "2026-06-02T10:00:00Z", "2026-06-02T10:00",
		},
		{
			"the zone of an interval", "0 */6 * * *", "Europe/Berlin", "0 */6 * * *", "America/New_York",
			"2026-06-01T08:00:00Z", "2026-06-01T10:00:00Z", "2026-06-01T06:00",
		},
	} {
		old, spec := must(t, c.expr, c.zone), must(t, c.toExpr, c.toZone)
		now, _ := time.Parse(time.RFC3339, c.now)
		next, _ := old.Next(now)
		last, _ := old.Latest(now)
		got, ok := FirstAfterEdit(old, spec, next, last.At, now)
		if !ok || got.At.Format(time.RFC3339) != c.at || got.Local.String() != c.local {
			t.Errorf("%s: got %+v (%v), want %s at %s", c.name, got, ok, c.local, c.at)
		}
	}
}

// TestEditWhileDue: the slot that is due stays with the old revision, so the edit
// must not hand out its wall time once more.
func TestEditWhileDue(t *testing.T) {
	old, spec := must(t, "0 9 * * *", "Europe/Berlin"), must(t, "0 9 * * *", "America/New_York")
	last := time.Date(2026, 5, 31, 7, 0, 0, 0, time.UTC)
	due, _ := old.Next(last)
	got, ok := FirstAfterEdit(old, spec, due, last, due.At.Add(time.Hour))
	if !ok || got.Local.String() != "2026-06-02T09:00" {
		t.Errorf("got %+v (%v), want 2 June, since 1 June is due under the old zone", got, ok)
	}
}

// TestZoneEditsLoseAndDoubleNothing lets a fixed schedule fire while its zone is
// edited at any instants. Every due wall time must have its slot, or be jumped
// over together with the one before it, and none may come twice.
func TestZoneEditsLoseAndDoubleNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := drawSpec(t), drawInstant(t)
		if s.Kind() != Fixed {
			t.Skip("an interval")
		}
		plain := Spec{expression: s.expression, location: time.UTC, kind: Fixed}
		next, _ := s.Next(now)
		var last Slot
		high := s.highest(now) // the wall times up to here are done with
		fire := func() {
			wall, _ := plain.Next(high)
			if next.Local != wall.Local || !next.At.After(last.At) {
				t.Fatalf("%s: %+v after %+v, but the next wall time is %s", s, next, last, wall.Local)
			}
			last = next
			high = wall.At
			if shown := s.highest(next.At); shown.After(high) {
				high = shown // those that the clock has jumped over
			}
			next, _ = s.Next(next.At)
		}
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(50*time.Hour)).Draw(t, "pause")))
			for !next.At.After(now) {
				fire()
			}
			to, err := Parse(s.Expression(), rapid.SampledFrom(zones).Draw(t, "zone"))
			if err != nil {
				t.Fatal(err)
			}
			first, ok := FirstAfterEdit(s, to, next, last.At, now)
			if !ok || !first.At.After(now) || !first.At.After(last.At) || first.Local != next.Local {
				t.Fatalf("%s to %s at %s: %+v (%v) in place of %+v", s, to, now, first, ok, next)
			}
			s, next = to, first
		}
		for range 5 {
			fire()
		}
	})
}

// TestEditsJoin: around any other edit, what is due by then is old's and what
// comes later is the new spec's.
func TestEditsJoin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, spec, now := drawSpec(t), drawSpec(t), drawInstant(t)
		pending, _ := old.Next(now.Add(-time.Hour)) // may be due and not yet fired
		last := now.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "last")))
		got, ok := FirstAfterEdit(old, spec, pending, last, now)
		if !ok || !got.At.After(now) || !got.At.After(last) {
			t.Fatalf("%s to %s at %s, last %s: %+v (%v)", old, spec, now, last, got, ok)
		}
		if old.Kind() == Fixed && old.Expression() == spec.Expression() {
			return // see above
		}
		cut := now
		if last.After(cut) {
			cut = last
		}
		if want, _ := spec.Next(cut); got != want {
			t.Fatalf("%s to %s at %s: %+v, want %+v", old, spec, cut, got, want)
		}
	})
}

// TestEditToTheSame changes nothing.
func TestEditToTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := drawSpec(t), drawInstant(t)
		next, _ := s.Next(now)
		last, _ := s.Latest(now)
		if got, ok := FirstAfterEdit(s, s, next, last.At, now); !ok || got != next {
			t.Fatalf("%s at %s: %+v, want %+v", s, now, got, next)
		}
	})
}
