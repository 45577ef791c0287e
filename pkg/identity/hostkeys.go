package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// typeKeyOffer is the typ header of the two tokens of an offer, so that neither is
// taken for an assertion, nor an assertion for one of them.
const typeKeyOffer = "berth-host-key+jwt"

// CredentialHostKey is what a host's call is proved with, in the trail.
const CredentialHostKey berth.Credential = "host-key"

// keysOf reads the keys that count for a host.
func (s *Service) keysOf(ctx context.Context, host berth.HostID) (store.HostKeys, error) {
	keys, err := s.hosts.HostKeys(ctx, host)
	if errors.Is(err, berth.ErrNotFound) || err == nil && len(keys.Current) != ed25519.PublicKeySize {
		return store.HostKeys{}, bad("no such host")
	}
	return keys, err
}

// verifyHost verifies a token under the key in force, or under the one that is
// offered to follow it, and returns the key that it was.
func verifyHost(token string, keys store.HostKeys) (ed25519.PublicKey, claims, error) {
	c, err := verify(token, keys.Current)
	if err == nil || len(keys.Next) != ed25519.PublicKeySize {
		return keys.Current, c, err
	}
	c, err = verify(token, keys.Next)
	return keys.Next, c, err
}

// promote puts the offered key that the host has just used in force.
func (s *Service) promote(ctx context.Context, from berth.Actor, host berth.HostID, key ed25519.PublicKey) error {
	from.Principal, from.Credential = berth.Principal{Kind: berth.ActorHost, ID: string(host)}, CredentialHostKey
	err := s.hosts.PromoteHostKey(ctx, from, host, key)
	if errors.Is(err, berth.ErrNotFound) {
		return bad("the key is offered no more")
	}
	return err
}

// judgeHost holds a token's parties against whom it must name.
func (s *Service) judgeHost(c claims, host berth.HostID) error {
	for name, want := range map[string]string{"iss": string(host), "sub": string(host), "aud": s.cfg.TokenAudience} {
		if got, err := c.text(name); err != nil || got != want {
			return bad(name + " is not what it must be")
		}
	}
	return nil
}

// KeyOffer is a host's wish to change its key. Two tokens say the same, that the
// host is to have Key: one under the key in force, since an access token alone, which
// may be stolen, must not be enough to take a host over; one under Key itself, which
// proves that the host has its private half.
type KeyOffer struct {
	Key            []byte
	Consent, Proof redact.String
}

// VerifyKeyOffer verifies an offer of a host and returns the key in force, under
// which it was made. An offer whose key is in force already, which is a late repeat,
// needs the proof alone. A key that is no sound one is berth.ErrInvalid, every other
// fault berth.ErrUnauthenticated.
func (s *Service) VerifyKeyOffer(ctx context.Context, host berth.HostID, o KeyOffer) (under []byte, err error) {
	if !SoundHostKey(o.Key) {
		return nil, berth.Invalid("public_key", "it is no sound Ed25519 public key", "send the 32 bytes of a generated key in base64")
	}
	keys, err := s.keysOf(ctx, host)
	if err != nil {
		return nil, err
	}
	if err := s.judgeOffer(o.Proof, o.Key, host, o.Key); err != nil {
		return nil, err
	}
	if ed25519.PublicKey(keys.Current).Equal(ed25519.PublicKey(o.Key)) {
		return keys.Current, nil
	}
	return keys.Current, s.judgeOffer(o.Consent, keys.Current, host, o.Key)
}

// judgeOffer verifies one of an offer's tokens under a key. It may be used again
// until it expires: an offer that is repeated changes nothing.
func (s *Service) judgeOffer(token redact.String, under ed25519.PublicKey, host berth.HostID, offered []byte) error {
	h, err := split(token.Reveal())
	if err != nil {
		return err
	}
	if h.typ != typeKeyOffer {
		return bad("not an offer of a key")
	}
	c, err := verify(token.Reveal(), under)
	if err != nil {
		return err
	}
	if err := s.judgeHost(c, host); err != nil {
		return err
	}
	if named, err := c.text("key"); err != nil || named != base64.RawURLEncoding.EncodeToString(offered) {
		return bad("key is not the one that is offered")
	}
	_, err = c.within(s.cfg.Now(), MaxAssertionTTL, leeway)
	return err
}

// NewKeyOffer makes an offer, as a Host Agent does.
func NewKeyOffer(current, next ed25519.PrivateKey, host berth.HostID, audience string, now time.Time) (KeyOffer, error) {
	public, ok := next.Public().(ed25519.PublicKey)
	if !ok {
		return KeyOffer{}, errors.New("offer: no Ed25519 key")
	}
	content := struct {
		Issuer   string `json:"iss"`
		Subject  string `json:"sub"`
		Audience string `json:"aud"`
		IssuedAt int64  `json:"iat"`
		Expires  int64  `json:"exp"`
		ID       string `json:"jti"`
		Key      string `json:"key"`
	}{
		string(host), string(host), audience, now.Unix(), now.Add(MaxAssertionTTL).Unix(), rand.Text(),
		base64.RawURLEncoding.EncodeToString(public),
	}
	o := KeyOffer{Key: public}
	var err error
	if o.Consent, err = sign(current, "", typeKeyOffer, content); err == nil {
		o.Proof, err = sign(next, "", typeKeyOffer, content)
	}
	if err != nil {
		return KeyOffer{}, fmt.Errorf("offer: %w", err)
	}
	return o, nil
}
