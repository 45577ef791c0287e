package identity_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

var admin = berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "01900000-0000-7000-8000-00000000000a"}}

// kidOf is the kid of a token.
func kidOf(t *testing.T, token redact.String) string {
	t.Helper()
	var h struct{ Kid string }
	if err := json.Unmarshal(unb64(t, strings.Split(token.Reveal(), ".")[0]), &h); err != nil {
		t.Fatal(err)
	}
	return h.Kid
}

func unb64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func kidsOf(t *testing.T, s *identity.Service) []string {
	t.Helper()
	var set struct{ Keys []struct{ Kid string } }
	doc, err := s.JWKS()
	if err != nil || json.Unmarshal(doc, &set) != nil {
		t.Fatalf("JWKS: %v", err)
	}
	var kids []string
	for _, k := range set.Keys {
		kids = append(kids, k.Kid)
	}
	return kids
}

func TestARotatedKeySignsWhenAllProcessesKnowItAndTheOldOneEndsWithItsTokens(t *testing.T) {
	w := newWorld(t)
	other := w.service(t, w.master)
	if err := other.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	verifies := func(token redact.String) error {
		t.Helper()
		_, err := w.Verify(t.Context(), token)
		_, err2 := other.Verify(t.Context(), token)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("the processes disagree: %v, %v", err, err2)
		}
		return err
	}
	old := kidOf(t, w.login(t).Access)
	once := store.Once{Key: "k", BodyDigest: [32]byte{1}}
	for range 2 { // an answer was lost
		if err := w.RotateSigningKey(t.Context(), admin, once); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := w.SigningKeys(t.Context())
	if err != nil || len(keys) != 2 || keys[0].Signs || !keys[1].Signs || keys[1].ID != old {
		t.Fatalf("keys %+v, %v", keys, err)
	}
	next := keys[0].ID
	w.clock.add(15*time.Second - time.Millisecond)
	last := w.login(t).Access
	if kid := kidOf(t, last); kid != old {
		t.Errorf("signs with %s before it has settled", kid)
	}
	w.clock.add(time.Millisecond)
	// The other process has read nothing since its start.
	first := w.login(t).Access
	if kid := kidOf(t, first); kid != next {
		t.Errorf("signs with %s", kid)
	}
	for name, token := range map[string]redact.String{"the old key's": last, "the new key's": first} {
		if err := verifies(token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	tokens, err := other.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(adminPassword), Client: "192.0.2.1"})
	if err != nil || kidOf(t, tokens.Access) != next {
		t.Errorf("the other process signs with the old key: %v", err)
	}
	w.clock.add(10*time.Minute - time.Second)
	if err := verifies(first); err != nil {
		t.Errorf("before its end: %v", err)
	}
	if kids := kidsOf(t, other); len(kids) != 2 {
		t.Errorf("published %v", kids)
	}
	w.clock.add(31 * time.Second)
	if kids := append(kidsOf(t, w.Service), kidsOf(t, other)...); len(kids) != 2 || kids[0] != next || kids[1] != next {
		t.Errorf("published %v", kids)
	}
	if keys, err := other.SigningKeys(t.Context()); err != nil || len(keys) != 1 {
		t.Errorf("keys %+v, %v", keys, err)
	}
	stored := func() int {
		keys, err := w.store.SigningKeys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	tend := func(s *identity.Service) {
		t.Helper()
		if err := s.TendKeys(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if tend(other); stored() != 2 {
		t.Errorf("%d stored", stored())
	}
	w.clock.add(time.Hour)
	tend(other)
	if tend(w.Service); stored() != 1 {
		t.Errorf("%d stored an hour later", stored())
	}
}

// A token under a key that is over is refused, though it has not ended itself:
// whoever stole the key may not sign with it.
func TestAKeyThatIsOverVerifiesNothing(t *testing.T) {
	w := newWorld(t)
	f := newForge(t, w)
	token := func() redact.String {
		now := w.clock.Now().Unix()
		return redact.NewString(craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, map[string]any{"iat": now, "nbf": now, "exp": now + 600})))
	}
	identity.ForgetKeys(w.Service)
	if _, err := w.Verify(t.Context(), token()); err != nil {
		t.Fatal(err)
	}
	w.clock.add(time.Second)
	if err := w.RotateSigningKey(t.Context(), admin, store.Once{}); err != nil {
		t.Fatal(err)
	}
	w.clock.add(15*time.Second + 10*time.Minute + 30*time.Second - time.Millisecond)
	if _, err := w.Verify(t.Context(), token()); err != nil {
		t.Errorf("before it is over: %v", err)
	}
	w.clock.add(time.Millisecond)
	if _, err := w.Verify(t.Context(), token()); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("a key that is over: %v", err)
	}
}

