package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// Database is one database of an engine.
type Database struct {
	// Open opens one more handle on it, standing for one more process. The suite
	// closes every handle that it opened.
	Open func(tb testing.TB, opts store.Options) (store.Store, error)
	// Exec runs a statement beside the engine, to make damage that no operation can.
	Exec func(statement string) error
	// Rows are all rows of all tables as text, each after its table's name, sorted.
	Rows func() ([]string, error)
}

// Harness is what an engine's test gives to the suite.
type Harness struct {
	// Name of the engine, for messages.
	Name string
	// Fresh makes a database that is migrated to the newest schema and holds
	// nothing but what the migrations put there. It is removed with tb.
	Fresh func(tb testing.TB) Database
	// Serial: the engine runs one writing transaction at a time, so an operation
	// that is paused inside a transaction keeps its rivals waiting.
	Serial bool
}

// Env is one database with a handle, a clock and a journal.
type Env struct {
	Store store.Store
	Clock *Clock
	// Timings in force: the defaults.
	Timings berth.Timings
	Serial  bool

	database Database
	journal  *journal
	ids      *ids
}

// New gives a fresh database and opens one handle on it. It fails the test on
// any error.
func (h Harness) New(tb testing.TB) *Env {
	tb.Helper()
	e := &Env{
		Clock: NewClock(), Timings: berth.DefaultTimings(), Serial: h.Serial,
		database: h.Fresh(tb), journal: &journal{}, ids: &ids{},
	}
	e.Store = e.Second(tb)
	return e
}

// Second opens another handle on the same database with the same clock: another
// process.
func (e *Env) Second(tb testing.TB) store.Store {
	tb.Helper()
	return e.OpenWith(tb, nil)
}

// OpenWith is Second with options changed by change, which may be nil.
func (e *Env) OpenWith(tb testing.TB, change func(*store.Options)) store.Store {
	tb.Helper()
	opts := store.Options{Clock: e.Clock}
	if change != nil {
		change(&opts)
	}
	s, err := e.database.Open(tb, opts)
	if err != nil {
		tb.Fatalf("open: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return &recorder{Store: s, journal: e.journal}
}

// Clock is a clock that stands still until it is moved. It tells UTC
// microseconds and is safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock starts at a fixed instant that is no whole second.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 3, 2, 10, 20, 30, 123457000, time.UTC)}
}

// Now implements store.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock by d and returns the new time.
func (c *Clock) Advance(d time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d).Truncate(time.Microsecond)
	return c.now
}

// Set moves the clock to t.
func (c *Clock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = t.UTC().Truncate(time.Microsecond)
}

// ids gives canonical ids in ascending order, the same ones at each run.
type ids struct{ n atomic.Int64 }

func (g *ids) next() string { return fmt.Sprintf("01900000-0000-7000-8000-%012x", g.n.Add(1)) }

func newID[T ~string](e *Env) T { return T(e.ids.next()) }
