package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func manyChecks() []check {
	return []check{
		in("completions of several hosts are done together, a refused call does nothing", completeManyRefused),
		in("each row of a group tells whose call it was", completeManyActors),
		in("one attempt in two completions ends once", completeManyTwice),
		in("a group that is repeated gets the same answers", completeManyRepeat),
		in("renewals of several hosts are done together, a refused call does nothing", renewManyRefused),
		in("one attempt in two renewals keeps the later word", renewManyTwice),
	}
}

// completions is a call of a host.
func (a *agent) completions(items ...store.CompleteItem) store.CompleteParams {
	return store.CompleteParams{AgentCall: a.call(), Items: items}
}

func (a *agent) renewals(as ...store.Assignment) store.RenewParams {
	p := store.RenewParams{AgentCall: a.call()}
	for _, x := range as {
		p.Items = append(p.Items, store.RenewItem{Holder: holder(x), Progress: -1})
	}
	return p
}

func (w *world) completeMany(calls ...store.CompleteParams) []store.CompleteManyAnswer {
	w.t.Helper()
	all, err := w.Store.CompleteMany(bg(), calls)
	w.must("complete many", err)
	if len(all) != len(calls) {
		w.t.Fatalf("%d answers for %d calls", len(all), len(calls))
	}
	for i, a := range all {
		if a.Err == nil && len(a.Answers) != len(calls[i].Items) {
			w.t.Fatalf("call %d: %d answers for %d completes", i, len(a.Answers), len(calls[i].Items))
		}
	}
	return all
}

func (w *world) renewMany(calls ...store.RenewParams) []store.RenewManyAnswer {
	w.t.Helper()
	all, err := w.Store.RenewMany(bg(), calls)
	w.must("renew many", err)
	if len(all) != len(calls) {
		w.t.Fatalf("%d answers for %d calls", len(all), len(calls))
	}
	return all
}

// callers are two hosts with running work, a call of an older process of the
// first and one of a host that was revoked.
func (w *world) callers() (a, b *agent, stale, revoked store.AgentCall) {
	a, b = w.host("h1", 3), w.host("h2", 2)
	stale = a.call()
	a.restart()
	c := w.host("h3", 0)
	revoked = c.call()
	w.revoke(c)
	return a, b, stale, revoked
}

// on pins a task to one of the agent's devices.
func (a *agent) on(i int) func(*berth.NewTask) {
	return withSelector("berth.dev/device=" + string(a.ids[i]))
}

func completeManyRefused(w *world) {
	a, b, stale, revoked := w.callers()
	one, two, kept := a.running(a.on(0)), a.running(a.on(1)), a.running(a.on(2))
	other := b.running(b.on(0))
	keep := item(kept, berth.OutcomeSucceeded)
	ahead := a.call()
	ahead.Epoch++
	unknown := store.AgentCall{Actor: a.actor, Host: newID[berth.HostID](w.Env), Epoch: 1}
	wrong := keep
	wrong.Outcome = berth.OutcomeReleased
	all := w.completeMany(
		store.CompleteParams{AgentCall: stale, Items: []store.CompleteItem{keep}},
		a.completions(item(two, berth.OutcomeFailed), item(one, berth.OutcomeSucceeded)),
		store.CompleteParams{AgentCall: ahead, Items: []store.CompleteItem{keep}},
		a.completions(wrong),
		store.CompleteParams{AgentCall: revoked, Items: []store.CompleteItem{keep}},
		b.completions(item(other, berth.OutcomeSucceeded), keep),
		store.CompleteParams{AgentCall: unknown, Items: []store.CompleteItem{keep}},
	)
	for i, want := range []error{berth.ErrStaleEpoch, nil, berth.ErrEpochAhead, berth.ErrInvalid, berth.ErrNotFound, nil, berth.ErrNotFound} {
		if want == nil {
			w.must("a good call", all[i].Err)
			continue
		}
		w.fails("a refused call", all[i].Err, want)
		if len(all[i].Answers)+len(all[i].Transitions) > 0 {
			w.t.Errorf("call %d was refused and answers %+v", i, all[i])
		}
	}
	for _, c := range []struct {
		call   int
		items  []store.Assignment
		states []berth.TaskState
	}{
		{1, []store.Assignment{two, one}, []berth.TaskState{berth.StateFailed, berth.StateSucceeded}},
		{5, []store.Assignment{other}, []berth.TaskState{berth.StateSucceeded}},
	} {
		if len(all[c.call].Transitions) != len(c.items) {
			w.t.Fatalf("call %d: transitions %+v", c.call, all[c.call].Transitions)
		}
		for i, as := range c.items {
			ans, tr := all[c.call].Answers[i], all[c.call].Transitions[i]
			if ans.Attempt != as.Attempt || ans.Status != store.CompleteStored || ans.TaskState != c.states[i] || tr.Attempt != as.Attempt || tr.To != c.states[i] {
				w.t.Errorf("call %d, item %d: %+v, %+v", c.call, i, ans, tr)
			}
			w.state(as.Task, c.states[i])
		}
	}
	if foreign := all[5].Answers[1]; foreign.Status != store.CompleteGone {
		w.t.Errorf("another host's attempt: %+v", foreign)
	}
	w.state(kept.Task, berth.StateRunning)
	if none, err := w.Store.CompleteMany(bg(), nil); err != nil || len(none) != 0 {
		w.t.Errorf("no calls: %+v, %v", none, err)
	}
}

