// Package schedule decides what becomes of the slots of a schedule that are due:
// which fire, which are skipped and why, and which one waits. It is pure; package
// cron says when slots are due, and the engines ask both with the schedule's row
// locked.
package schedule

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
)

// LookAgain is how often a slot that waits for a task's end is looked at.
const LookAgain = 5 * time.Second

// Spec reads a schedule's cron and time zone; the error is a *berth.InvalidError.
func Spec(s berth.Schedule) (cron.Spec, error) { return cron.Parse(s.Cron, s.TimeZone) }

// Same reports whether two specs have the same slots.
func Same(a, b cron.Spec) bool { return a.Expression() == b.Expression() && a.Zone() == b.Zone() }

// Next is the slot that a schedule waits for.
func Next(s berth.Schedule, spec cron.Spec) (cron.Slot, error) {
	return spec.Stored(s.NextAt, cron.Key(s.NextKey))
}

// Question is what is known of a schedule with a slot that may be due.
type Question struct {
	Schedule berth.Schedule
	Spec     cron.Spec
	// Next is the slot that it waits for.
	Next cron.Slot
	Now  time.Time
	// Busy: a task of the schedule is unfinished.
	Busy bool
	// Settle is why no slot may be left waiting, berth.SkipPaused or
	// berth.SkipEdited; "" when one may.
	Settle string
}

// Answer is what becomes of the slots up to now.
type Answer struct {
	// Fire these, oldest first; Cancel what is unfinished, if they can be.
	Fire   []cron.Slot
	Cancel bool
	// Skipped are runs of slots, oldest first; see berth.Fire.
	Skipped []berth.Fire
	// Next is the slot that is waited for then; Ended: there is none.
	Next    cron.Slot
	Waiting bool
	Ended   bool
}

// Decide is the rule. It costs the same after a year as after a day.
func Decide(q Question) Answer {
	if q.Next.At.After(q.Now) {
		return Answer{Next: q.Next}
	}
	var a Answer
	missed := q.Spec.Missed(q.Next, q.Now, most(q)+1)
	turn := q.inTime(missed.Newest) // may fire
	if left := missed.Count - len(turn); left > 0 {
		reason := berth.SkipMissed
		if q.Schedule.Waiting {
			reason = berth.SkipOverlap // somebody looked
		}
		last := missed.Newest[len(missed.Newest)-len(turn)-1]
		a.skip(q, q.Next, last, left, reason)
		a.Skipped[0].AtLeast = missed.AtLeast
	}
	a.overlap(q, turn)
	if a.Waiting {
		a.Next = turn[len(turn)-1]
		return a
	}
	next, ok := q.Spec.Next(q.Now)
	a.Next, a.Ended = next, !ok
	return a
}

// most is how many slots may fire at once.
func most(q Question) int {
	if q.Schedule.CatchUp == berth.CatchUpAll && !q.Schedule.Waiting {
		return q.Schedule.CatchUpLimit
	}
	return 1
}

// inTime is the newest of the slots that may fire.
func (q Question) inTime(newest []cron.Slot) []cron.Slot {
	newest = newest[max(0, len(newest)-most(q)):]
	s := q.Schedule
	for i, slot := range newest {
		late := q.Now.Sub(slot.At)
		within := s.CatchUp != berth.CatchUpNone && (s.CatchUpWindow == 0 || late <= s.CatchUpWindow)
		if late < berth.OnTime || within || s.Waiting {
			return newest[i:]
		}
	}
	return nil
}

// overlap decides about the slots that may fire. Unless tasks may overlap, the
// newest takes the turn of the others.
func (a *Answer) overlap(q Question, turn []cron.Slot) {
	if len(turn) == 0 {
		return
	}
	if q.Schedule.Overlap == berth.OverlapAllow {
		a.Fire = turn
		return
	}
	newest := len(turn) - 1
	reason := berth.SkipOverlap
	switch {
	case !q.Busy:
		a.Fire = turn[newest:]
	case q.Schedule.Overlap == berth.OverlapCancelRunning:
		a.Fire, a.Cancel = turn[newest:], true
	case q.Schedule.Overlap == berth.OverlapQueueOne && q.Settle == "":
		a.Waiting = true
	case q.Schedule.Overlap == berth.OverlapQueueOne:
		if newest > 0 {
			a.skip(q, turn[0], turn[newest-1], newest, reason)
		}
		a.skip(q, turn[newest], turn[newest], 1, q.Settle)
		return
	default:
		a.skip(q, turn[0], turn[newest], len(turn), reason)
		return
	}
	if newest > 0 {
		a.skip(q, turn[0], turn[newest-1], newest, reason)
	}
}

