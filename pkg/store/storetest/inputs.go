package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func inputChecks() []check {
	return []check{
		in("a file comes in parts and is stored when it is whole", inputParts),
		in("an upload goes on where it ended, also after lost answers", inputResumed),
		in("another size starts an upload over", inputStartedOver),
		in("a wrong sum drops the upload", inputWrongSum),
		in("a part belongs to the upload that it was read for", inputOfAnotherUpload),
		in("limits of size", inputLimits),
		in("an empty file", inputEmpty),
		in("who has not uploaded it does not have it", inputOwners),
		in("the second upload of a digest is dropped and makes an owner", inputTwice),
		in("two uploads of one digest at once", inputTwiceAtOnce),
		in("one part at once through two handles", inputPartAtOnce),
		in("an input whose bytes are lost is uploaded anew, for all that use it", inputLost),
		in("two uploads of a lost input at once", inputLostAtOnce),
		in("a list by digest, in pages", inputList),
		in("tasks bring inputs to the host that holds them", inputOfTask),
		in("an agent that was downgraded gives back what brings inputs", inputDowngrade),
		in("an agent that knows no inputs gets no attempt that brings some", inputPlacedLate),
		in("a submit of inputs that are not there stores nothing", inputMissing),
		in("uploads that broke off expire", inputUploadExpires),
		in("inputs that nobody uses expire", inputExpires),
		in("unknown blobs are those that nothing refers to", unknownBlobs),
	}
}

// file is the content of an input as these tests upload it.
type file struct {
	w     *world
	actor berth.Actor
	text  string
	store store.Store
	// keys of the blobs that were sent.
	keys []string
}

func (w *world) file(actor berth.Actor, text string) *file {
	return &file{w: w, actor: actor, text: text + w.suffix, store: w.Store}
}

func (f *file) digest() string { return hexOf(f.text) }

func (f *file) beginParams() store.BeginInputParams {
	return store.BeginInputParams{
		Actor: f.actor, ID: newID[string](f.w.Env), Digest: f.digest(), Size: int64(len(f.text)), HashState: []byte("state 0"),
	}
}

func (f *file) begin() store.InputUpload {
	f.w.t.Helper()
	u, err := f.store.BeginInput(bg(), f.beginParams())
	f.w.must("begin", err)
	return u
}

// part is what records the bytes [from, to) of the file.
func (f *file) part(upload string, from, to int) store.AppendInputParams {
	key := "inputs/" + newID[string](f.w.Env)
	f.keys = append(f.keys, key)
	return store.AppendInputParams{
		Actor: f.actor, Digest: f.digest(), Upload: upload, HashState: fmt.Appendf(nil, "state %d", to), Sum: hexOf(f.text[:to]),
		Part: berth.InputPart{Offset: int64(from), Size: int64(to - from), BlobKey: key},
	}
}

func (f *file) append(upload string, from, to int) store.InputUpload {
	f.w.t.Helper()
	u, err := f.store.AppendInput(bg(), f.part(upload, from, to))
	f.w.must("append", err)
	return u
}

// stored uploads the file in two parts.
func (w *world) stored(actor berth.Actor, text string) *file {
	w.t.Helper()
	f := w.file(actor, text)
	u := f.begin()
	f.append(u.ID, 0, 2)
	if u = f.append(u.ID, 2, len(f.text)); !u.Stored {
		w.t.Fatalf("a whole upload is not stored: %+v", u)
	}
	return f
}

func (w *world) mine(actor berth.Actor) berth.Scope { return berth.Scope{Owner: actor.Principal} }

func withInputs(files ...*file) func(*berth.NewTask) {
	return func(n *berth.NewTask) {
		for i, f := range files {
			n.Inputs = append(n.Inputs, berth.InputRef{Name: fmt.Sprintf("file-%d.bin", i), Digest: f.digest()})
		}
	}
}

// submitAs submits one task as its actor.
func (w *world) submitAs(actor berth.Actor, mods ...func(*berth.NewTask)) (berth.Task, error) {
	w.t.Helper()
	p := w.submitParams(w.newTask(mods...))
	p.Actor, p.Scope = actor, w.mine(actor)
	res, err := w.Store.SubmitTasks(bg(), p)
	if err != nil {
		return berth.Task{}, err
	}
	return res.Tasks[0], nil
}

func (w *world) expire() []string {
	w.t.Helper()
	keys, err := w.Store.ExpireInputs(bg(), w.keeper, 100)
	w.must("expire", err)
	slices.Sort(keys)
	return keys
}

