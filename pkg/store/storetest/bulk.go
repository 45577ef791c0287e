package storetest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func bulkChecks() []check {
	return []check{
		in("cancel wherever tasks are, as one by one", bulkCancel),
		in("by pages, and nothing that came later", bulkPages),
		in("filters, one by one", bulkFilters),
		in("retry dead letters", bulkRetry),
		in("retry what waits for its backoff", bulkRetryFailed),
		in("reprioritise wherever tasks are", bulkReprioritise),
		in("delete with all that was left", bulkDelete),
		in("a preview counts what the job changes", bulkPreview),
		in("a job is stopped, and stays", bulkStop),
		in("a repeat starts no second job", bulkOnce),
		in("what makes no sense is refused", bulkRefused),
		in("jobs take turns, and two processes never one job", bulkTurns),
	}
}

func (w *world) bulk(act berth.BulkAct, f store.TaskFilter, mods ...func(*store.BulkSpec)) store.BulkJob {
	w.t.Helper()
	spec := store.BulkSpec{Act: act, Filter: f}
	for _, mod := range mods {
		mod(&spec)
	}
	job, err := w.Store.StartBulk(bg(), store.StartBulkParams{Actor: w.operator, ID: newID[string](w.Env), Spec: spec})
	w.must("start bulk job", err)
	return job
}

// run does all pages of all jobs and returns the job.
func (w *world) run(job store.BulkJob, limit int) store.BulkJob {
	w.t.Helper()
	for range 1000 {
		page, err := w.Store.RunBulkPage(bg(), limit)
		w.must("bulk page", err)
		if page.Job.ID == "" {
			job, err := w.Store.GetBulk(bg(), job.ID)
			w.must("get bulk job", err)
			if job.State == berth.BulkRunning || job.FinishedAt.IsZero() {
				w.t.Fatalf("the job has not ended: %+v", job)
			}
			return job
		}
	}
	w.t.Fatalf("the job has no end")
	return job
}

// counts asserts what a job did.
func (w *world) counts(job store.BulkJob, state berth.BulkState, changed, refused int64) {
	w.t.Helper()
	if job.State != state || job.Changed != changed || job.Refused != refused || job.Looked < changed+refused {
		w.t.Errorf("the job is %s: looked at %d, changed %d, refused %d; should be %s, changed %d, refused %d",
			job.State, job.Looked, job.Changed, job.Refused, state, changed, refused)
	}
}

func bulkCancel(w *world) {
	a := w.host("h1", 4)
	running, claimed := a.running(withTags("x")), a.claimed(withTags("x"))
	asked := a.running(withTags("x"))
	w.cancel(asked.Task)
	failed := a.failed(withTags("x"))
	scheduled := w.submit(withTags("x"), notBefore(w.Clock.Now().Add(time.Hour))).ID
	queued := w.submit(withTags("x"), withSelector("no=where")).ID
	other := w.submit(withSelector("no=where")).ID
	dead := a.deadLettered(withTags("x"))
	job := w.run(w.bulk(berth.BulkCancel, store.TaskFilter{Tag: "x"}), 100)
	w.counts(job, berth.BulkDone, 5, 0)
	for _, id := range []berth.TaskID{claimed.Task, failed, scheduled, queued} {
		w.state(id, berth.StateCancelled)
	}
	if task := w.state(running.Task, berth.StateRunning); !task.CancelRequested {
		w.t.Errorf("the running task was not asked to stop")
	}
	w.state(dead, berth.StateDeadLetter)
	w.state(other, berth.StateQueued)
	last := w.audit("task", string(queued))
	if row := last[len(last)-1]; row.Actor != job.Actor() || row.Actor.ID != w.operator.ID || row.Actor.RequestID != w.operator.RequestID {
		w.t.Errorf("cancelled by %+v, the job is %+v", row.Actor, job)
	}
	if w.acted(berth.AuditBulkStarted, "bulk_job", job.ID) != 1 || w.acted(berth.AuditBulkFinished, "bulk_job", job.ID) != 1 {
		w.t.Errorf("the job's start and end are not on record")
	}
}

