package storetest

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func submitChecks() []check {
	return []check{
		in("one is queued with every field kept", submitOne),
		in("many keep their order and each has its token", submitMany),
		in("an unknown pool stores none of many", submitNone),
		in("not before lies ahead: delayed; now or past: queued", submitDelayed),
		in("give up counts from not-before", submitGiveUp),
		in("equal needs share a class", submitClasses),
		in("rank is submit time less priority by the pool's step", submitRank),
		in("the same key and digest give the same tasks as they are now", submitRepeat),
		in("the same key with another digest is refused", submitMismatch),
		in("the same key of another principal is another key", submitOtherPrincipal),
		in("no key is no idempotency", submitNoKey),
		in("one key at once through two handles stores once", submitTwoAtOnce),
		in("an ended context stores nothing", submitEndedContext),
		in("a scope sees its own tasks only", scopes),
	}
}

func submitOne(w *world) {
	n := w.newTask(withName("näme"), withTags("b", "a"), withPriority(3), withSelector("os=linux"),
		queueTimeout(time.Hour), runTimeout(90*time.Second), maxAttempts(4), retryOn(berth.OutcomeFailed))
	n.Retry.RetryUnsafe, n.Retry.Initial, n.Retry.Factor = true, 1500*time.Millisecond, 1.5
	p := w.submitParams(n)
	res, err := w.Store.SubmitTasks(bg(), p)
	w.must("submit", err)
	want := berth.Task{
		ID: n.ID, Pool: w.pool.ID, PoolName: w.pool.Name, Name: n.Name, Tags: []string{"a", "b"}, Requirement: n.Requirement,
		Payload: n.Payload, Priority: 3, RunTimeout: n.RunTimeout, QueueTimeout: n.QueueTimeout, Retry: n.Retry, Budget: 4,
		Submitter: w.user.Principal, CorrelationID: p.CorrelationID, TraceParent: p.TraceParent, SubmittedAt: w.Clock.Now(),
		State: berth.StateQueued, GiveUpAt: w.Clock.Now().Add(time.Hour),
	}
	got := w.task(n.ID)
	want.Class = got.Class
	if d := diff(want, got); d != "" || got.Class == 0 {
		w.t.Fatalf("stored task (-want +got):\n%s", d)
	}
	if len(res.Tasks) != 1 || res.Replayed {
		w.t.Fatalf("result: %d tasks, replayed %v", len(res.Tasks), res.Replayed)
	}
	answered := res.Tasks[0]
	answered.Payload = got.Payload
	if d := diff(got, answered); d != "" {
		w.t.Fatalf("answered task (-stored +answered):\n%s", d)
	}
	wantTr := []berth.Transition{{
		Event: berth.EventSubmitted, Task: n.ID, To: berth.StateQueued, Pool: w.pool.ID,
		CorrelationID: p.CorrelationID, At: w.Clock.Now(),
	}}
	if d := diff(wantTr, clearReason(res.Transitions)); d != "" {
		w.t.Fatalf("transitions:\n%s", d)
	}
}

// clearReason leaves out the reason where the contract names none.
func clearReason(trs []berth.Transition) []berth.Transition {
	out := slices.Clone(trs)
	for i := range out {
		out[i].Reason, out[i].At = "", out[i].At.UTC()
	}
	return out
}

func submitMany(w *world) {
	var news []berth.NewTask
	for i := range 60 {
		n := w.newTask(withPriority(i % 10))
		if i%3 == 0 {
			n = w.newTask(notBefore(w.Clock.Now().Add(time.Hour)), withSelector("os=linux"))
		}
		news = append(news, n)
	}
	slices.Reverse(news)
	res, err := w.Store.SubmitTasks(bg(), w.submitParams(news...))
	w.must("submit", err)
	if len(res.Tasks) != len(news) || len(res.Transitions) != len(news) {
		w.t.Fatalf("%d tasks, %d transitions of %d", len(res.Tasks), len(res.Transitions), len(news))
	}
	for i, n := range news {
		want := berth.StateQueued
		if !n.NotBefore.IsZero() {
			want = berth.StateScheduled
		}
		if res.Tasks[i].ID != n.ID || res.Tasks[i].State != want || res.Transitions[i].Task != n.ID || res.Transitions[i].To != want {
			w.t.Fatalf("task %d is %s %s", i, res.Tasks[i].ID, res.Tasks[i].State)
		}
		w.state(n.ID, want)
	}
}

