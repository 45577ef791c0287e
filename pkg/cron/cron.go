package cron

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // for machines without zone data; where there is some, it wins

	"github.com/berth-dev/berth/pkg/berth"
)

// Kind says how a schedule takes the hours that daylight saving time skips and
// doubles.
type Kind string

const (
	// Fixed has neither a wildcard nor a step in minute and hour: each local wall
	// time once.
	Fixed Kind = "fixed"
	// Interval has a wildcard or a step in minute or hour: each instant at which
	// the local clock shows such a time.
	Interval Kind = "interval"
)

// Key names a slot within one revision of a schedule's spec: the local wall time
// (2026-03-29T02:30) of a fixed one, the instant (2026-03-29T00:30:00Z) of an
// interval. It never repeats.
type Key string

// Slot is one due instant of a schedule.
type Slot struct {
	// At is when it is due, in UTC.
	At time.Time
	// Local is the wall time that it stands for. After a gap the clock shows
	// another one at At; see [Spec.In].
	Local Local
	// Key makes it unique.
	Key Key
}

// localForm is the form of a Local.
const localForm = "2006-01-02T15:04"

// Local is a wall time to the minute, on nobody's clock in particular.
type Local struct {
	Year, Month, Day, Hour, Minute int
}

// String is the form of ISO 8601: 2026-03-29T02:30.
func (l Local) String() string {
	return l.wall().Format(localForm)
}

// wall is l labelled as UTC.
func (l Local) wall() time.Time {
	return time.Date(l.Year, time.Month(l.Month), l.Day, l.Hour, l.Minute, 0, 0, time.UTC)
}

// Spec is a cron expression in a time zone. The zero value is no spec: make it
// with [Parse]. It is safe for use by several goroutines.
type Spec struct {
	expression string
	location   *time.Location
	kind       Kind
}

// maxSilence is the longest time without a fire that an expression may have, in
// days: 29 February is eight years away when the year between is 2100.
const maxSilence = 8*365 + 1

// Parse reads an expression of five fields, or a macro such as @daily, and the
// name of an IANA time zone. The error is a *berth.InvalidError that names every
// fault, with the paths cron and time_zone. The verdict does not depend on when
// it is asked for.
func Parse(expr, zone string) (Spec, error) {
	var f berth.Faults
	e, faults := readExpression(expr)
	if len(faults) == 0 {
		faults = e.days.judge()
	}
	for _, why := range faults {
		f.Add("cron", why.message, why.remedy)
	}
	location, why := loadZone(zone)
	if why != nil {
		f.Add("time_zone", why.message, why.remedy)
	}
	if err := f.Err(); err != nil {
		return Spec{}, err
	}
	s := Spec{expression: e.String(), location: location, kind: e.kind()}
	// Steps within an hour that the zone always skips: */30 2 * 3 SUNL in Berlin.
	// The instant is any, but always the same one.
	if _, ok := s.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return Spec{}, berth.Invalid("cron", "would never fire: the clock of "+zone+" skips all these times",
			"name minute and hour without a step, then it fires right after the gap")
	}
	return s, nil
}

// judge refuses days that never come, or too rarely to be meant.
func (d *days) judge() []fault {
	switch n := d.silence(); {
	case n == 0:
		return []fault{{"would never fire: no such day exists", "change day of month or month: April has 30 days, February 28 or 29"}}
	case n > maxSilence:
		return []fault{{
			fmt.Sprintf("would not fire for up to %d years", n/365),
			"let it fire at least every 8 years, as 29 February does, for example without the day of week",
		}}
	}
	return nil
}

var zoneName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

// loadZone finds a zone by its name in the IANA database. It refuses names that
// mean something else on another machine, and copies that count leap seconds.
func loadZone(name string) (*time.Location, *fault) {
	const remedy = "name a zone of the IANA database such as Europe/Berlin, or UTC"
	switch first, _, _ := strings.Cut(name, "/"); {
	case name == "":
		return nil, &fault{"is empty", remedy}
	case strings.EqualFold(name, "Local") || strings.EqualFold(name, "localtime"):
		return nil, &fault{fmt.Sprintf("%q is another zone on each machine", berth.Clip(name, 20)), remedy}
	case len(name) > 64 || !zoneName.MatchString(name) || first == "posix" || first == "right" || name == "posixrules":
		return nil, &fault{fmt.Sprintf("%q is not a time zone", berth.Clip(name, 40)), remedy}
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, &fault{fmt.Sprintf("%q is not a time zone", berth.Clip(name, 40)), remedy}
	}
	return location, nil
}

// Expression is the canonical form: macros written out, names as numbers, single
// spaces. Parse reads it as the same spec.
func (s Spec) Expression() string { return s.expression }

// Zone is the name of the time zone.
func (s Spec) Zone() string { return s.location.String() }

// Kind is fixed or interval.
func (s Spec) Kind() Kind { return s.kind }

// String is the expression and the zone.
func (s Spec) String() string { return s.expression + " " + s.Zone() }

// In is the instant as the zone's clock shows it, with its offset.
func (s Spec) In(at time.Time) time.Time { return at.In(s.location) }

// Next is the first slot strictly after an instant. It is false only if there is
// none for nine years, because the zone's clock skips what would be due.
func (s Spec) Next(after time.Time) (Slot, bool) {
	next := s.nextInterval
	if s.kind == Fixed {
		next = s.nextFixed
	}
	return next(after.UTC().Round(0))
}

// Preview is the next n slots strictly after an instant, in order.
func (s Spec) Preview(after time.Time, n int) []Slot {
	var slots []Slot
	for len(slots) < n {
		slot, ok := s.Next(after)
		if !ok {
			break
		}
		slots = append(slots, slot)
		after = slot.At
	}
	return slots
}

// Stored is the slot that somebody kept as its instant and its key. The error
// says that no spec of this kind makes such a key.
func (s Spec) Stored(at time.Time, key Key) (Slot, error) {
	wall := s.wall(at)
	if s.kind == Fixed {
		var err error
		if wall, err = time.Parse(localForm, string(key)); err != nil {
			return Slot{}, fmt.Errorf("%q is not the key of a fixed schedule's slot", berth.Clip(string(key), 40))
		}
	}
	slot := s.slot(at.UTC(), wall)
	if slot.Key != key {
		return Slot{}, fmt.Errorf("%q is not the key of an interval's slot at %s", berth.Clip(string(key), 40), slot.Key)
	}
	return slot, nil
}

func (s Spec) slot(at, wall time.Time) Slot {
	year, m, day := wall.Date()
	slot := Slot{At: at, Local: Local{year, int(m), day, wall.Hour(), wall.Minute()}}
	slot.Key = Key(slot.Local.String())
	if s.kind == Interval {
		slot.Key = Key(at.Format(time.RFC3339))
	}
	return slot
}