func inputParts(w *world) {
	f := w.file(w.user, "0123456789")
	u := f.begin()
	want := berth.Input{Digest: f.digest(), Size: 10, CreatedAt: w.Clock.Now()}
	if d := diff(want, u.Input); d != "" || u.ID == "" || string(u.HashState) != "state 0" {
		w.t.Fatalf("begun (id %q, state %q):\n%s", u.ID, u.HashState, d)
	}
	_, err := w.Store.GetInput(bg(), all, f.digest())
	w.fails("an open upload is no input", err, berth.ErrNotFound)
	w.Clock.Advance(time.Minute)
	want.Received = 4
	if got := f.append(u.ID, 0, 4); diff(want, got.Input) != "" || string(got.HashState) != "state 4" || got.ID != u.ID {
		w.t.Fatalf("after a part: %+v", got)
	}
	open, err := w.Store.OpenInput(bg(), w.user.Principal, f.digest())
	if err != nil || diff(want, open.Input) != "" || string(open.HashState) != "state 4" || open.ID != u.ID {
		w.t.Fatalf("read: %+v, %v", open, err)
	}
	w.Clock.Advance(time.Minute)
	now := w.Clock.Now()
	want = berth.Input{Digest: f.digest(), Size: 10, Received: 10, Stored: true, CreatedAt: now, LastUsedAt: now}
	if got := f.append(u.ID, 4, 10); diff(want, got.Input) != "" || len(got.Dropped) != 0 || got.ID != "" {
		w.t.Fatalf("whole: %+v", got)
	}
	got, err := w.Store.GetInput(bg(), w.mine(w.user), f.digest())
	if err != nil || diff(want, got) != "" {
		w.t.Errorf("stored: %+v, %v", got, err)
	}
	parts, err := w.Store.InputParts(bg(), w.mine(w.user), f.digest())
	wantParts := []berth.InputPart{{Offset: 0, Size: 4, BlobKey: f.keys[0]}, {Offset: 4, Size: 6, BlobKey: f.keys[1]}}
	if err != nil || diff(wantParts, parts) != "" {
		w.t.Errorf("parts %+v, %v", parts, err)
	}
	if n := w.acted(berth.AuditInputStored, "input", f.digest()); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	if again := f.begin(); diff(want, again.Input) != "" || again.ID != "" {
		w.t.Errorf("begun again: %+v", again)
	}
	_, err = w.Store.OpenInput(bg(), w.user.Principal, f.digest())
	w.fails("the upload is over", err, berth.ErrNotFound)
}

// gap asserts that a part is refused because the upload ends elsewhere.
func (f *file) gap(upload string, from, to int, next int64) {
	f.w.t.Helper()
	_, err := f.store.AppendInput(bg(), f.part(upload, from, to))
	var g *berth.GapError
	if !errors.As(err, &g) || g.Next != next {
		f.w.t.Errorf("a part at %d: %v, should be a gap at %d", from, err, next)
	}
}

func inputResumed(w *world) {
	f := w.file(w.user, "0123456789")
	u := f.begin()
	f.append(u.ID, 0, 4)
	f.gap(u.ID, 0, 4, 4) // its answer was lost
	f.gap(u.ID, 0, 2, 4)
	f.gap(u.ID, 5, 10, 4)
	again := f.begin()
	if again.ID != u.ID || again.Received != 4 || string(again.HashState) != "state 4" {
		w.t.Fatalf("resumed: %+v", again)
	}
	f.store = w.second() // another process
	f.append(again.ID, 4, 9)
	if last := f.append(again.ID, 9, 10); !last.Stored {
		w.t.Errorf("whole: %+v", last)
	}
	_, err := w.Store.AppendInput(bg(), f.part(u.ID, 9, 10))
	w.fails("the last part again", err, berth.ErrNotFound)
}

func inputStartedOver(w *world) {
	f := w.file(w.user, "0123456789")
	u := f.begin()
	f.append(u.ID, 0, 4)
	f.append(u.ID, 4, 6)
	p := f.beginParams()
	p.Size = 8
	over, err := w.Store.BeginInput(bg(), p)
	w.must("begin with another size", err)
	if over.ID == u.ID || over.Received != 0 || over.Size != 8 || diff(f.keys, over.Dropped) != "" || string(over.HashState) != "state 0" {
		w.t.Errorf("started over: %+v", over)
	}
	p.ID = newID[string](w.Env)
	if again, err := w.Store.BeginInput(bg(), p); err != nil || again.ID != over.ID || len(again.Dropped) != 0 {
		w.t.Errorf("a repeat: %+v, %v", again, err)
	}
}

func inputWrongSum(w *world) {
	f := w.file(w.user, "0123456789")
	u := f.begin()
	f.append(u.ID, 0, 4)
	last := f.part(u.ID, 4, 10)
	last.Sum = hexOf("other bytes")
	got, err := w.Store.AppendInput(bg(), last)
	w.fails("a wrong sum", err, berth.ErrMismatch)
	if diff(f.keys, got.Dropped) != "" || got.Stored {
		w.t.Errorf("dropped %v of %v", got.Dropped, f.keys)
	}
	_, err = w.Store.GetInput(bg(), all, f.digest())
	w.fails("it is not stored", err, berth.ErrNotFound)
	_, err = w.Store.OpenInput(bg(), w.user.Principal, f.digest())
	w.fails("the upload is over", err, berth.ErrNotFound)
	if n := w.acted(berth.AuditInputStored, "input", f.digest()); n != 0 {
		w.t.Errorf("%d audit rows", n)
	}
	w.stored(w.user, "0123456789")
}

