// Package enginetest gives the tests of workers and daemons a migrated database
// of each engine, opened as a real store, and a host with devices that takes
// part in the agents' operations.
package enginetest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers for raw SQL
	_ "github.com/mattn/go-sqlite3"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/pgtest/runtimedb"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

// DB is a database of one engine.
type DB struct {
	Dialect schema.Dialect
	// Target is its URL, as schema and storeopen take it: of Postgres that of the
	// daemons' role.
	Target string

	owner string // URL of the one who may do anything; "": the target's
}

// OnBoth runs a test on a migrated database of each engine.
func OnBoth(t *testing.T, test func(t *testing.T, db DB)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, Postgres(t)) })
}

// SQLite makes a migrated file.
func SQLite(tb testing.TB) DB {
	tb.Helper()
	target := "sqlite://" + filepath.Join(tb.TempDir(), "berth.db")
	db := DB{Dialect: schema.SQLite, Target: target, owner: target}
	if err := schema.Up(context.Background(), db.Target); err != nil {
		tb.Fatal(err)
	}
	return db
}

// Postgres clones a migrated database.
func Postgres(tb testing.TB) DB {
	tb.Helper()
	runtime, owner := runtimedb.New(tb)
	return DB{Dialect: schema.Postgres, Target: runtime, owner: owner}
}

// Open opens the engine, without the lock of storeopen; closed with the test.
func (d DB) Open(tb testing.TB, o store.Options) store.Store {
	tb.Helper()
	var s store.Store
	var err error
	if d.Dialect == schema.SQLite {
		s, err = sqlite.Open(context.Background(), strings.TrimPrefix(d.Target, "sqlite://"), o)
	} else {
		s, err = postgres.Open(context.Background(), d.Target, o)
	}
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

// Exec runs statements beside the store: to break things.
func (d DB) Exec(tb testing.TB, statements ...string) {
	tb.Helper()
	driver, dsn := "pgx", cmp.Or(d.owner, d.Target)
	if d.Dialect == schema.SQLite {
		driver, dsn = "sqlite3", "file:"+strings.TrimPrefix(d.Target, "sqlite://")+"?_busy_timeout=5000&_txlock=immediate"
	}
	pool, err := sql.Open(driver, dsn)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	for _, s := range statements {
		if _, err := pool.Exec(s); err != nil {
			tb.Fatalf("%s: %v", s, err)
		}
	}
}

// RefuseAudit lets no row come into the audit trail until mend is called.
func (d DB) RefuseAudit(tb testing.TB) (mend func()) {
	tb.Helper()
	refuse, allow := `CREATE TRIGGER refuse_audit BEFORE INSERT ON audit_events BEGIN SELECT RAISE(ABORT, 'no room'); END`, `DROP TRIGGER refuse_audit`
	if d.Dialect == schema.Postgres {
		refuse = `REVOKE INSERT ON audit_events FROM ` + schema.RuntimeRole
		allow = `GRANT INSERT ON audit_events TO ` + schema.RuntimeRole
	}
	d.Exec(tb, refuse)
	return func() { tb.Helper(); d.Exec(tb, allow) }
}

// NewID makes an identifier.
func NewID[T ~string]() T { return T(uuid.Must(uuid.NewV7()).String()) }

// Plugin is what every Host provides.
var Plugin = berth.PluginVersion{Name: "work", Version: "1.0.0"}

// Host is an enrolled host with its agent.
type Host struct {
	tb      testing.TB
	s       store.Store
	call    store.AgentCall
	Devices []berth.DeviceID
}

// NewHost enrols a host in the default pool with n devices and syncs it. Every
// device has the label n=<number>.
func NewHost(tb testing.TB, s store.Store, name string, n int) *Host {
	tb.Helper()
	ctx, actor := context.Background(), berth.Daemon(berth.ActorSystem, "test")
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	must(s.RegisterPlugins(ctx, actor, []berth.Plugin{{PluginVersion: Plugin, Enabled: true, Schema: []byte(`{}`)}}))
	pool, err := s.GetPool(ctx, berth.DefaultPool)
	must(err)
	token := sha256.Sum256([]byte(name))
	_, err = s.CreateEnrolment(ctx, store.CreateEnrolmentParams{
		Actor: actor, ID: NewID[berth.EnrolmentID](), Pool: pool.ID, Pattern: name, TokenHash: token, TTL: time.Hour,
	})
	must(err)
	host, err := s.Enrol(ctx, store.EnrolParams{Actor: actor, TokenHash: token, Host: NewID[berth.HostID](), Name: name, PublicKey: token[:]})
	must(err)
	h := &Host{tb: tb, s: s, call: store.AgentCall{Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: string(host.ID)}}, Host: host.ID}}
	h.Sync(n)
	return h
}

