package scheduler_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

// expected is a schedule with the slots that pkg/cron's oracle, a walk through
// time by another program, says it has.
type expected struct {
	expr, zone string
	from, to   time.Time
	slots      []slot
}

type slot struct {
	at  time.Time
	key string
}

// oracle reads the cases of a few days around changes of clocks.
func oracle(t *testing.T) (cases []expected) {
	t.Helper()
	data, err := os.ReadFile("../cron/testdata/slots.txt")
	if err != nil {
		t.Fatal(err)
	}
	minute := func(text string) time.Time {
		at, err := time.Parse("2006-01-02T15:04", text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		head := strings.Split(lines[i], "\t")
		e := expected{expr: head[1], zone: head[2], from: minute(head[4]), to: minute(head[5])}
		if e.to.Sub(e.from) > 10*24*time.Hour {
			continue
		}
		at := e.from
		for word := range strings.FieldsSeq(lines[i+1]) {
			minutes, local, _ := strings.Cut(word, ":")
			n, err := strconv.Atoi(minutes)
			if err != nil {
				t.Fatal(err)
			}
			at = at.Add(time.Duration(n) * time.Minute)
			if head[3] == "interval" {
				local = at.Format(time.RFC3339)
			}
			e.slots = append(e.slots, slot{at, local})
		}
		cases = append(cases, e)
	}
	return cases
}

var errInjected = errors.New("injected")

// chaos breaks rounds off: a statement fails, the scheduler's process ends, or the
// server drops all connections.
type chaos struct {
	mu     sync.Mutex
	random *rand.Rand
	on     bool
	cut    func()
	kills  int
}

type killKey struct{}

func (c *chaos) before(ctx context.Context, op string, _ int) error {
	c.mu.Lock()
	fate := -1
	if c.on && op == "FireDue" {
		fate = c.random.IntN(1500)
	}
	if fate >= 0 && fate < 9 {
		c.kills++
	}
	c.mu.Unlock()
	switch {
	case fate >= 0 && fate < 4:
		return errInjected
	case fate >= 4 && fate < 8:
		if kill, ok := ctx.Value(killKey{}).(context.CancelFunc); ok {
			kill()
		}
	case fate == 8 && c.cut != nil:
		c.cut()
	}
	return nil
}

func (c *chaos) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

func (c *chaos) set(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.on = on
}

// TestEverySlotOnce: three schedulers that are broken off at random fire schedules
// in the zones of the oracle over both changes of their clocks. Each of the
// oracle's slots is one task, or in one recorded skip; nothing else fires.
func TestEverySlotOnce(t *testing.T) {
	enginetest.OnBoth(t, func(t *testing.T, db enginetest.DB) {
		cases := oracle(t)
		zones := []string{"Europe/Berlin", "Australia/Lord_Howe"}
		if db.Dialect == schema.Postgres && !testing.Short() {
			zones = append(zones, "America/New_York", "Africa/Cairo", "UTC")
		}
		cases = slices.DeleteFunc(cases, func(e expected) bool { return !slices.Contains(zones, e.zone) })
		groups := map[string][]expected{}
		for _, e := range cases {
			groups[e.from.Format(time.DateTime)+e.to.Format(time.DateTime)] = append(groups[e.from.Format(time.DateTime)+e.to.Format(time.DateTime)], e)
		}
		clock := storetest.NewClock()
		c := &chaos{random: rand.New(rand.NewPCG(1, 2))}
		if db.Dialect == schema.Postgres {
			c.cut = func() {
				db.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user AND query LIKE '%schedules%'")
			}
		}
		w := slotWorld{t: t, clock: clock, chaos: c, plain: db.Open(t, store.Options{Clock: clock})}
		registry := prometheus.NewRegistry()
		for i := range 3 {
			handle := db.Open(t, store.Options{Clock: clock, BeforeStatement: c.before})
			config := scheduler.Config{Store: handle, Instance: fmt.Sprint("s", i)}
			if i == 0 {
				config.Metrics = scheduler.NewMetrics(registry)
			}
			w.schedulers = append(w.schedulers, scheduler.New(config))
		}
		w.owner()
		for _, key := range slices.Sorted(maps.Keys(groups)) {
			w.run(groups[key])
		}
		t.Logf("%d slots: %d tasks, %d skipped; %d rounds broken off", w.slots, w.tasks, w.slots-w.tasks, c.kills)
		if want := map[schema.Dialect]int{schema.Postgres: 10_000, schema.SQLite: 2_000}[db.Dialect]; w.slots < want && !testing.Short() {
			t.Errorf("%d slots only, want %d", w.slots, want)
		}
		if c.kills < 50 || w.tasks < w.slots/2 || w.tasks == w.slots {
			t.Error("too little went wrong to show anything")
		}
		if metric(t, registry, "berth_scheduler_slots_fired_total") == 0 {
			t.Error("no slot was counted")
		}
	})
}

type slotWorld struct {
	t          *testing.T
	clock      *storetest.Clock
	chaos      *chaos
	plain      store.Store
	schedulers []*scheduler.Scheduler
	actor      berth.Actor
	template   berth.NewTask
	slots      int
	tasks      int
}

func (w *slotWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// owner makes a user whose schedules fire.
func (w *slotWorld) owner() {
	w.t.Helper()
	id := enginetest.NewID[string]()
	w.actor = berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: id}}
	w.must(w.plain.CreateUser(w.t.Context(), w.actor, berth.User{ID: berth.UserID(id), Name: "planner", Roles: []berth.Role{berth.RoleOperator}}, redact.NewString("hash")))
	pool, err := w.plain.GetPool(w.t.Context(), berth.DefaultPool)
	w.must(err)
	n := berth.NewTask{Pool: pool.ID, Requirement: berth.Requirement{Plugin: "work"}, Retry: berth.DefaultRetryPolicy()}
	var f berth.Faults
	n.Normalise("", w.clock.Now(), &f)
	w.must(f.Err())
	n.Requirement, err = eligibility.Canonical("", n.Requirement)
	w.must(err)
	w.template = n
}