// A hash state that was read before the upload started over says nothing about
// the bytes of the new one.
func inputOfAnotherUpload(w *world) {
	f := w.file(w.user, "0123456789")
	old := f.begin()
	f.append(old.ID, 0, 4)
	p := f.beginParams()
	p.Size = 11
	_, err := w.Store.BeginInput(bg(), p)
	w.must("start over", err)
	over := f.begin()
	f.append(over.ID, 0, 4)
	_, err = w.Store.AppendInput(bg(), f.part(old.ID, 4, 10))
	w.fails("a part of the old upload", err, berth.ErrNotFound)
	other := w.file(w.operator, "0123456789")
	_, err = w.Store.AppendInput(bg(), other.part(over.ID, 4, 10))
	w.fails("a part of another principal", err, berth.ErrNotFound)
}

func inputLimits(w *world) {
	f := w.file(w.user, "0123456789")
	p := f.beginParams()
	p.Size = berth.MaxInputBytes + 1
	_, err := w.Store.BeginInput(bg(), p)
	w.fails("too large", err, berth.ErrTooLarge)
	p.Size = berth.MaxInputBytes
	u, err := w.Store.BeginInput(bg(), p)
	w.must("the largest", err)
	part := f.part(u.ID, 0, 10)
	part.Part.Size = berth.MaxInputPart + 1
	_, err = w.Store.AppendInput(bg(), part)
	w.fails("too large a part", err, berth.ErrTooLarge)
	u = f.begin()
	f.append(u.ID, 0, 9)
	part = f.part(u.ID, 9, 10)
	part.Part.Size = 2
	_, err = w.Store.AppendInput(bg(), part)
	w.fails("behind the end", err, berth.ErrTooLarge)
	f.append(u.ID, 9, 10)
	p = f.beginParams()
	p.Size = 9
	_, err = w.Store.BeginInput(bg(), p)
	w.fails("another size than the stored one's", err, berth.ErrInvalid)
}

func inputEmpty(w *world) {
	f := &file{w: w, actor: w.user, store: w.Store}
	u := f.begin()
	p := f.part(u.ID, 0, 0)
	p.Part.BlobKey = ""
	got, err := w.Store.AppendInput(bg(), p)
	if err != nil || !got.Stored {
		w.t.Fatalf("%+v, %v", got, err)
	}
	parts, err := w.Store.InputParts(bg(), all, f.digest())
	if err != nil || len(parts) != 0 {
		w.t.Errorf("parts %v, %v", parts, err)
	}
}

func inputOwners(w *world) {
	f := w.stored(w.user, "0123456789")
	for _, c := range []struct {
		name  string
		scope berth.Scope
		want  error
	}{
		{"its owner", w.mine(w.user), nil},
		{"all", all, nil},
		{"another", w.mine(w.operator), berth.ErrNotFound},
		{"nobody", berth.Scope{}, berth.ErrNotFound},
	} {
		_, getErr := w.Store.GetInput(bg(), c.scope, f.digest())
		_, partsErr := w.Store.InputParts(bg(), c.scope, f.digest())
		listed, _, err := w.Store.ListInputs(bg(), c.scope, store.Page{})
		w.must("list", err)
		if !errors.Is(getErr, c.want) || !errors.Is(partsErr, c.want) || (len(listed) == 1) != (c.want == nil) {
			w.t.Errorf("%s: get %v, parts %v, %d listed", c.name, getErr, partsErr, len(listed))
		}
	}
	_, err := w.submitAs(w.operator, withInputs(f))
	w.fails("a submit by another", err, berth.ErrInvalid)
	p := w.submitParams(w.newTask(withInputs(f)))
	p.Actor, p.Scope = w.operator, all
	_, err = w.Store.SubmitTasks(bg(), p)
	w.must("a submit by one who sees all", err)
}

func inputTwice(w *world) {
	one := w.stored(w.user, "0123456789")
	two := w.file(w.operator, "0123456789")
	w.Clock.Advance(2 * time.Hour)
	u := two.begin()
	if u.Stored || u.Received != 0 {
		w.t.Fatalf("whoever knows a digest has the bytes: %+v", u)
	}
	two.append(u.ID, 0, 5)
	u = two.append(u.ID, 5, 10)
	if !u.Stored || diff(two.keys, u.Dropped) != "" || !u.LastUsedAt.Equal(w.Clock.Now()) {
		w.t.Errorf("stored twice: %+v", u)
	}
	parts, err := w.Store.InputParts(bg(), w.mine(w.operator), two.digest())
	if err != nil || len(parts) != 2 || parts[0].BlobKey != one.keys[0] {
		w.t.Errorf("parts %v, %v", parts, err)
	}
}