func TestAKeyIsMadeByAgeWithoutARestartAndByOneProcess(t *testing.T) {
	w := newWorld(t)
	other := w.service(t, w.master)
	if err := other.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	tend := func() {
		t.Helper()
		var wg sync.WaitGroup
		for _, s := range []*identity.Service{w.Service, other} {
			wg.Go(func() {
				if err := s.TendKeys(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	old := kidsOf(t, w.Service)
	w.clock.add(90*24*time.Hour - time.Second)
	if tend(); len(kidsOf(t, w.Service)) != 1 {
		t.Error("too early")
	}
	w.clock.add(time.Second)
	tend()
	tend()
	kids := kidsOf(t, other)
	if len(kids) != 2 || kids[1] != old[0] {
		t.Fatalf("published %v", kids)
	}
	w.clock.add(15 * time.Second)
	if kid := kidOf(t, w.login(t).Access); kid != kids[0] {
		t.Errorf("signs with %s", kid)
	}
}

// counting counts the readings of keys.
type counting struct {
	store.Store
	reads atomic.Int64
}

func (c *counting) SigningKeys(ctx context.Context) ([]store.SigningKey, error) {
	c.reads.Add(1)
	return c.Store.SigningKeys(ctx)
}

func TestAThousandMadeUpKeysCostOneReading(t *testing.T) {
	w := newWorld(t)
	c := &counting{Store: w.store}
	s, err := identity.New(c, w.store, identity.Config{MasterKey: w.master, Now: w.clock.Now, Logger: w.logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := newForge(t, w)
	made := func() redact.String {
		return redact.NewString(craft(f.private, asJSON(t, f.header, map[string]any{"kid": uuid.NewString()}), asJSON(t, f.claims, nil)))
	}
	flood := func(n int) int64 {
		c.reads.Store(0)
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range n / 10 {
					if _, err := s.Verify(t.Context(), made()); !errors.Is(err, berth.ErrUnauthenticated) {
						t.Errorf("a made-up key: %v", err)
					}
				}
			})
		}
		wg.Wait()
		return c.reads.Load()
	}
	if n := flood(1000); n != 0 {
		t.Errorf("%d readings just after one", n)
	}
	w.clock.add(5 * time.Second)
	if n := flood(1000); n != 1 {
		t.Errorf("%d readings after the interval", n)
	}
	// Many who bring a key that is new at once all wait for the one reading.
	kid, private := w.addKey(t)
	fresh := redact.NewString(craft(private, asJSON(t, f.header, map[string]any{"kid": kid}), asJSON(t, f.claims, nil)))
	w.clock.add(5 * time.Second)
	c.reads.Store(0)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := s.Verify(t.Context(), fresh); err != nil {
				t.Errorf("a new key at once: %v", err)
			}
		})
	}
	wg.Wait()
	if n := c.reads.Load(); n != 1 {
		t.Errorf("%d readings for a new key", n)
	}
	// Meanwhile tokens under good keys cost none.
	c.reads.Store(0)
	if _, err := s.Verify(t.Context(), w.login(t).Access); err != nil || c.reads.Load() != 0 {
		t.Errorf("a good token: %d readings, %v", c.reads.Load(), err)
	}
}

func TestAProcessWithoutTheKeysMasterKeySignsNothingAndVerifiesAll(t *testing.T) {
	w := newWorld(t)
	rolled, err := identity.New(w.store, w.store, identity.Config{
		MasterKey: masterKey(t), OldMasterKeys: []identity.MasterKey{w.master}, Now: w.clock.Now, Logger: w.logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := rolled.Open(t.Context()); err != nil {
		t.Fatalf("with the old master key beside the new one: %v", err)
	}
	if err := rolled.RotateSigningKey(t.Context(), admin, store.Once{}); err != nil {
		t.Fatal(err)
	}
	w.clock.add(15 * time.Second)
	login := func(s *identity.Service) (identity.Tokens, error) {
		return s.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(adminPassword), Client: "192.0.2.1"})
	}
	tokens, err := login(rolled)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := login(w.Service); !errors.Is(err, berth.ErrUnavailable) {
		t.Errorf("signed by a process that cannot open the key: %v", err)
	}
	if _, err := w.Verify(t.Context(), tokens.Access); err != nil {
		t.Errorf("verified by it: %v", err)
	}
	if err := w.TendKeys(t.Context()); !errors.Is(err, identity.ErrMasterKey) {
		t.Errorf("told: %v", err)
	}
}

func hs256(t *testing.T, secret []byte, header, claims map[string]any) string {
	t.Helper()
	signed := b64([]byte(asJSON(t, header, nil))) + "." + b64([]byte(asJSON(t, claims, nil)))
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(signed))
	return signed + "." + b64(mac.Sum(nil))
}
