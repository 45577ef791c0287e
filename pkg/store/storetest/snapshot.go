package storetest

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// snapshot is all that the contract shows of a database, less the numbers that
// an engine gives out itself.
type snapshot struct {
	Tasks      []berth.Task
	Attempts   []berth.Attempt
	Artifacts  []berth.Artifact
	Heads      []store.Head
	Offers     map[berth.PoolID]offer
	Devices    []berth.Device
	Hosts      []berth.Host
	Pools      []berth.Pool
	Plugins    []berth.Plugin
	Enrolments []berth.EnrolmentToken
	Keys       []store.SigningKey
	Inputs     []berth.Input
	Secrets    []berth.Secret
	Audit      []berth.AuditEvent
	Amnesty    berth.Amnesty
}

// snapshot reads everything through the world's first handle.
func (w *world) snapshot() snapshot {
	w.t.Helper()
	var s snapshot
	var err error
	for _, listed := range w.allTasks(store.TaskFilter{}) {
		task := w.task(listed.ID)
		task.Class = 0
		s.Tasks = append(s.Tasks, task)
		s.Attempts = append(s.Attempts, w.attempts(task.ID)...)
		arts, err := w.Store.ListArtifacts(bg(), all, task.ID)
		w.must("list artifacts", err)
		s.Artifacts = append(s.Artifacts, arts...)
	}
	s.Devices, s.Hosts, s.Audit = w.allDevices(), w.allHosts(), w.audit("", "")
	for i := range s.Audit {
		s.Audit[i].ID = 0
	}
	// The trail of each target has an order; what one transaction says of several
	// has none.
	slices.SortStableFunc(s.Audit, func(a, b berth.AuditEvent) int { return strings.Compare(a.TargetID, b.TargetID) })
	s.Pools, _, err = w.Store.ListPools(bg(), store.Page{Size: 200})
	w.must("list pools", err)
	for i := range s.Pools {
		if s.Pools[i].Name == berth.DefaultPool {
			s.Pools[i].CreatedAt = time.Time{} // by the migration's clock
		}
	}
	s.Secrets, _, err = w.Store.ListSecrets(bg(), nil, store.Page{Size: 200})
	w.must("list secrets", err)
	s.Plugins, _, err = w.Store.ListPlugins(bg(), store.Page{Size: 200})
	w.must("list plugins", err)
	s.Enrolments, _, err = w.Store.ListEnrolments(bg(), store.Page{Size: 200})
	w.must("list enrolments", err)
	s.Keys, err = w.Store.SigningKeys(bg())
	w.must("list keys", err)
	s.Inputs, _, err = w.Store.ListInputs(bg(), all, store.Page{Size: 200})
	w.must("list inputs", err)
	s.Heads, s.Amnesty = w.poolHeads(s.Pools), w.amnesty()
	s.Offers = w.offers(s.Pools, s.Devices)
	return s
}

// rows are all rows of the database, also those that the contract does not show.
func (w *world) rows() []string {
	w.t.Helper()
	rows, err := w.database.Rows()
	w.must("rows", err)
	return rows
}

func (w *world) poolHeads(pools []berth.Pool) []store.Head {
	w.t.Helper()
	var out []store.Head
	for _, p := range pools {
		_, err := w.Store.PlacementRound(bg(), w.scheduler, p.ID, func(ctx context.Context, r store.Round) error {
			heads, err := allHeads(ctx, r, 1000)
			out = append(out, heads...)
			return err
		})
		w.must("placement round", err)
	}
	for i := range out {
		out[i].Class, out[i].Ref = 0, ""
	}
	return slices.Clip(out)
}