func submitNone(w *world) {
	good, bad := w.newTask(), w.newTask(withPool(newID[berth.PoolID](w.Env)))
	p := w.submitParams(good, bad)
	p.IdempotencyKey = "k"
	_, err := w.Store.SubmitTasks(bg(), p)
	w.fails("submit to an unknown pool", err, berth.ErrNotFound)
	_, err = w.Store.GetTask(bg(), all, good.ID)
	w.fails("get the other task", err, berth.ErrNotFound)
	// The key was not taken either.
	p.Tasks, p.BodyDigest = []berth.NewTask{good}, hashOf("other")
	res, err := w.Store.SubmitTasks(bg(), p)
	w.must("submit the good one under the same key", err)
	if res.Replayed {
		w.t.Fatalf("replayed what was never stored")
	}
}

func submitDelayed(w *world) {
	now := w.Clock.Now()
	ahead := w.submit(notBefore(now.Add(time.Microsecond)))
	if task := w.state(ahead.ID, berth.StateScheduled); !task.DueAt.Equal(now.Add(time.Microsecond)) || !task.NotBefore.Equal(task.DueAt) {
		w.t.Fatalf("due at %v, not before %v", task.DueAt, task.NotBefore)
	}
	for _, at := range []time.Time{now, now.Add(-time.Hour)} {
		w.state(w.submit(notBefore(at)).ID, berth.StateQueued)
	}
	if n := len(w.heads()); n != 2 {
		w.t.Fatalf("%d tasks wait for placement, not 2", n)
	}
}

func submitGiveUp(w *world) {
	now := w.Clock.Now()
	if got := w.submit(queueTimeout(time.Minute)).GiveUpAt; !got.Equal(now.Add(time.Minute)) {
		w.t.Errorf("queued: gives up at %v", got)
	}
	if got := w.submit(queueTimeout(time.Minute), notBefore(now.Add(time.Hour))).GiveUpAt; !got.Equal(now.Add(time.Hour + time.Minute)) {
		w.t.Errorf("scheduled: gives up at %v", got)
	}
	if got := w.submit().GiveUpAt; !got.IsZero() {
		w.t.Errorf("without a limit: gives up at %v", got)
	}
}

func submitClasses(w *world) {
	a, b := w.submit(withSelector("os=linux,slot!=x")), w.submit(withSelector("slot != x, os = linux"))
	c := w.submit(withSelector("os=darwin"))
	other := w.makePool("other")
	d := w.submit(withSelector("os=darwin"), withPool(other.ID))
	if a.Class != b.Class || a.Class == c.Class || c.Class == d.Class {
		w.t.Fatalf("classes %d %d %d %d", a.Class, b.Class, c.Class, d.Class)
	}
	var classes []store.Class
	w.round(func(ctx context.Context, r store.Round) (err error) {
		classes, err = r.WaitingClasses(ctx)
		return err
	})
	want := map[berth.ClassID]berth.Requirement{a.Class: a.Requirement, c.Class: c.Requirement}
	if len(classes) != 2 {
		w.t.Fatalf("%d waiting classes of the pool, not 2", len(classes))
	}
	for _, got := range classes {
		if want[got.ID] != got.Requirement {
			w.t.Errorf("class %d needs %+v, should need %+v", got.ID, got.Requirement, want[got.ID])
		}
	}
}