func bulkPages(w *world) {
	var ids []berth.TaskID
	for range 25 {
		ids = append(ids, w.submit(withTags("x")).ID)
		w.submit()
	}
	job := w.bulk(berth.BulkCancel, store.TaskFilter{Tag: "x"})
	w.Clock.Advance(time.Second)
	late := w.submit(withTags("x")).ID
	early := w.newTask(withTags("x")) // by a clock that goes after
	early.ID = "00000000-0000-7000-8000-000000000abc"
	w.must("submit", err2(w.Store.SubmitTasks(bg(), w.submitParams(early))))
	var changed []berth.TaskID
	for range 3 {
		page, err := w.Store.RunBulkPage(bg(), 10)
		w.must("page", err)
		for _, tr := range page.Transitions {
			changed = append(changed, tr.Task)
		}
		if page.Job.Changed != int64(len(changed)) {
			w.t.Errorf("the job counts %d changes of %d", page.Job.Changed, len(changed))
		}
	}
	w.counts(w.run(job, 10), berth.BulkDone, 25, 0)
	slices.Sort(changed)
	slices.Sort(ids)
	if !slices.Equal(changed, ids) {
		w.t.Errorf("changed %v, should be %v", changed, ids)
	}
	w.state(late, berth.StateQueued)
	w.state(early.ID, berth.StateQueued)
}

func bulkFilters(w *world) {
	a := w.host("h1", 1)
	cause := w.task(a.died("exit_code", "one")).Cause
	a.died("exit_code", "two")
	device := a.ids[0]
	other := w.makePool("other")
	w.must("plugin", w.Store.RegisterPlugins(bg(), w.operator, []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "more", Version: "1.0.0"}, Enabled: true}}))
	for range 3 {
		w.submit(withName("alpha"), withSelector("no=where"))
	}
	w.submit(withName("beta"), withPool(other.ID), notBefore(w.Clock.Now().Add(time.Hour)))
	w.submit(withName("gamma"), func(n *berth.NewTask) { n.Requirement.Plugin = "more" })
	w.cancel(w.submit(withName("alpha")).ID)
	for name, c := range map[string]struct {
		act  berth.BulkAct
		f    store.TaskFilter
		want int
	}{
		"all that wait": {berth.BulkCancel, store.TaskFilter{}, 5},
		"state":         {berth.BulkCancel, store.TaskFilter{States: []berth.TaskState{berth.StateScheduled}}, 1},
		"name":          {berth.BulkCancel, store.TaskFilter{NamePrefix: "al"}, 3},
		"pool":          {berth.BulkCancel, store.TaskFilter{Pool: other.ID}, 1},
		"plugin":        {berth.BulkCancel, store.TaskFilter{Plugin: "more"}, 1},
		"submitter":     {berth.BulkCancel, store.TaskFilter{Submitter: w.operator.ID}, 0},
		"cause":         {berth.BulkRetry, store.TaskFilter{Cause: cause}, 1},
		"dead":          {berth.BulkRetry, store.TaskFilter{}, 2},
		"device":        {berth.BulkDelete, store.TaskFilter{Device: device}, 2},
		"finished":      {berth.BulkDelete, store.TaskFilter{}, 3},
		"cancelled":     {berth.BulkDelete, store.TaskFilter{States: []berth.TaskState{berth.StateCancelled}}, 1},
		"until":         {berth.BulkDelete, store.TaskFilter{SubmittedTo: w.Clock.Now()}, 0},
	} {
		p, err := w.Store.PreviewBulk(bg(), store.BulkSpec{Act: c.act, Filter: c.f})
		w.must(name, err)
		if p.Count != c.want || p.More || len(p.Sample) != c.want {
			w.t.Errorf("%s: %d (more: %v), %d in the sample; should be %d", name, p.Count, p.More, len(p.Sample), c.want)
		}
	}
}

func bulkRetry(w *world) {
	a := w.host("h1", 1)
	var ids []berth.TaskID
	for i := range 7 {
		ids = append(ids, a.died("exit_code", fmt.Sprintf("fault %c", 'a'+i%3)))
	}
	cause := w.task(ids[0]).Cause
	job := w.run(w.bulk(berth.BulkRetry, store.TaskFilter{Cause: cause}, func(s *store.BulkSpec) { s.AddTries = 2 }), 2)
	w.counts(job, berth.BulkDone, 3, 0)
	for i, id := range ids {
		if i%3 != 0 {
			w.state(id, berth.StateDeadLetter)
			continue
		}
		if task := w.state(id, berth.StateQueued); task.Budget != 3 || task.Cause != "" || !task.FinishedAt.IsZero() {
			w.t.Errorf("retried: budget %d, cause %q, finished %v", task.Budget, task.Cause, task.FinishedAt)
		}
	}
	w.counts(w.run(w.bulk(berth.BulkRetry, store.TaskFilter{}), 3), berth.BulkDone, 4, 0)
	if list, _ := w.deadLetters(store.Page{}); len(list) != 0 {
		w.t.Errorf("%d causes are left", len(list))
	}
	next := a.again(ids[0])
	if next.Number != 2 {
		w.t.Errorf("the next attempt is number %d", next.Number)
	}
}

