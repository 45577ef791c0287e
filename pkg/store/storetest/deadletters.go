package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func deadLetterChecks() []check {
	return []check{
		in("each way there has its cause, and a retry forgets it", causesOfEachWay),
		in("those of one cause are one group", deadLettersByCause),
		in("causes come in pages", deadLetterPages),
		in("more than are counted are said to be more", deadLettersCounted),
		in("tasks are listed by cause", listByCause),
	}
}

// saying ends an attempt with a reason and a message.
func saying(reason, message string) func(*store.CompleteItem) {
	return func(it *store.CompleteItem) { it.Reason, it.Message = reason, redact.NewString(message) }
}

// died brings a new task to dead_letter, with what its attempt said.
func (a *agent) died(reason, message string, mods ...func(*berth.NewTask)) berth.TaskID {
	a.w.t.Helper()
	as := a.running(append([]func(*berth.NewTask){maxAttempts(1)}, mods...)...)
	a.completed(as, berth.OutcomeFailed, saying(reason, message))
	a.w.state(as.Task, berth.StateDeadLetter)
	return as.Task
}

func (w *world) deadLetters(page store.Page) ([]berth.DeadLetters, string) {
	w.t.Helper()
	list, next, err := w.Store.ListDeadLetters(bg(), page)
	w.must("list dead letters", err)
	return list, next
}

func causesOfEachWay(w *world) {
	a := w.host("h1", 1)
	said := a.died("exit_code", "exit status 3 of run 77")
	waited := w.submit(queueTimeout(time.Second), withSelector("no=where")).ID
	w.Clock.Advance(2 * time.Second)
	w.must("give up", err2(w.Store.GiveUp(bg(), w.scheduler, 10)))
	expired := a.running(maxAttempts(1)).Task
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace + time.Second)
	w.reap()
	for id, want := range map[berth.TaskID]berth.Cause{
		said:    berth.CauseOf(pluginName, "exit_code", "exit status 4 of run 1"),
		waited:  berth.CauseOf(pluginName, berth.ReasonQueueTimeout, ""),
		expired: berth.CauseOf(pluginName, w.attempt(expired).Reason, w.attempt(expired).Message.Reveal()),
	} {
		if task := w.state(id, berth.StateDeadLetter); task.Cause != want.Key {
			w.t.Errorf("after %s the cause is %q, should be %q", task.FinalReason, task.Cause, want.Key)
		}
	}
	if list, _ := w.deadLetters(store.Page{}); len(list) != 3 {
		w.t.Errorf("%d causes, not 3", len(list))
	}
	_, _, err := w.Store.RetryTask(bg(), store.RetryParams{TaskParams: w.params(said)})
	w.must("retry", err)
	if task := w.state(said, berth.StateQueued); task.Cause != "" {
		w.t.Errorf("a queued task has the cause %q", task.Cause)
	}
	if list, _ := w.deadLetters(store.Page{}); len(list) != 2 {
		w.t.Errorf("%d causes after a retry, not 2", len(list))
	}
}

func deadLettersByCause(w *world) {
	a := w.host("h1", 1)
	first := w.Clock.Now()
	a.died("exit_code", "exit status 3")
	w.Clock.Advance(time.Second)
	newest := a.died("exit_code", "exit status 4")
	at := w.Clock.Now()
	w.Clock.Advance(time.Second)
	other := a.died("exit_code", "no such file")
	list, next := w.deadLetters(store.Page{})
	want := []berth.DeadLetters{
		{Cause: berth.CauseOf(pluginName, "exit_code", "exit status 5"), Count: 2, Newest: newest, NewestAt: at, Since: first},
		{Cause: berth.CauseOf(pluginName, "exit_code", "no such file"), Count: 1, Newest: other, NewestAt: w.Clock.Now(), Since: w.Clock.Now()},
	}
	slices.SortFunc(want, func(a, b berth.DeadLetters) int { return compare(a.Key, b.Key) })
	if d := diff(want, list); d != "" || next != "" {
		w.t.Errorf("dead letters (-want +got), next %q:\n%s", next, d)
	}
}

func compare[T ~string](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func deadLetterPages(w *world) {
	a := w.host("h1", 1)
	for i := range 5 {
		a.died("exit_code", fmt.Sprintf("fault %c", 'a'+i))
	}
	whole, _ := w.deadLetters(store.Page{})
	var got []berth.DeadLetters
	pages := 1
	for after := ""; ; pages++ {
		list, next := w.deadLetters(store.Page{Size: 2, After: after})
		got = append(got, list...)
		if next == "" {
			break
		}
		after = next
	}
	if d := diff(whole, got); d != "" || pages != 3 || len(whole) != 5 {
		w.t.Errorf("%d causes in %d pages:\n%s", len(whole), pages, d)
	}
}

func deadLettersCounted(w *world) {
	for range 6 {
		var news []berth.NewTask
		for range 200 {
			news = append(news, w.newTask(queueTimeout(time.Second)))
		}
		w.must("submit", err2(w.Store.SubmitTasks(bg(), w.submitParams(news...))))
	}
	w.Clock.Advance(time.Minute)
	w.must("give up", err2(w.Store.GiveUp(bg(), w.scheduler, store.DeadLettersCounted)))
	list, _ := w.deadLetters(store.Page{})
	if len(list) != 1 || list[0].Count != store.DeadLettersCounted || list[0].More {
		w.t.Fatalf("as many as are counted: %+v", list)
	}
	w.must("give up", err2(w.Store.GiveUp(bg(), w.scheduler, 1)))
	list, _ = w.deadLetters(store.Page{})
	if len(list) != 1 || list[0].Count != store.DeadLettersCounted || !list[0].More {
		w.t.Errorf("one more than are counted: %+v", list)
	}
}

func listByCause(w *world) {
	a := w.host("h1", 1)
	var want []berth.TaskID
	for i := range 5 {
		want = append(want, a.died("exit_code", fmt.Sprintf("exit status %d", i), withName(fmt.Sprintf("task %d", i))))
		a.died("exit_code", "another")
		w.submit(withSelector("no=where"))
	}
	slices.Reverse(want)
	cause := w.task(want[0]).Cause
	var got []berth.TaskID
	for after := ""; ; {
		tasks, next, err := w.Store.ListTasks(bg(), all, store.TaskFilter{Cause: cause}, store.Page{Size: 2, After: after})
		w.must("list", err)
		got = append(got, taskIDs(tasks)...)
		if next == "" {
			break
		}
		after = next
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("by cause: %v, should be %v", got, want)
	}
	for name, c := range map[string]struct {
		f    store.TaskFilter
		want int
	}{
		"and state":         {store.TaskFilter{Cause: cause, States: []berth.TaskState{berth.StateDeadLetter}}, 5},
		"and another state": {store.TaskFilter{Cause: cause, States: []berth.TaskState{berth.StateQueued}}, 0},
		"and both":          {store.TaskFilter{Cause: cause, States: []berth.TaskState{berth.StateQueued, berth.StateDeadLetter}}, 5},
		"and name":          {store.TaskFilter{Cause: cause, NamePrefix: "task 3"}, 1},
		"unknown":           {store.TaskFilter{Cause: berth.UnknownCause}, 0},
	} {
		tasks, _, err := w.Store.ListTasks(bg(), all, c.f, store.Page{})
		if w.must(name, err); len(tasks) != c.want {
			w.t.Errorf("by cause %s: %d tasks, should be %d", name, len(tasks), c.want)
		}
	}
}
