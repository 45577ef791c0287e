package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

func TestSecondHandleSeesCommits(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 1, store.Options{})
	other := open(t, path, store.Options{Clock: w.clock})
	for range 20 {
		id := w.submit()
		task, err := other.GetTask(bg(), everything, id)
		must(t, err)
		if task.State != berth.StateQueued {
			t.Fatalf("the other handle sees %s", task.State)
		}
		_, _, err = other.CancelTask(bg(), store.TaskParams{Actor: operator, Scope: everything, Task: id})
		must(t, err)
		task, err = w.s.GetTask(bg(), everything, id)
		must(t, err)
		if task.State != berth.StateCancelled {
			t.Fatalf("the first handle sees %s", task.State)
		}
	}
}

// zoned tells the same instants in another zone, with more than microseconds.
type zoned struct{ now time.Time }

func (z *zoned) Now() time.Time { return z.now }

func TestTimesSortWhateverTheirZone(t *testing.T) {
	path := migrated(t)
	east, west := time.FixedZone("east", 14*3600), time.FixedZone("west", -12*3600)
	clock := &zoned{time.Date(2026, 11, 1, 1, 30, 0, 999, east)}
	s := open(t, path, store.Options{Clock: clock})
	pool, err := s.GetPool(bg(), berth.DefaultPool)
	must(t, err)
	base := clock.now
	var want []berth.TaskID
	var tasks []berth.NewTask
	for i := range 40 {
		n := newTask(fmt.Sprintf("00000000-0000-7000-8000-%012x", 1000-i), pool.ID)
		zone := []*time.Location{east, west, time.UTC}[i%3]
		n.NotBefore = base.Add(time.Second + time.Duration(i)*1500*time.Microsecond).In(zone)
		tasks, want = append(tasks, n), append(want, n.ID)
	}
	slices.SortFunc(tasks, func(a, b berth.NewTask) int { return strings.Compare(string(a.ID), string(b.ID)) })
	_, err = s.SubmitTasks(bg(), store.SubmitParams{Actor: operator, Tasks: tasks})
	must(t, err)
	clock.now = base.Add(time.Minute).In(west)
	var got []berth.TaskID
	for len(got) < len(want) {
		trs, err := s.PromoteDue(bg(), operator, 7)
		must(t, err)
		if len(trs) == 0 {
			break
		}
		for _, tr := range trs {
			got = append(got, tr.Task)
			if tr.At != tr.At.UTC().Truncate(time.Microsecond) {
				t.Errorf("time %v", tr.At)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("promoted in the order\n%v, should be\n%v", got, want)
	}
	db := raw(t, path)
	for _, column := range []string{"due_at", "submitted_at", "not_before", "at"} {
		table := map[string]string{"due_at": "delayed", "at": "audit_events"}[column]
		if table == "" {
			table = "tasks"
		}
		if bad := texts(t, db, "SELECT typeof("+column+") FROM "+table+" WHERE typeof("+column+") <> 'integer'"); len(bad) > 0 {
			t.Errorf("%s is stored as %v", column, bad)
		}
	}
}

func TestRoundIsAloneAndRefusesItsOwnWrites(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 1, store.Options{})
	id := w.submit()
	_, err := w.s.PlacementRound(bg(), operator, w.pool, func(ctx context.Context, r store.Round) error {
		if err := w.place(ctx); !errors.Is(err, berth.ErrNotActive) {
			t.Errorf("a second round of the pool: %v", err)
		}
		other := open(t, path, store.Options{Clock: w.clock})
		_, err := other.PlacementRound(bg(), operator, w.pool, func(context.Context, store.Round) error {
			t.Error("a round runs beside another")
			return nil
		})
		if !errors.Is(err, berth.ErrNotActive) {
			t.Errorf("a second round through another handle: %v", err)
		}
		_, _, err = w.s.CancelTask(ctx, store.TaskParams{Actor: operator, Scope: everything, Task: id})
		if err == nil {
			t.Error("a write inside the round went through")
		}
		if _, err := w.s.GetTask(ctx, everything, id); err != nil {
			t.Errorf("a read inside the round: %v", err)
		}
		return w.fill(ctx, r)
	})
	must(t, err)
	if task, err := w.s.GetTask(bg(), everything, id); err != nil || task.State != berth.StateAssigned {
		t.Errorf("task is %s, %v", task.State, err)
	}
}

// The wait for a writer of this process, and for one of another, ends with the
// caller's context.
func TestWaitForTheWriterEndsWithTheContext(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 1, store.Options{})
	other := open(t, path, store.Options{Clock: w.clock})
	_, err := w.s.PlacementRound(bg(), operator, w.pool, func(context.Context, store.Round) error {
		for _, s := range []*sqlite.Store{w.s, other} {
			ctx, cancel := context.WithTimeout(bg(), 20*time.Millisecond)
			_, err := s.PromoteDue(ctx, operator, 1)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the wait ended with %v", err)
			}
		}
		return nil
	})
	must(t, err)
	_, err = other.PromoteDue(bg(), operator, 1)
	must(t, err)
}