func inputTwiceAtOnce(w *world) {
	other := w.second()
	for i := range 5 {
		text := fmt.Sprint("content of round ", i)
		one, two := w.file(w.user, text), w.file(w.operator, text)
		two.store = other
		ends := make([]func() (store.InputUpload, error), 2)
		for i, f := range []*file{one, two} {
			u := f.begin()
			f.append(u.ID, 0, 5)
			last := f.part(u.ID, 5, len(f.text))
			ends[i] = func() (store.InputUpload, error) { return f.store.AppendInput(bg(), last) }
		}
		got := both(ends[0], ends[1])
		w.must("append", got[0].err)
		w.must("append", got[1].err)
		a, b := got[0].value, got[1].value
		if !a.Stored || !b.Stored || (len(a.Dropped) == 2) == (len(b.Dropped) == 2) || len(a.Dropped)+len(b.Dropped) != 2 {
			w.t.Fatalf("answers %+v and %+v", a, b)
		}
		parts, err := w.Store.InputParts(bg(), w.mine(w.operator), one.digest())
		kept := one
		if len(a.Dropped) == 2 {
			kept = two
		}
		if err != nil || len(parts) != 2 || parts[0].BlobKey != kept.keys[0] || parts[1].BlobKey != kept.keys[1] {
			w.t.Fatalf("parts %v, %v, sent %v", parts, err, kept.keys)
		}
	}
}

func inputPartAtOnce(w *world) {
	other := w.second()
	f := w.file(w.user, "0123456789")
	u := f.begin()
	for i := range 9 {
		put := func(s store.Store) func() (store.InputUpload, error) {
			p := f.part(u.ID, i, i+1)
			return func() (store.InputUpload, error) { return s.AppendInput(bg(), p) }
		}
		got := both(put(w.Store), put(other))
		if (got[0].err == nil) == (got[1].err == nil) {
			w.t.Fatalf("errors %v and %v", got[0].err, got[1].err)
		}
		for _, g := range got {
			var gap *berth.GapError
			if g.err != nil && (!errors.As(g.err, &gap) || gap.Next != int64(i+1)) {
				w.t.Fatalf("the slower one: %v", g.err)
			}
		}
	}
	if got := f.append(u.ID, 9, 10); !got.Stored {
		w.t.Errorf("%+v", got)
	}
}

// again is the same file, uploaded by actor through s because the part lost of the
// stored one is gone; last is its last call.
func (f *file) again(actor berth.Actor, s store.Store, lost string) (g *file, last store.AppendInputParams) {
	f.w.t.Helper()
	g = &file{w: f.w, actor: actor, text: f.text, store: s}
	p := g.beginParams()
	p.Lost = lost
	u, err := s.BeginInput(bg(), p)
	if err != nil || u.Stored || u.ID == "" {
		f.w.t.Fatalf("begin: %+v, %v", u, err)
	}
	g.append(u.ID, 0, 5)
	p.ID = newID[string](f.w.Env)
	if r, err := s.BeginInput(bg(), p); err != nil || r.ID != u.ID || r.Received != 5 {
		f.w.t.Fatalf("resumed: %+v, %v", r, err)
	}
	last = g.part(u.ID, 5, len(g.text))
	last.Lost = lost
	return g, last
}

func (f *file) parts(scope berth.Scope) (keys []string) {
	f.w.t.Helper()
	parts, err := f.store.InputParts(bg(), scope, f.digest())
	f.w.must("parts", err)
	for _, p := range parts {
		keys = append(keys, p.BlobKey)
	}
	return keys
}

func inputLost(w *world) {
	a := w.knowing("h1", 1)
	f := w.stored(w.user, "0123456789")
	task, err := w.submitAs(w.user, withInputs(f))
	w.must("submit", err)
	w.placed(task.ID)
	a.one(task.ID)
	for _, lost := range []string{"", "inputs/another's"} {
		p := f.beginParams()
		if p.Lost = lost; lost != "" {
			p.ID = newID[string](w.Env)
		}
		if u, err := w.Store.BeginInput(bg(), p); err != nil || !u.Stored {
			w.t.Fatalf("what has no such part is lost: %+v, %v", u, err)
		}
	}
	g, last := f.again(w.user, w.Store, f.keys[1])
	h, late := f.again(w.operator, w.Store, f.keys[0])
	if d := diff(f.keys, g.parts(all)); d != "" {
		w.t.Errorf("before the upload is whole:\n%s", d)
	}
	u, err := w.Store.AppendInput(bg(), last)
	if err != nil || !u.Stored || diff(f.keys, u.Dropped) != "" {
		w.t.Fatalf("whole: %+v, %v", u, err)
	}
	if u, err = w.Store.AppendInput(bg(), late); err != nil || !u.Stored || diff(h.keys, u.Dropped) != "" {
		w.t.Errorf("whoever was slower: %+v, %v", u, err)
	}
	_, parts, err := w.Store.AttemptInput(bg(), a.call(), f.digest())
	if err != nil || len(parts) != 2 || parts[0].BlobKey != g.keys[0] || parts[1].BlobKey != g.keys[1] {
		w.t.Errorf("the holder reads %v, %v", parts, err)
	}
	for _, actor := range []berth.Actor{w.user, w.operator} {
		if d := diff(g.keys, g.parts(w.mine(actor))); d != "" {
			w.t.Errorf("%s reads:\n%s", actor.ID, d)
		}
	}
	unknown, err := w.Store.UnknownBlobs(bg(), slices.Concat(f.keys, g.keys, h.keys))
	if d := diff(slices.Concat(f.keys, h.keys), unknown); err != nil || d != "" {
		w.t.Errorf("known to nobody, %v:\n%s", err, d)
	}
	// It is lost once more, and expires as any other.
	_, last = g.again(w.user, w.Store, g.keys[0])
	_, err = w.Store.AppendInput(bg(), last)
	w.must("append", err)
	w.Clock.Advance(10 * berth.InputUnusedFor)
	if keys := w.expire(); len(keys) != 0 {
		w.t.Errorf("a task names it, and it expired: %v", keys)
	}
}

