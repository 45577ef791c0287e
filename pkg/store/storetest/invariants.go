package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// checkInvariants asserts what must hold in every state that the operations can
// leave: I1, I9, I12, I14, I15, and that each returned transition has its audit row.
func (w *world) checkInvariants() {
	w.t.Helper()
	tasks := w.allTasks(store.TaskFilter{})
	w.checkStates(tasks)
	live := map[berth.AttemptID]berth.Attempt{}
	var attempts []berth.Attempt
	for _, listed := range tasks {
		task := w.checkTask(listed)
		as := w.attempts(task.ID)
		w.checkAttempts(task, as)
		attempts = append(attempts, as...)
		for _, a := range as {
			if a.Live() {
				live[a.ID] = a
			}
		}
	}
	w.checkDevices(live)
	w.checkOffers()
	w.checkFences(attempts)
	w.checkQueues(tasks)
	w.checkAudit()
	w.checkContent()
}

// allTasks reads all pages of the tasks that f passes.
func (w *world) allTasks(f store.TaskFilter) []berth.Task {
	w.t.Helper()
	var out []berth.Task
	for after := ""; ; {
		tasks, next, err := w.Store.ListTasks(bg(), all, f, store.Page{Size: 100, After: after})
		w.must("list tasks", err)
		out = append(out, tasks...)
		if next == "" {
			return out
		}
		after = next
	}
}

// checkStates: the lists by state are a partition of all tasks (I15, as lists
// show it).
func (w *world) checkStates(tasks []berth.Task) {
	w.t.Helper()
	in := map[berth.TaskID]berth.TaskState{}
	for _, s := range berth.TaskStates() {
		for _, task := range w.allTasks(store.TaskFilter{States: []berth.TaskState{s}}) {
			if before, ok := in[task.ID]; ok {
				w.t.Errorf("I15: task %s is listed as %s and as %s", task.ID, before, s)
			}
			if in[task.ID] = s; task.State != s {
				w.t.Errorf("task %s is listed under %s with state %s", task.ID, s, task.State)
			}
		}
	}
	if len(in) != len(tasks) {
		w.t.Errorf("I15: %d tasks, %d of them in some state", len(tasks), len(in))
	}
	for _, task := range tasks {
		if in[task.ID] != task.State {
			w.t.Errorf("task %s is %q, but listed under %q", task.ID, task.State, in[task.ID])
		}
	}
}

// checkTask: fields agree with the state, and a get with the list.
func (w *world) checkTask(listed berth.Task) berth.Task {
	w.t.Helper()
	task := w.task(listed.ID)
	bare := task
	bare.Payload, bare.Result = listed.Payload, listed.Result
	if !listed.Payload.IsZero() || !listed.Result.IsZero() {
		w.t.Errorf("task %s: the list has payload or result", task.ID)
	}
	if d := diff(bare, listed); d != "" {
		w.t.Errorf("task %s: get and list differ:\n%s", task.ID, d)
	}
	bad := func(format string, args ...any) {
		w.t.Errorf("task %s (%s): %s", task.ID, task.State, fmt.Sprintf(format, args...))
	}
	if !task.State.Valid() {
		bad("I15: no such state")
	}
	if task.State.Finished() == task.FinishedAt.IsZero() {
		bad("finished at %v", task.FinishedAt)
	}
	if (task.State == berth.StateScheduled || task.State == berth.StateFailed) == task.DueAt.IsZero() {
		bad("due at %v", task.DueAt)
	}
	if task.State.Live() != (task.Attempt != "" && task.Device != "" && task.Host != "") || !task.State.Live() && (task.Attempt != "" || task.Device != "" || task.Host != "") {
		bad("attempt %q, device %q, host %q", task.Attempt, task.Device, task.Host)
	}
	if !task.State.Live() && task.CancelRequested {
		bad("asked to stop without a live attempt")
	}
	if task.State.Finished() && !task.GiveUpAt.IsZero() || task.State.Live() && !task.GiveUpAt.IsZero() {
		bad("gives up at %v, but does not wait", task.GiveUpAt)
	}
	if (task.State == berth.StateDeadLetter) != (task.Cause != "") {
		bad("the cause is %q", task.Cause)
	}
	if task.Tries > task.Budget {
		bad("I9: %d tries, budget %d", task.Tries, task.Budget)
	}
	return task
}

