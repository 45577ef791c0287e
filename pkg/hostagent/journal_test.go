package hostagent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestJournalRemembersAcrossACrash(t *testing.T) {
	dir := t.TempDir()
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	must(t, j.Append(Record{Epoch: 7}))
	must(t, j.Append(
		Record{Stage: StageClaimed, Attempt: "a", Device: "process/0", Fence: 4},
		Record{Stage: StageStarted, Attempt: "a", Device: "process/0", Fence: 4},
		Record{Stage: StageClaimed, Attempt: "b", Device: "process/1", Fence: 9},
		Record{Stage: StageDone, Attempt: "b", Device: "process/1", Fence: 9},
	))
	// A crash in the middle of a write leaves a torn line.
	f, err := os.OpenFile(filepath.Join(dir, "journal.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(`{"stage":"claimed","attempt":"c","dev`)
	must(t, err)
	must(t, f.Close())

	for range 3 { // opening compacts; that must lose nothing that matters
		if j, err = OpenJournal(dir); err != nil {
			t.Fatal(err)
		}
		if j.Epoch() != 7 || j.Fence("process/0") != 4 || j.Fence("process/1") != 9 {
			t.Errorf("epoch %d, fences %d and %d", j.Epoch(), j.Fence("process/0"), j.Fence("process/1"))
		}
		if open := j.Open(); len(open) != 1 || open[0].Attempt != "a" || open[0].Stage != StageStarted {
			t.Errorf("open: %+v", open)
		}
		must(t, j.Append(Record{Stage: StageClaimed, Attempt: "d", Device: "process/0", Fence: 4}, Record{Stage: StageDone, Attempt: "d"}))
		must(t, j.Close())
	}
}

func TestBrokenLineInTheMiddleIsNotPassedOver(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "journal.jsonl"), []byte("{\"epoch\":3}\nnonsense\n{\"epoch\":4}\n"), 0o600))
	if _, err := OpenJournal(dir); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("err = %v", err)
	}
}

// Whatever is appended, and wherever a crash cuts the file, what was appended
// whole is there after opening it again.
func TestJournalSurvivesACutAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "journal")
		must(t, err)
		defer func() { _ = os.RemoveAll(dir) }()
		j, err := OpenJournal(dir)
		must(t, err)
		path := filepath.Join(dir, "journal.jsonl")
		var ends []int64
		var fences []berth.Fence
		for i := range rapid.IntRange(1, 8).Draw(t, "records") {
			must(t, j.Append(Record{Device: "d", Fence: berth.Fence(i + 1)}))
			info, err := os.Stat(path)
			must(t, err)
			ends, fences = append(ends, info.Size()), append(fences, berth.Fence(i+1))
		}
		must(t, j.Close())
		first := ends[0] - (ends[len(ends)-1]-ends[0])/int64(max(len(ends)-1, 1))
		cut := rapid.Int64Range(max(first, 1), ends[len(ends)-1]).Draw(t, "cut")
		must(t, os.Truncate(path, cut))
		want := berth.Fence(0)
		for i, e := range ends {
			if e <= cut {
				want = fences[i]
			}
		}
		j, err = OpenJournal(dir)
		if err != nil {
			if cut < ends[0] { // the header itself was cut
				return
			}
			t.Fatal(err)
		}
		defer func() { _ = j.Close() }()
		if got := j.Fence("d"); got < want {
			t.Fatalf("fence %d after a cut at %d, want at least %d (%v)", got, cut, want, slices.Clone(ends))
		}
	})
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func must(t fataler, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
