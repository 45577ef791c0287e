package identity_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	adminName     = "admin"
	adminPassword = "correct horse battery"
)

// clock is a clock that tests move, for the services and for the database.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now().Truncate(time.Second)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a database with a service on it.
type world struct {
	*identity.Service
	store  store.Store
	path   string
	clock  *clock
	master identity.MasterKey
	logs   *observer.ObservedLogs
	logger *zap.Logger
}

func masterKey(t testing.TB) identity.MasterKey {
	t.Helper()
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	key, err := identity.ParseMasterKey(base64.StdEncoding.EncodeToString(b))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newWorld(t testing.TB) *world {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	w := &world{
		path: filepath.Join(t.TempDir(), "berth.db"), clock: newClock(), master: masterKey(t), logs: logs, logger: zap.New(core),
	}
	if err := schema.Up(t.Context(), w.path); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), w.path, store.Options{Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	w.store = s
	w.Service = w.service(t, w.master)
	if err := w.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.BootstrapAdmin(t.Context(), adminName, redact.NewString(adminPassword)); err != nil {
		t.Fatal(err)
	}
	return w
}

// service is another process's service on the same database.
func (w *world) service(t testing.TB, master identity.MasterKey) *identity.Service {
	t.Helper()
	s, err := identity.New(w.store, w.store, identity.Config{MasterKey: master, Now: w.clock.Now, Logger: w.logger})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// person is a user with a living session, without a token.
func (w *world) person(t *testing.T, name string, roles ...berth.Role) (id berth.UserID, session string) {
	t.Helper()
	id, session = berth.UserID(uuid.NewString()), uuid.NewString()
	if err := w.store.CreateUser(t.Context(), berth.Actor{}, berth.User{ID: id, Name: name, Roles: roles}, redact.NewString("hash")); err != nil {
		t.Fatal(err)
	}
	err := w.store.AddRefreshToken(t.Context(), store.RefreshToken{Hash: sha256.Sum256([]byte(session)), Family: session, User: id, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return id, session
}

func (w *world) login(t *testing.T) identity.Tokens {
	t.Helper()
	tokens, err := w.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(adminPassword), Client: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

// addKey puts a signing key into the database whose private part the test
// knows.
func (w *world) addKey(t testing.TB) (kid string, private ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	w.clock.add(time.Second)
	kid = uuid.NewString()
	got, err := w.store.AddSigningKey(context.Background(), store.SigningKey{
		ID: kid, Algorithm: "EdDSA", Public: public, Private: redact.NewBytes([]byte("sealed elsewhere")),
	}, 0)
	if err != nil || got.ID != kid {
		t.Fatalf("add a key: %v %v", got.ID, err)
	}
	return kid, private
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// craft signs whatever it is given.
func craft(private ed25519.PrivateKey, header, payload string) string {
	signed := b64([]byte(header)) + "." + b64([]byte(payload))
	return signed + "." + b64(ed25519.Sign(private, []byte(signed)))
}

// asJSON is m with changes applied; a nil value removes a member.
func asJSON(t testing.TB, m, changes map[string]any) string {
	t.Helper()
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = v
		}
	}
	b, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