// checkAttempts: numbers grow without a gap, one is live in live states and
// it is the last one (I1, I9).
func (w *world) checkAttempts(task berth.Task, as []berth.Attempt) {
	w.t.Helper()
	live, tries := 0, 0
	for i, a := range as {
		bad := func(format string, args ...any) {
			w.t.Errorf("task %s, attempt %d (%s %s): %s", task.ID, a.Number, a.State, a.Outcome, fmt.Sprintf(format, args...))
		}
		if a.Task != task.ID || a.Number != i+1 {
			bad("I9: is number %d of the list", i+1)
		}
		if a.Live() == a.Outcome.Valid() {
			bad("ended at %v", a.EndedAt)
		}
		if a.Outcome != berth.OutcomeReleased {
			tries++
		}
		if a.Fence < 1 || a.AssignedAt.IsZero() || a.Device == "" || a.Host == "" {
			bad("fence %d, assigned at %v, device %q, host %q", a.Fence, a.AssignedAt, a.Device, a.Host)
		}
		if a.State == berth.AttemptRunning && a.StartedAt.IsZero() || a.State != berth.AttemptRunning && !a.StartedAt.IsZero() {
			bad("started at %v", a.StartedAt)
		}
		if !a.Live() {
			if a.Reason != "" && !berth.ValidReason(a.Reason) || a.Reason == "" {
				bad("reason %q is no code", a.Reason)
			}
			continue
		}
		live++
		if a.ID != task.Attempt || a.Device != task.Device || a.Host != task.Host || a.State.TaskState() != task.State || i != len(as)-1 {
			bad("I1: the task says %s %s", task.State, task.Attempt)
		}
	}
	if live > 1 || (live == 1) != task.State.Live() {
		w.t.Errorf("I1: task %s (%s) has %d live attempts", task.ID, task.State, live)
	}
	if tries != task.Tries || len(as) != task.Attempts {
		w.t.Errorf("task %s counts %d tries of %d attempts, has %d of %d", task.ID, task.Tries, task.Attempts, tries, len(as))
	}
}

func (w *world) allDevices() []berth.Device {
	w.t.Helper()
	var out []berth.Device
	for after := ""; ; {
		ds, next, err := w.Store.ListDevices(bg(), store.DeviceFilter{}, store.Page{Size: 100, After: after})
		w.must("list devices", err)
		out = append(out, ds...)
		if next == "" {
			return out
		}
		after = next
	}
}

func (w *world) allHosts() []berth.Host {
	w.t.Helper()
	var out []berth.Host
	for after := ""; ; {
		hs, next, err := w.Store.ListHosts(bg(), "", store.Page{Size: 100, After: after})
		w.must("list hosts", err)
		out = append(out, hs...)
		if next == "" {
			return out
		}
		after = next
	}
}

// checkDevices: leases and live attempts are one to one (I1).
func (w *world) checkDevices(live map[berth.AttemptID]berth.Attempt) {
	w.t.Helper()
	held, heldBy := 0, map[berth.HostID]int{}
	for _, d := range w.allDevices() {
		if d.Occupancy != berth.OccupancyOf(d.Attempt, d.Unclean) || (d.Attempt == "") != (d.Task == "") {
			w.t.Errorf("device %s is %s with attempt %q of task %q, unclean %v", d.ID, d.Occupancy, d.Attempt, d.Task, d.Unclean)
		}
		if d.Attempt == "" {
			continue
		}
		held++
		heldBy[d.Host]++
		a, ok := live[d.Attempt]
		if !ok || a.Device != d.ID || a.Task != d.Task || a.Fence != d.Fence || a.Host != d.Host {
			w.t.Errorf("I1: device %s (fence %d) is held by %s of %s, which is %+v", d.ID, d.Fence, d.Attempt, d.Task, a)
		}
	}
	if held != len(live) {
		w.t.Errorf("I1: %d devices are held, %d attempts are live", held, len(live))
	}
	for _, h := range w.allHosts() {
		if h.Held != heldBy[h.ID] {
			w.t.Errorf("host %s counts %d held devices, has %d", h.ID, h.Held, heldBy[h.ID])
		}
	}
}

