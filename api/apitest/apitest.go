// Package apitest gives tests the whole public API: a real engine with the
// migrated schema, a real blob directory, real identities and a real HTTP
// server on a port of its own, with everything it logs kept. Package-level
// fixtures play the part of the agents, through the storage contract.
package apitest

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/enginetest"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/postgres"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

// Password of every user that a Server makes. No log and no error may hold it.
const Password = "m4rk-of-the-passw0rd"

// The plugin of the fixtures: its payload is {"do": text, "times": 1 to 3}.
const (
	Plugin  = "work"
	Version = "1.2.0"
)

// Schema of the plugin's payload.
const Schema = `{
  "type": "object", "additionalProperties": false, "required": ["do"],
  "properties": {"do": {"type": "string", "maxLength": 100}, "times": {"type": "integer", "minimum": 1, "maximum": 3}}
}`

// Server is a running API with its parts.
type Server struct {
	tb testing.TB
	// URL of the server: http://127.0.0.1:port.
	URL string
	// DB is the database, for tests that break it; Database is its URL, for programs
	// that speak to it themselves.
	DB       enginetest.DB
	Database string
	Store    store.Store
	Blob     blob.Store
	Identity *identity.Service
	Echo     *echo.Echo
	API      *httpapi.Server
	Drain    *httpserver.Drain
	// Logs are all lines at debug level.
	Logs  *observer.ObservedLogs
	Pool  berth.PoolID // default
	Admin berth.Actor
}

// OnSQLite starts an API on a SQLite file.
func OnSQLite(tb testing.TB) *Server {
	tb.Helper()
	return serve(tb, enginetest.SQLite(tb))
}

// OnSQLiteOver is OnSQLite with blobs elsewhere.
func OnSQLiteOver(tb testing.TB, blobs blob.Store) *Server {
	tb.Helper()
	return serveOver(tb, enginetest.SQLite(tb), blobs)
}

// OnPostgres starts an API on a database of its own.
func OnPostgres(tb testing.TB) *Server {
	tb.Helper()
	return serve(tb, enginetest.Postgres(tb))
}

// OnSQLiteTrusting is OnSQLite that takes the tokens of external issuers.
func OnSQLiteTrusting(tb testing.TB, issuers ...identity.Issuer) *Server {
	tb.Helper()
	return serve(tb, enginetest.SQLite(tb), issuers...)
}

func serve(tb testing.TB, db enginetest.DB, issuers ...identity.Issuer) *Server {
	tb.Helper()
	blobs, err := blob.OpenDirectory(filepath.Join(tb.TempDir(), "blobs"))
	must(tb, err)
	return serveOver(tb, db, blobs, issuers...)
}

func serveOver(tb testing.TB, db enginetest.DB, blobs blob.Store, issuers ...identity.Issuer) *Server {
	tb.Helper()
	engine, err := open(tb.Context(), db)
	must(tb, err)
	core, logs := observer.New(zap.DebugLevel)
	logger := zap.New(core)
	master, err := identity.ParseMasterKey(strings.Repeat("0f", 32))
	must(tb, err)
	ids, err := identity.New(engine, engine, identity.Config{MasterKey: master, Logger: logger, Issuers: issuers})
	must(tb, err)
	must(tb, ids.Open(tb.Context()))
	s := &Server{
		tb: tb, DB: db, Database: db.Target, Store: engine, Blob: blobs, Identity: ids, Logs: logs, Drain: httpserver.NewDrain(),
		Admin: berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "apitest"}},
	}
	s.Echo = httpserver.New(httpserver.Options{Logger: logger, Kinds: httpapi.Kinds(), Ungated: httpapi.Ungated()})
	s.API, err = httpapi.New(httpapi.Config{Store: engine, Blob: blobs, Identity: ids, Logger: logger, Drain: s.Drain, Version: "test"})
	must(tb, err)
	must(tb, s.API.Register(s.Echo))
	s.listen(logger)
	pool, err := engine.GetPool(tb.Context(), berth.DefaultPool)
	must(tb, err)
	s.Pool = pool.ID
	must(tb, engine.RegisterPlugins(tb.Context(), s.Admin, []berth.Plugin{{
		PluginVersion: berth.PluginVersion{Name: Plugin, Version: Version}, Enabled: true, Schema: []byte(Schema), Description: "Does work.",
	}}))
	return s
}

// open opens the engine; it is closed when the server has ended.
func open(ctx context.Context, db enginetest.DB) (store.Store, error) {
	if db.Dialect == schema.SQLite {
		return sqlite.Open(ctx, strings.TrimPrefix(db.Target, "sqlite://"), store.Options{})
	}
	return postgres.Open(ctx, db.Target, store.Options{})
}