func bulkRetryFailed(w *world) {
	a := w.host("h1", 1)
	one, dead := a.failed(), a.deadLettered()
	job := w.run(w.bulk(berth.BulkRetry, store.TaskFilter{States: []berth.TaskState{berth.StateFailed}}), 10)
	w.counts(job, berth.BulkDone, 1, 0)
	w.state(one, berth.StateQueued)
	w.state(dead, berth.StateDeadLetter)
}

func bulkReprioritise(w *world) {
	a := w.host("h1", 1)
	running := a.running().Task
	scheduled := w.submit(notBefore(w.Clock.Now().Add(time.Hour))).ID
	queued, already := w.submit().ID, w.submit(withPriority(7)).ID
	single := w.submit().ID
	_, _, err := w.Store.SetTaskPriority(bg(), w.params(single), 7)
	w.must("set priority", err)
	job := w.run(w.bulk(berth.BulkReprioritise, store.TaskFilter{}, func(s *store.BulkSpec) { s.Priority = 7 }), 2)
	w.counts(job, berth.BulkDone, 3, 0)
	for _, id := range []berth.TaskID{running, scheduled, queued, already, single} {
		if task := w.task(id); task.Priority != 7 {
			w.t.Errorf("a %s task has priority %d", task.State, task.Priority)
		}
	}
	ranks := map[berth.TaskID]berth.Rank{}
	for _, h := range w.heads() {
		ranks[h.Task] = h.Rank
	}
	if ranks[queued] != ranks[single] || ranks[queued] != ranks[already] {
		w.t.Errorf("ranks in the queue differ: %v", ranks)
	}
	w.Clock.Advance(2 * time.Hour)
	w.promote()
	w.state(scheduled, berth.StateQueued)
}

func bulkDelete(w *world) {
	a := w.host("h1", 1)
	as := a.running(withTags("x"), maxAttempts(1))
	a.appendLog(as, 0, "some log")
	a.addArtifact(as, "a.txt", "bytes")
	a.completed(as, berth.OutcomeFailed, func(it *store.CompleteItem) {
		it.LogBytes = 8
	})
	w.state(as.Task, berth.StateDeadLetter)
	kept, waits := a.deadLettered(), w.submit(withTags("x"), withSelector("no=where")).ID
	p := w.keyed("k", "body", w.user, w.newTask(withTags("x"), withSelector("no=where")))
	res, err := w.Store.SubmitTasks(bg(), p)
	w.must("submit", err)
	w.cancel(res.Tasks[0].ID)
	chunks, _, err := w.Store.ReadLog(bg(), store.ReadLogParams{Scope: all, Task: as.Task, Number: 1, Limit: 10})
	w.must("log", err)
	arts, err := w.Store.ListArtifacts(bg(), all, as.Task)
	w.must("artifacts", err)
	keys := []string{chunks[0].BlobKey, arts[0].BlobKey}
	if unknown, err := w.Store.UnknownBlobs(bg(), keys); err != nil || len(unknown) != 0 {
		w.t.Fatalf("before: %v unknown, %v", unknown, err)
	}
	job := w.run(w.bulk(berth.BulkDelete, store.TaskFilter{Tag: "x"}), 10)
	w.counts(job, berth.BulkDone, 2, 0)
	_, err = w.Store.GetTask(bg(), all, as.Task)
	w.fails("get", err, berth.ErrNotFound)
	_, err = w.Store.ListAttempts(bg(), all, as.Task)
	w.fails("attempts", err, berth.ErrNotFound)
	if unknown, err := w.Store.UnknownBlobs(bg(), keys); err != nil || len(unknown) != 2 {
		w.t.Errorf("after: %v unknown of %v, %v", unknown, keys, err)
	}
	w.state(kept, berth.StateDeadLetter)
	w.state(waits, berth.StateQueued)
	trail := w.audit("task", string(as.Task))
	if last := trail[len(trail)-1]; last.Action != berth.ActionOf(berth.EventDeleted) {
		w.t.Errorf("the trail ends with %s", last.Action)
	}
	// The key of what is gone is free again.
	_, err = w.Store.SubmittedTasks(bg(), w.user.Principal, store.Once{Key: p.IdempotencyKey, BodyDigest: p.BodyDigest})
	w.fails("submitted before", err, berth.ErrNotFound)
	p.Tasks[0].ID = newID[berth.TaskID](w.Env)
	res, err = w.Store.SubmitTasks(bg(), p)
	if err != nil || res.Replayed || len(res.Tasks) != 1 {
		w.t.Fatalf("a submit under the key of a deleted task: %+v %v", res, err)
	}
	again, err := w.Store.SubmitTasks(bg(), p)
	if err != nil || !again.Replayed || again.Tasks[0].ID != res.Tasks[0].ID {
		w.t.Errorf("its repeat: %+v %v", again, err)
	}
}