// checkFences: on each device the fences of its attempts strictly increase
// with the time of their assignment (I10).
func (w *world) checkFences(attempts []berth.Attempt) {
	w.t.Helper()
	byDevice := map[berth.DeviceID][]berth.Attempt{}
	for _, a := range attempts {
		byDevice[a.Device] = append(byDevice[a.Device], a)
	}
	for id, as := range byDevice {
		slices.SortFunc(as, func(a, b berth.Attempt) int { return int(a.Fence - b.Fence) })
		for i := 1; i < len(as); i++ {
			if as[i].Fence == as[i-1].Fence || as[i].AssignedAt.Before(as[i-1].EndedAt) || as[i-1].Live() {
				w.t.Errorf("I10: device %s: attempt %s (fence %d) and %s (fence %d) overlap", id, as[i-1].ID, as[i-1].Fence, as[i].ID, as[i].Fence)
			}
		}
	}
}

// checkQueues: the queue holds exactly the queued tasks, once each (I15, as
// placement sees it), in order of (rank, task id) in each class.
func (w *world) checkQueues(tasks []berth.Task) {
	w.t.Helper()
	pools := map[berth.PoolID]bool{}
	want := map[berth.TaskID]berth.Task{}
	for _, task := range tasks {
		pools[task.Pool] = true
		if task.State == berth.StateQueued {
			want[task.ID] = task
		}
	}
	for pool := range pools {
		_, err := w.Store.PlacementRound(bg(), w.scheduler, pool, func(ctx context.Context, r store.Round) error {
			heads, err := allHeads(ctx, r, 1000)
			for _, h := range heads {
				task, ok := want[h.Task]
				if !ok || task.Pool != pool || task.Class != h.Class || task.Attempts+1 != h.Number {
					w.t.Errorf("I15: the queue of pool %s has %+v; the task is %s, class %d, %d attempts", pool, h, task.State, task.Class, task.Attempts)
				}
				delete(want, h.Task)
			}
			return err
		})
		w.must("placement round", err)
	}
	for id := range want {
		w.t.Errorf("I15: task %s is queued, but in no queue", id)
	}
}

// audit reads the whole audit trail, or that of one target.
func (w *world) audit(kind, id string) []berth.AuditEvent {
	w.t.Helper()
	var out []berth.AuditEvent
	for after := int64(0); ; {
		rows, err := w.Store.ListAudit(bg(), kind, id, after, 100)
		w.must("list audit", err)
		for _, r := range rows {
			if r.ID <= after {
				w.t.Fatalf("audit row %d comes after %d", r.ID, after)
			}
			after = r.ID
		}
		out = append(out, rows...)
		if len(rows) < 100 {
			return out
		}
	}
}

// acted counts the audit rows of an administrative act on a target.
func (w *world) acted(action berth.AuditAction, kind, id string) int {
	w.t.Helper()
	n := 0
	for _, row := range w.audit(kind, id) {
		if row.Action == action {
			n++
		}
	}
	return n
}

// auditOf is the audit row that a transition must have.
func auditOf(r recorded) berth.AuditEvent {
	return berth.AuditEvent{
		At: r.At.UTC(), Actor: r.actor, Action: berth.ActionOf(r.Event), TargetKind: "task", TargetID: string(r.Task),
		Attempt: r.Attempt, Number: r.Number, Device: r.Device, Host: r.Host,
		From: r.From, To: r.To, Outcome: r.Outcome, Reason: r.Reason,
	}
}

