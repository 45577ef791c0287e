package postgres_test

import (
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// TestGroupsTakeTheirLocksInOneOrder: whoever waits for the first row of a group
// holds none of its later ones, in whatever order the calls came. Two groups in
// two orders could deadlock otherwise.
func TestGroupsTakeTheirLocksInOneOrder(t *testing.T) {
	w := install(t, newDB(t), 2)
	held := []store.Holder{w.running(), w.running()}
	for _, c := range []struct {
		name, order, lock string
		run               func(calls [2]store.Holder) error
	}{
		{
			"renew", `SELECT attempt_id::text FROM leases WHERE attempt_id IS NOT NULL ORDER BY device_id`,
			`SELECT 1 FROM leases WHERE attempt_id = $1 FOR NO KEY UPDATE`,
			func(calls [2]store.Holder) error {
				var p []store.RenewParams
				for _, h := range calls {
					p = append(p, store.RenewParams{AgentCall: w.call(), Items: []store.RenewItem{{Holder: h, Progress: -1}}})
				}
				_, err := w.s.RenewMany(t.Context(), p)
				return err
			},
		},
		{
			"complete", `SELECT id::text FROM attempts ORDER BY task_id, number`, `SELECT 1 FROM attempts WHERE id = $1 FOR NO KEY UPDATE`,
			func(calls [2]store.Holder) error {
				var p []store.CompleteParams
				for _, h := range calls {
					p = append(p, store.CompleteParams{AgentCall: w.call(), Items: []store.CompleteItem{{
						Holder: h, Outcome: berth.OutcomeSucceeded, DeviceClean: true,
					}}})
				}
				_, err := w.s.CompleteMany(t.Context(), p)
				return err
			},
		},
	} {
		for _, calls := range [][2]store.Holder{{held[0], held[1]}, {held[1], held[0]}} {
			if c.name == "complete" && calls[0] == held[1] {
				held = []store.Holder{w.running(), w.running()}
				calls = [2]store.Holder{held[1], held[0]}
			}
			// The two, in the order of the locks.
			var live []string
			rows, err := w.conn().Query(t.Context(), c.order)
			w.must(err)
			for rows.Next() {
				var id string
				w.must(rows.Scan(&id))
				if id == string(held[0].Attempt) || id == string(held[1].Attempt) {
					live = append(live, id)
				}
			}
			w.must(rows.Err())
			blocker, err := w.conn().Begin(t.Context())
			w.must(err)
			_, err = blocker.Exec(t.Context(), c.lock, live[0])
			w.must(err)
			done := make(chan error, 1)
			go func() { done <- c.run(calls) }()
			w.lockWaiters(w.conn(), 1)
			if _, err := blocker.Exec(t.Context(), c.lock+` NOWAIT`, live[1]); err != nil {
				t.Errorf("%s: while it waits for the first row it holds the last: %v", c.name, err)
			}
			w.must(blocker.Rollback(t.Context()))
			w.must(<-done)
		}
	}
}