func bulkPreview(w *world) {
	var want []berth.TaskID
	for range 12 {
		want = append(want, w.submit(withTags("x")).ID)
	}
	p, err := w.Store.PreviewBulk(bg(), store.BulkSpec{Act: berth.BulkCancel, Filter: store.TaskFilter{Tag: "x"}})
	w.must("preview", err)
	slices.Reverse(want)
	if p.Count != 12 || p.More || !slices.Equal(taskIDs(p.Sample), want[:store.BulkSample]) {
		w.t.Errorf("preview: %d, more %v, %v", p.Count, p.More, taskIDs(p.Sample))
	}
	for _, task := range p.Sample {
		if !task.Payload.IsZero() {
			w.t.Errorf("a sample has content")
		}
	}
	w.counts(w.run(w.bulk(berth.BulkCancel, store.TaskFilter{Tag: "x"}), 5), berth.BulkDone, 12, 0)
}

func bulkStop(w *world) {
	for range 6 {
		w.submit()
	}
	job := w.bulk(berth.BulkCancel, store.TaskFilter{})
	w.must("page", err2(w.Store.RunBulkPage(bg(), 2)))
	stopped, err := w.Store.StopBulk(bg(), w.operator, job.ID)
	w.must("stop", err)
	w.counts(stopped, berth.BulkStopped, 2, 0)
	again, err := w.Store.StopBulk(bg(), w.operator, job.ID)
	if d := diff(stopped, again); d != "" || err != nil || w.acted(berth.AuditBulkStopped, "bulk_job", job.ID) != 1 {
		w.t.Errorf("stopped twice: %v\n%s", err, d)
	}
	w.counts(w.run(job, 2), berth.BulkStopped, 2, 0)
	_, err = w.Store.StopBulk(bg(), w.operator, newID[string](w.Env))
	w.fails("unknown", err, berth.ErrNotFound)
	_, err = w.Store.GetBulk(bg(), newID[string](w.Env))
	w.fails("unknown", err, berth.ErrNotFound)
}

func bulkOnce(w *world) {
	p := store.StartBulkParams{
		Actor: w.operator, ID: newID[string](w.Env), Once: store.Once{Key: "k", BodyDigest: hashOf("b")},
		Spec: store.BulkSpec{Act: berth.BulkReprioritise, Priority: 3, Filter: store.TaskFilter{
			Pool: w.pool.ID, Plugin: pluginName, Tag: "a", NamePrefix: "b", Submitter: "c", Device: newID[berth.DeviceID](w.Env),
			States: []berth.TaskState{berth.StateQueued}, SubmittedFrom: w.Clock.Now(), SubmittedTo: w.Clock.Now().Add(time.Hour),
		}},
	}
	job, err := w.Store.StartBulk(bg(), p)
	w.must("start", err)
	if d := diff(p.Spec, job.BulkSpec); d != "" || job.PoolName != w.pool.Name || job.Owner != w.operator.Principal {
		w.t.Errorf("the job is %+v (-want +got):\n%s", job, d)
	}
	p.ID = newID[string](w.Env)
	again, err := w.Store.StartBulk(bg(), p)
	if d := diff(job, again); d != "" || err != nil {
		w.t.Errorf("the repeat gives %v\n%s", err, d)
	}
	p.Once.BodyDigest = hashOf("other")
	_, err = w.Store.StartBulk(bg(), p)
	w.fails("another body", err, berth.ErrIdempotencyMismatch)
	newer := w.bulk(berth.BulkCancel, store.TaskFilter{})
	jobs, next, err := w.Store.ListBulk(bg(), store.Page{Size: 1})
	if err != nil || len(jobs) != 1 || jobs[0].ID != newer.ID || next != newer.ID {
		w.t.Fatalf("first page: %+v %q %v", jobs, next, err)
	}
	jobs, next, err = w.Store.ListBulk(bg(), store.Page{Size: 1, After: next})
	if err != nil || len(jobs) != 1 || jobs[0].ID != job.ID || next != "" {
		w.t.Fatalf("second page: %+v %q %v", jobs, next, err)
	}
}