// run goes through the days of cases that share them.
func (w *slotWorld) run(cases []expected) {
	w.t.Helper()
	from, to := cases[0].from, cases[0].to
	w.clock.Set(from.Add(-30 * time.Second))
	schedules := make([]berth.Schedule, len(cases))
	for i, e := range cases {
		catchUp, limit, overlap := berth.CatchUpAll, berth.MaxCatchUp, berth.OverlapAllow
		edit := berth.ScheduleEdit{Cron: &e.expr, TimeZone: &e.zone, CatchUp: &catchUp, CatchUpLimit: &limit, Overlap: &overlap, Template: &w.template}
		if i%3 == 0 { // these skip what they miss
			catchUp, limit = berth.CatchUpLatest, 1
		}
		var err error
		schedules[i], err = w.plain.CreateSchedule(w.t.Context(), store.CreateScheduleParams{
			Actor: w.actor, Roles: []berth.Role{berth.RoleOperator}, ID: enginetest.NewID[berth.ScheduleID](), Name: fmt.Sprintf("s%d", i), Edit: edit,
		})
		w.must(err)
	}
	w.chaos.set(true)
	for at := from; at.Before(to); at = at.Add(time.Duration(1+w.chaos.pick(120)) * time.Minute) {
		w.clock.Set(at.Add(time.Duration(w.chaos.pick(50)) * time.Second))
		w.round(false)
	}
	w.clock.Set(to.Add(-time.Second))
	w.round(false)
	w.chaos.set(false)
	w.round(true)
	for i, e := range cases {
		w.check(e, schedules[i])
		w.must(w.plain.DeleteSchedule(w.t.Context(), w.actor, schedules[i].Name, 0))
	}
}

// round lets all schedulers run at once; what is broken off is left for later.
func (w *slotWorld) round(whole bool) {
	w.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.schedulers))
	for i, s := range w.schedulers {
		wg.Go(func() {
			ctx, kill := context.WithCancel(w.t.Context())
			defer kill()
			errs[i] = s.FireOnce(context.WithValue(ctx, killKey{}, kill))
		})
	}
	wg.Wait()
	for _, err := range errs {
		passing := errors.Is(err, errInjected) || errors.Is(err, context.Canceled) || errors.Is(err, berth.ErrUnavailable)
		if err != nil && (whole || !passing) {
			w.t.Fatal(err)
		}
	}
}

// check lays the history over the oracle's slots: it must cover each once.
func (w *slotWorld) check(e expected, s berth.Schedule) {
	w.t.Helper()
	fail := func(format string, args ...any) {
		w.t.Helper()
		w.t.Fatalf("%s in %s from %s: "+format, append([]any{e.expr, e.zone, e.from.Format(time.DateOnly)}, args...)...)
	}
	var fires []berth.Fire
	for after := ""; ; {
		page, next, err := w.plain.ListFires(w.t.Context(), s.Name, store.Page{Size: 200, After: after})
		w.must(err)
		if fires = append(fires, page...); next == "" {
			break
		}
		after = next
	}
	slices.SortFunc(fires, func(a, b berth.Fire) int { return cmp.Compare(a.SlotAt.UnixNano(), b.SlotAt.UnixNano()) })
	made := map[berth.TaskID]string{}
	left := e.slots
	for _, f := range fires {
		if len(left) < f.Slots || f.Slots < 1 || f.AtLeast {
			fail("%d slots are left, and the history has %+v", len(left), f)
		}
		if left[0].key != f.Key || !left[0].at.Equal(f.SlotAt) || !left[f.Slots-1].at.Equal(f.LastSlotAt) {
			fail("%+v is next, and the history has %+v", left[0], f)
		}
		if f.Task != "" {
			made[f.Task] = f.Key
		}
		left = left[f.Slots:]
	}
	if len(left) > 0 {
		fail("%d slots were not decided, from %+v on", len(left), left[0])
	}
	tasks := 0
	for after := ""; ; {
		page, next, err := w.plain.ListTasks(w.t.Context(), berth.Scope{All: true}, store.TaskFilter{Schedule: s.ID}, store.Page{Size: 200, After: after})
		w.must(err)
		for _, k := range page {
			if key, ok := made[k.ID]; !ok || k.CorrelationID != s.Name+":"+key {
				fail("task %s of %s is in no history", k.ID, k.CorrelationID)
			}
			tasks++
		}
		if next == "" {
			break
		}
		after = next
	}
	if tasks != len(made) {
		fail("%d tasks for %d fires", tasks, len(made))
	}
	w.slots += len(e.slots)
	w.tasks += tasks
}
