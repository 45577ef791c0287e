package sqlite_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
	"github.com/berth-dev/berth/pkg/store/storetest"
)

var everything = berth.Scope{All: true}

func bg() context.Context { return context.Background() }

// template is one migrated file; every test gets a copy.
var template = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "berth-sqlite-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "berth.db")
	if err := schema.Up(bg(), path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func migrated(tb testing.TB) string {
	tb.Helper()
	file, err := template()
	must(tb, err)
	path := filepath.Join(tb.TempDir(), "berth.db")
	must(tb, os.WriteFile(path, file, 0o600))
	return path
}

func open(tb testing.TB, path string, opts store.Options) *sqlite.Store {
	tb.Helper()
	s, err := sqlite.Open(bg(), path, opts)
	if err != nil {
		tb.Fatalf("open: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// site is a store with a host, its devices and what it takes to act on them.
type site struct {
	tb    testing.TB
	s     *sqlite.Store
	clock *storetest.Clock
	pool  berth.PoolID
	host  berth.HostID
	call  store.AgentCall
	ids   atomic.Int64
}

var operator = berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "operator"}}

// newSite has a synced host with n devices that provides the plugin "work".
func newSite(tb testing.TB, path string, n int, opts store.Options) *site {
	tb.Helper()
	clock := storetest.NewClock()
	opts.Clock = clock
	w := &site{tb: tb, s: open(tb, path, opts), clock: clock}
	pool, err := w.s.GetPool(bg(), berth.DefaultPool)
	must(tb, err)
	w.pool = pool.ID
	must(tb, w.s.RegisterPlugins(bg(), operator, []berth.Plugin{{
		PluginVersion: berth.PluginVersion{Name: "work", Version: "1.0.0"}, Enabled: true, Schema: []byte("{}"),
	}}))
	w.token("token")
	h, err := w.s.Enrol(bg(), w.enrolParams("token", "host-1"))
	must(tb, err)
	w.host = h.ID
	w.call = store.AgentCall{Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: string(h.ID)}}, Host: h.ID}
	res, err := w.s.SyncHost(bg(), w.syncParams(n))
	must(tb, err)
	w.call.Epoch = res.Epoch
	return w
}

func (w *site) id() string { return fmt.Sprintf("01900000-0000-7000-8000-%012x", w.ids.Add(1)) }

func (w *site) token(secret string) berth.EnrolmentToken {
	w.tb.Helper()
	tok, err := w.s.CreateEnrolment(bg(), store.CreateEnrolmentParams{
		Actor: operator, ID: berth.EnrolmentID(w.id()), Pool: w.pool, Pattern: "*", TokenHash: sha256.Sum256([]byte(secret)), TTL: time.Hour,
	})
	must(w.tb, err)
	return tok
}

func (w *site) enrolParams(secret, name string) store.EnrolParams {
	key := sha256.Sum256([]byte(name))
	return store.EnrolParams{
		Actor: operator, TokenHash: sha256.Sum256([]byte(secret)), Host: berth.HostID(w.id()), Name: name, PublicKey: key[:],
	}
}

func (w *site) syncParams(devices int) store.SyncParams {
	p := store.SyncParams{
		AgentCall: w.call, Instance: "one", JournalEpoch: w.call.Epoch,
		Plugins: []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "work", Version: "1.0.0"}}},
	}
	for i := range devices {
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: berth.DeviceID(w.id()), Driver: "process", HardwareID: fmt.Sprint("slot-", i), Name: fmt.Sprint("slot ", i),
			Health: berth.HealthGood, Clean: true,
		})
	}
	return p
}

func (w *site) task(mods ...func(*berth.NewTask)) berth.NewTask {
	n := newTask(w.id(), w.pool)
	for _, mod := range mods {
		mod(&n)
	}
	return n
}

func newTask(id string, pool berth.PoolID) berth.NewTask {
	return berth.NewTask{
		ID: berth.TaskID(id), Pool: pool, Requirement: berth.Requirement{Plugin: "work"},
		Payload: redact.NewBytes([]byte(`{}`)), RunTimeout: time.Hour, Retry: berth.DefaultRetryPolicy(),
	}
}