func completeManyActors(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	mine, yours := a.running(a.on(0), maxAttempts(1)), b.running(b.on(0), maxAttempts(1))
	b.actor.RequestID = "req-of-b"
	w.completeMany(a.completions(item(mine, berth.OutcomeInfraFailed, unclean)), b.completions(item(yours, berth.OutcomeInfraFailed, unclean)))
	for _, by := range []struct {
		*agent
		as store.Assignment
	}{{a, mine}, {b, yours}} {
		for _, rows := range [][]berth.AuditEvent{w.audit("task", string(by.as.Task)), w.audit("device", string(by.as.Device))} {
			if last := rows[len(rows)-1]; last.Actor != by.actor {
				w.t.Errorf("the act of %s is %s's in %s", by.actor.ID, last.Actor.ID, last.Action)
			}
		}
		if n := w.acted(berth.AuditDeviceUnclean, "device", string(by.as.Device)); n != 1 {
			w.t.Errorf("%d rows say that the device of %s is unclean", n, by.actor.ID)
		}
	}
}

func completeManyTwice(w *world) {
	a, b, stale, _ := w.callers()
	as, next := a.running(a.on(0)), a.running(a.on(1))
	failed, other := item(as, berth.OutcomeFailed), item(as, berth.OutcomeSucceeded)
	later := item(next, berth.OutcomeFailed)
	all := w.completeMany(
		b.completions(failed),
		a.completions(failed),
		store.CompleteParams{AgentCall: stale, Items: []store.CompleteItem{later}},
		a.completions(other),
		a.completions(failed, later),
	)
	if s := all[0].Answers[0].Status; s != store.CompleteGone {
		w.t.Errorf("another host's: %s", s)
	}
	first := all[1].Answers[0]
	if first.Status != store.CompleteStored || first.TaskState != berth.StateFailed || len(all[1].Transitions) != 1 {
		w.t.Errorf("the first: %+v", all[1])
	}
	w.fails("the older process", all[2].Err, berth.ErrStaleEpoch)
	if ans := all[3].Answers[0]; ans.Status != store.CompleteMismatch || ans.Outcome != berth.OutcomeFailed || len(all[3].Transitions) != 0 {
		w.t.Errorf("another body: %+v", all[3])
	}
	if d := diff(first, all[4].Answers[0]); d != "" {
		w.t.Errorf("the repeat answers otherwise:\n%s", d)
	}
	if tr := w.oneTransition(all[4].Transitions); tr.Attempt != next.Attempt {
		w.t.Errorf("transition %+v", tr)
	}
	w.state(as.Task, berth.StateFailed)
}

