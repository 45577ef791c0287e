package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func listChecks() []check {
	return []check{
		in("newest first, by pages, without content", listPages),
		in("page sizes are bounded", listSizes),
		in("each filter alone and together", listFilters),
		in("names are matched byte by byte", listNames),
		in("filters and pages together", listFilteredPages),
		in("attempts by number with all their facts", listAttempts),
		in("artifacts by attempt and name", listArtifacts),
		in("the log from an offset", readLog),
	}
}

func taskIDs(tasks []berth.Task) []berth.TaskID {
	var out []berth.TaskID
	for _, t := range tasks {
		out = append(out, t.ID)
	}
	return out
}

func listPages(w *world) {
	var want []berth.TaskID
	for range 7 {
		want = append(want, w.submit().ID)
	}
	slices.Reverse(want)
	var got []berth.TaskID
	pages := 0
	for after := ""; ; pages++ {
		tasks, next, err := w.Store.ListTasks(bg(), all, store.TaskFilter{}, store.Page{Size: 3, After: after})
		w.must("list", err)
		got = append(got, taskIDs(tasks)...)
		for _, task := range tasks {
			if !task.Payload.IsZero() || !task.Result.IsZero() {
				w.t.Errorf("a listed task has content")
			}
		}
		if next == "" {
			break
		}
		if len(tasks) != 3 || next != string(tasks[2].ID) {
			w.t.Fatalf("page of %d, cursor %q", len(tasks), next)
		}
		after = next
	}
	if !slices.Equal(got, want) || pages != 2 {
		w.t.Fatalf("in %d pages: %v, should be %v", pages+1, got, want)
	}
	// The cursor need not exist, and a full last page has no next one.
	tasks, next, err := w.Store.ListTasks(bg(), all, store.TaskFilter{}, store.Page{Size: 7})
	if err != nil || len(tasks) != 7 || next != "" {
		w.t.Errorf("exactly one page: %d tasks, next %q, %v", len(tasks), next, err)
	}
}

func listSizes(w *world) {
	for range 3 {
		var news []berth.NewTask
		for range 70 {
			news = append(news, w.newTask())
		}
		_, err := w.Store.SubmitTasks(bg(), w.submitParams(news...))
		w.must("submit", err)
	}
	for size, want := range map[int]int{0: 50, 1: 1, 200: 200, 201: 200, 100000: 200} {
		tasks, next, err := w.Store.ListTasks(bg(), all, store.TaskFilter{}, store.Page{Size: size})
		if err != nil || len(tasks) != want || next == "" {
			w.t.Errorf("size %d gives %d tasks (%v), should give %d", size, len(tasks), err, want)
		}
	}
}

func listFilters(w *world) {
	a := w.host("h1", 2)
	start := w.Clock.Now()
	one := w.submit(withName("alpha one"), withTags("red", "blue"), withSelector("slot=slot-1"))
	w.placed(one.ID)
	w.Clock.Advance(time.Second)
	other := w.makePool("other")
	w.must("plugin", w.Store.RegisterPlugins(bg(), w.operator, []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "more", Version: "1.0.0"}, Enabled: true}}))
	two := w.submit(withName("alpha two"), withTags("redder"), withPool(other.ID), func(n *berth.NewTask) { n.Requirement.Plugin = "more" })
	w.Clock.Advance(time.Second)
	p := w.submitParams(w.newTask(withName("beta"), withTags("blue"), notBefore(w.Clock.Now().Add(time.Hour))))
	p.Actor = w.operator
	res, err := w.Store.SubmitTasks(bg(), p)
	w.must("submit", err)
	three := res.Tasks[0]
	w.cancel(w.submit(withName("gamma")).ID)
	device := w.task(one.ID).Device
	for _, c := range []struct {
		name string
		f    store.TaskFilter
		want []berth.TaskID
	}{
		{"state", store.TaskFilter{States: []berth.TaskState{berth.StateScheduled}}, []berth.TaskID{three.ID}},
		{"states", store.TaskFilter{States: []berth.TaskState{berth.StateAssigned, berth.StateQueued}}, []berth.TaskID{two.ID, one.ID}},
		{"pool", store.TaskFilter{Pool: other.ID}, []berth.TaskID{two.ID}},
		{"plugin", store.TaskFilter{Plugin: "more"}, []berth.TaskID{two.ID}},
		{"tag", store.TaskFilter{Tag: "red"}, []berth.TaskID{one.ID}},
		{"another tag", store.TaskFilter{Tag: "blue"}, []berth.TaskID{three.ID, one.ID}},
		{"name prefix", store.TaskFilter{NamePrefix: "alpha"}, []berth.TaskID{two.ID, one.ID}},
		{"submitter", store.TaskFilter{Submitter: w.operator.ID}, []berth.TaskID{three.ID}},
		{"device", store.TaskFilter{Device: device}, []berth.TaskID{one.ID}},
		{"free device", store.TaskFilter{Device: other2(a.ids, device)}, nil},
		{"from is inclusive", store.TaskFilter{SubmittedFrom: start.Add(2 * time.Second), NamePrefix: "b"}, []berth.TaskID{three.ID}},
		{"from", store.TaskFilter{SubmittedFrom: start.Add(time.Second + time.Microsecond), NamePrefix: "a"}, nil},
		{"to is exclusive", store.TaskFilter{SubmittedTo: start.Add(time.Second)}, []berth.TaskID{one.ID}},
		{"to", store.TaskFilter{SubmittedTo: start.Add(time.Second + time.Microsecond)}, []berth.TaskID{two.ID, one.ID}},
		{"together", store.TaskFilter{Pool: w.pool.ID, Tag: "blue", NamePrefix: "alpha", Plugin: pluginName, Submitter: w.user.ID, States: []berth.TaskState{berth.StateAssigned}}, []berth.TaskID{one.ID}},
		{"nothing", store.TaskFilter{Tag: "blue", NamePrefix: "gamma"}, nil},
		{"an unknown pool", store.TaskFilter{Pool: newID[berth.PoolID](w.Env)}, nil},
	} {
		tasks, _, err := w.Store.ListTasks(bg(), all, c.f, store.Page{})
		w.must(c.name, err)
		if got := taskIDs(tasks); !slices.Equal(got, c.want) {
			w.t.Errorf("%s: %v, should be %v", c.name, got, c.want)
		}
	}
}

