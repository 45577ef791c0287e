package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func scheduleChecks() []check {
	return []check{
		in("a schedule is made, read, listed, edited and deleted, each with its audit row", scheduleLife),
		in("what is wrong with a schedule is named, and nothing is made", scheduleFaults),
		in("a due slot becomes one task, with all that the template says", scheduleFires),
		in("slots that nobody looked at are caught up as the schedule says", scheduleCatchUp),
		in("a year of missed minutes costs bounded work", scheduleYear),
		in("overlap: skip, allow, queue_one, cancel_running", scheduleOverlap),
		in("what waits is settled by a pause and by an edit", scheduleWaiting),
		in("a pause owes nothing", schedulePause),
		in("a run by hand is repeatable, and counts as an overlap", scheduleRun),
		in("an owner who is disabled or has lost its role, a secret and an input that are gone are recorded skips", scheduleRefused),
		in("an input that a template names does not expire", scheduleInput),
		in("an edit settles what is due under the old spec, and whoever writes a template owns it", scheduleEdit),
		in("zone edits lose no wall time and double none", scheduleZones),
		in("a spec that cannot be read any more pauses its schedule, and the others go on", scheduleUnreadable),
		in("history in pages, the last decided first", scheduleHistory),
		in("two schedulers at once fire a slot once", scheduleAtOnce),
	}
}

// scheduled makes a schedule of owner; its name is unique in the world.
func (w *world) scheduled(owner berth.Actor, name, expr string, mods ...func(*berth.ScheduleEdit)) berth.Schedule {
	w.t.Helper()
	s, err := w.Store.CreateSchedule(bg(), w.schedule(owner, name, expr, mods...))
	w.must("create schedule", err)
	return s
}

func (w *world) schedule(owner berth.Actor, name, expr string, mods ...func(*berth.ScheduleEdit)) store.CreateScheduleParams {
	w.t.Helper()
	n := w.newTask()
	e := berth.ScheduleEdit{Cron: &expr, Template: &n}
	for _, mod := range mods {
		mod(&e)
	}
	return store.CreateScheduleParams{
		Actor: owner, Scope: w.mine(owner), Roles: []berth.Role{berth.RoleOperator}, ID: newID[berth.ScheduleID](w.Env), Name: name + w.suffix, Edit: e,
	}
}

func zoned(zone string) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.TimeZone = &zone }
}

func caughtUp(c berth.CatchUp) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.CatchUp = &c }
}

func within(d time.Duration) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.CatchUpWindow = &d }
}

func upTo(n int) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.CatchUpLimit = &n }
}

func overlapping(o berth.Overlap) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.Overlap = &o }
}

func (w *world) templated(mods ...func(*berth.NewTask)) func(*berth.ScheduleEdit) {
	n := w.newTask(mods...)
	return func(e *berth.ScheduleEdit) { e.Template = &n }
}

// planner is a user who may make schedules.
func (w *world) planner() berth.Actor { return w.somebody("planner", berth.RoleOperator) }

func (w *world) freshTask() berth.TaskID { return newID[berth.TaskID](w.Env) }

func (w *world) fireParams() store.FireDueParams {
	return store.FireDueParams{Actor: w.scheduler, Limit: 100, Fresh: w.freshTask}
}

// fire decides all that is due and returns what became of it in short.
func (w *world) fire() string {
	w.t.Helper()
	res, err := w.Store.FireDue(bg(), w.fireParams())
	w.must("fire", err)
	return short(res.Fires)
}

