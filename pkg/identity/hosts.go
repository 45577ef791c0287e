package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// MaxAssertionTTL bounds the life of a host's assertion.
const MaxAssertionTTL = 60 * time.Second

// HostToken verifies a host's assertion (RFC 7523: a compact EdDSA JWT signed
// with the key that the host enrolled with; iss = sub = host id, aud =
// TokenAudience, exp at most MaxAssertionTTL ahead, a jti used once) and gives
// an access token of role host. Every fault, a revoked host too, is
// berth.ErrUnauthenticated.
func (s *Service) HostToken(ctx context.Context, assertion redact.String) (Tokens, error) {
	host, err := s.verifyAssertion(ctx, assertion.Reveal())
	if err != nil {
		return Tokens{}, err
	}
	access, err := s.issue(AudienceHosts, string(host), []berth.Role{berth.RoleHost})
	if err != nil {
		return Tokens{}, err
	}
	return Tokens{Access: access, ExpiresIn: s.cfg.AccessTTL}, nil
}

func (s *Service) verifyAssertion(ctx context.Context, token string) (berth.HostID, error) {
	h, err := split(token)
	if err != nil {
		return "", err
	}
	if h.typ != "" && h.typ != "JWT" {
		return "", bad("not an assertion") // an access token is none
	}
	host, err := unverifiedIssuer(token)
	if err != nil {
		return "", err
	}
	key, state, err := s.hosts.HostKey(ctx, host)
	switch {
	case errors.Is(err, berth.ErrNotFound):
		return "", bad("no such host")
	case err != nil:
		return "", err
	case state == berth.HostRevoked || len(key) != ed25519.PublicKeySize:
		return "", bad("no such host")
	}
	c, err := verify(token, ed25519.PublicKey(key))
	if err != nil {
		return "", err
	}
	return host, s.judgeAssertion(c, host)
}

func (s *Service) judgeAssertion(c claims, host berth.HostID) error {
	for name, want := range map[string]string{"iss": string(host), "sub": string(host), "aud": s.cfg.TokenAudience} {
		if got, err := c.text(name); err != nil || got != want {
			return bad(name + " is not what it must be")
		}
	}
	now := s.cfg.Now()
	exp, err := c.within(now, MaxAssertionTTL, leeway)
	if err != nil {
		return err
	}
	jti, err := c.text("jti")
	if err != nil || len(jti) < 8 || len(jti) > 128 {
		return bad("jti is missing or has no 8 to 128 characters")
	}
	return s.replays.note(host, jti, exp.Add(leeway), now)
}

// unverifiedIssuer reads whose key a token must be verified with.
func unverifiedIssuer(token string) (berth.HostID, error) {
	payload, err := payloadOf(token)
	if err != nil {
		return "", err
	}
	c, err := object(payload)
	if err != nil {
		return "", bad("payload is no object of distinct members")
	}
	iss, err := c.text("iss")
	if err != nil || !berth.ValidID(iss) {
		return "", bad("iss is no host's id")
	}
	return berth.HostID(iss), nil
}

// NewAssertion makes an assertion for HostToken, as a Host Agent does.
func NewAssertion(key ed25519.PrivateKey, host berth.HostID, audience string, now time.Time) (redact.String, error) {
	t, err := sign(key, "", "JWT", struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Audience string `json:"aud"`
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		ID       string `json:"jti"`
	}{string(host), string(host), audience, now.Unix(), now.Add(MaxAssertionTTL).Unix(), uuid.NewString()})
	if err != nil {
		return redact.String{}, fmt.Errorf("assertion: %w", err)
	}
	return t, nil
}

// replays remembers the assertions that were used, until they expire. Only
// enrolled hosts can fill it.
type replays struct {
	mu   sync.Mutex
	seen map[string]time.Time
	next time.Time // when to look for expired ones
}

func newReplays() *replays { return &replays{seen: map[string]time.Time{}} }

func (r *replays) note(host berth.HostID, jti string, until, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.After(r.next) {
		for k, end := range r.seen {
			if now.After(end) {
				delete(r.seen, k)
			}
		}
		r.next = now.Add(MaxAssertionTTL)
	}
	key := string(host) + " " + jti
	if _, ok := r.seen[key]; ok {
		return bad("used before")
	}
	r.seen[key] = until
	return nil
}