// listen serves until the test ends.
func (s *Server) listen(logger *zap.Logger) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(s.tb, err)
	s.URL = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	server := &httpserver.Server{Handler: s.Echo, Drain: s.Drain, Logger: logger, Grace: 10 * time.Second}
	go func() { done <- server.Serve(ctx, ln) }()
	s.tb.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.tb.Errorf("serve: %v", err)
		}
		if err := s.Store.Close(); err != nil {
			s.tb.Errorf("close the store: %v", err)
		}
	})
}

// User makes a user and returns its id.
func (s *Server) User(name string, roles ...berth.Role) berth.UserID {
	s.tb.Helper()
	hash, err := passwordHash()
	must(s.tb, err)
	u := berth.User{ID: berth.UserID(newID()), Name: name, Roles: roles}
	must(s.tb, s.Store.CreateUser(s.ctx(), s.Admin, u, hash))
	return u.ID
}

// passwordHash is made once a process: it costs what a login costs.
var passwordHash = sync.OnceValues(func() (redact.String, error) {
	return identity.HashPassword("password", redact.NewString(Password))
})

// Token logs a user in and returns the access token.
func (s *Server) Token(name string) string {
	s.tb.Helper()
	t, err := s.Client("").Login(s.ctx(), name, Password)
	must(s.tb, err)
	return t.AccessToken
}

// As makes a user and returns its client.
func (s *Server) As(name string, roles ...berth.Role) *client.Client {
	s.tb.Helper()
	s.User(name, roles...)
	return s.Client(s.Token(name))
}

// Client returns a client with a token, or without one for "".
func (s *Server) Client(token string) *client.Client {
	s.tb.Helper()
	var auth client.TokenSource
	if token != "" {
		auth = client.StaticToken(token)
	}
	c, err := client.New(s.URL, auth, client.WithRetryFor(0))
	must(s.tb, err)
	return c
}

func (s *Server) ctx() context.Context { return context.WithoutCancel(s.tb.Context()) }

// AssertSilentAbout fails the test when a log line holds one of the marks.
func (s *Server) AssertSilentAbout(marks ...string) {
	s.tb.Helper()
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	for _, entry := range s.Logs.All() {
		encoded, err := encoder.EncodeEntry(entry.Entry, entry.Context)
		must(s.tb, err)
		line := encoded.String()
		for _, mark := range marks {
			if strings.Contains(line, mark) {
				s.tb.Errorf("the log holds %q: %s", mark, line)
			}
		}
	}
}

// Agent is a host with devices, driven through the storage contract.
type Agent struct {
	s    *Server
	call store.AgentCall
	key  ed25519.PrivateKey
	// Devices in the order given.
	Devices []berth.DeviceID
}

// Agent enrols a host with devices of these labels and syncs it.
func (s *Server) Agent(name string, labels ...map[string]string) *Agent {
	s.tb.Helper()
	token, hash, err := identity.NewEnrolmentToken()
	must(s.tb, err)
	_, err = s.Store.CreateEnrolment(s.ctx(), store.CreateEnrolmentParams{
		Actor: s.Admin, ID: berth.EnrolmentID(newID()), Pool: s.Pool, Pattern: "*", TokenHash: hash, TTL: time.Hour,
	})
	must(s.tb, err)
	public, private, err := ed25519.GenerateKey(nil)
	must(s.tb, err)
	h, err := s.Store.Enrol(s.ctx(), store.EnrolParams{
		Actor: s.Admin, TokenHash: identity.HashEnrolmentToken(token), Host: berth.HostID(newID()), Name: name, PublicKey: public,
	})
	must(s.tb, err)
	a := &Agent{s: s, key: private, call: store.AgentCall{
		Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: string(h.ID)}}, Host: h.ID,
	}}
	p := store.SyncParams{AgentCall: a.call, Instance: newID(), AgentVersion: "0.1.0", Plugins: []berth.Plugin{
		{PluginVersion: berth.PluginVersion{Name: Plugin, Version: Version}},
	}}
	for i, l := range labels {
		p.Devices = append(p.Devices, store.ReportedDevice{
			ID: berth.DeviceID(newID()), Driver: "process", HardwareID: "slot-" + string(rune('a'+i)), Name: "slot " + string(rune('a'+i)),
			Labels: l, Health: berth.HealthGood, Clean: true,
		})
	}
	res, err := s.Store.SyncHost(s.ctx(), p)
	must(s.tb, err)
	a.call.Epoch, a.Devices = res.Epoch, res.Devices
	return a
}

// Token is an access token of role host.
func (a *Agent) Token() string {
	a.s.tb.Helper()
	assertion, err := identity.NewAssertion(a.key, a.call.Host, a.s.Identity.TokenAudience(), time.Now())
	must(a.s.tb, err)
	t, err := a.s.Identity.HostToken(a.s.ctx(), berth.Actor{}, assertion)
	must(a.s.tb, err)
	return t.Access.Reveal()
}

