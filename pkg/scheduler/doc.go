// Package scheduler places queued tasks on free devices, class by class, moves
// what is due from `delayed` to `queue`, gives up what has waited too long, and
// makes tasks of the slots of schedules.
//
// placement.go decides and does no I/O; scheduler.go runs rounds over the
// storage contract. Any number of schedulers may run: per pool one round is
// active at a time and the others stand by (berth.ErrNotActive), and the
// statement that applies a round is safe without that.
package scheduler