func TestClosedStoreIsUnavailable(t *testing.T) {
	w := newSite(t, migrated(t), 1, store.Options{})
	must(t, w.s.Close())
	must(t, w.s.Close())
	_, write := w.s.PromoteDue(bg(), operator, 1)
	_, read := w.s.GetTask(bg(), everything, "x")
	for _, err := range []error{write, read, w.s.Ping(bg())} {
		if !errors.Is(err, berth.ErrUnavailable) {
			t.Errorf("after close: %v", err)
		}
	}
}

func TestHeadsReadRangesOfTheKey(t *testing.T) {
	db := raw(t, migrated(t))
	for _, query := range sqlite.HeadQueries() {
		rows, err := db.Query("EXPLAIN QUERY PLAN "+query, 1, 1, 1, "x")
		if err != nil { // a query with fewer parameters
			rows, err = db.Query("EXPLAIN QUERY PLAN "+query, 1, 1)
		}
		if err != nil {
			rows, err = db.Query("EXPLAIN QUERY PLAN "+query, "x")
		}
		must(t, err)
		plan := details(t, rows)
		if strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") || !strings.Contains(plan, "PRIMARY KEY (class_id=?") {
			t.Errorf("%s\nreads more than the heads:\n%s", query, plan)
		}
	}
}

func details(t *testing.T, rows *sql.Rows) string {
	t.Helper()
	defer rows.Close()
	var out []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		must(t, rows.Scan(&id, &parent, &unused, &detail))
		out = append(out, detail)
	}
	must(t, rows.Err())
	return strings.Join(out, "\n")
}

// Two handles stand for two processes that do everything at once; nothing is
// placed twice, lost, or refused for the other's sake.
func TestTwoHandlesAtOnce(t *testing.T) {
	path := migrated(t)
	w := newSite(t, path, 4, store.Options{})
	other := open(t, path, store.Options{Clock: w.clock})
	const tasks = 60
	var wg sync.WaitGroup
	for _, s := range []*sqlite.Store{w.s, other} {
		wg.Go(func() {
			for range tasks / 2 {
				n := w.task()
				if _, err := s.SubmitTasks(bg(), store.SubmitParams{Actor: operator, Tasks: []berth.NewTask{n}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	for _, s := range []*sqlite.Store{w.s, other} {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := s.PlacementRound(bg(), operator, w.pool, w.fill); err != nil && !errors.Is(err, berth.ErrNotActive) {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		defer close(done)
		deadline := time.Now().Add(time.Minute)
		for finished := 0; finished < tasks; {
			if time.Now().After(deadline) {
				t.Error("the tasks do not finish")
				return
			}
			for _, a := range w.claim() {
				if err := w.finish(a); err != nil {
					t.Error(err)
					return
				}
				finished++
			}
		}
	})
	wg.Wait()
	intact(t, path)
	got, _, err := w.s.ListTasks(bg(), everything, store.TaskFilter{States: []berth.TaskState{berth.StateSucceeded}}, store.Page{Size: 200})
	must(t, err)
	if len(got) != tasks {
		t.Errorf("%d tasks succeeded, not %d", len(got), tasks)
	}
}

func (w *site) finish(a store.Assignment) error {
	answers, _, err := w.s.StartAttempts(bg(), store.StartParams{AgentCall: w.call, Items: []store.Holder{holder(a)}})
	if err != nil {
		return err
	}
	if answers[0].Status != store.LeaseGranted {
		return fmt.Errorf("start answered %s", answers[0].Status)
	}
	return w.complete(bg(), a, berth.OutcomeSucceeded, true)
}
