package harness

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/hostagent"
)

// held is the time for which an agent's work might touch a device.
type held struct {
	attempt  berth.AttemptID
	from, to time.Time
	fence    berth.Fence
}

// journal is what is known of an agent after reading so much of its journals.
type journal struct {
	tb    testing.TB
	name  string
	epoch berth.Epoch
	// claimed is the last claim of each device, holds are its starts.
	claimed map[string]hostagent.Record
	holds   map[string][]held
}

// CheckJournals reads what the agents wrote before they acted, in all of their
// runs, and fails the test for what must never have been: from started to
// finished, or to the start of the next agent, a device belongs to one attempt;
// its fences and the host's epochs only grow.
func CheckJournals(tb testing.TB, agents ...*Agent) {
	tb.Helper()
	for _, a := range agents {
		j := &journal{tb: tb, name: a.Name, claimed: map[string]hostagent.Record{}, holds: map[string][]held{}}
		runs := a.Journals(tb)
		for n, records := range runs {
			if n > 0 && len(records) > 0 {
				j.next(records[0].At)
			}
			for _, r := range records {
				j.read(r)
			}
		}
		total := 0
		for _, d := range slices.Sorted(maps.Keys(j.holds)) {
			holds := j.holds[d]
			total += len(holds)
			for i := 1; i < len(holds); i++ {
				before, after := holds[i-1], holds[i]
				if before.to.IsZero() || after.from.Before(before.to) || after.fence <= before.fence {
					tb.Errorf("%s: device %s was held twice: %+v, then %+v", a.Name, d, before, after)
				}
			}
		}
		if total == 0 {
			tb.Errorf("%s: the journal has no attempt", a.Name)
		}
		tb.Logf("%s: %d attempts on %d devices in the journals of %d runs", a.Name, total, len(j.holds), len(runs))
	}
}

// next begins the journal of another run: its agent has killed what was left of
// the one before, before it wrote anything.
func (j *journal) next(at time.Time) {
	for _, holds := range j.holds {
		if last := &holds[len(holds)-1]; last.to.IsZero() {
			last.to = at
		}
	}
}

func (j *journal) read(r hostagent.Record) {
	j.tb.Helper()
	if r.Epoch != 0 {
		if r.Epoch < j.epoch {
			j.tb.Errorf("%s: epoch %d came after %d", j.name, r.Epoch, j.epoch)
		}
		j.epoch = r.Epoch
	}
	switch r.Stage {
	case hostagent.StageClaimed:
		// What an earlier run claimed and did not start is delivered again.
		if last := j.claimed[r.Device]; r.Fence < last.Fence || (r.Fence == last.Fence && r.Attempt != last.Attempt) {
			j.tb.Errorf("%s: device %s was claimed by %s under fence %d after %s under %d", j.name, r.Device, r.Attempt, r.Fence, last.Attempt, last.Fence)
		}
		j.claimed[r.Device] = r
	case hostagent.StageStarted:
		j.holds[r.Device] = append(j.holds[r.Device], held{attempt: r.Attempt, from: r.At, fence: r.Fence})
	case hostagent.StageFinished:
		holds := j.holds[r.Device]
		i := slices.IndexFunc(holds, func(h held) bool { return h.attempt == r.Attempt })
		if i < 0 {
			return // finished without a start
		}
		if i != len(holds)-1 {
			j.tb.Errorf("%s: %s ended on device %s after a later attempt had started", j.name, r.Attempt, r.Device)
		}
		holds[i].to = r.At
	}
}