func completeManyRepeat(w *world) {
	a, b := w.host("h1", 2), w.host("h2", 1)
	calls := []store.CompleteParams{
		a.completions(item(a.running(a.on(0)), berth.OutcomeSucceeded), item(a.running(a.on(1)), berth.OutcomeFailed)),
		b.completions(item(b.running(b.on(0)), berth.OutcomeInfraFailed)),
	}
	first := w.completeMany(calls...)
	w.Clock.Advance(time.Second)
	before := w.snapshot()
	slices.Reverse(calls)
	again := w.completeMany(calls...)
	slices.Reverse(again)
	for i := range first {
		if d := diff(first[i].Answers, again[i].Answers); d != "" || len(again[i].Transitions) != 0 {
			w.t.Errorf("call %d: the repeat answers otherwise, with transitions %+v:\n%s", i, again[i].Transitions, d)
		}
	}
	if d := diff(before, w.snapshot()); d != "" {
		w.t.Errorf("the repeat left something:\n%s", d)
	}
}

func renewManyRefused(w *world) {
	a, b, stale, revoked := w.callers()
	mine, kept := a.running(a.on(0)), a.running(a.on(1))
	w.Clock.Advance(w.Timings.LeaseTTL - time.Second)
	b.beat()
	yours := b.running(b.on(0))
	again := store.RenewParams{Items: a.renewals(kept).Items}
	call := func(c store.AgentCall) store.RenewParams { p := again; p.AgentCall = c; return p }
	all := w.renewMany(
		call(stale), a.renewals(mine), call(revoked), b.renewals(kept, yours),
		call(store.AgentCall{Actor: a.actor, Host: newID[berth.HostID](w.Env), Epoch: 1}),
	)
	for i, want := range map[int]error{0: berth.ErrStaleEpoch, 2: berth.ErrNotFound, 4: berth.ErrNotFound} {
		w.fails("a refused call", all[i].Err, want)
		if len(all[i].Answers)+len(all[i].Transitions) > 0 {
			w.t.Errorf("call %d was refused and answers %+v", i, all[i])
		}
	}
	w.must("a good call", all[1].Err)
	w.must("a good call", all[3].Err)
	if all[3].Answers[0].Status != store.LeaseGone {
		w.t.Errorf("another host's lease: %+v", all[3].Answers[0])
	}
	for i, as := range map[int]store.Assignment{1: mine, 3: yours} {
		ans := all[i].Answers[len(all[i].Answers)-1]
		if ans.Attempt != as.Attempt || ans.Status != store.LeaseGranted || ans.Left != w.Timings.LeaseTTL {
			w.t.Errorf("call %d: %+v", i, ans)
		}
		if tr := w.oneTransition(all[i].Transitions); tr.Event != berth.EventRenewed || tr.Attempt != as.Attempt {
			w.t.Errorf("call %d: %+v", i, tr)
		}
	}
	w.Clock.Advance(time.Second + w.Timings.ReapGrace)
	if tr := w.oneTransition(w.reap()); tr.Attempt != kept.Attempt {
		w.t.Errorf("a refused call renewed a lease; reaped %+v", tr)
	}
}

func renewManyTwice(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	with := func(progress float64, note string) store.RenewParams {
		p := a.renewals(as)
		p.Items[0].Progress, p.Items[0].Note = progress, redact.NewString(note)
		return p
	}
	all := w.renewMany(with(0.25, "step one"), with(-1, "step two "+marker), with(0.5, ""), with(-1, ""))
	for i, call := range all {
		if call.Err != nil || call.Answers[0].Status != store.LeaseGranted {
			w.t.Errorf("call %d: %+v", i, call)
		}
	}
	if at := w.attempt(as.Task); at.Progress != 0.5 || at.ProgressNote.Reveal() != "step two "+marker {
		w.t.Errorf("progress %v, a note of %d bytes", at.Progress, at.ProgressNote.Len())
	}
}

