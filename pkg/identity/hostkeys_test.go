package identity_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// token asks for a host's token under a key.
func (w *world) token(t *testing.T, host berth.HostID, key ed25519.PrivateKey) error {
	t.Helper()
	assertion, err := identity.NewAssertion(key, host, w.TokenAudience(), w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.HostToken(t.Context(), berth.Actor{RequestID: "req-1", Client: "192.0.2.7"}, assertion)
	return err
}

func TestTheFirstTokenUnderTheOfferedKeyPutsItInForce(t *testing.T) {
	w := newWorld(t)
	host, old := w.enrol(t, "lab-1")
	next := newKey(t)
	if err := w.token(t, host, next); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Fatalf("a key that nobody offered: %v", err)
	}
	synced, err := w.store.SyncHost(t.Context(), store.SyncParams{AgentCall: store.AgentCall{Host: host}, Instance: uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	offer, err := identity.NewKeyOffer(old, next, host, w.TokenAudience(), w.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	offered := func() error {
		under, err := w.VerifyKeyOffer(t.Context(), host, offer)
		if err != nil {
			return err
		}
		return w.store.OfferHostKey(t.Context(), store.OfferHostKeyParams{
			AgentCall: store.AgentCall{Host: host, Epoch: synced.Epoch}, Key: offer.Key, Under: under,
		})
	}
	if err := offered(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.token(t, host, old); err != nil {
			t.Fatalf("the old key beside the offered one: %v", err)
		}
	}
	if err := w.token(t, host, next); err != nil {
		t.Fatal(err)
	}
	if err := w.token(t, host, old); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("the old key afterwards: %v", err)
	}
	if err := w.token(t, host, next); err != nil {
		t.Errorf("the new key afterwards: %v", err)
	}
	if err := offered(); err != nil {
		t.Errorf("a late repeat of the offer: %v", err)
	}
	rows, err := w.store.ListAudit(t.Context(), "host", string(host), 0, 50)
	if err != nil {
		t.Fatal(err)
	}
	last := rows[len(rows)-1]
	if last.Action != berth.AuditHostKeyRotated || last.Actor.ID != string(host) || last.Actor.RequestID != "req-1" || last.Actor.Client != "192.0.2.7" || last.Actor.Credential != identity.CredentialHostKey {
		t.Errorf("audit row %+v", last)
	}
}

func TestAnOfferThatIsNotTheHostsOwnIsRefused(t *testing.T) {
	w := newWorld(t)
	host, key := w.enrol(t, "lab-1")
	other, otherKey := w.enrol(t, "lab-2")
	next, stranger := newKey(t), newKey(t)
	now := w.clock.Now()
	offerOf := func(under, next ed25519.PrivateKey, host berth.HostID, audience string, at time.Time) identity.KeyOffer {
		o, err := identity.NewKeyOffer(under, next, host, audience, at)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	good := offerOf(key, next, host, w.TokenAudience(), now)
	if under, err := w.VerifyKeyOffer(t.Context(), host, good); err != nil || !bytes.Equal(under, public(key)) {
		t.Fatalf("a good offer: %v", err)
	}
	assertion, err := identity.NewAssertion(key, host, w.TokenAudience(), now)
	if err != nil {
		t.Fatal(err)
	}
	swapped, noConsent, noProof, asConsent := good, good, good, good
	swapped.Consent, swapped.Proof = good.Proof, good.Consent
	noConsent.Consent, noProof.Proof = redact.String{}, redact.String{}
	asConsent.Consent = assertion
	another := good
	another.Key = public(stranger)
	for name, o := range map[string]identity.KeyOffer{
		"under a stranger's key":     offerOf(stranger, next, host, w.TokenAudience(), now),
		"under the key that follows": offerOf(next, next, host, w.TokenAudience(), now),
		"under another host's key":   offerOf(otherKey, next, host, w.TokenAudience(), now),
		"of another host":            offerOf(otherKey, next, other, w.TokenAudience(), now),
		"for another audience":       offerOf(key, next, host, "berth", now),
		"expired":                    offerOf(key, next, host, w.TokenAudience(), now.Add(-2*time.Minute)),
		"of the future":              offerOf(key, next, host, w.TokenAudience(), now.Add(2*time.Minute)),
		"swapped":                    swapped,
		"without consent":            noConsent,
		"without proof":              noProof,
		"with an assertion":          asConsent,
		"of another key":             another,
	} {
		if _, err := w.VerifyKeyOffer(t.Context(), host, o); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	weak := good
	weak.Key = make([]byte, 32)
	if _, err := w.VerifyKeyOffer(t.Context(), host, weak); !errors.Is(err, berth.ErrInvalid) {
		t.Errorf("a weak key: %v", err)
	}
	// And an offer is no login.
	if _, err := w.HostToken(t.Context(), berth.Actor{}, good.Consent); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("a consent as an assertion: %v", err)
	}
}