func submitRank(w *world) {
	w.pool = w.makePool("quick", func(p *berth.Pool) { p.AgeingStep = time.Minute })
	now := w.Clock.Now()
	low := w.submit(withPriority(1))
	w.Clock.Advance(90 * time.Second)
	mid := w.submit(withPriority(2)) // 90 s later, 60 s of priority ahead: behind
	high := w.submit(withPriority(9))
	var got []berth.TaskID
	for _, h := range w.heads() {
		got = append(got, h.Task)
		task := w.task(h.Task)
		if want := berth.RankOf(task.SubmittedAt, task.Priority, time.Minute); h.Rank != want || h.Number != 1 {
			w.t.Errorf("rank %d, number %d; should be %d and 1", h.Rank, h.Number, want)
		}
	}
	if want := []berth.TaskID{high.ID, low.ID, mid.ID}; !slices.Equal(got, want) {
		w.t.Fatalf("order %v, should be %v (from %v)", got, want, now)
	}
}

func (w *world) keyed(key, digest string, actor berth.Actor, tasks ...berth.NewTask) store.SubmitParams {
	p := w.submitParams(tasks...)
	p.Actor, p.IdempotencyKey, p.BodyDigest = actor, key, hashOf(digest)
	return p
}

func submitRepeat(w *world) {
	first, err := w.Store.SubmitTasks(bg(), w.keyed("k", "body", w.user, w.newTask(withName("z")), w.newTask(withName("a"))))
	w.must("submit", err)
	w.cancel(first.Tasks[1].ID)
	rows := len(w.audit("", ""))
	w.Clock.Advance(24 * time.Hour)
	again := w.newTask(withName("z"))
	res, err := w.Store.SubmitTasks(bg(), w.keyed("k", "body", w.user, again, w.newTask(withName("a"))))
	w.must("repeat", err)
	if !res.Replayed || len(res.Transitions) != 0 || len(res.Tasks) != 2 {
		w.t.Fatalf("replayed %v, %d transitions, %d tasks", res.Replayed, len(res.Transitions), len(res.Tasks))
	}
	for i, state := range []berth.TaskState{berth.StateQueued, berth.StateCancelled} {
		if res.Tasks[i].ID != first.Tasks[i].ID || res.Tasks[i].State != state {
			w.t.Errorf("task %d is %s %s", i, res.Tasks[i].ID, res.Tasks[i].State)
		}
	}
	_, err = w.Store.GetTask(bg(), all, again.ID)
	w.fails("the repeat's own task", err, berth.ErrNotFound)
	if n := len(w.audit("", "")); n != rows {
		w.t.Errorf("the repeat wrote %d audit rows", n-rows)
	}
	p := w.keyed("k", "body", w.user)
	read, err := w.Store.SubmittedTasks(bg(), w.user.Principal, store.Once{Key: "k", BodyDigest: p.BodyDigest})
	w.must("read what was submitted", err)
	if d := diff(res.Tasks, read); d != "" {
		w.t.Errorf("what is under the key is read otherwise:\n%s", d)
	}
	for what, c := range map[string]struct {
		by   berth.Principal
		once store.Once
		want error
	}{
		"another body":      {w.user.Principal, store.Once{Key: "k"}, berth.ErrIdempotencyMismatch},
		"another key":       {w.user.Principal, store.Once{Key: "l", BodyDigest: p.BodyDigest}, berth.ErrNotFound},
		"another principal": {w.operator.Principal, store.Once{Key: "k", BodyDigest: p.BodyDigest}, berth.ErrNotFound},
	} {
		read, err := w.Store.SubmittedTasks(bg(), c.by, c.once)
		w.fails(what, err, c.want)
		if len(read) != 0 {
			w.t.Errorf("%s: %d tasks", what, len(read))
		}
	}
}