// manyOperations are broken off at each statement, see atomicChecks.
func manyOperations() []operation {
	return []operation{
		{name: "CompleteMany", prepare: func(w *world) callFunc {
			a, b, stale, _ := w.callers()
			as := a.running(a.on(0))
			calls := []store.CompleteParams{
				b.completions(item(b.running(b.on(0)), berth.OutcomeFailed), item(b.running(b.on(1)), berth.OutcomeInfraFailed, unclean)),
				{AgentCall: stale, Items: []store.CompleteItem{item(as, berth.OutcomeFailed)}},
				a.completions(item(as, berth.OutcomeSucceeded), item(as, berth.OutcomeSucceeded)),
			}
			return func(ctx context.Context, s store.Store) error { return err2(s.CompleteMany(ctx, calls)) }
		}},
		{name: "RenewMany", prepare: func(w *world) callFunc {
			a, b, stale, _ := w.callers()
			as := a.running(a.on(0))
			mine, yours := a.renewals(as), b.renewals(b.running(b.on(0)))
			mine.Items[0].Progress, yours.Items[0].Note = 0.5, redact.NewString(marker)
			calls := []store.RenewParams{mine, {AgentCall: stale, Items: mine.Items}, yours}
			w.Clock.Advance(time.Second)
			return func(ctx context.Context, s store.Store) error { return err2(s.RenewMany(ctx, calls)) }
		}},
	}
}

// completingMany completes one attempt of each of two hosts, b's first.
func completingMany(a, b *agent, mine, yours store.Assignment, all *[]store.CompleteManyAnswer) callFunc {
	calls := []store.CompleteParams{b.completions(item(yours, berth.OutcomeSucceeded)), a.completions(item(mine, berth.OutcomeSucceeded))}
	return func(ctx context.Context, s store.Store) (err error) {
		*all, err = s.CompleteMany(ctx, calls)
		return err
	}
}

// manyRaces are orders of grouped calls and their rivals, see raceChecks.
func manyRaces() []race {
	two := func(w *world) (a, b *agent, mine, yours store.Assignment) {
		a, b = w.host("h1", 1), w.host("h2", 1)
		return a, b, a.running(a.on(0)), b.running(b.on(0))
	}
	return []race{
		{"complete many and reap", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, mine, yours := two(w)
			w.expired()
			var all []store.CompleteManyAnswer
			return completingMany(a, b, mine, yours, &all), w.reaping(), func(x, y error) {
				w.fine(x, y)
				for i, as := range []store.Assignment{yours, mine} {
					w.state(as.Task, map[store.CompleteStatus]berth.TaskState{
						store.CompleteStored: berth.StateSucceeded, store.CompleteGone: berth.StateQueued,
					}[all[i].Answers[0].Status])
				}
			}
		}},
		{"complete many in two orders", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, mine, yours := two(w)
			var one, other []store.CompleteManyAnswer
			return completingMany(a, b, mine, yours, &one), completingMany(b, a, yours, mine, &other), func(x, y error) {
				w.fine(x, y)
				trs := 0
				for i := range one {
					if d := diff(one[i].Answers, other[1-i].Answers); d != "" || one[i].Answers[0].Status != store.CompleteStored {
						w.t.Errorf("call %d answers otherwise:\n%s", i, d)
					}
					trs += len(one[i].Transitions) + len(other[i].Transitions)
				}
				if trs != 2 {
					w.t.Errorf("%d transitions", trs)
				}
			}
		}},
		{"complete many and renew many", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, mine, yours := two(w)
			var all []store.CompleteManyAnswer
			calls := []store.RenewParams{a.renewals(mine), b.renewals(yours)}
			calls[0].Items[0].Progress = 0.5
			renew := func(ctx context.Context, s store.Store) error { return err2(s.RenewMany(ctx, calls)) }
			return completingMany(a, b, mine, yours, &all), renew, func(x, y error) {
				w.fine(x, y)
				w.state(mine.Task, berth.StateSucceeded)
				w.state(yours.Task, berth.StateSucceeded)
			}
		}},
		{"complete many and sync", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			a, b, mine, yours := two(w)
			var all []store.CompleteManyAnswer
			complete := completingMany(a, b, mine, yours, &all)
			var res store.SyncResult
			return complete, a.syncing(&res), func(x, y error) {
				w.fine(x, y)
				w.state(yours.Task, berth.StateSucceeded)
				if all[1].Err != nil {
					w.fails("after the sync", all[1].Err, berth.ErrStaleEpoch)
					w.state(mine.Task, berth.StateQueued)
				} else {
					w.state(mine.Task, berth.StateSucceeded)
				}
			}
		}},
	}
}