func (w *site) submit(mods ...func(*berth.NewTask)) berth.TaskID {
	w.tb.Helper()
	n := w.task(mods...)
	_, err := w.s.SubmitTasks(bg(), store.SubmitParams{Actor: operator, Tasks: []berth.NewTask{n}, CorrelationID: "c"})
	must(w.tb, err)
	return n.ID
}

// place places every waiting task while devices are free.
func (w *site) place(ctx context.Context) error {
	_, err := w.s.PlacementRound(ctx, operator, w.pool, w.fill)
	return err
}

func (w *site) fill(ctx context.Context, r store.Round) error {
	free, err := r.FreeDevices(ctx, 0)
	if err != nil {
		return err
	}
	classes, err := r.WaitingClasses(ctx)
	if err != nil {
		return err
	}
	var plan []store.Placement
	for _, c := range classes {
		heads, err := r.Heads(ctx, []store.HeadsAsk{{Class: c.ID, PerClass: len(free)}})
		if err != nil {
			return err
		}
		for _, h := range heads {
			if len(plan) < len(free) {
				d := free[len(plan)]
				plan = append(plan, store.Placement{Head: h, Attempt: berth.AttemptID(w.id()), Device: d.ID, Host: d.Host, Version: "1.0.0"})
			}
		}
	}
	_, err = r.Apply(ctx, plan)
	return err
}

func (w *site) claim() []store.Assignment {
	w.tb.Helper()
	as, _, err := w.s.ClaimAttempts(bg(), store.ClaimParams{AgentCall: w.call, ClaimID: w.id(), Max: 100})
	must(w.tb, err)
	return as
}

// claimed brings one new task to claimed.
func (w *site) claimed() store.Assignment {
	w.tb.Helper()
	id := w.submit()
	must(w.tb, w.place(bg()))
	for _, a := range w.claim() {
		if a.Task == id {
			return a
		}
	}
	w.tb.Fatalf("task %s was not claimed", id)
	return store.Assignment{}
}

// running brings one new task to running.
func (w *site) running() store.Assignment {
	w.tb.Helper()
	a := w.claimed()
	answers, _, err := w.s.StartAttempts(bg(), store.StartParams{AgentCall: w.call, Items: []store.Holder{holder(a)}})
	must(w.tb, err)
	if answers[0].Status != store.LeaseGranted {
		w.tb.Fatalf("start answered %s", answers[0].Status)
	}
	return a
}

func holder(a store.Assignment) store.Holder {
	return store.Holder{Attempt: a.Attempt, Fence: a.Fence}
}

func (w *site) complete(ctx context.Context, a store.Assignment, o berth.Outcome, clean bool) error {
	answers, _, err := w.s.CompleteAttempts(ctx, store.CompleteParams{AgentCall: w.call, Items: []store.CompleteItem{{
		Holder: holder(a), Outcome: o, DeviceClean: clean, Digest: sha256.Sum256([]byte(o)),
	}}})
	if err == nil && answers[0].Status != store.CompleteStored {
		err = fmt.Errorf("complete answered %s", answers[0].Status)
	}
	return err
}

// raw opens the file beside the engine, as an operator's tool would.
func raw(tb testing.TB, path string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_busy_timeout=5000")
	must(tb, err)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// dump is every row of every table, in order.
func dump(tb testing.TB, db *sql.DB) string {
	tb.Helper()
	var out strings.Builder
	for _, table := range texts(tb, db, "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'sqlite_sequence' ORDER BY name") {
		columns := texts(tb, db, "SELECT 'quote('||name||')' FROM pragma_table_info('"+table+"')")
		for _, row := range texts(tb, db, "SELECT "+strings.Join(columns, "||', '||")+" FROM "+table+" ORDER BY 1") {
			fmt.Fprintf(&out, "%s: %s\n", table, row)
		}
	}
	return out.String()
}

func texts(tb testing.TB, db *sql.DB, query string) []string {
	tb.Helper()
	rows, err := db.Query(query)
	must(tb, err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		must(tb, rows.Scan(&s))
		out = append(out, s)
	}
	must(tb, rows.Err())
	return out
}
