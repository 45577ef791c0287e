// Package procs starts processes so that all of their descendants can be found
// and killed, also by a later process after this one was killed with SIGKILL.
//
// Three things make that so:
//
//   - Each started process leads a session of its own and carries a mark in its
//     environment that its descendants inherit, so a child that leaves the
//     group and the session is still found by a sweep over /proc.
//   - The mark is recorded in a file before the process starts, and the process
//     id with its start time right after, so that a recycled id is never killed.
//   - The kernel kills the direct child with its parent (Pdeathsig); the sweep
//     of the next start gets the rest.
//
// What escapes: a process that both cleared its environment and left the
// session, after its session's leader died. Without cgroups nothing tells whose
// it was. Linux only.
package procs
