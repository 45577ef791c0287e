package cron

import "time"

// days is what the three fields of days mean. gronx matches them; this is here
// to judge an expression as a whole, which gronx cannot: over all years, is
// there such a day at all?
type days struct {
	ofMonth, months, ofWeek uint64
	// last is L, near are the numbers of 15W, lastOf the weekdays of 5L, and
	// nth[n-1] those of 5#n.
	last   bool
	near   []int
	lastOf uint8
	nth    [5]uint8
	// anyWeekday is * for the day of the week. joined means that a day must
	// satisfy both fields, because one of them begins with *; otherwise one of
	// them is enough, as in crontab(5).
	anyWeekday, joined bool
}

// add notes the values low, low+step, ... of field i.
func (d *days) add(i, low, high, step int) {
	for v := low; v <= high; v += step {
		switch i {
		case dayOfMonth:
			d.ofMonth |= 1 << v
		case month:
			d.months |= 1 << v
		case dayOfWeek:
			d.ofWeek |= 1 << (v % 7)
		}
	}
}

// star notes that field i begins with *; whole, that this is all of it.
func (d *days) star(i int, whole bool) {
	switch i {
	case dayOfMonth:
		d.joined = true
	case dayOfWeek:
		d.joined = true
		d.anyWeekday = whole
	}
}

// has reports whether a day is one of them; last is the last day of its month.
func (d *days) has(m time.Month, day, last int, weekday time.Weekday) bool {
	if d.months>>m&1 == 0 {
		return false
	}
	byMonth := d.hasDay(day, last, weekday)
	if d.anyWeekday {
		return byMonth
	}
	byWeek := d.ofWeek>>weekday&1 == 1 ||
		d.lastOf>>weekday&1 == 1 && day+7 > last ||
		d.nth[(day-1)/7]>>weekday&1 == 1
	if d.joined {
		return byMonth && byWeek
	}
	return byMonth || byWeek
}

func (d *days) hasDay(day, last int, weekday time.Weekday) bool {
	if d.ofMonth>>day&1 == 1 || d.last && day == last {
		return true
	}
	for _, n := range d.near {
		// The weekday of the n-th, and from there to a working day that is
		// still in the month.
		at := (int(weekday) + n - day + 70) % 7
		moved := n
		switch {
		case n > last:
			continue
		case at == 6 && n == 1:
			moved = 3
		case at == 6:
			moved = n - 1
		case at == 0 && n == last:
			moved = n - 2
		case at == 0:
			moved = n + 1
		}
		if day == moved {
			return true
		}
	}
	return false
}

// silence is the longest time in days from one such day to the next, in the
// calendar's cycle of 400 years; 0 if there is no such day. It does not depend on
// today.
func (d *days) silence() int {
	const cycle = 146_097 // days of 400 years, a multiple of 7
	var ends [2][7]struct{ first, last int }
	for leap := range ends {
		for weekday := range ends[leap] {
			e := &ends[leap][weekday]
			e.first, e.last = d.ends(leap == 1, time.Weekday(weekday))
		}
	}
	longest, begin, first, last := 0, 0, -1, -1
	for year := 2000; year < 2400; year++ {
		length, leap := 365, 0
		if isLeap(year) {
			length, leap = 366, 1
		}
		// 1 January 2000 was a Saturday.
		if e := ends[leap][(begin+6)%7]; e.first >= 0 {
			if first < 0 {
				first = begin + e.first
			} else {
				longest = max(longest, begin+e.first-last)
			}
			last = begin + e.last
		}
		begin += length
	}
	if first < 0 {
		return 0
	}
	return max(longest, first+cycle-last)
}

// ends gives the first and the last such day of a year, counted from 0 on
// 1 January, which is the weekday given; -1 if the year has none.
func (d *days) ends(leap bool, weekday time.Weekday) (first, last int) {
	first, last = -1, -1
	n := 0
	for m := time.January; m <= time.December; m++ {
		length := monthDays(leap, m)
		for day := 1; day <= length; day++ {
			if d.has(m, day, length, (weekday+time.Weekday(n))%7) {
				if first < 0 {
					first = n
				}
				last = n
			}
			n++
		}
	}
	return first, last
}

func isLeap(year int) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

func monthDays(leap bool, m time.Month) int {
	switch m {
	case time.April, time.June, time.September, time.November:
		return 30
	case time.February:
		if leap {
			return 29
		}
		return 28
	}
	return 31
}