// Sync syncs as a new agent process with n clean devices that holds nothing.
func (h *Host) Sync(n int) {
	h.tb.Helper()
	p := store.SyncParams{AgentCall: h.call, Instance: uuid.NewString(), AgentVersion: "test", Plugins: []berth.Plugin{{PluginVersion: Plugin}}}
	p.Epoch, p.JournalEpoch = 0, h.call.Epoch
	for i := range n {
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: NewID[berth.DeviceID](), Driver: "process", HardwareID: fmt.Sprint(i), Name: fmt.Sprint(i),
			Labels: map[string]string{"n": fmt.Sprint(i)}, Health: berth.HealthGood, Clean: true,
		})
	}
	r, err := h.s.SyncHost(context.Background(), p)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.call.Epoch, h.Devices = r.Epoch, r.Devices
}

// Claim takes what is assigned.
func (h *Host) Claim() []store.Assignment {
	h.tb.Helper()
	as, _, err := h.s.ClaimAttempts(context.Background(), store.ClaimParams{AgentCall: h.call, ClaimID: uuid.NewString(), Max: 100})
	if err != nil {
		h.tb.Fatal(err)
	}
	return as
}

// Start begins assignments.
func (h *Host) Start(as []store.Assignment) {
	h.tb.Helper()
	p := store.StartParams{AgentCall: h.call}
	for _, a := range as {
		p.Items = append(p.Items, store.Holder{Attempt: a.Attempt, Fence: a.Fence})
	}
	answers, _, err := h.s.StartAttempts(context.Background(), p)
	if err != nil {
		h.tb.Fatal(err)
	}
	for _, a := range answers {
		if a.Status != store.LeaseGranted {
			h.tb.Fatalf("start: %+v", a)
		}
	}
}

// Call is how the host's agent calls.
func (h *Host) Call() store.AgentCall { return h.call }

// Complete ends started assignments as succeeded.
func (h *Host) Complete(as []store.Assignment) {
	h.tb.Helper()
	h.CompleteAs(as, berth.OutcomeSucceeded, true)
}

// CompleteAs ends started assignments with an outcome, on a device that is clean
// after it or not.
func (h *Host) CompleteAs(as []store.Assignment, outcome berth.Outcome, clean bool) {
	h.tb.Helper()
	p := store.CompleteParams{AgentCall: h.call}
	for _, a := range as {
		p.Items = append(p.Items, store.CompleteItem{
			Holder: store.Holder{Attempt: a.Attempt, Fence: a.Fence}, Outcome: outcome,
			DeviceClean: clean, Digest: sha256.Sum256([]byte(a.Attempt)),
		})
	}
	answers, _, err := h.s.CompleteAttempts(context.Background(), p)
	if err != nil {
		h.tb.Fatal(err)
	}
	for _, a := range answers {
		if a.Status != store.CompleteStored {
			h.tb.Fatalf("complete: %+v", a)
		}
	}
}

// Submit stores n tasks for Plugin in the default pool and returns their ids, in
// order. change may be nil.
func Submit(tb testing.TB, s store.Store, n int, change func(i int, t *berth.NewTask)) []berth.TaskID {
	tb.Helper()
	ctx := context.Background()
	pool, err := s.GetPool(ctx, berth.DefaultPool)
	if err != nil {
		tb.Fatal(err)
	}
	now, err := s.Now(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	p := store.SubmitParams{Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "u"}}, CorrelationID: "c"}
	var ids []berth.TaskID
	for i := range n {
		t := berth.NewTask{
			ID: NewID[berth.TaskID](), Pool: pool.ID, Requirement: berth.Requirement{Plugin: Plugin.Name},
			Payload: redact.NewBytes([]byte(`{}`)), Retry: berth.DefaultRetryPolicy(),
		}
		if change != nil {
			change(i, &t)
		}
		var f berth.Faults
		t.Normalise("", now, &f)
		if err := f.Err(); err != nil {
			tb.Fatal(err)
		}
		if t.Requirement, err = eligibility.Canonical("", t.Requirement); err != nil {
			tb.Fatal(err)
		}
		p.Tasks = append(p.Tasks, t)
		ids = append(ids, t.ID)
	}
	if _, err := s.SubmitTasks(ctx, p); err != nil {
		tb.Fatal(err)
	}
	return ids
}

// States counts tasks by state.
func States(tb testing.TB, s store.Store, ids []berth.TaskID) map[berth.TaskState]int {
	tb.Helper()
	out := map[berth.TaskState]int{}
	for _, id := range ids {
		task, err := s.GetTask(context.Background(), berth.Scope{All: true}, id)
		if err != nil {
			tb.Fatal(err)
		}
		out[task.State]++
	}
	return out
}
