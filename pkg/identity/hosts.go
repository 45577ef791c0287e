package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// MaxAssertionTTL bounds the life of a host's assertion.
const MaxAssertionTTL = 60 * time.Second

// HostToken verifies a host's assertion (RFC 7523: a compact EdDSA JWT signed
// with the host's key; iss = sub = host id, aud =
// TokenAudience, exp at most MaxAssertionTTL ahead, a jti used once) and gives
// an access token of role host. Every fault, a revoked host too, is
// berth.ErrUnauthenticated. The first assertion under the key that the host has
// offered (OfferHostKey) puts that in force, and the one before it counts no more.
// from is where the call came from, for the trail.
func (s *Service) HostToken(ctx context.Context, from berth.Actor, assertion redact.String) (Tokens, error) {
	host, err := s.verifyAssertion(ctx, from, assertion.Reveal())
	if err != nil {
		return Tokens{}, err
	}
	access, err := s.issue(AudienceHosts, string(host), []berth.Role{berth.RoleHost})
	if err != nil {
		return Tokens{}, err
	}
	return Tokens{Access: access, ExpiresIn: s.cfg.AccessTTL}, nil
}

func (s *Service) verifyAssertion(ctx context.Context, from berth.Actor, token string) (berth.HostID, error) {
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
	keys, err := s.keysOf(ctx, host)
	if err != nil {
		return "", err
	}
	key, c, err := verifyHost(token, keys)
	if err != nil {
		return "", err
	}
	if err := s.judgeAssertion(ctx, c, host); err != nil {
		return "", err
	}
	if bytes.Equal(key, keys.Current) {
		return host, nil
	}
	return host, s.promote(ctx, from, host, key)
}

func (s *Service) judgeAssertion(ctx context.Context, c claims, host berth.HostID) error {
	if err := s.judgeHost(c, host); err != nil {
		return err
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
	// One use for all processes; only enrolled hosts come here.
	err = s.accounts.UseAssertion(ctx, host, jti, exp.Add(leeway).Sub(now))
	if errors.Is(err, berth.ErrUsed) {
		return bad("used before")
	}
	return err
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
