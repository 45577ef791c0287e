package cron

import (
	"time"

	"github.com/adhocore/gronx"
)

// horizon is how far [Spec.Next] looks: beyond the eight years that 29 February
// is away around 2100, the longest silence that Parse lets pass.
const horizon = 9 * 366 * 24 * time.Hour

// tick is the first time at which the expression matches, after wall or, with
// inclusive, from wall on. Times here are readings of a local clock, labelled as
// UTC: gronx never meets a zone, so its ways with daylight saving time do not
// matter.
func (s Spec) tick(wall time.Time, inclusive bool) (time.Time, bool) {
	next, err := gronx.NextTickAfter(s.expression, wall, inclusive)
	// Without an error it may still give the same instant again.
	if err != nil || next.Before(wall) || !inclusive && !next.After(wall) {
		return time.Time{}, false
	}
	return next, true
}

// wall is what the zone's clock shows at an instant, labelled as UTC.
func (s Spec) wall(at time.Time) time.Time {
	_, offset := at.In(s.location).Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// until is an end of the time that the zone's offset stays as it is at an
// instant, always after that; zero if it stays for ever.
func (s Spec) until(at time.Time) time.Time {
	_, end := at.In(s.location).ZoneBounds()
	if !end.IsZero() && !end.After(at) {
		// Where a zone follows a rule for ever, package time ends each year 365 days
		// after its first, so that on the last day of a leap year the end is past.
		const day = 24 * time.Hour
		return at.UTC().Truncate(day).Add(day)
	}
	return end
}

// highest is the latest time that the zone's clock has shown up to an instant.
// In the second run of a doubled hour that is the end of the first.
func (s Spec) highest(at time.Time) time.Time {
	// No clock of the world is more than 16 hours off UTC, so what it showed
	// two days ago is behind what it shows now.
	const far = 48 * time.Hour
	high := s.wall(at)
	for t := at; ; {
		start, _ := t.In(s.location).ZoneBounds()
		if start.IsZero() || at.Sub(start) > far {
			return high
		}
		t = start.Add(-time.Second)
		if w := s.wall(t); w.After(high) {
			high = w
		}
	}
}

// reach is the first instant from at on at which the zone's clock shows wall, or
// has jumped past it.
func (s Spec) reach(at, wall time.Time) time.Time {
	for {
		_, offset := at.In(s.location).Zone()
		end := s.until(at)
		if t := wall.Add(-time.Duration(offset) * time.Second); t.Before(at) {
			return at.UTC()
		} else if end.IsZero() || t.Before(end) {
			return t
		}
		at = end
	}
}

// nextFixed takes each wall time once, when the clock first shows it or jumps
// past it. Wall times that one jump passes share an instant and make one slot,
// named after the first of them.
func (s Spec) nextFixed(after time.Time) (Slot, bool) {
	wall, ok := s.tick(s.highest(after), false)
	if !ok {
		return Slot{}, false
	}
	return s.slot(s.reach(after, wall), wall), true
}

// nextInterval takes each instant at which the clock shows a matching time.
func (s Spec) nextInterval(after time.Time) (Slot, bool) {
	var from, wall time.Time // the last question to gronx, and its answer
	for at, inclusive := after, false; at.Sub(after) < horizon; inclusive = true {
		now := s.wall(at)
		if wall.IsZero() || !now.After(from) || now.After(wall) {
			var ok bool
			if wall, ok = s.tick(now, inclusive); !ok {
				return Slot{}, false
			}
			from = now
		}
		end := s.until(at)
		if t := at.Add(wall.Sub(now)).UTC(); end.IsZero() || t.Before(end) {
			return s.slot(t, wall), true
		}
		at = end
	}
	return Slot{}, false
}