// other2 is the one of two that is not x.
func other2[T comparable](two []T, x T) T {
	if two[0] == x {
		return two[1]
	}
	return two[0]
}

func listNames(w *world) {
	for _, name := range []string{"100% done", "100 done", "a_b", "axb", "Alpha", "alpha", `back\slash`, "[set]", "ünï", "ÜNÏ", "*"} {
		w.submit(withName(name))
	}
	for prefix, want := range map[string]int{
		"100%": 1, "a_": 1, "A": 1, "al": 1, "%": 0, "_": 0, `back\`: 1, "[": 1, "ü": 1, "*": 1, "": 11, "100": 2, "lpha": 0,
	} {
		tasks, _, err := w.Store.ListTasks(bg(), all, store.TaskFilter{NamePrefix: prefix}, store.Page{})
		w.must(prefix, err)
		if len(tasks) != want {
			w.t.Errorf("prefix %q passes %d, should pass %d", prefix, len(tasks), want)
		}
	}
}

func listFilteredPages(w *world) {
	var want []berth.TaskID
	for i := range 20 {
		task := w.submit(withTags(fmt.Sprintf("t%d", i%3)))
		if i%3 == 1 {
			want = append(want, task.ID)
		}
	}
	slices.Reverse(want)
	var got []berth.TaskID
	for after := ""; ; {
		tasks, next, err := w.Store.ListTasks(bg(), all, store.TaskFilter{Tag: "t1", States: []berth.TaskState{berth.StateQueued}}, store.Page{Size: 2, After: after})
		w.must("list", err)
		got = append(got, taskIDs(tasks)...)
		if next == "" {
			break
		}
		after = next
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("%v, should be %v", got, want)
	}
}

func listAttempts(w *world) {
	a := w.host("h1", 1)
	task := w.submit(maxAttempts(3))
	if n := len(w.attempts(task.ID)); n != 0 {
		w.t.Fatalf("%d attempts of a task that only waits", n)
	}
	assigned := w.Clock.Now()
	w.placed(task.ID)
	claimed := w.Clock.Advance(time.Second)
	as := a.one(task.ID)
	started := w.Clock.Advance(2 * time.Second)
	a.start(as)
	ended := w.Clock.Advance(3 * time.Second)
	a.completed(as, berth.OutcomeFailed, func(it *store.CompleteItem) { it.Reason = "step_failed" })
	next := a.again(task.ID)
	list := w.attempts(task.ID)
	if len(list) != 2 || list[1].ID != next.Attempt || list[1].Number != 2 || !list[1].Live() {
		w.t.Fatalf("attempts %+v", list)
	}
	it := item(as, berth.OutcomeFailed)
	want := berth.Attempt{
		ID: as.Attempt, Task: task.ID, Number: 1, Device: a.ids[0], Host: a.id, Fence: as.Fence, State: berth.AttemptRunning,
		Outcome: berth.OutcomeFailed, Reason: "step_failed", Message: it.Message, Result: it.Result,
		AssignedAt: assigned, ClaimedAt: claimed, StartedAt: started, EndedAt: ended,
		DeviceName: a.devices[0].Name, HostName: "h1",
	}
	if d := diff(want, list[0]); d != "" {
		w.t.Fatalf("attempt (-want +got):\n%s", d)
	}
}

func listArtifacts(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	for _, name := range []string{"b.png", "a.txt", "B.png"} {
		a.addArtifact(as, name, "1"+name)
	}
	at := w.Clock.Now()
	a.completed(as, berth.OutcomeFailed)
	next := a.again(as.Task)
	a.addArtifact(next, "a.txt", "2")
	list, err := w.Store.ListArtifacts(bg(), all, as.Task)
	w.must("list", err)
	var names []string
	for _, x := range list {
		names = append(names, fmt.Sprintf("%d %s", x.Number, x.Name))
	}
	if want := []string{"1 B.png", "1 a.txt", "1 b.png", "2 a.txt"}; !slices.Equal(names, want) {
		w.t.Fatalf("artifacts %q, should be %q", names, want)
	}
	got, err := w.Store.GetArtifact(bg(), all, as.Task, 1, "a.txt")
	w.must("get", err)
	want := a.artifact(as, "a.txt", "1a.txt").Artifact
	want.CreatedAt, want.BlobKey = at, got.BlobKey
	if d := diff(want, got); d != "" || got.BlobKey == "" || diff(got, list[1]) != "" {
		w.t.Fatalf("artifact (-want +got):\n%s", d)
	}
	for _, c := range []struct {
		number int
		name   string
	}{{1, "c"}, {2, "b.png"}, {3, "a.txt"}, {0, "a.txt"}} {
		_, err := w.Store.GetArtifact(bg(), all, as.Task, c.number, c.name)
		w.fails(fmt.Sprint(c), err, berth.ErrNotFound)
	}
}

func readLog(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	read := func(offset int64, limit int) (string, bool) {
		chunks, ended, err := w.Store.ReadLog(bg(), store.ReadLogParams{Scope: all, Task: as.Task, Number: 1, Offset: offset, Limit: limit})
		w.must("read log", err)
		out := ""
		for _, c := range chunks {
			if c.Attempt != as.Attempt || c.BlobKey == "" || len(c.SHA256) != 64 {
				w.t.Errorf("chunk %+v", c)
			}
			out += fmt.Sprintf("%d+%d ", c.Offset, c.Size)
		}
		return out, ended
	}
	if got, ended := read(0, 10); got != "" || ended {
		w.t.Errorf("an empty log: %q, ended %v", got, ended)
	}
	a.appendLog(as, 0, "0123456789")
	a.appendLog(as, 10, "01234")
	a.appendLog(as, 15, "0")
	for _, c := range []struct {
		offset int64
		limit  int
		want   string
	}{
		{0, 10, "0+10 10+5 15+1 "}, {9, 10, "0+10 10+5 15+1 "}, {10, 10, "10+5 15+1 "}, {14, 1, "10+5 "}, {15, 5, "15+1 "}, {16, 5, ""}, {99, 5, ""}, {0, 2, "0+10 10+5 "},
	} {
		if got, ended := read(c.offset, c.limit); got != c.want || ended {
			w.t.Errorf("from %d, at most %d: %q, ended %v; should be %q", c.offset, c.limit, got, ended, c.want)
		}
	}
	if n := w.attempt(as.Task).LogBytes; n != 16 {
		w.t.Errorf("the attempt counts %d log bytes", n)
	}
	a.completed(as, berth.OutcomeSucceeded, func(it *store.CompleteItem) { it.LogBytes = 16 })
	if got, ended := read(15, 10); got != "15+1 " || !ended {
		w.t.Errorf("at the end: %q, ended %v", got, ended)
	}
	_, _, err := w.Store.ReadLog(bg(), store.ReadLogParams{Scope: all, Task: as.Task, Number: 2, Limit: 1})
	w.fails("unknown attempt", err, berth.ErrNotFound)
	_, _, err = w.Store.ReadLog(bg(), store.ReadLogParams{Scope: all, Task: newID[berth.TaskID](w.Env), Number: 1, Limit: 1})
	w.fails("unknown task", err, berth.ErrNotFound)
}