func inputLostAtOnce(w *world) {
	other := w.second()
	for i := range 5 {
		f := w.stored(w.user, fmt.Sprint("content of round ", i))
		one, x := f.again(w.user, w.Store, f.keys[0])
		two, y := f.again(w.operator, other, f.keys[1])
		got := both(
			func() (store.InputUpload, error) { return w.Store.AppendInput(bg(), x) },
			func() (store.InputUpload, error) { return other.AppendInput(bg(), y) },
		)
		w.must("append", got[0].err)
		w.must("append", got[1].err)
		kept, dropped := one, two
		if slices.Equal(got[0].value.Dropped, one.keys) {
			kept, dropped = two, one
		}
		want := [][]string{f.keys, dropped.keys}
		if kept == two {
			slices.Reverse(want)
		}
		if d := diff(want, [][]string{got[0].value.Dropped, got[1].value.Dropped}); d != "" {
			w.t.Fatalf("dropped:\n%s", d)
		}
		if d := diff(kept.keys, f.parts(all)); d != "" {
			w.t.Fatalf("round %d:\n%s", i, d)
		}
	}
}

func inputList(w *world) {
	var want []string
	for i := range 5 {
		want = append(want, w.stored(w.user, fmt.Sprint("file ", i)).digest())
		w.stored(w.operator, fmt.Sprint("another's file ", i))
	}
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		inputs, next, err := w.Store.ListInputs(bg(), w.mine(w.user), store.Page{Size: 2, After: after})
		w.must("list", err)
		for _, i := range inputs {
			got = append(got, i.Digest)
		}
		if after = next; next == "" {
			break
		}
	}
	if d := diff(want, got); d != "" {
		w.t.Errorf("listed:\n%s", d)
	}
}

// knowing is a host whose agent knows inputs.
func (w *world) knowing(name string, n int) *agent {
	w.t.Helper()
	a := w.host(name, n)
	a.protocol = berth.InputsProtocol
	a.sync()
	return a
}

func inputOfTask(w *world) {
	a, b := w.knowing("h1", 1), w.knowing("h2", 1)
	f, g := w.stored(w.user, "first file"), w.stored(w.user, "second file")
	task, err := w.submitAs(w.user, withInputs(g, f, f), withSelector("berth.dev/device="+string(a.ids[0])))
	w.must("submit", err)
	want := []berth.InputRef{
		{Name: "file-0.bin", Digest: g.digest(), Size: int64(len(g.text))},
		{Name: "file-1.bin", Digest: f.digest(), Size: int64(len(f.text))},
		{Name: "file-2.bin", Digest: f.digest(), Size: int64(len(f.text))},
	}
	if diff(want, task.Inputs) != "" || diff(want, w.task(task.ID).Inputs) != "" {
		w.t.Errorf("answered %+v, read %+v", task.Inputs, w.task(task.ID).Inputs)
	}
	_, _, err = w.Store.AttemptInput(bg(), a.call(), f.digest())
	w.fails("before it is placed", err, berth.ErrNotFound)
	w.placed(task.ID)
	as := a.one(task.ID)
	if d := diff(want, as.Inputs); d != "" {
		w.t.Errorf("claimed:\n%s", d)
	}
	got, parts, err := w.Store.AttemptInput(bg(), a.call(), f.digest())
	if err != nil || got.Size != int64(len(f.text)) || len(parts) != 2 || parts[0].BlobKey != f.keys[0] {
		w.t.Errorf("the holder reads %+v, %v, %v", got, parts, err)
	}
	_, _, err = w.Store.AttemptInput(bg(), b.call(), f.digest())
	w.fails("another host", err, berth.ErrNotFound)
	_, _, err = w.Store.AttemptInput(bg(), a.call(), w.stored(w.user, "not named").digest())
	w.fails("an input that no attempt names", err, berth.ErrNotFound)
	old := a.call()
	a.restart(holding(as))
	_, _, err = w.Store.AttemptInput(bg(), old, f.digest())
	w.fails("an old epoch", err, berth.ErrStaleEpoch)
	w.cancel(task.ID)
	_, _, err = w.Store.AttemptInput(bg(), a.call(), f.digest())
	w.fails("after its end", err, berth.ErrNotFound)
}