// short spells fires: 10:30 for a task, 10:30-10:45 missed 2 for skipped slots.
func short(fires []berth.Fire) string {
	var out []string
	for _, f := range fires {
		text := f.SlotAt.Format("15:04")
		if f.LastSlotAt != f.SlotAt {
			text += "-" + f.LastSlotAt.Format("15:04")
		}
		if (f.Task == "") == (f.Reason == "") {
			text += " BROKEN"
		}
		if f.Reason != "" {
			text += fmt.Sprintf(" %s %d", f.Reason, f.Slots)
		}
		if f.AtLeast {
			text += "+"
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func (w *world) wantFires(what, want string) {
	w.t.Helper()
	if got := w.fire(); got != want {
		w.t.Errorf("%s: it decided %q, want %q", what, got, want)
	}
}

func (w *world) fires(name string) []berth.Fire {
	w.t.Helper()
	var out []berth.Fire
	for after := ""; ; {
		page, next, err := w.Store.ListFires(bg(), name+w.suffix, store.Page{Size: 200, After: after})
		w.must("list fires", err)
		if out = append(out, page...); next == "" {
			return out
		}
		after = next
	}
}

func (w *world) at(hour, minute int) {
	now := w.Clock.Now()
	w.Clock.Set(time.Date(now.Year(), now.Month(), now.Day(), hour, minute, 0, 0, time.UTC))
}

func (w *world) edit(actor berth.Actor, name string, mods ...func(*berth.ScheduleEdit)) berth.Schedule {
	w.t.Helper()
	var e berth.ScheduleEdit
	for _, mod := range mods {
		mod(&e)
	}
	s, _, err := w.Store.EditSchedule(bg(), store.EditScheduleParams{
		Actor: actor, Scope: w.mine(actor), Roles: []berth.Role{berth.RoleOperator}, Name: name + w.suffix, Edit: e, Fresh: w.freshTask,
	})
	w.must("edit schedule", err)
	return s
}

func cronOf(expr string) func(*berth.ScheduleEdit) {
	return func(e *berth.ScheduleEdit) { e.Cron = &expr }
}

func (w *world) getSchedule(name string) berth.Schedule {
	w.t.Helper()
	s, err := w.Store.GetSchedule(bg(), name+w.suffix)
	w.must("get schedule", err)
	return s
}

func (w *world) tasksOf(s berth.Schedule) []berth.Task {
	w.t.Helper()
	tasks, _, err := w.Store.ListTasks(bg(), all, store.TaskFilter{Schedule: s.ID}, store.Page{Size: 200})
	w.must("list tasks", err)
	return tasks
}

// finishAll ends what the schedule's tasks are about.
func (w *world) finishAll(s berth.Schedule) {
	w.t.Helper()
	for _, task := range w.tasksOf(s) {
		if !task.State.Finished() {
			w.cancel(task.ID)
		}
	}
}

func scheduleLife(w *world) {
	owner := w.planner()
	p := w.schedule(owner, "nightly", "30 2 * * *", zoned("Europe/Berlin"))
	p.Once = onceOf("k", "nightly")
	s, err := w.Store.CreateSchedule(bg(), p)
	w.must("create", err)
	now := w.Clock.Now()
	if s.Revision != 1 || s.Version != 1 || s.Owner != owner.Principal || s.PoolName != w.pool.Name || s.CatchUp != berth.CatchUpLatest ||
		s.CatchUpWindow != time.Hour || s.CatchUpLimit != 1 || s.Overlap != berth.OverlapSkip || !s.CreatedAt.Equal(now) {
		w.t.Errorf("it is made as %+v", s)
	}
	if want := time.Date(2026, 3, 3, 1, 30, 0, 0, time.UTC); !s.NextAt.Equal(want) || s.NextKey != "2026-03-03T02:30" {
		w.t.Errorf("it waits for %s %s", s.NextAt, s.NextKey)
	}
	again, err := w.Store.CreateSchedule(bg(), p)
	w.must("repeat", err)
	got := w.getSchedule("nightly")
	for what, other := range map[string]berth.Schedule{"repeated": again, "read": got} {
		if fmt.Sprintf("%+v", s) != fmt.Sprintf("%+v", other) || !other.Template.Payload.Equal(s.Template.Payload) {
			w.t.Errorf("it is %s as %+v, not as %+v", what, other, s)
		}
	}
	p.Once, p.ID = store.Once{}, newID[berth.ScheduleID](w.Env)
	_, err = w.Store.CreateSchedule(bg(), p)
	w.fails("the same name", err, berth.ErrExists)
	w.scheduled(owner, "a-first", "@hourly")

	listed, next, err := w.Store.ListSchedules(bg(), store.Page{Size: 1})
	w.must("list", err)
	if len(listed) != 1 || listed[0].Name != "a-first"+w.suffix || next == "" || !listed[0].Template.Payload.IsZero() {
		w.t.Errorf("the first page is %+v, next %q", listed, next)
	}
	listed, next, err = w.Store.ListSchedules(bg(), store.Page{After: next})
	w.must("list", err)
	if len(listed) != 1 || listed[0].ID != s.ID || next != "" {
		w.t.Errorf("the second page is %+v, next %q", listed, next)
	}

	w.Clock.Advance(time.Minute)
	rows := len(w.audit("schedule", string(s.ID)))
	if same := w.edit(owner, "nightly", cronOf("30 2 * * *")); same.Version != 1 || len(w.audit("schedule", string(s.ID))) != rows {
		w.t.Errorf("an edit that changes nothing is %+v", same)
	}
	edited := w.edit(owner, "nightly", overlapping(berth.OverlapAllow))
	if edited.Version != 2 || edited.Revision != 1 || edited.NextKey != s.NextKey || edited.Overlap != berth.OverlapAllow {
		w.t.Errorf("it is edited to %+v", edited)
	}
	if edited = w.edit(owner, "nightly", cronOf("0 4 * * *")); edited.Revision != 2 || edited.NextKey != "2026-03-03T04:00" {
		w.t.Errorf("it is edited to %+v", edited)
	}
	for expr, want := range map[string]error{"0 4 * * *": nil, "0 5 * * *": berth.ErrWrongState} {
		_, _, err = w.Store.EditSchedule(bg(), store.EditScheduleParams{Actor: owner, Name: s.Name, Version: 2, Edit: berth.ScheduleEdit{Cron: &expr}, Fresh: w.freshTask})
		if !errors.Is(err, want) {
			w.t.Errorf("%s at an old version: %v, want %v", expr, err, want)
		}
	}
	w.fails("delete an old version", w.Store.DeleteSchedule(bg(), owner, s.Name, 2), berth.ErrWrongState)
	w.must("delete", w.Store.DeleteSchedule(bg(), owner, s.Name, 3))
	w.fails("delete again", w.Store.DeleteSchedule(bg(), owner, s.Name, 0), berth.ErrNotFound)
	_, err = w.Store.GetSchedule(bg(), s.Name)
	w.fails("get", err, berth.ErrNotFound)

	trail := w.audit("schedule", string(s.ID))
	var actions []string
	for _, row := range trail {
		actions = append(actions, string(row.Action))
	}
	if got := strings.Join(actions, " "); got != "schedule.created schedule.changed schedule.changed schedule.deleted" {
		w.t.Fatalf("the trail is %s", got)
	}
	w.wantFacts("changed", trail[1], map[string]string{"overlap": "skip"}, map[string]string{"overlap": "allow"})
	w.wantFacts("changed", trail[2], map[string]string{"cron": "30 2 * * *"}, map[string]string{"cron": "0 4 * * *"})
}

func scheduleFaults(w *world) {
	owner := w.planner()
	fault := func(path string, p store.CreateScheduleParams) {
		w.t.Helper()
		_, err := w.Store.CreateSchedule(bg(), p)
		var invalid *berth.InvalidError
		if !errors.As(err, &invalid) || !slices.ContainsFunc(invalid.Fields, func(f berth.FieldError) bool { return f.Path == path }) {
			w.t.Errorf("%s: the error is %v", path, err)
		}
	}
	fault("cron", w.schedule(owner, "x", "0 0 30 2 *"))
	fault("time_zone", w.schedule(owner, "x", "@daily", zoned("Local")))
	fault("catch_up", w.schedule(owner, "x", "@daily", caughtUp("some")))
	fault("catch_up_limit", w.schedule(owner, "x", "@daily", caughtUp(berth.CatchUpAll), upTo(berth.MaxCatchUp+1)))
	fault("catch_up_limit", w.schedule(owner, "x", "@daily", upTo(2)))
	fault("catch_up_window_seconds", w.schedule(owner, "x", "@daily", caughtUp(berth.CatchUpNone), within(time.Hour)))
	fault("overlap", w.schedule(owner, "x", "@daily", overlapping("maybe")))
	fault("name", w.schedule(owner, "X Y", "@daily"))
	fault("template.secrets[0]", w.schedule(owner, "x", "@daily", w.templated(withSecrets("none"))))
	fault("template.inputs[0].digest", w.schedule(owner, "x", "@daily", w.templated(withInputs(w.file(owner, "never sent")))))
	p := w.schedule(owner, "x", "@daily", w.templated(withPool(newID[berth.PoolID](w.Env))))
	_, err := w.Store.CreateSchedule(bg(), p)
	w.fails("an unknown pool", err, berth.ErrNotFound)
	_, err = w.Store.GetSchedule(bg(), "x"+w.suffix)
	w.fails("get", err, berth.ErrNotFound)
	_, _, err = w.Store.ListFires(bg(), "x"+w.suffix, store.Page{})
	w.fails("fires", err, berth.ErrNotFound)
	_, err = w.Store.RunSchedule(bg(), store.RunScheduleParams{Actor: owner, Name: "x", Task: w.freshTask()})
	w.fails("run", err, berth.ErrNotFound)
	_, err = w.Store.ResumeSchedule(bg(), owner, "x")
	w.fails("resume", err, berth.ErrNotFound)
	_, _, err = w.Store.PauseSchedule(bg(), owner, "x", w.freshTask)
	w.fails("pause", err, berth.ErrNotFound)
}

func scheduleFires(w *world) {
	owner := w.planner()
	w.putSecret("db", "value", toUser(owner))
	f := w.stored(owner, "0123456789")
	full := []func(*berth.NewTask){
		withName("named"), withTags("b", "a"), withSelector("x=1"), withPriority(7), runTimeout(90 * time.Second), queueTimeout(time.Hour),
		maxAttempts(5), retryUnsafe, retryOn(berth.OutcomeLost), withInputs(f), withSecrets("db"),
	}
	s := w.scheduled(owner, "s", "*/15 * * * *", w.templated(full...))
	w.wantFires("before", "")
	w.at(10, 30)
	w.wantFires("at the slot", "10:30")
	w.wantFires("again", "")
	tasks := w.tasksOf(s)
	if len(tasks) != 1 {
		w.t.Fatalf("there are %d tasks", len(tasks))
	}
	got := w.task(tasks[0].ID)
	direct, err := w.submitWith(owner, []berth.Role{berth.RoleOperator}, full...)
	w.must("submit", err)
	if got.Schedule != s.ID || got.CorrelationID != s.Name+":2026-03-02T10:30:00Z" || got.State != berth.StateQueued {
		w.t.Errorf("the task is %+v", got)
	}
	got.ID, got.Schedule, got.CorrelationID, got.TraceParent = direct.ID, "", direct.CorrelationID, direct.TraceParent
	if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", direct); a != b || !got.Payload.Equal(direct.Payload) {
		w.t.Errorf("the schedule's task is\n%s, one that is submitted\n%s", a, b)
	}
	row := w.audit("task", string(tasks[0].ID))[0]
	if row.Actor.Principal != owner.Principal || row.Actor.Credential != berth.Credential("schedule:"+string(s.ID)) {
		w.t.Errorf("the trail says %+v", row.Actor)
	}
	if next := w.getSchedule("s"); next.NextKey != "2026-03-02T10:45:00Z" || next.Version != 1 || !next.DecidedTo.Equal(w.Clock.Now()) {
		w.t.Errorf("it goes on as %+v", next)
	}
}

func scheduleCatchUp(w *world) {
	owner := w.planner()
	allow := overlapping(berth.OverlapAllow)
	for _, c := range []struct {
		name string
		mods []func(*berth.ScheduleEdit)
		want string // at 13:07:30, of every half hour from 10:30 on
	}{
		{"none", []func(*berth.ScheduleEdit){caughtUp(berth.CatchUpNone)}, "10:30-13:00 missed 6"},
		{"latest", []func(*berth.ScheduleEdit){caughtUp(berth.CatchUpLatest)}, "10:30-12:30 missed 5, 13:00"},
		{"latest-short", []func(*berth.ScheduleEdit){within(5 * time.Minute)}, "10:30-13:00 missed 6"},
		{"all", []func(*berth.ScheduleEdit){caughtUp(berth.CatchUpAll)}, "10:30, 11:00, 11:30, 12:00, 12:30, 13:00"},
		{"all-few", []func(*berth.ScheduleEdit){caughtUp(berth.CatchUpAll), upTo(2)}, "10:30-12:00 missed 4, 12:30, 13:00"},
		{"all-window", []func(*berth.ScheduleEdit){caughtUp(berth.CatchUpAll), within(time.Hour)}, "10:30-12:00 missed 4, 12:30, 13:00"},
	} {
		w.Clock.Set(time.Date(2026, 3, 2, 10, 20, 30, 0, time.UTC))
		s := w.scheduled(owner, c.name, "*/30 * * * *", append(c.mods, allow)...)
		w.Clock.Set(time.Date(2026, 3, 2, 13, 7, 30, 0, time.UTC))
		w.wantFires(c.name, c.want)
		if next := w.getSchedule(c.name); next.NextKey != "2026-03-02T13:30:00Z" {
			w.t.Errorf("%s: then it waits for %s", c.name, next.NextKey)
		}
		w.must("delete", w.Store.DeleteSchedule(bg(), owner, s.Name, 0))
	}
	w.Clock.Set(time.Date(2026, 3, 2, 10, 20, 30, 0, time.UTC))
	w.scheduled(owner, "skip", "*/30 * * * *", caughtUp(berth.CatchUpAll))
	w.Clock.Set(time.Date(2026, 3, 2, 12, 0, 59, 0, time.UTC))
	w.wantFires("all, without overlap", "10:30-11:30 overlap 3, 12:00")
	w.Clock.Set(time.Date(2026, 3, 2, 10, 20, 30, 0, time.UTC))
	w.scheduled(owner, "punctual", "*/30 * * * *", caughtUp(berth.CatchUpNone))
	w.Clock.Set(time.Date(2026, 3, 2, 10, 30, 59, 0, time.UTC))
	w.wantFires("less than a minute late", "10:30")
}

func scheduleYear(w *world) {
	owner := w.planner()
	s := w.scheduled(owner, "minutely", "* * * * *", caughtUp(berth.CatchUpAll), upTo(3), overlapping(berth.OverlapAllow))
	w.Clock.Advance(366 * 24 * time.Hour)
	other, hk := w.hooked()
	hk.arm(1<<30, func(context.Context) error { return nil })
	res, err := other.FireDue(bg(), w.fireParams())
	w.must("fire", err)
	if got := short(res.Fires); got != "10:21-10:17 missed 997+, 10:18, 10:19, 10:20" {
		w.t.Errorf("it decided %q", got)
	}
	hk.mu.Lock()
	if hk.count > 80 {
		w.t.Errorf("it took %d statements", hk.count)
	}
	hk.mu.Unlock()
	if n := len(w.tasksOf(s)); n != 3 {
		w.t.Errorf("it made %d tasks", n)
	}
}

func scheduleOverlap(w *world) {
	owner := w.planner()
	for _, c := range []struct {
		overlap           berth.Overlap
		second, later     string // with the task of 10:30 unfinished
		tasks, unfinished int
	}{
		{berth.OverlapSkip, "10:45 overlap 1", "11:00", 2, 1},
		{berth.OverlapAllow, "10:45", "11:00", 3, 1},
		{berth.OverlapQueueOne, "", "10:45 overlap 1, 11:00", 2, 1},
		{berth.OverlapCancelRunning, "10:45", "11:00", 3, 1},
	} {
		w.Clock.Set(time.Date(2026, 3, 2, 10, 20, 30, 0, time.UTC))
		name := strings.ReplaceAll(string(c.overlap), "_", "-")
		s := w.scheduled(owner, name, "*/15 * * * *", overlapping(c.overlap))
		w.at(10, 30)
		w.wantFires(name, "10:30")
		w.at(10, 45)
		w.wantFires(name, c.second)
		w.Clock.Advance(time.Minute)
		w.wantFires(name+" looked at again", "")
		if c.overlap == berth.OverlapCancelRunning {
			tasks := w.tasksOf(s)
			if len(tasks) != 2 || tasks[0].State != berth.StateQueued || tasks[1].State != berth.StateCancelled {
				w.t.Errorf("the tasks are %+v", tasks)
			}
		}
		w.finishAll(s)
		w.at(11, 0)
		w.wantFires(name, c.later)
		tasks, unfinished := w.tasksOf(s), 0
		for _, task := range tasks {
			if !task.State.Finished() {
				unfinished++
			}
		}
		if len(tasks) != c.tasks || unfinished != c.unfinished {
			w.t.Errorf("%s: it made %d tasks, %d unfinished", name, len(tasks), unfinished)
		}
		w.must("delete", w.Store.DeleteSchedule(bg(), owner, s.Name, 0))
		w.finishAll(s)
	}

	// A running task is asked to stop.
	a := w.host("h1", 2)
	w.Clock.Set(time.Date(2026, 3, 3, 10, 20, 30, 0, time.UTC))
	a.sync()
	s := w.scheduled(owner, "running", "*/15 * * * *", overlapping(berth.OverlapCancelRunning))
	w.at(10, 30)
	w.wantFires("first", "10:30")
	a.sync()
	running := a.again(w.tasksOf(s)[0].ID)
	w.at(10, 45)
	w.wantFires("second", "10:45")
	if task := w.task(running.Task); !task.CancelRequested || task.State != berth.StateRunning {
		w.t.Errorf("the running task is %s, cancel %v", task.State, task.CancelRequested)
	}
}

func scheduleWaiting(w *world) {
	owner := w.planner()
	waits := func(name string) berth.Schedule {
		w.t.Helper()
		w.Clock.Set(time.Date(2026, 3, 2, 10, 20, 30, 0, time.UTC))
		s := w.scheduled(owner, name, "*/15 * * * *", overlapping(berth.OverlapQueueOne))
		w.at(10, 30)
		w.wantFires(name, "10:30")
		w.at(10, 45)
		w.wantFires(name, "")
		if got := w.getSchedule(name); !got.Waiting || got.NextKey != "2026-03-02T10:45:00Z" {
			w.t.Fatalf("%s: it is %+v", name, got)
		}
		return s
	}
	ended := waits("ended")
	w.finishAll(ended)
	w.Clock.Advance(10 * time.Second)
	w.wantFires("after the task's end", "10:45")
	w.must("delete", w.Store.DeleteSchedule(bg(), owner, ended.Name, 0))

	waits("paused")
	_, _, err := w.Store.PauseSchedule(bg(), owner, "paused"+w.suffix, w.freshTask)
	w.must("pause", err)
	if got := short(w.fires("paused")); got != "10:45 paused 1, 10:30" {
		w.t.Errorf("the history is %s", got)
	}
	waits("edited")
	if s := w.edit(owner, "edited", w.templated(withPriority(3))); !s.Waiting {
		w.t.Errorf("an edit that leaves spec and overlap makes of what waits %+v", s)
	}
	if s := w.edit(owner, "edited", cronOf("0 * * * *")); s.Waiting || s.NextKey != "2026-03-02T11:00:00Z" {
		w.t.Errorf("it is edited to %+v", s)
	}
	if got := short(w.fires("edited")); got != "10:45 edited 1, 10:30" {
		w.t.Errorf("the history is %s", got)
	}
}

func schedulePause(w *world) {
	owner := w.planner()
	s := w.scheduled(owner, "s", "*/15 * * * *")
	w.at(10, 30)
	paused, trs, err := w.Store.PauseSchedule(bg(), owner, s.Name, w.freshTask)
	w.must("pause", err)
	if !paused.Paused || !paused.NextAt.IsZero() || paused.Version != 2 || len(trs) != 1 {
		w.t.Errorf("a pause makes %+v of it, with %d transitions: what is due is decided before", paused, len(trs))
	}
	rows := len(w.audit("schedule", string(s.ID)))
	again, _, err := w.Store.PauseSchedule(bg(), owner, s.Name, w.freshTask)
	w.must("pause again", err)
	if again.Version != 2 || len(w.audit("schedule", string(s.ID))) != rows {
		w.t.Errorf("a second pause is %+v", again)
	}
	w.Clock.Advance(365 * 24 * time.Hour)
	w.wantFires("while paused", "")
	edited := w.edit(owner, "s", cronOf("*/20 * * * *"))
	if !edited.Paused || !edited.NextAt.IsZero() || edited.Revision != 2 {
		w.t.Errorf("a paused one is edited to %+v", edited)
	}
	w.at(12, 10)
	resumed, err := w.Store.ResumeSchedule(bg(), owner, s.Name)
	w.must("resume", err)
	if resumed.Paused || resumed.NextAt.Format("15:04") != "12:20" {
		w.t.Errorf("it is resumed as %+v", resumed)
	}
	w.finishAll(s)
	w.wantFires("after the resume", "")
	w.at(12, 20)
	w.wantFires("then", "12:20")
	version := w.getSchedule("s").Version
	if again, err = w.Store.ResumeSchedule(bg(), owner, s.Name); err != nil || again.Version != version {
		w.t.Errorf("a second resume is %+v, %v", again, err)
	}
}

func scheduleRun(w *world) {
	owner, other := w.planner(), w.somebody("other", berth.RoleOperator)
	s := w.scheduled(owner, "s", "*/15 * * * *")
	p := store.RunScheduleParams{Actor: other, Name: s.Name, Task: w.freshTask(), Once: onceOf("k", "run")}
	got, err := w.Store.RunSchedule(bg(), p)
	w.must("run", err)
	if got.Replayed || got.Task.ID != p.Task || got.Task.Submitter != owner.Principal || got.Task.Schedule != s.ID || len(got.Transitions) != 1 {
		w.t.Errorf("a run by hand is %+v", got)
	}
	p.Task = w.freshTask()
	again, err := w.Store.RunSchedule(bg(), p)
	w.must("repeat", err)
	if !again.Replayed || again.Task.ID != got.Task.ID || len(w.tasksOf(s)) != 1 {
		w.t.Errorf("its repeat is %+v", again)
	}
	p.Once.BodyDigest = hashOf("another")
	_, err = w.Store.RunSchedule(bg(), p)
	w.fails("another body", err, berth.ErrIdempotencyMismatch)
	if rows := w.audit("schedule", string(s.ID)); rows[len(rows)-1].Action != berth.AuditScheduleRun || rows[len(rows)-1].Actor.ID != other.ID {
		w.t.Errorf("the trail ends with %+v", rows[len(rows)-1])
	}
	w.at(10, 30)
	w.wantFires("while that runs", "10:30 overlap 1")
	_, _, err = w.Store.PauseSchedule(bg(), owner, s.Name, w.freshTask)
	w.must("pause", err)
	w.must("run while paused", err2(w.Store.RunSchedule(bg(), store.RunScheduleParams{Actor: other, Name: s.Name, Task: w.freshTask()})))
	off := true
	w.must("disable", err2(w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: berth.UserID(owner.ID), Disabled: &off})))
	_, err = w.Store.RunSchedule(bg(), store.RunScheduleParams{Actor: other, Name: s.Name, Task: w.freshTask()})
	w.fails("run with a disabled owner", err, berth.ErrWrongState)
}

