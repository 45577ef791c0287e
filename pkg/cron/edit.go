package cron

import "time"

// FirstAfterEdit is the slot that a schedule waits for after its spec was
// changed from old to spec, at now. next is the slot that it waited for under old,
// last the instant of its last fire, zero if there was none.
//
// Slots of old that are due by now stay due: settle them first, under the old
// revision. The edit acts strictly after them and after the last fire.
//
// If only the zone changes under a fixed expression, then to the schedule that is
// a jump of its clock, and follows the rule for jumps: the wall time that is next
// stays next, now on the new clock; if that clock is past it, it is due at the
// next minute, with all others that were jumped over. So no wall time is lost and
// none comes twice. Any other edit goes on with the new spec's slots.
func FirstAfterEdit(old, spec Spec, next Slot, last, now time.Time) (Slot, bool) {
	cut := now.UTC().Round(0)
	if last.After(cut) {
		cut = last.UTC()
	}
	if old.kind != Fixed || spec.expression != old.expression {
		return spec.Next(cut)
	}
	if !next.At.After(cut) {
		var ok bool
		if next, ok = old.Next(cut); !ok {
			return spec.Next(cut)
		}
	}
	wall := next.Local.wall()
	if !wall.After(spec.highest(cut)) {
		return spec.slot(cut.Truncate(time.Minute).Add(time.Minute), wall), true
	}
	return spec.slot(spec.reach(cut, wall), wall), true
}
