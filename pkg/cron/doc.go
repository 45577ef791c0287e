// Package cron decides when a schedule fires: it reads a cron expression and a
// time zone and says which slots follow an instant. It is pure: no clock, no
// store. docs/adr/0009-cron.md has the rules with examples.
//
// A [Spec] is of one of two kinds, decided by how minute and hour are written:
//
//   - Fixed: `30 2 * * *`. Each local wall time once: the first of a doubled
//     hour, the first valid instant after a gap.
//   - Interval: `*/15 * * * *`, a wildcard or a step in minute or hour. Whenever
//     the local clock shows such a time, so elapsed time goes on through both.
//
// How a scheduler uses it, with next the slot that a schedule waits for:
//
//	next.At <= now    the slot is due: insert the fire under next.Key, then
//	                  next = spec.Next(next.At)
//	after an outage   spec.Missed(next, now, keep) has what to catch up and how
//	                  many slots that leaves, then next = spec.Next(now)
//	after a pause     next = spec.Next(now)
//	after an edit     next = FirstAfterEdit(old, spec, next, last, now)
//
// gronx matches expressions; its ways with daylight saving time and its loose
// reading never show, see match.go and grammar.go.
package cron
