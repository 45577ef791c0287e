package sqlite_test

import (
	"testing"

	"github.com/berth-dev/berth/pkg/store"
)

// After a restore of the database an undelivered attempt may have a fence below
// one that the agent acted under. The agent refuses such a fence, so a sync
// gives the attempt a higher one (I10).
func TestAnUndeliveredAttemptGetsAFenceTheAgentTakes(t *testing.T) {
	for name, claim := range map[string]bool{"assigned": false, "claimed": true} {
		t.Run(name, func(t *testing.T) {
			w := newSite(t, migrated(t), 1, store.Options{})
			id := w.submit()
			must(t, w.place(bg()))
			if claim && len(w.claim()) != 1 {
				t.Fatal("not claimed")
			}
			p := w.syncParams(1)
			p.Devices[0].HighestFence = 41
			res, err := w.s.SyncHost(bg(), p)
			must(t, err)
			if len(res.Undelivered) != 1 {
				t.Fatalf("undelivered %v", res.Undelivered)
			}
			as := w.claim()
			if len(as) != 1 || as[0].Task != id || as[0].Fence <= 41 {
				t.Fatalf("claimed %+v", as)
			}
			answers, _, err := w.s.StartAttempts(bg(), store.StartParams{AgentCall: w.call, Items: []store.Holder{holder(as[0])}})
			must(t, err)
			if answers[0].Status != store.LeaseGranted {
				t.Errorf("start answered %s", answers[0].Status)
			}
		})
	}
}