func scheduleRefused(w *world) {
	owner := w.planner()
	w.somebody("keeper", berth.RoleAdmin) // so that the owner need not stay one
	w.putSecret("db", "value", toUser(owner))
	s := w.scheduled(owner, "s", "*/15 * * * *", w.templated(withSecrets("db")))
	next := func(what, want, note string) {
		w.t.Helper()
		w.Clock.Set(w.getSchedule("s").NextAt)
		at := w.Clock.Now().Format("15:04")
		w.wantFires(what, strings.TrimSpace(at+" "+want))
		if got := w.getSchedule("s").Note; !strings.Contains(got, note) || (note == "") != (got == "") {
			w.t.Errorf("%s: the note is %q", what, got)
		}
	}
	change := func(roles []berth.Role, disabled bool) {
		w.t.Helper()
		w.must("change user", err2(w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: berth.UserID(owner.ID), Roles: roles, Disabled: &disabled})))
	}
	next("all is well", "", "")
	w.finishAll(s)
	change(nil, true)
	next("the owner is disabled", "owner_disabled 1", "disabled")
	change([]berth.Role{berth.RoleViewer}, false)
	next("the owner may not submit", "owner_role 1", "may not submit")
	change([]berth.Role{berth.RoleSubmitter}, false)
	next("a submitter may", "", "")
	w.finishAll(s)
	w.grant("db", toRole(berth.RoleAdmin))
	next("the secret is withdrawn", "secret_missing 1", "secret")
	w.grant("db", toRole(berth.RoleOperator))
	change([]berth.Role{berth.RoleAdmin}, false)
	next("it is granted to the role that the template was written with", "", "")
	w.finishAll(s)
	w.grant("db", toRole(berth.RoleAdmin))
	next("the owner has got a role that the template was not written with", "secret_missing 1", "secret")
	if n := len(w.tasksOf(s)); n != 3 {
		w.t.Errorf("it made %d tasks", n)
	}

	f := w.stored(owner, "0123456789")
	w.edit(owner, "s", w.templated(withInputs(f)))
	w.must("lose the input", w.database.Exec("DELETE FROM input_owners"))
	change([]berth.Role{berth.RoleSubmitter}, false)
	next("the input is not the owner's any more", "input_missing 1", "input")
}