func bulkRefused(w *world) {
	for name, spec := range map[string]store.BulkSpec{
		"no act":           {},
		"cancel finished":  {Act: berth.BulkCancel, Filter: store.TaskFilter{States: []berth.TaskState{berth.StateSucceeded}}},
		"delete queued":    {Act: berth.BulkDelete, Filter: store.TaskFilter{States: []berth.TaskState{berth.StateQueued}}},
		"retry both":       {Act: berth.BulkRetry, Filter: store.TaskFilter{States: []berth.TaskState{berth.StateDeadLetter, berth.StateFailed}}},
		"cancel by cause":  {Act: berth.BulkCancel, Filter: store.TaskFilter{Cause: berth.UnknownCause}},
		"failed and cause": {Act: berth.BulkRetry, Filter: store.TaskFilter{Cause: berth.UnknownCause, States: []berth.TaskState{berth.StateFailed}}},
	} {
		_, err := w.Store.StartBulk(bg(), store.StartBulkParams{Actor: w.operator, ID: newID[string](w.Env), Spec: spec})
		w.fails(name, err, berth.ErrInvalid)
		_, err = w.Store.PreviewBulk(bg(), spec)
		w.fails(name, err, berth.ErrInvalid)
	}
}

func bulkTurns(w *world) {
	for range 4 {
		w.submit(withTags("x"))
		w.submit(withTags("y"))
	}
	x, y := w.bulk(berth.BulkCancel, store.TaskFilter{Tag: "x"}), w.bulk(berth.BulkCancel, store.TaskFilter{Tag: "y"})
	second := w.second()
	seen := map[string]int{}
	for range 4 {
		for _, s := range []store.Store{w.Store, second} {
			w.Clock.Advance(time.Millisecond)
			page, err := s.RunBulkPage(bg(), 1)
			w.must("page", err)
			seen[page.Job.ID]++
		}
	}
	if seen[x.ID] != 4 || seen[y.ID] != 4 {
		w.t.Errorf("pages by job: %v", seen)
	}
	w.counts(w.run(x, 10), berth.BulkDone, 4, 0)
	w.counts(w.run(y, 10), berth.BulkDone, 4, 0)
}

// bulkOperations are broken off.
func bulkOperations() []operation {
	page := func(about string, prepare func(w *world)) operation {
		return operation{name: "RunBulkPage", about: about, prepare: func(w *world) callFunc {
			prepare(w)
			return func(ctx context.Context, s store.Store) error { return err2(s.RunBulkPage(ctx, 10)) }
		}}
	}
	return []operation{
		{name: "StartBulk", prepare: func(w *world) callFunc {
			p := store.StartBulkParams{
				Actor: w.operator, ID: newID[string](w.Env), Spec: store.BulkSpec{Act: berth.BulkCancel}, Once: store.Once{Key: "k", BodyDigest: hashOf("b")},
			}
			return func(ctx context.Context, s store.Store) error { return err2(s.StartBulk(ctx, p)) }
		}},
		{name: "StopBulk", prepare: func(w *world) callFunc {
			job := w.bulk(berth.BulkCancel, store.TaskFilter{})
			return func(ctx context.Context, s store.Store) error { return err2(s.StopBulk(ctx, w.operator, job.ID)) }
		}},
		page("cancel", func(w *world) {
			a := w.host("h1", 2)
			a.running()
			a.claimed()
			w.submit(withSelector("no=where"))
			w.submit(notBefore(w.Clock.Now().Add(time.Hour)))
			w.bulk(berth.BulkCancel, store.TaskFilter{})
		}),
		page("retry", func(w *world) {
			a := w.host("h1", 1)
			a.deadLettered()
			a.deadLettered()
			w.bulk(berth.BulkRetry, store.TaskFilter{})
		}),
		page("retry failed", func(w *world) {
			w.host("h1", 1).failed()
			w.bulk(berth.BulkRetry, store.TaskFilter{States: []berth.TaskState{berth.StateFailed}})
		}),
		page("reprioritise", func(w *world) {
			w.host("h1", 1).running()
			w.submit(withSelector("no=where"))
			w.submit(notBefore(w.Clock.Now().Add(time.Hour)))
			w.bulk(berth.BulkReprioritise, store.TaskFilter{}, func(s *store.BulkSpec) { s.Priority = 5 })
		}),
		page("delete", func(w *world) {
			a := w.host("h1", 1)
			as := a.running(maxAttempts(1))
			a.addArtifact(as, "a.txt", "bytes")
			a.completed(as, berth.OutcomeFailed)
			w.bulk(berth.BulkDelete, store.TaskFilter{})
		}),
	}
}
