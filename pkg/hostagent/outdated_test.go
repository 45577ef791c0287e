package hostagent

import (
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

// A database that was restored gives fences out again. The journal tells, also
// after it was compacted, unless an older agent wrote it.
func TestJournalTellsOutdatedLeases(t *testing.T) {
	dir := t.TempDir()
	j, err := OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []Record{
		{Stage: StageClaimed, Attempt: "a6", Device: "process/0", Fence: 6},
		{Stage: StageDone, Attempt: "a6", Device: "process/0", Fence: 6},
		{Stage: StageClaimed, Attempt: "a7", Device: "process/0", Fence: 7},
		{Stage: StageDone, Attempt: "a7", Device: "process/0", Fence: 7},
		{Device: "process/1", Fence: 3},
	} {
		if err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, c := range []struct {
			device  string
			fence   berth.Fence
			attempt berth.AttemptID
			want    bool
		}{
			{"process/0", 6, "a6", true},
			{"process/0", 7, "a7", false}, // delivered again
			{"process/0", 7, "b7", true},
			{"process/0", 8, "b8", false},
			{"process/1", 3, "x", false}, // nobody knows whose it was
			{"process/1", 2, "x", true},
			{"process/2", 1, "x", false},
		} {
			if got := j.Outdated(c.device, c.fence, c.attempt); got != c.want {
				t.Errorf("%s under fence %d for %s: outdated %v, want %v", c.device, c.fence, c.attempt, got, c.want)
			}
		}
		if open := j.Open(); len(open) > 0 {
			t.Errorf("open: %v", open)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if j, err = OpenJournal(dir); err != nil {
			t.Fatal(err)
		}
	}
	_ = j.Close()
}
