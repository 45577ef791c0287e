package cron

import (
	"slices"
	"time"
)

// CountLimit is how far [Spec.Missed] counts.
const CountLimit = 1_000

// Missed is what became due while nobody looked. It costs the same after a year
// as after a day.
type Missed struct {
	// Count is the number of slots, at most CountLimit; AtLeast says that there
	// are more.
	Count   int
	AtLeast bool
	// Newest are the newest of them, as many as asked for, oldest first.
	Newest []Slot
}

// Latest is the last slot at or before an instant.
func (s Spec) Latest(at time.Time) (Slot, bool) {
	// Next never goes back when its argument goes on, so the slot is found by
	// halving; first how far back to look, beginning close by.
	at = at.UTC().Round(0)
	var found Slot
	back := time.Minute
	for ; ; back *= 2 {
		slot, ok := s.Next(at.Add(-back))
		if ok && !slot.At.After(at) {
			found = slot
			break
		}
		if back > horizon {
			return Slot{}, false
		}
	}
	low, high := found.At, at
	for {
		next, ok := s.Next(low)
		if !ok || next.At.After(at) {
			return found, true
		}
		found, low = next, next.At
		if middle := low.Add(high.Sub(low) / 2); middle.After(low) {
			if slot, ok := s.Next(middle); ok && !slot.At.After(at) {
				found, low = slot, slot.At
			} else {
				high = middle
			}
		}
	}
}

// Missed counts the slots from next, the one that the schedule waits for, up to
// now, and gives the newest keep of them. It has none if next is not due.
func (s Spec) Missed(next Slot, now time.Time, keep int) Missed {
	var m Missed
	for slot, ok := next, true; ok && !slot.At.After(now); slot, ok = s.Next(slot.At) {
		if m.Count == CountLimit {
			m.AtLeast = true
			break
		}
		m.Count++
	}
	keep = min(keep, m.Count)
	for at := now; len(m.Newest) < keep; {
		slot, ok := s.Latest(at)
		if !ok || !slot.At.After(next.At) {
			// The first may be due by an edit, at an instant that only it has.
			m.Newest = append(m.Newest, next)
			break
		}
		m.Newest = append(m.Newest, slot)
		at = slot.At.Add(-time.Nanosecond)
	}
	slices.Reverse(m.Newest)
	return m
}
