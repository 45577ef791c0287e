package identity_test

import (
	"crypto/ed25519"
	"crypto/rand"
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

// enrol lets a host in and returns its id and key.
func (w *world) enrol(t *testing.T, name string) (berth.HostID, ed25519.PrivateKey) {
	t.Helper()
	pool, err := w.store.GetPool(t.Context(), berth.DefaultPool)
	if err != nil {
		t.Fatal(err)
	}
	_, hash, err := identity.NewEnrolmentToken()
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.store.CreateEnrolment(t.Context(), store.CreateEnrolmentParams{
		ID: berth.EnrolmentID(uuid.NewString()), Pool: pool.ID, Pattern: "*", TokenHash: hash, TTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host, err := w.store.Enrol(t.Context(), store.EnrolParams{
		TokenHash: hash, Host: berth.HostID(uuid.NewString()), Name: name, PublicKey: public,
	})
	if err != nil {
		t.Fatal(err)
	}
	return host.ID, private
}

func TestAnAssertionGivesAHostsToken(t *testing.T) {
	w := newWorld(t)
	host, key := w.enrol(t, "lab-1")
	assertion, err := identity.NewAssertion(key, host, w.TokenAudience(), w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := w.HostToken(t.Context(), berth.Actor{}, assertion)
	if err != nil {
		t.Fatal(err)
	}
	caller, err := w.Verify(t.Context(), tokens.Access)
	if err != nil {
		t.Fatal(err)
	}
	if caller.Host() != host || caller.User() != "" || !caller.Can(berth.RoleHost) || caller.Can(berth.RoleViewer) || !tokens.Refresh.IsZero() {
		t.Errorf("got %+v", caller)
	}
	if _, err := w.HostToken(t.Context(), berth.Actor{}, assertion); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("used twice: %v", err)
	}
	if _, err := w.HostToken(t.Context(), berth.Actor{}, tokens.Access); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("an access token as assertion: %v", err)
	}
	if _, err := w.Verify(t.Context(), assertion); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("an assertion as access token: %v", err)
	}
}

// Many processes, many times: an assertion is good once.
func TestAnAssertionIsUsedOnceByAllProcesses(t *testing.T) {
	w := newWorld(t)
	host, key := w.enrol(t, "lab-1")
	services := []*identity.Service{w.Service, w.service(t, w.master), w.service(t, w.master)}
	for _, s := range services {
		if err := s.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	assertion, err := identity.NewAssertion(key, host, w.TokenAudience(), w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var good atomic.Int32
	for i := range 12 {
		wg.Go(func() {
			switch _, err := services[i%len(services)].HostToken(t.Context(), berth.Actor{}, assertion); {
			case err == nil:
				good.Add(1)
			case !errors.Is(err, berth.ErrUnauthenticated):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := good.Load(); n != 1 {
		t.Errorf("good %d times", n)
	}
}

func TestBadAssertionsAreRefused(t *testing.T) {
	w := newWorld(t)
	host, key := w.enrol(t, "lab-1")
	other, otherKey := w.enrol(t, "lab-2")
	now := w.clock.Now().Unix()
	header := map[string]any{"alg": "EdDSA", "typ": "JWT"}
	claims := func() map[string]any {
		return map[string]any{
			"iss": string(host), "sub": string(host), "aud": w.TokenAudience(), "iat": now, "exp": now + 60, "jti": uuid.NewString(),
		}
	}
	try := func(key ed25519.PrivateKey, head, change map[string]any) error {
		_, err := w.HostToken(t.Context(), berth.Actor{}, redact.NewString(craft(key, asJSON(t, header, head), asJSON(t, claims(), change))))
		return err
	}
	for name, change := range map[string]map[string]any{
		"as agents make it": {}, "from a clock 29 s behind": {"iat": now - 89, "exp": now - 29},
		"from a clock 29 s ahead": {"iat": now + 29, "exp": now + 89},
	} {
		if err := try(key, nil, change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := try(key, map[string]any{"typ": nil}, nil); err != nil {
		t.Errorf("without typ: %v", err)
	}
	for name, change := range map[string]map[string]any{
		"another host's id":  {"iss": string(other), "sub": string(other)},
		"sub of another":     {"sub": string(other)},
		"unknown host":       {"iss": uuid.NewString()},
		"iss no id":          {"iss": "lab-1"},
		"another audience":   {"aud": "berth"},
		"no audience":        {"aud": nil},
		"audiences":          {"aud": []string{w.TokenAudience()}},
		"no exp":             {"exp": nil},
		"over, past leeway":  {"iat": now - 90, "exp": now - 30},
		"too far ahead":      {"exp": now + 61},
		"ahead, past leeway": {"iat": now + 31, "exp": now + 91},
		"no iat":             {"iat": nil},
		"no jti":             {"jti": nil},
		"short jti":          {"jti": "1"},
		"long jti":           {"jti": strings.Repeat("x", 129)},
	} {
		if err := try(key, nil, change); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, head := range map[string]map[string]any{
		"none": {"alg": "none"}, "HS256": {"alg": "HS256"}, "typ": {"typ": "at+jwt"}, "crit": {"crit": []string{"exp"}},
	} {
		if err := try(key, head, nil); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Errorf("header %s: %v", name, err)
		}
	}
	if err := try(otherKey, nil, nil); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("another host's key: %v", err)
	}
}