func (a *Answer) skip(q Question, from, to cron.Slot, slots int, reason string) {
	f := FireOf(q.Schedule, from, q.Now)
	f.LastSlotAt, f.Slots, f.Reason = to.At, slots, reason
	a.Skipped = append(a.Skipped, f)
}

// FireOf is what is recorded of a slot, less its task or reason.
func FireOf(s berth.Schedule, slot cron.Slot, now time.Time) berth.Fire {
	return berth.Fire{
		Schedule: s.ID, Revision: s.Revision, Key: string(slot.Key), SlotAt: slot.At, LastSlotAt: slot.At, DecidedAt: now, Slots: 1,
	}
}

// Refused turns the slots that were to fire into skipped ones.
func Refused(s berth.Schedule, slots []cron.Slot, now time.Time, reason string) []berth.Fire {
	fires := make([]berth.Fire, len(slots))
	for i, slot := range slots {
		fires[i] = FireOf(s, slot, now)
		fires[i].Reason = reason
	}
	return fires
}

// Decided is the schedule after an answer at now.
func Decided(s berth.Schedule, a Answer, now time.Time) berth.Schedule {
	if a.Ended {
		return Stopped(s, "it has no further slot: change its cron or time zone, and resume it")
	}
	s.NextAt, s.NextKey, s.Waiting = a.Next.At, string(a.Next.Key), a.Waiting
	s.DecidedTo = now
	if a.Waiting {
		// Slots before the one that waits are decided.
		s.DecidedTo = a.Next.At.Add(-time.Microsecond)
	}
	return s
}

// Stopped is the schedule paused for a reason of its own: it cannot go on.
func Stopped(s berth.Schedule, note string) berth.Schedule {
	s.Paused, s.NextAt, s.NextKey, s.Waiting, s.Note = true, time.Time{}, "", false, note
	return s
}

// Resumed is the schedule waiting for its first slot after now: a pause owes
// nothing.
func Resumed(s berth.Schedule, spec cron.Spec, now time.Time) berth.Schedule {
	next, ok := spec.Next(now)
	s.Paused, s.Note = false, ""
	return Decided(s, Answer{Next: next, Ended: !ok}, now)
}

// Edited is what an edit makes of old, whose due slots are settled: the new spec
// counts from the slot on that is waited for. A spec that cannot be read is a
// *berth.InvalidError.
func Edited(old, edited berth.Schedule, now time.Time) (berth.Schedule, error) {
	is, err := Spec(edited)
	if err != nil {
		return old, err
	}
	s := edited
	s.Version, s.UpdatedAt = old.Version+1, now
	// It goes on from what the settling left.
	s.Paused, s.NextAt, s.NextKey, s.Waiting, s.DecidedTo, s.Note = old.Paused, old.NextAt, old.NextKey, old.Waiting, old.DecidedTo, old.Note
	if !s.Paused {
		s.Note = ""
	}
	was, unreadable := Spec(old)
	if unreadable == nil && Same(was, is) {
		return s, nil
	}
	s.Revision = old.Revision + 1
	if s.Paused {
		return s, nil
	}
	next, ok := is.Next(now)
	if unreadable == nil {
		if waitsFor, err := Next(old, was); err == nil {
			next, ok = cron.FirstAfterEdit(was, is, waitsFor, old.DecidedTo, now)
		}
	}
	return Decided(s, Answer{Next: next, Ended: !ok}, now), nil
}

// LookAt is when a schedule is worth looking at, zero for never.
func LookAt(s berth.Schedule, now time.Time) time.Time {
	if s.Waiting {
		return now.Add(LookAgain)
	}
	return s.NextAt
}

// Settle is why an edit leaves no slot waiting, "" when one may wait on.
func Settle(old, edited berth.Schedule) string {
	if edited.Overlap == berth.OverlapQueueOne && edited.Cron == old.Cron && edited.TimeZone == old.TimeZone {
		return ""
	}
	return berth.SkipEdited
}

// Without is slots less those whose keys are known.
func Without(slots []cron.Slot, known []string) []cron.Slot {
	return slices.DeleteFunc(slices.Clone(slots), func(s cron.Slot) bool { return slices.Contains(known, string(s.Key)) })
}