// An agent that was replaced by an older one would run the tasks without their
// files: what was not started goes back and may be placed elsewhere.
func inputDowngrade(w *world) {
	a := w.knowing("h1", 5)
	f := w.stored(w.user, "0123456789")
	bring := func() berth.Task {
		task, err := w.submitAs(w.user, withInputs(f), withSelector("berth.dev/protocol>1"))
		w.must("submit", err)
		w.placed(task.ID)
		return task
	}
	running := a.one(bring().ID)
	a.start(running)
	held, claimed, plain := a.one(bring().ID), a.one(bring().ID), a.claimed()
	assigned := w.attempt(bring().ID)
	a.protocol = berth.InputsProtocol - 1
	res := a.restart(holding(running, held))
	if d := diff([]store.Verdict{store.VerdictKeep, store.VerdictGone}, res.Verdicts); d != "" || !slices.Equal(res.Undelivered, []berth.AttemptID{plain.Attempt}) {
		w.t.Errorf("undelivered %v; verdicts:\n%s", res.Undelivered, d)
	}
	if len(res.Transitions) != 3 {
		w.t.Errorf("transitions %+v", res.Transitions)
	}
	for _, id := range []berth.TaskID{held.Task, claimed.Task, assigned.Task} {
		task, at := w.state(id, berth.StateQueued), w.attempt(id)
		if task.Tries != 0 || at.Outcome != berth.OutcomeReleased || at.Reason != berth.ReasonAgentDowngraded {
			w.t.Errorf("task with %d tries, attempt %+v", task.Tries, at)
		}
	}
	if again := a.claim(); len(again) != 1 || again[0].Attempt != plain.Attempt {
		w.t.Errorf("the older agent claims %+v", again)
	}
	if res := a.sync(holding(running, plain)); len(res.Transitions) != 0 || !slices.Equal(res.Verdicts, []store.Verdict{store.VerdictKeep, store.VerdictKeep}) {
		w.t.Errorf("a repeat: %+v", res)
	}
	for range berth.MaxHandBacks { // it counts against no task
		a.protocol = berth.InputsProtocol
		a.sync(holding(running, plain))
		w.placed(assigned.Task)
		a.protocol = berth.InputsProtocol - 1
		a.sync(holding(running, plain))
	}
	w.state(assigned.Task, berth.StateQueued)
}

// A round that was under way when the agent was downgraded may still place there.
func inputPlacedLate(w *world) {
	a := w.host("h1", 1)
	task, err := w.submitAs(w.user, withInputs(w.stored(w.user, "0123456789")))
	w.must("submit", err)
	w.placed(task.ID)
	if as := a.claim(); len(as) != 0 {
		w.t.Errorf("handed over without its inputs: %+v", as)
	}
	a.protocol = berth.InputsProtocol
	a.sync()
	if as := a.one(task.ID); len(as.Inputs) != 1 {
		w.t.Errorf("an agent that knows them gets %+v", as)
	}
}

func inputMissing(w *world) {
	f := w.stored(w.user, "0123456789")
	unknown := w.file(w.user, "never uploaded")
	open := w.file(w.user, "half uploaded")
	open.append(open.begin().ID, 0, 4)
	p := w.keyed("k", "body", w.user, w.newTask(withInputs(f)), w.newTask(withInputs(f, unknown)), w.newTask(withInputs(open)))
	p.Scope = w.mine(w.user)
	_, err := w.Store.SubmitTasks(bg(), p)
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Fields) != 2 ||
		invalid.Fields[0].Path != "tasks[1].inputs[1].digest" || invalid.Fields[1].Path != "tasks[2].inputs[0].digest" || invalid.Fields[0].Remedy == "" {
		w.t.Fatalf("submit: %v", err)
	}
	if n := len(w.allTasks(store.TaskFilter{})); n != 0 {
		w.t.Errorf("%d tasks stored", n)
	}
	open.append(open.begin().ID, 4, len(open.text))
	p.Tasks = []berth.NewTask{p.Tasks[0], p.Tasks[2]}
	first, err := w.Store.SubmitTasks(bg(), p)
	w.must("with the key that the refusal left free", err)
	again, err := w.Store.SubmitTasks(bg(), p)
	if err != nil || !again.Replayed || diff(first.Tasks, again.Tasks) != "" {
		w.t.Errorf("a repeat: %+v, %v", again, err)
	}
}

func inputUploadExpires(w *world) {
	f, g := w.file(w.user, "first"), w.file(w.user, "second")
	fu, gu := f.begin(), g.begin()
	f.append(fu.ID, 0, 2)
	w.Clock.Advance(berth.InputUploadWithin / 2)
	g.append(gu.ID, 0, 2)
	w.Clock.Advance(berth.InputUploadWithin/2 + time.Microsecond)
	if d := diff(f.keys, w.expire()); d != "" {
		w.t.Errorf("expired:\n%s", d)
	}
	_, err := w.Store.AppendInput(bg(), f.part(fu.ID, 2, 5))
	w.fails("a part of an expired upload", err, berth.ErrNotFound)
	g.append(gu.ID, 2, 6)
	w.Clock.Advance(berth.InputUploadWithin + time.Hour)
	if keys := w.expire(); len(keys) != 0 {
		w.t.Errorf("a stored input expired with its upload: %v", keys)
	}
}

