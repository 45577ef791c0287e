package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// contractChecks are words of the contract about which engines once differed.
func contractChecks() []check {
	return []check{
		in("what was cancelled meanwhile is gone", contractCancelled),
		in("a late repeat of a completion tells where the task went then", contractLateRepeat),
		in("reasons are codes", contractReasons),
		in("an empty chunk is refused", contractChunks),
		in("an undelivered attempt gets a fence that the agent takes", contractRestored),
		in("the protocol is remembered", contractProtocol),
	}
}

func contractCancelled(w *world) {
	a := w.host("h1", 2)
	claimed, running := a.claimed(), a.running()
	w.cancel(claimed.Task)
	w.cancel(running.Task)
	a.completed(running, berth.OutcomeCancelled)
	for _, as := range []store.Assignment{claimed, running} {
		started, _ := a.startAnswers(as)
		if s, r := started[0].Status, a.release(false, as)[0].Status; s != store.LeaseGone || r != store.LeaseGone {
			w.t.Errorf("start %s, release %s", s, r)
		}
	}
}

func contractLateRepeat(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	if s := a.completed(as, berth.OutcomeFailed); s != berth.StateFailed {
		w.t.Fatalf("the task went to %s", s)
	}
	for _, then := range []func(){
		func() { a.completed(a.again(as.Task), berth.OutcomeSucceeded) },
		func() {},
	} {
		then()
		if s := a.completed(as, berth.OutcomeFailed); s != berth.StateFailed {
			w.t.Errorf("a late repeat says that the task went to %s", s)
		}
	}
	w.state(as.Task, berth.StateSucceeded)
}

func contractReasons(w *world) {
	a := w.host("h1", 2)
	claimed, running := a.claimed(), a.running()
	for _, reason := range []string{"No Code", marker, "a\x00", "ü"} {
		_, _, err := w.Store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(claimed)}, Reason: reason})
		w.fails("release with a bad reason", err, berth.ErrInvalid)
		bad := item(running, berth.OutcomeFailed, func(it *store.CompleteItem) { it.Reason = reason })
		_, _, err = w.Store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: a.call(), Items: []store.CompleteItem{item(claimed, berth.OutcomeInfraFailed), bad}})
		w.fails("complete with a bad reason", err, berth.ErrInvalid)
	}
	for _, outcome := range []berth.Outcome{berth.OutcomeLost, berth.OutcomeReleased, "odd", ""} {
		_, _, err := w.Store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: a.call(), Items: []store.CompleteItem{item(running, outcome)}})
		w.fails("complete with "+string(outcome), err, berth.ErrInvalid)
	}
	w.state(claimed.Task, berth.StateClaimed)
	w.state(running.Task, berth.StateRunning)
	_, _, err := w.Store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: []store.Holder{holder(claimed)}, Reason: "no_room"})
	w.must("release", err)
	if at := w.attempt(claimed.Task); at.Reason != "no_room" {
		w.t.Errorf("reason %q", at.Reason)
	}
}

func contractChunks(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	for offset := range int64(2) {
		p := a.chunk(as, offset, "")
		_, _, err := w.Store.AppendLog(bg(), p)
		w.fails("append an empty chunk", err, berth.ErrInvalid)
	}
	p := a.chunk(as, 0, "abc")
	p.Chunk.Size = store.MaxLogChunk + 1
	_, _, err := w.Store.AppendLog(bg(), p)
	w.fails("append a chunk that is too large", err, berth.ErrTooLarge)
	p = a.chunk(as, 0, "abc")
	p.Chunk.SHA256 = "abc"
	_, _, err = w.Store.AppendLog(bg(), p)
	w.fails("append a chunk with a bad digest", err, berth.ErrInvalid)
	p = a.chunk(as, 0, "abc")
	for range 2 {
		next, stored, err := w.Store.AppendLog(bg(), p)
		if err != nil || next != 3 || !stored {
			w.t.Errorf("append: %d, %v, %v", next, stored, err)
		}
	}
	p.Chunk.BlobKey += "-other"
	if next, stored, err := w.Store.AppendLog(bg(), p); err != nil || next != 3 || stored {
		w.t.Errorf("append again with another blob: %d, %v, %v", next, stored, err)
	}
}

// contractRestored: after a restore of the database an undelivered attempt may
// have a fence below one that the agent acted under. The agent refuses such a
// fence, so a sync gives the attempt a higher one (I10).
func contractRestored(w *world) {
	a := w.host("h1", 2)
	assigned, claimed := w.submit(pinned(a.ids[0])), w.submit(pinned(a.ids[1]))
	w.placed(claimed.ID)
	w.state(assigned.ID, berth.StateAssigned)
	as := a.claim()
	if len(as) != 2 {
		w.t.Fatalf("claimed %d", len(as))
	}
	a.release(true, as[slices.IndexFunc(as, func(x store.Assignment) bool { return x.Task == assigned.ID })])
	w.placed(assigned.ID)
	w.Clock.Advance(time.Second)
	a.devices[0].HighestFence, a.devices[1].HighestFence = 41, 77
	res := a.restart()
	if len(res.Undelivered) != 2 {
		w.t.Fatalf("undelivered %v", res.Undelivered)
	}
	seen := map[berth.DeviceID]berth.Fence{a.ids[0]: 41, a.ids[1]: 77}
	again := a.claim()
	if len(again) != 2 {
		w.t.Fatalf("claimed %d", len(again))
	}
	for _, x := range again {
		if x.Fence <= seen[x.Device] || w.device(x.Device).Fence != x.Fence {
			w.t.Errorf("I10: fence %d of the attempt, %d of the device, the agent has seen %d", x.Fence, w.device(x.Device).Fence, seen[x.Device])
		}
		a.start(x)
		a.completed(x, berth.OutcomeSucceeded)
	}
}

func contractProtocol(w *world) {
	a := w.enrolled("h1", w.pool.ID, 1)
	if h := w.hostOf(a); h.Protocol != 1 {
		w.t.Errorf("protocol %d before the first sync", h.Protocol)
	}
	for _, v := range []int{2, 0, 2, 1} {
		a.sync(func(p *store.SyncParams) { p.Protocol = v })
		want := max(v, 1)
		if h, l := w.hostOf(a), w.device(a.ids[0]).Labels[berth.LabelProtocol]; h.Protocol != want || l != string(rune('0'+want)) {
			w.t.Errorf("protocol %d, label %q, should be %d", h.Protocol, l, want)
		}
	}
}
