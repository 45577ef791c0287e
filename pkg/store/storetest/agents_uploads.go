package storetest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func uploadChecks() []check {
	return []check{
		in("allowed while live and ten minutes after", uploadWindow),
		in("foreign is not found, another fence lost", uploadRefused),
		in("the log's end is decided by the store", logChunks),
		in("a log has a limit", logLimit),
		in("a late chunk changes no state", logLate),
		in("an artifact is stored once", artifactOnce),
		in("artifacts have limits in number and size", artifactLimits),
		in("one chunk at once through two handles is stored once", logAtOnce),
	}
}

func uploadWindow(w *world) {
	a := w.host("h1", 1)
	as := a.claimed()
	check := func() error {
		return w.Store.CheckUpload(bg(), store.HolderParams{AgentCall: a.call(), Holder: holder(as)})
	}
	w.must("claimed", check())
	a.start(as)
	w.must("running", check())
	w.Clock.Advance(w.Timings.LeaseTTL + time.Second)
	w.must("expired and not reaped", check())
	a.completed(as, berth.OutcomeFailed)
	w.Clock.Advance(store.UploadWindow - time.Second)
	w.must("within the window", check())
	a.appendLog(as, 0, "late")
	a.addArtifact(as, "late.png", "late")
	w.Clock.Advance(time.Second + time.Microsecond)
	w.fails("after the window", check(), berth.ErrLeaseLost)
	w.fails("log after the window", err3(w.Store.AppendLog(bg(), a.chunk(as, 4, "x"))), berth.ErrLeaseLost)
	w.fails("artifact after the window", err2(w.Store.AddArtifact(bg(), a.artifact(as, "x.png", "x"))), berth.ErrLeaseLost)
}

func uploadRefused(w *world) {
	a, b := w.host("h1", 1), w.host("h2", 1)
	as := a.running(withSelector("berth.dev/device=" + string(a.ids[0])))
	above, below := as, as
	above.Fence++
	below.Fence--
	unknown := store.Assignment{Attempt: newID[berth.AttemptID](w.Env), Fence: 1}
	for _, c := range []struct {
		name string
		by   *agent
		as   store.Assignment
		want error
	}{
		{"foreign", b, as, berth.ErrNotFound},
		{"unknown", a, unknown, berth.ErrNotFound},
		{"a fence above", a, above, berth.ErrLeaseLost},
		{"a fence below", a, below, berth.ErrLeaseLost},
	} {
		w.fails(c.name+": check", w.Store.CheckUpload(bg(), store.HolderParams{AgentCall: c.by.call(), Holder: holder(c.as)}), c.want)
		w.fails(c.name+": log", err3(w.Store.AppendLog(bg(), c.by.chunk(c.as, 0, "x"))), c.want)
		w.fails(c.name+": artifact", err2(w.Store.AddArtifact(bg(), c.by.artifact(c.as, "x.png", "x"))), c.want)
	}
	if at := w.attempt(as.Task); at.LogBytes != 0 {
		w.t.Errorf("a refused chunk was stored")
	}
}

func logChunks(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	put := func(offset int64, text string) (store.AppendLogParams, int64, bool, error) {
		p := a.chunk(as, offset, text)
		next, stored, err := w.Store.AppendLog(bg(), p)
		return p, next, stored, err
	}
	gap := func(offset int64, want int64) {
		w.t.Helper()
		_, _, _, err := put(offset, "x")
		var g *berth.GapError
		if !errors.Is(err, berth.ErrGap) || !errors.As(err, &g) || g.Next != want {
			w.t.Errorf("a chunk at %d: %v, should be a gap from %d", offset, err, want)
		}
	}
	gap(1, 0)
	first, next, stored, err := put(0, "hello")
	if err != nil || next != 5 || !stored {
		w.t.Fatalf("first chunk: next %d, stored %v, %v", next, stored, err)
	}
	if _, next, stored, err = put(5, "world!"); err != nil || next != 11 || !stored {
		w.t.Fatalf("second chunk: next %d, stored %v, %v", next, stored, err)
	}
	if _, next, stored, err = put(0, "hello"); err != nil || next != 11 || stored {
		w.t.Errorf("the first again: next %d, stored %v, %v", next, stored, err)
	}
	_, _, stored, err = put(0, "HELLO")
	w.fails("other bytes at the same place", err, berth.ErrMismatch)
	if stored {
		w.t.Errorf("a refused chunk is said to be stored")
	}
	_, _, _, err = put(3, "lo")
	w.fails("inside a chunk", err, berth.ErrMismatch)
	gap(12, 11)
	chunks, _, err := w.Store.ReadLog(bg(), store.ReadLogParams{Scope: all, Task: as.Task, Number: 1, Limit: 10})
	if err != nil || len(chunks) != 2 || diff(chunks[0], first.Chunk) != "" {
		w.t.Errorf("chunks %+v, %v", chunks, err)
	}
}