func inputExpires(w *world) {
	used, unused, asked := w.stored(w.user, "used"), w.stored(w.user, "unused"), w.stored(w.user, "asked for")
	w.Clock.Advance(lastUse)
	_, err := w.submitAs(w.user, withInputs(used))
	w.must("submit", err)
	if again := asked.begin(); !again.LastUsedAt.Equal(w.Clock.Now()) {
		w.t.Errorf("last used at %v", again.LastUsedAt)
	}
	at := w.Clock.Now()
	w.Clock.Advance(lastUse - time.Second)
	_, err = w.submitAs(w.user, withInputs(used))
	w.must("submit again", err)
	if got, _ := w.Store.GetInput(bg(), all, used.digest()); !got.LastUsedAt.Equal(at) {
		w.t.Errorf("the last use was written again within the hour: %v", got.LastUsedAt)
	}
	w.Clock.Set(at.Add(berth.InputUnusedFor - lastUse))
	if keys := w.expire(); len(keys) != 0 {
		w.t.Errorf("expired too early: %v", keys)
	}
	w.Clock.Advance(time.Microsecond)
	if d := diff(unused.keys, w.expire()); d != "" {
		w.t.Errorf("expired:\n%s", d)
	}
	if n := w.acted(berth.AuditInputExpired, "input", unused.digest()); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	_, err = w.Store.GetInput(bg(), all, unused.digest())
	w.fails("it is gone", err, berth.ErrNotFound)
	w.stored(w.user, "unused") // and may come back
	w.Clock.Advance(10 * berth.InputUnusedFor)
	w.expire()
	_, err = w.Store.GetInput(bg(), all, used.digest())
	w.must("what a task names stays", err)
	_, err = w.Store.GetInput(bg(), all, asked.digest())
	w.fails("what was only asked for is gone", err, berth.ErrNotFound)
}

// lastUse is how exact an input's last use is.
const lastUse = time.Hour

func unknownBlobs(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	chunk, art := a.chunk(as, 0, "x"), a.artifact(as, "x.png", "x")
	w.must("log", err3(w.Store.AppendLog(bg(), chunk)))
	w.must("artifact", err2(w.Store.AddArtifact(bg(), art)))
	f, open := w.stored(w.user, "stored"), w.file(w.user, "open")
	open.append(open.begin().ID, 0, 2)
	known := slices.Concat([]string{chunk.Chunk.BlobKey, art.Artifact.BlobKey}, f.keys, open.keys)
	keys := append([]string{"logs/zzz"}, append(known, "inputs/none", "artifacts/'; --")...)
	unknown, err := w.Store.UnknownBlobs(bg(), keys)
	if d := diff([]string{"logs/zzz", "inputs/none", "artifacts/'; --"}, unknown); err != nil || d != "" {
		w.t.Errorf("%v\n%s", err, d)
	}
	if none, err := w.Store.UnknownBlobs(bg(), nil); err != nil || len(none) != 0 {
		w.t.Errorf("of no keys: %v, %v", none, err)
	}
}

func inputOperations() []operation {
	return []operation{
		{name: "BeginInput", prepare: func(w *world) callFunc {
			p := w.file(w.user, "content").beginParams()
			return func(ctx context.Context, s store.Store) error { return err2(s.BeginInput(ctx, p)) }
		}},
		{name: "AppendInput", about: "the last part", prepare: func(w *world) callFunc {
			f := w.file(w.user, "content")
			u := f.begin()
			f.append(u.ID, 0, 3)
			p := f.part(u.ID, 3, len(f.text))
			return func(ctx context.Context, s store.Store) error { return err2(s.AppendInput(ctx, p)) }
		}},
		{name: "AppendInput", about: "of what another stored", prepare: func(w *world) callFunc {
			w.stored(w.operator, "content")
			w.Clock.Advance(2 * lastUse)
			f := w.file(w.user, "content")
			p := f.part(f.begin().ID, 0, len(f.text))
			return func(ctx context.Context, s store.Store) error { return err2(s.AppendInput(ctx, p)) }
		}},
		{name: "SubmitTasks", about: "with inputs", prepare: func(w *world) callFunc {
			f := w.stored(w.user, "content")
			w.Clock.Advance(2 * lastUse)
			p := w.submitParams(w.newTask(withInputs(f)))
			p.Scope = all
			return func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
		}},
		{name: "ExpireInputs", prepare: func(w *world) callFunc {
			w.stored(w.user, "content")
			f := w.file(w.user, "half")
			f.append(f.begin().ID, 0, 3)
			w.Clock.Advance(10 * berth.InputUnusedFor)
			return func(ctx context.Context, s store.Store) error { return err2(s.ExpireInputs(ctx, w.keeper, 10)) }
		}},
	}
}