func scheduleInput(w *world) {
	owner := w.planner()
	f := w.stored(owner, "0123456789")
	s := w.scheduled(owner, "yearly", "@yearly", w.templated(withInputs(f)))
	w.Clock.Advance(2 * berth.InputUnusedFor)
	if keys := w.expire(); len(keys) != 0 {
		w.t.Errorf("blobs %v of an input expired that a template names", keys)
	}
	w.edit(owner, "yearly", w.templated())
	if keys := w.expire(); len(keys) != 2 {
		w.t.Errorf("blobs %v expired of one that none names", keys)
	}
	g := w.stored(owner, "abcdefghij")
	w.edit(owner, "yearly", w.templated(withInputs(g)))
	w.must("delete", w.Store.DeleteSchedule(bg(), owner, s.Name, 0))
	w.Clock.Advance(2 * berth.InputUnusedFor)
	if keys := w.expire(); len(keys) != 2 {
		w.t.Errorf("blobs %v expired of one whose schedule is deleted", keys)
	}
}

func scheduleEdit(w *world) {
	owner, other := w.planner(), w.somebody("other", berth.RoleOperator)
	w.scheduled(owner, "s", "*/15 * * * *", overlapping(berth.OverlapAllow))
	w.at(10, 30)
	s := w.edit(other, "s", cronOf("*/10 * * * *"))
	if s.Revision != 2 || s.NextKey != "2026-03-02T10:40:00Z" || s.Owner != owner.Principal {
		w.t.Errorf("it is edited to %+v", s)
	}
	fires := w.fires("s")
	if short(fires) != "10:30" || fires[0].Revision != 1 || len(w.tasksOf(s)) != 1 {
		w.t.Errorf("the slot that was due became %s of revision %d", short(fires), fires[0].Revision)
	}
	w.putSecret("db", "value", toUser(owner))
	n := w.newTask(withSecrets("db"))
	_, _, err := w.Store.EditSchedule(bg(), store.EditScheduleParams{
		Actor: other, Scope: w.mine(other), Roles: []berth.Role{berth.RoleOperator}, Name: s.Name, Edit: berth.ScheduleEdit{Template: &n}, Fresh: w.freshTask,
	})
	w.fails("a secret of the owner's, written by another", err, berth.ErrInvalid)
	n = w.newTask(withPriority(4))
	n.Payload = redact.NewBytes([]byte(`{"other": 1}`))
	s = w.edit(other, "s", func(e *berth.ScheduleEdit) { e.Template = &n })
	if s.Owner != other.Principal || s.Revision != 2 || s.Version != 3 {
		w.t.Errorf("whoever writes a template makes of it %+v", s)
	}
	rows := w.audit("schedule", string(s.ID))
	w.wantFacts("template", rows[len(rows)-1], map[string]string{"owner": owner.ID}, map[string]string{"owner": other.ID, "template": "changed"})
	w.at(10, 40)
	w.wantFires("under the new spec", "10:40")
	if task := w.task(w.tasksOf(s)[0].ID); task.Submitter != other.Principal || task.Priority != 4 || string(task.Payload.Reveal()) != `{"other": 1}` && string(task.Payload.Reveal()) != `{"other":1}` {
		w.t.Errorf("its task is %+v", task)
	}
}