// Run places the task, claims and starts it.
func (a *Agent) Run(task string) *Attempt {
	a.s.tb.Helper()
	a.place(berth.TaskID(task))
	got, _, err := a.s.Store.ClaimAttempts(a.s.ctx(), store.ClaimParams{AgentCall: a.call, ClaimID: newID(), Max: 10})
	must(a.s.tb, err)
	for _, as := range got {
		if as.Task != berth.TaskID(task) {
			continue
		}
		h := store.Holder{Attempt: as.Attempt, Fence: as.Fence}
		answers, _, err := a.s.Store.StartAttempts(a.s.ctx(), store.StartParams{AgentCall: a.call, Items: []store.Holder{h}})
		must(a.s.tb, err)
		if answers[0].Status != store.LeaseGranted {
			a.s.tb.Fatalf("start: %s", answers[0].Status)
		}
		return &Attempt{a: a, holder: h, artifacts: map[string]string{}}
	}
	a.s.tb.Fatalf("the task was not among %d claimed", len(got))
	return nil
}

// place puts the task on the first free device.
func (a *Agent) place(task berth.TaskID) {
	a.s.tb.Helper()
	_, err := a.s.Store.PlacementRound(a.s.ctx(), a.s.Admin, a.s.Pool, func(ctx context.Context, r store.Round) error {
		devices, err := r.FreeDevices(ctx, 0)
		if err != nil {
			return err
		}
		classes, err := r.WaitingClasses(ctx)
		if err != nil {
			return err
		}
		var asks []store.HeadsAsk
		for _, c := range classes {
			asks = append(asks, store.HeadsAsk{Class: c.ID, PerClass: 100})
		}
		heads, err := r.Heads(ctx, asks)
		if err != nil {
			return err
		}
		for _, h := range heads {
			if h.Task == task && len(devices) > 0 {
				_, err := r.Apply(ctx, []store.Placement{{
					Head: h, Attempt: berth.AttemptID(newID()), Device: devices[0].ID, Host: devices[0].Host, Version: Version,
				}})
				return err
			}
		}
		return nil
	})
	must(a.s.tb, err)
}

// Attempt is a running attempt.
type Attempt struct {
	a         *Agent
	holder    store.Holder
	log       int64
	artifacts map[string]string
}

// Log appends to the attempt's log.
func (t *Attempt) Log(text string) {
	t.a.s.tb.Helper()
	key := blob.NewKey("logs")
	n, sum, err := t.a.s.Blob.Put(t.a.s.ctx(), key, strings.NewReader(text), store.MaxLogChunk)
	must(t.a.s.tb, err)
	t.log, _, err = t.a.s.Store.AppendLog(t.a.s.ctx(), store.AppendLogParams{
		HolderParams: store.HolderParams{AgentCall: t.a.call, Holder: t.holder},
		Chunk:        berth.LogChunk{Attempt: t.holder.Attempt, Offset: t.log, Size: n, SHA256: sum, BlobKey: string(key)},
	})
	must(t.a.s.tb, err)
}

// Artifact stores an artifact.
func (t *Attempt) Artifact(name, contentType, content string) {
	t.a.s.tb.Helper()
	key := blob.NewKey("artifacts")
	n, sum, err := t.a.s.Blob.Put(t.a.s.ctx(), key, strings.NewReader(content), 1<<20)
	must(t.a.s.tb, err)
	_, err = t.a.s.Store.AddArtifact(t.a.s.ctx(), store.AddArtifactParams{
		HolderParams: store.HolderParams{AgentCall: t.a.call, Holder: t.holder},
		Artifact: berth.Artifact{
			Attempt: t.holder.Attempt, Name: name, Class: berth.ClassFile, ContentType: contentType, Size: n, SHA256: sum, BlobKey: string(key),
		},
	})
	must(t.a.s.tb, err)
	t.artifacts[name] = sum
}

// Complete ends the attempt.
func (t *Attempt) Complete(outcome berth.Outcome, message, result string) {
	t.a.s.tb.Helper()
	item := store.CompleteItem{
		Holder: t.holder, Outcome: outcome, Message: redact.NewString(message), LogBytes: t.log, Artifacts: t.artifacts, DeviceClean: true,
		Digest: sha256.Sum256([]byte(message + result)),
	}
	if result != "" {
		item.Result = redact.NewBytes([]byte(result))
	}
	answers, _, err := t.a.s.Store.CompleteAttempts(t.a.s.ctx(), store.CompleteParams{AgentCall: t.a.call, Items: []store.CompleteItem{item}})
	must(t.a.s.tb, err)
	if answers[0].Status != store.CompleteStored {
		t.a.s.tb.Fatalf("complete: %s", answers[0].Status)
	}
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// SHA256 of text in hex.
func SHA256(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