func inputRaces() []race {
	expiring := func(w *world, keys *[]string) callFunc {
		return func(ctx context.Context, s store.Store) (err error) {
			*keys, err = s.ExpireInputs(ctx, w.keeper, 1000)
			return err
		}
	}
	submitting := func(w *world, f *file) callFunc {
		p := w.submitParams(w.newTask(withInputs(f)))
		p.Scope = w.mine(w.user)
		return func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
	}
	return []race{
		{"submit and expire of its input", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			f := w.stored(w.user, "content")
			w.Clock.Advance(berth.InputUnusedFor + time.Second)
			var keys []string
			return submitting(w, f), expiring(w, &keys), func(x, y error) {
				w.must("expire", y)
				_, err := w.Store.InputParts(bg(), all, f.digest())
				if errors.Is(x, berth.ErrInvalid) {
					w.fails("the input of a refused submit", err, berth.ErrNotFound)
					if !slices.Contains(keys, f.keys[0]) {
						w.t.Errorf("its blobs are left: %v", keys)
					}
					return
				}
				w.must("submit", x)
				w.must("the input of a stored task", err)
				if slices.Contains(keys, f.keys[0]) {
					w.t.Errorf("blobs of a stored task's input were dropped: %v", keys)
				}
			}
		}},
		{"append and expire of the upload", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			f := w.file(w.user, "content")
			u := f.begin()
			f.append(u.ID, 0, 3)
			w.Clock.Advance(berth.InputUploadWithin + time.Second)
			p := f.part(u.ID, 3, 5)
			var keys []string
			add := func(ctx context.Context, s store.Store) error { return err2(s.AppendInput(ctx, p)) }
			return add, expiring(w, &keys), func(x, y error) {
				w.must("expire", y)
				open, err := w.Store.OpenInput(bg(), w.user.Principal, f.digest())
				if errors.Is(x, berth.ErrNotFound) {
					w.fails("the upload", err, berth.ErrNotFound)
					return
				}
				w.must("append", x)
				if err != nil || open.Received != 5 || slices.Contains(keys, f.keys[0]) {
					w.t.Errorf("the upload: %+v, %v; dropped %v", open, err, keys)
				}
			}
		}},
		{"second upload and expire of the first", false, func(w *world) (x, y callFunc, judge func(x, y error)) {
			one := w.stored(w.user, "content")
			two := w.file(w.operator, "content")
			w.Clock.Advance(berth.InputUnusedFor + time.Second)
			p := two.part(two.begin().ID, 0, len(two.text))
			var keys []string
			var got store.InputUpload
			add := func(ctx context.Context, s store.Store) (err error) {
				got, err = s.AppendInput(ctx, p)
				return err
			}
			return add, expiring(w, &keys), func(x, y error) {
				w.fine(x, y)
				parts, err := w.Store.InputParts(bg(), w.mine(w.operator), two.digest())
				kept, dropped := one.keys[0], got.Dropped
				if slices.Contains(keys, one.keys[0]) {
					kept, dropped = two.keys[0], keys
				}
				if err != nil || !got.Stored || parts[0].BlobKey != kept || slices.Contains(dropped, kept) {
					w.t.Errorf("parts %v, %v; kept %s, dropped %v and %v", parts, err, kept, got.Dropped, keys)
				}
			}
		}},
		{"two uploads of one digest", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			var got [2]store.InputUpload
			end := func(i int, actor berth.Actor) callFunc {
				f := w.file(actor, "content")
				p := f.part(f.begin().ID, 0, len(f.text))
				return func(ctx context.Context, s store.Store) (err error) {
					got[i], err = s.AppendInput(ctx, p)
					return err
				}
			}
			return end(0, w.user), end(1, w.operator), func(x, y error) {
				w.fine(x, y)
				if len(got[0].Dropped)+len(got[1].Dropped) != 1 || !got[0].Stored || !got[1].Stored {
					w.t.Errorf("answers %+v", got)
				}
			}
		}},
		{"two begins of one upload", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			f := w.file(w.user, "content")
			var got [2]store.InputUpload
			begin := func(i int) callFunc {
				p := f.beginParams()
				return func(ctx context.Context, s store.Store) (err error) {
					got[i], err = s.BeginInput(ctx, p)
					return err
				}
			}
			return begin(0), begin(1), func(x, y error) {
				w.fine(x, y)
				if got[0].ID != got[1].ID {
					w.t.Errorf("two uploads: %+v", got)
				}
			}
		}},
		{"submits of inputs in opposite order", true, func(w *world) (x, y callFunc, judge func(x, y error)) {
			f, g := w.stored(w.user, "one"), w.stored(w.user, "two")
			w.Clock.Advance(2 * lastUse)
			submit := func(files ...*file) callFunc {
				p := w.submitParams(w.newTask(withInputs(files...)))
				p.Scope = all
				return func(ctx context.Context, s store.Store) error { return err2(s.SubmitTasks(ctx, p)) }
			}
			return submit(f, g), submit(g, f), func(x, y error) { w.fine(x, y) }
		}},
	}
}