func logLimit(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	put := func(offset, size int64) error {
		p := a.chunk(as, offset, fmt.Sprint(offset))
		p.Chunk.Size = size
		return err3(w.Store.AppendLog(bg(), p))
	}
	for i := range int64(store.MaxLogBytes/store.MaxLogChunk - 1) {
		w.must("append", put(i*store.MaxLogChunk, store.MaxLogChunk))
	}
	end := int64(store.MaxLogBytes - store.MaxLogChunk)
	w.must("to one byte below the limit", put(end, store.MaxLogChunk-1))
	w.fails("past the limit", put(store.MaxLogBytes-1, 2), berth.ErrTooLarge)
	w.must("to the limit", put(store.MaxLogBytes-1, 1))
	w.fails("at the limit", put(store.MaxLogBytes, 1), berth.ErrTooLarge)
	w.must("a repeat at the limit", put(store.MaxLogBytes-1, 1))
}

func logLate(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	w.Clock.Advance(w.Timings.LeaseTTL + w.Timings.ReapGrace)
	w.reap()
	before := w.state(as.Task, berth.StateQueued)
	a.appendLog(as, 0, "late")
	a.addArtifact(as, "late.png", "late")
	if d := diff(before, w.task(as.Task)); d != "" {
		w.t.Errorf("I2: a late upload changed the task:\n%s", d)
	}
	if at := w.attempt(as.Task); at.LogBytes != 4 || at.Outcome != berth.OutcomeTimedOut {
		w.t.Errorf("attempt %+v", at)
	}
}

func artifactOnce(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	first := a.artifact(as, "shot.png", "bytes")
	stored, err := w.Store.AddArtifact(bg(), first)
	if err != nil || !stored {
		w.t.Fatalf("stored %v, %v", stored, err)
	}
	w.Clock.Advance(time.Second)
	stored, err = w.Store.AddArtifact(bg(), a.artifact(as, "shot.png", "bytes"))
	if err != nil || stored {
		w.t.Errorf("the same again: stored %v, %v", stored, err)
	}
	stored, err = w.Store.AddArtifact(bg(), a.artifact(as, "shot.png", "other"))
	w.fails("other bytes", err, berth.ErrMismatch)
	if stored {
		w.t.Errorf("a refused artifact is said to be stored")
	}
	got, err := w.Store.GetArtifact(bg(), all, as.Task, 1, "shot.png")
	if err != nil || got.BlobKey != first.Artifact.BlobKey || got.SHA256 != hexOf("bytes") {
		w.t.Errorf("artifact %+v, %v", got, err)
	}
	a.addArtifact(as, "Shot.png", "other") // names differ by case
}

func artifactLimits(w *world) {
	a := w.host("h1", 2)
	as := a.running()
	for i := range store.MaxArtifacts {
		a.addArtifact(as, fmt.Sprintf("f%d.txt", i), "x")
	}
	w.fails("one too many", err2(w.Store.AddArtifact(bg(), a.artifact(as, "more.txt", "x"))), berth.ErrTooLarge)
	w.must("a repeat at the limit", err2(w.Store.AddArtifact(bg(), a.artifact(as, "f0.txt", "x"))))
	as = a.running()
	put := func(name string, size int64) error {
		p := a.artifact(as, name, name)
		p.Artifact.Size = size
		return err2(w.Store.AddArtifact(bg(), p))
	}
	w.fails("one too large", put("huge.bin", store.MaxArtifactBytes+1), berth.ErrTooLarge)
	for i := range store.MaxAttemptArtifacts / store.MaxArtifactBytes {
		w.must("add", put(strings.Repeat("a", i+1), store.MaxArtifactBytes))
	}
	w.fails("too much together", put("last.bin", 1), berth.ErrTooLarge)
}

func logAtOnce(w *world) {
	other := w.second()
	a := w.host("h1", 1)
	as := a.running()
	type answer struct {
		next   int64
		stored bool
	}
	put := func(s store.Store, p store.AppendLogParams) func() (answer, error) {
		return func() (answer, error) {
			next, stored, err := s.AppendLog(bg(), p)
			return answer{next, stored}, err
		}
	}
	for i := range int64(5) {
		text := fmt.Sprintf("chunk-%d", i)
		got := both(put(w.Store, a.chunk(as, i*7, text)), put(other, a.chunk(as, i*7, text)))
		w.must("append", got[0].err)
		w.must("append", got[1].err)
		if got[0].value.stored == got[1].value.stored || got[0].value.next != got[1].value.next {
			w.t.Fatalf("answers %+v", got)
		}
	}
}