func submitMismatch(w *world) {
	_, err := w.Store.SubmitTasks(bg(), w.keyed("k", "body", w.user, w.newTask()))
	w.must("submit", err)
	n := w.newTask()
	res, err := w.Store.SubmitTasks(bg(), w.keyed("k", "other body", w.user, n))
	w.fails("other body", err, berth.ErrIdempotencyMismatch)
	if len(res.Tasks) != 0 || len(res.Transitions) != 0 {
		w.t.Errorf("an answer beside the error: %+v", res)
	}
	_, err = w.Store.GetTask(bg(), all, n.ID)
	w.fails("its task", err, berth.ErrNotFound)
}

func submitOtherPrincipal(w *world) {
	host := berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: w.user.ID}}
	seen := map[berth.TaskID]bool{}
	for _, actor := range []berth.Actor{w.user, w.operator, host} {
		res, err := w.Store.SubmitTasks(bg(), w.keyed("k", "body", actor, w.newTask()))
		w.must("submit", err)
		if res.Replayed || seen[res.Tasks[0].ID] {
			w.t.Fatalf("%+v got another principal's task", actor)
		}
		seen[res.Tasks[0].ID] = true
	}
}

func submitNoKey(w *world) {
	for range 2 {
		res, err := w.Store.SubmitTasks(bg(), w.keyed("", "body", w.user, w.newTask()))
		w.must("submit", err)
		if res.Replayed {
			w.t.Fatalf("replayed without a key")
		}
	}
}

func submitTwoAtOnce(w *world) {
	second := w.second()
	for i := range 5 {
		key := "k" + string(rune('0'+i))
		results := both(
			func() (store.SubmitResult, error) {
				return w.Store.SubmitTasks(bg(), w.keyed(key, "body", w.user, w.newTask(), w.newTask()))
			},
			func() (store.SubmitResult, error) {
				return second.SubmitTasks(bg(), w.keyed(key, "body", w.user, w.newTask(), w.newTask()))
			})
		a, b := results[0], results[1]
		w.must("submit", a.err)
		w.must("submit", b.err)
		if a.value.Replayed == b.value.Replayed {
			w.t.Fatalf("both replayed: %v", a.value.Replayed)
		}
		if diff(a.value.Tasks, b.value.Tasks) != "" {
			w.t.Fatalf("different tasks:\n%s", diff(a.value.Tasks, b.value.Tasks))
		}
	}
	if n := len(w.allTasks(store.TaskFilter{})); n != 10 {
		w.t.Fatalf("%d tasks stored, not 10", n)
	}
}

// result of one of several calls at once.
type result[T any] struct {
	value T
	err   error
}

// both runs calls at once and waits for all of them.
func both[T any](calls ...func() (T, error)) []result[T] {
	out := make([]result[T], len(calls))
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() {
			<-gate
			out[i].value, out[i].err = call()
		})
	}
	close(gate)
	wg.Wait()
	return out
}

func submitEndedContext(w *world) {
	ctx, cancel := context.WithCancel(bg())
	cancel()
	n := w.newTask()
	p := w.submitParams(n)
	_, err := w.Store.SubmitTasks(ctx, p)
	w.fails("submit", err, context.Canceled)
	_, err = w.Store.GetTask(bg(), all, n.ID)
	w.fails("get", err, berth.ErrNotFound)
}

