package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// DefaultAPIKeyTTL is how long an API key holds unless its maker says otherwise.
const DefaultAPIKeyTTL = 365 * 24 * time.Hour

// An API key is berth_<check>_<secret>: 8 characters of a-z and 2-7 that follow
// from the secret, then 32 random bytes in base64url. So scanners of source code
// know one when they see it, and a mistyped one is refused without a look into
// the database:
//
//	berth_[a-z2-7]{8}_[A-Za-z0-9_-]{43}
const (
	apiKeyStart   = "berth_"
	apiKeyCheck   = 8
	apiKeySecret  = 43
	apiKeyPrefix  = len(apiKeyStart) + apiKeyCheck
	apiKeyLen     = apiKeyPrefix + 1 + apiKeySecret
	apiKeyContext = "berth api key "
)

// MadeAPIKey is a new API key: what its user gets, and what is stored of it.
type MadeAPIKey struct {
	Key redact.String
	// Prefix may be shown.
	Prefix string
	// Hash is SHA-256: the secret is too long to be guessed, so it needs none that
	// is slow.
	Hash [32]byte
}

// NewAPIKey makes an API key.
func NewAPIKey() (MadeAPIKey, error) {
	var secret [32]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return MadeAPIKey{}, fmt.Errorf("make an API key: %w", err)
	}
	return apiKeyOf(secret), nil
}

// APIKeyFor makes the API key of one principal and idempotency key: the same ones
// always give the same, and nobody without the master key can tell it.
func (s *Service) APIKeyFor(who berth.Principal, key string) (MadeAPIKey, error) {
	secret, err := s.cfg.MasterKey.derive("API key", string(who.Kind), who.ID, key)
	if err != nil {
		return MadeAPIKey{}, err
	}
	return apiKeyOf(secret), nil
}

func apiKeyOf(secret [32]byte) MadeAPIKey {
	text := base64.RawURLEncoding.EncodeToString(secret[:])
	prefix := apiKeyStart + checkOf(text)
	return MadeAPIKey{Key: redact.NewString(prefix + "_" + text), Prefix: prefix, Hash: sha256.Sum256([]byte(prefix + "_" + text))}
}

func checkOf(secret string) string {
	sum := sha256.Sum256([]byte(apiKeyContext + secret))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// looksLikeAPIKey tells API keys from access tokens, which begin with a header.
func looksLikeAPIKey(token redact.String) bool { return strings.HasPrefix(token.Reveal(), apiKeyStart) }

// hashOfAPIKey is the hash under which a well-formed API key is stored.
func hashOfAPIKey(token redact.String) ([32]byte, bool) {
	text := token.Reveal()
	if len(text) != apiKeyLen || text[apiKeyPrefix] != '_' || text[len(apiKeyStart):apiKeyPrefix] != checkOf(text[apiKeyPrefix+1:]) {
		return [32]byte{}, false
	}
	return sha256.Sum256([]byte(text)), true
}

// verifyAPIKey is Verify for API keys. A key whose roles are all beyond its
// user's by now is a good one that may do nothing: its caller has no role, and
// hears berth.ErrForbidden rather than that it is unknown.
func (s *Service) verifyAPIKey(ctx context.Context, token redact.String) (Caller, error) {
	hash, ok := hashOfAPIKey(token)
	if !ok {
		return Caller{}, bad("no API key")
	}
	key, user, err := s.accounts.UseAPIKey(ctx, hash)
	if errors.Is(err, berth.ErrNotFound) {
		return Caller{}, bad("unknown API key")
	}
	if err != nil {
		return Caller{}, err
	}
	return Caller{
		Principal: berth.Principal{Kind: berth.ActorUser, ID: string(user.ID)},
		Roles:     berth.Within(key.Roles, user.Roles), Credential: berth.KeyCredential(key.ID),
	}, nil
}
