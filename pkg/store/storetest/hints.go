package storetest

import (
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func hintChecks() []check {
	return []check{
		in("each kind arrives after its commit on the same handle", hints),
		in("a channel holds one hint and ends quietly", hintChannel),
	}
}

// hintWait bounds the wait for a hint that must come.
const hintWait = 10 * time.Second

func (w *world) hinted(what string, c <-chan struct{}) {
	w.t.Helper()
	select {
	case <-c:
	case <-time.After(hintWait):
		w.t.Fatalf("no hint: %s", what)
	}
}

func drain(c <-chan struct{}) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
}

func hints(w *world) {
	a := w.host("h1", 1)
	work, stop := w.Store.Subscribe(store.HintWork, string(w.pool.ID))
	defer stop()
	every, stop := w.Store.Subscribe(store.HintWork, "")
	defer stop()
	assigned, stop := w.Store.Subscribe(store.HintAssigned, string(a.id))
	defer stop()
	drain(work)
	task := w.submit()
	w.hinted("work after a submit", work)
	w.hinted("work of every key", every)
	changed, stop := w.Store.Subscribe(store.HintTask, string(task.ID))
	defer stop()
	w.place()
	w.hinted("assigned after a placement", assigned)
	w.hinted("task after a placement", changed)
	as := a.one(task.ID)
	w.hinted("task after a claim", changed)
	a.start(as)
	w.hinted("task after a start", changed)
	a.appendLog(as, 0, "x")
	w.hinted("task after a chunk of log", changed)
	w.cancel(task.ID)
	w.hinted("assigned after a cancel of a running task", assigned)
	drain(changed)
	drain(work)
	a.completed(as, berth.OutcomeCancelled)
	w.hinted("task after its end", changed)
	w.hinted("work after a device became free", work)
	w.Clock.Advance(time.Second)
	due := w.submit(notBefore(w.Clock.Now().Add(time.Second)))
	drain(work)
	w.Clock.Set(w.task(due.ID).DueAt)
	w.promote()
	w.hinted("work after a promotion", work)
}

func hintChannel(w *world) {
	c, stop := w.Store.Subscribe(store.HintWork, string(w.pool.ID))
	if cap(c) > 1 {
		w.t.Errorf("the channel holds %d", cap(c))
	}
	for range 3 {
		w.submit()
	}
	w.hinted("work", c)
	stop()
	stop()
	drain(c)
	w.submit()
	select {
	case _, open := <-c:
		w.t.Errorf("a hint after the end of the subscription; channel open: %v", open)
	default:
	}
}