func scopes(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.appendLog(as, 0, "x")
	a.addArtifact(as, "shot.png", "x")
	mine := berth.Scope{Owner: w.user.Principal}
	_, err := w.Store.GetTask(bg(), mine, as.Task)
	w.must("own task", err)
	for name, scope := range map[string]berth.Scope{
		"other user": {Owner: w.operator.Principal},
		"other kind": {Owner: berth.Principal{Kind: berth.ActorSystem, ID: w.user.ID}},
		"zero":       {},
	} {
		_, err := w.Store.GetTask(bg(), scope, as.Task)
		w.fails(name+": get", err, berth.ErrNotFound)
		tasks, next, err := w.Store.ListTasks(bg(), scope, store.TaskFilter{}, store.Page{})
		if err != nil || len(tasks) != 0 || next != "" {
			w.t.Errorf("%s: list shows %d tasks, error %v", name, len(tasks), err)
		}
		p := store.TaskParams{Actor: w.operator, Scope: scope, Task: as.Task}
		_, _, err = w.Store.CancelTask(bg(), p)
		w.fails(name+": cancel", err, berth.ErrNotFound)
		_, _, err = w.Store.RetryTask(bg(), store.RetryParams{TaskParams: p})
		w.fails(name+": retry", err, berth.ErrNotFound)
		_, err = w.Store.ListAttempts(bg(), scope, as.Task)
		w.fails(name+": attempts", err, berth.ErrNotFound)
		_, err = w.Store.ListArtifacts(bg(), scope, as.Task)
		w.fails(name+": artifacts", err, berth.ErrNotFound)
		_, err = w.Store.GetArtifact(bg(), scope, as.Task, 1, "shot.png")
		w.fails(name+": artifact", err, berth.ErrNotFound)
		_, _, err = w.Store.ReadLog(bg(), store.ReadLogParams{Scope: scope, Task: as.Task, Number: 1, Limit: 10})
		w.fails(name+": log", err, berth.ErrNotFound)
	}
	if w.state(as.Task, berth.StateRunning).CancelRequested {
		w.t.Errorf("a foreign cancel had an effect")
	}
	unknown := newID[berth.TaskID](w.Env)
	for name, err := range map[string]error{
		"get":       err2(w.Store.GetTask(bg(), all, unknown)),
		"attempts":  err2(w.Store.ListAttempts(bg(), all, unknown)),
		"artifacts": err2(w.Store.ListArtifacts(bg(), all, unknown)),
		"artifact":  err2(w.Store.GetArtifact(bg(), all, unknown, 1, "x")),
		"cancel":    err3(w.Store.CancelTask(bg(), w.params(unknown))),
		"retry":     err3(w.Store.RetryTask(bg(), store.RetryParams{TaskParams: w.params(unknown)})),
	} {
		w.fails("unknown task: "+name, err, berth.ErrNotFound)
	}
	own, err := w.Store.ListArtifacts(bg(), mine, as.Task)
	if err != nil || len(own) != 1 {
		w.t.Errorf("own artifacts: %d, %v", len(own), err)
	}
}

func err2[T any](_ T, err error) error         { return err }
func err3[T, U any](_ T, _ U, err error) error { return err }

// appendLog stores a chunk of the length of text.
func (a *agent) appendLog(as store.Assignment, offset int64, text string) {
	a.w.t.Helper()
	_, _, err := a.store.AppendLog(bg(), a.chunk(as, offset, text))
	a.w.must("append log", err)
}

func (a *agent) chunk(as store.Assignment, offset int64, text string) store.AppendLogParams {
	return store.AppendLogParams{
		HolderParams: store.HolderParams{AgentCall: a.call(), Holder: holder(as)},
		Chunk: berth.LogChunk{
			Attempt: as.Attempt, Offset: offset, Size: int64(len(text)), SHA256: hexOf(text), BlobKey: "blob/" + newID[string](a.w.Env),
		},
	}
}

// addArtifact stores an artifact of the length of text.
func (a *agent) addArtifact(as store.Assignment, name, text string) {
	a.w.t.Helper()
	_, err := a.store.AddArtifact(bg(), a.artifact(as, name, text))
	a.w.must("add artifact", err)
}

func (a *agent) artifact(as store.Assignment, name, text string) store.AddArtifactParams {
	return store.AddArtifactParams{
		HolderParams: store.HolderParams{AgentCall: a.call(), Holder: holder(as)},
		Artifact: berth.Artifact{
			Attempt: as.Attempt, Task: as.Task, Number: as.Number, Name: name, Class: berth.ClassScreenshot, ContentType: "image/png",
			Size: int64(len(text)), SHA256: hexOf(text), BlobKey: "blob/" + newID[string](a.w.Env),
		},
	}
}