// checkAudit: the audit trail of tasks and the returned transitions (renewals
// aside) are the same, one to one (I12).
func (w *world) checkAudit() {
	w.t.Helper()
	w.journal.mu.Lock()
	trs := slices.Clone(w.journal.transitions)
	w.journal.mu.Unlock()
	rest := map[berth.AuditEvent]int{}
	for _, r := range trs {
		w.checkTransition(r.Transition)
		if r.Event != berth.EventRenewed {
			rest[auditOf(r)]++
		}
	}
	for _, row := range w.audit("", "") {
		if row.TargetKind != "task" {
			continue
		}
		row.ID, row.At, row.Before, row.After = 0, row.At.UTC(), "", ""
		if rest[row]--; rest[row] < 0 {
			w.t.Errorf("I12: an audit row without a returned transition: %+v", row)
		}
	}
	for row, n := range rest {
		if n > 0 {
			w.t.Errorf("I12: a returned transition without an audit row: %+v", row)
		}
	}
}

// checkTransition: every identifier that the event has is there.
func (w *world) checkTransition(tr berth.Transition) {
	w.t.Helper()
	waiting := tr.Attempt == ""
	ok := tr.Task != "" && tr.Pool != "" && !tr.At.IsZero() && tr.CorrelationID != "" && tr.To.Valid() &&
		(tr.From == "") == (tr.Event == berth.EventSubmitted || tr.Reason == berth.ReasonFoundLost) &&
		waiting == (tr.Device == "") && waiting == (tr.Host == "") && waiting == (tr.Fence == 0) && waiting == (tr.Number == 0)
	switch tr.Event {
	case berth.EventSubmitted, berth.EventQueued, berth.EventRetriedByHand, berth.EventReprioritised, berth.EventDeleted:
		ok = ok && waiting
	case berth.EventRepaired:
		ok = ok && tr.Outcome == "" && tr.Reason != ""
	case berth.EventAssigned, berth.EventClaimed, berth.EventRenewed, berth.EventStarted, berth.EventCancelRequested:
		ok = ok && !waiting && tr.Outcome == ""
	case berth.EventCompleted, berth.EventRetried, berth.EventReleased:
		ok = ok && !waiting && tr.Outcome.Valid()
	case berth.EventFailed, berth.EventCancelled:
		ok = ok && waiting == (tr.Outcome == "")
	default:
		ok = false
	}
	if !ok {
		w.t.Errorf("I12: a transition lacks an identifier: %+v", tr)
	}
}

// checkContent: no content byte in the audit trail or in an error's text.
func (w *world) checkContent() {
	w.t.Helper()
	for _, row := range w.audit("", "") {
		note(w, row)
		if hasMarker(fmt.Sprintf("%+v", row)) {
			w.t.Errorf("I12: content in audit row %d (%s)", row.ID, row.Action)
		}
	}
	w.journal.mu.Lock()
	defer w.journal.mu.Unlock()
	for _, err := range w.journal.errors {
		for e := err; e != nil; e = errors.Unwrap(e) {
			if hasMarker(fmt.Sprintf("%+v %#v", e, e)) {
				w.t.Errorf("I12: content in an error of type %T", err)
			}
		}
	}
}

// diff compares two values of the domain field by field, content included. No
// elements are no elements, whether the list is nil or empty.
func diff(a, b any) string {
	return cmp.Diff(a, b, cmpopts.EquateEmpty(), cmp.Comparer(func(x, y interface{ Reveal() []byte }) bool {
		return string(x.Reveal()) == string(y.Reveal())
	}), cmp.Comparer(func(x, y interface{ Reveal() string }) bool { return x.Reveal() == y.Reveal() }))
}