// scheduleZones moves a daily schedule through zones at all hours, also while its
// slot is due, and counts the wall times.
func scheduleZones(w *world) {
	owner := w.planner()
	zones := []string{"Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "UTC"}
	w.Clock.Set(time.Date(2026, 3, 1, 0, 0, 30, 0, time.UTC))
	w.scheduled(owner, "s", "0 9 * * *", zoned(zones[0]), caughtUp(berth.CatchUpAll), overlapping(berth.OverlapAllow))
	first := w.getSchedule("s").NextKey
	for i := range 150 {
		w.Clock.Advance(time.Duration(5+i%9) * time.Hour)
		if i%3 != 0 {
			w.fire()
		}
		w.edit(owner, "s", zoned(zones[(i*7+i/5)%len(zones)]))
	}
	w.fire()
	var days []string
	for _, f := range w.fires("s") {
		if f.Task == "" || f.Slots != 1 {
			w.t.Errorf("slot %s was skipped: %s", f.Key, f.Reason)
		}
		days = append(days, f.Key)
	}
	slices.Sort(days)
	day, err := time.Parse("2006-01-02T15:04", first)
	w.must("first key", err)
	if len(days) < 40 {
		w.t.Errorf("it fired %d times only", len(days))
	}
	for _, key := range days {
		if want := day.Format("2006-01-02T15:04"); key != want {
			w.t.Fatalf("wall time %s fired where %s is next", key, want)
		}
		day = day.AddDate(0, 0, 1)
	}
}

func scheduleUnreadable(w *world) {
	owner := w.planner()
	s := w.scheduled(owner, "broken", "*/15 * * * *")
	w.scheduled(owner, "whole", "*/15 * * * *")
	w.must("damage", w.database.Exec("UPDATE schedules SET time_zone = 'Atlantis/Capital' WHERE name LIKE 'broken%'"))
	w.at(10, 30)
	w.wantFires("beside a broken one", "10:30")
	got := w.getSchedule("broken")
	if !got.Paused || !strings.Contains(got.Note, "time_zone") {
		w.t.Errorf("the broken one is %+v", got)
	}
	rows := w.audit("schedule", string(s.ID))
	if last := rows[len(rows)-1]; last.Action != berth.AuditSchedulePaused || last.Reason != berth.ReasonSpecUnusable {
		w.t.Errorf("the trail ends with %+v", last)
	}
	_, err := w.Store.ResumeSchedule(bg(), owner, got.Name)
	w.fails("resume", err, berth.ErrInvalid)
	w.edit(owner, "broken", zoned("UTC"))
	resumed, err := w.Store.ResumeSchedule(bg(), owner, got.Name)
	w.must("resume", err)
	if resumed.Paused || resumed.Note != "" || resumed.NextKey != "2026-03-02T10:45:00Z" {
		w.t.Errorf("mended it is %+v", resumed)
	}
}

func scheduleHistory(w *world) {
	owner := w.planner()
	s := w.scheduled(owner, "s", "*/15 * * * *", overlapping(berth.OverlapAllow), caughtUp(berth.CatchUpAll))
	w.at(12, 0)
	w.fire()
	for range 3 {
		w.must("run", err2(w.Store.RunSchedule(bg(), store.RunScheduleParams{Actor: owner, Name: s.Name, Task: w.freshTask()})))
	}
	w.at(12, 15)
	w.fire()
	whole := w.fires("s")
	if len(whole) != 11 || whole[0].Key != "2026-03-02T12:15:00Z" {
		w.t.Fatalf("the history is %s", short(whole))
	}
	var paged []berth.Fire
	for after := ""; ; {
		page, next, err := w.Store.ListFires(bg(), s.Name, store.Page{Size: 2, After: after})
		w.must("list", err)
		if paged = append(paged, page...); next == "" {
			break
		}
		after = next
	}
	if !slices.Equal(paged, whole) {
		w.t.Errorf("in pages it is %s", short(paged))
	}
	for i, f := range whole[1:] {
		if f.DecidedAt.After(whole[i].DecidedAt) {
			w.t.Errorf("%s comes after %s", f.DecidedAt, whole[i].DecidedAt)
		}
	}
	_, _, err := w.Store.ListFires(bg(), s.Name, store.Page{After: "nonsense"})
	w.fails("a cursor that is none", err, berth.ErrInvalid)
}

func scheduleAtOnce(w *world) {
	owner := w.planner()
	other := w.second()
	spec, err := cron.Parse("*/15 * * * *", "UTC")
	w.must("parse", err)
	var schedules []berth.Schedule
	for i := range 5 {
		schedules = append(schedules, w.scheduled(owner, fmt.Sprintf("s%d", i), "*/15 * * * *", overlapping(berth.OverlapAllow)))
	}
	slots := spec.Preview(w.Clock.Now(), 20)
	for _, slot := range slots {
		w.Clock.Set(slot.At)
		for _, got := range both(
			func() (store.FireDueResult, error) { return w.Store.FireDue(bg(), w.fireParams()) },
			func() (store.FireDueResult, error) { return other.FireDue(bg(), w.fireParams()) },
		) {
			w.must("fire", got.err)
		}
		w.fire()
	}
	for _, s := range schedules {
		if n := len(w.tasksOf(s)); n != len(slots) {
			w.t.Errorf("%d slots became %d tasks", len(slots), n)
		}
	}
}

func scheduleOperations() []operation {
	every := overlapping(berth.OverlapCancelRunning)
	due := func(w *world) berth.Schedule {
		owner := w.planner()
		s := w.scheduled(owner, "s", "*/15 * * * *", every, w.templated(withInputs(w.stored(owner, "0123456789"))))
		w.at(10, 30)
		w.fire()
		w.at(11, 0)
		return s
	}
	return []operation{
		{name: "CreateSchedule", prepare: func(w *world) callFunc {
			owner := w.planner()
			p := w.schedule(owner, "s", "@daily", w.templated(withInputs(w.stored(owner, "0123456789"))))
			p.Once = onceOf("k", "s")
			return func(ctx context.Context, s store.Store) error { return err2(s.CreateSchedule(ctx, p)) }
		}},
		{name: "EditSchedule", about: "while slots are due", prepare: func(w *world) callFunc {
			s := due(w)
			expr, n := "0 * * * *", w.newTask()
			return func(ctx context.Context, st store.Store) error {
				return err3(st.EditSchedule(ctx, store.EditScheduleParams{
					Actor: w.operator, Scope: all, Name: s.Name, Edit: berth.ScheduleEdit{Cron: &expr, Template: &n}, Fresh: w.freshTask,
				}))
			}
		}},
		{name: "DeleteSchedule", prepare: func(w *world) callFunc {
			s := due(w)
			return func(ctx context.Context, st store.Store) error { return st.DeleteSchedule(ctx, w.operator, s.Name, 0) }
		}},
		{name: "PauseSchedule", about: "while slots are due", prepare: func(w *world) callFunc {
			s := due(w)
			return func(ctx context.Context, st store.Store) error {
				return err3(st.PauseSchedule(ctx, w.operator, s.Name, w.freshTask))
			}
		}},
		{name: "ResumeSchedule", prepare: func(w *world) callFunc {
			s := due(w)
			w.must("pause", err3(w.Store.PauseSchedule(bg(), w.operator, s.Name, w.freshTask)))
			return func(ctx context.Context, st store.Store) error {
				return err2(st.ResumeSchedule(ctx, w.operator, s.Name))
			}
		}},
		{name: "RunSchedule", prepare: func(w *world) callFunc {
			s := due(w)
			p := store.RunScheduleParams{Actor: w.operator, Name: s.Name, Task: w.freshTask(), Once: onceOf("k", "run")}
			return func(ctx context.Context, st store.Store) error { return err2(st.RunSchedule(ctx, p)) }
		}},
		{name: "FireDue", prepare: func(w *world) callFunc {
			due(w)
			p := w.fireParams()
			p.Limit = 1
			return func(ctx context.Context, st store.Store) error { return err2(st.FireDue(ctx, p)) }
		}},
	}
}
