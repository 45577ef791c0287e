package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	algorithm = "EdDSA"
	// keysEvery is how often processes read the keys again (Service.TendKeys), and
	// the least time between two readings for key ids that are not known, so that
	// made-up ones cost the database nothing.
	keysEvery = 5 * time.Second
	// keysSettle is how old a key is before it signs, unless it is the only one: by
	// then every process has read it, so that no token meets one that does not know
	// its key.
	keysSettle = 3 * keysEvery
	// keysStale is the age of the last reading from which no token is signed before
	// another one: keys may have come meanwhile.
	keysStale = 2 * keysEvery
	// refreshWithin bounds one reading.
	refreshWithin = 5 * time.Second
	// keysOver is the age of a key from which its predecessor verifies no more: the
	// last token that it signed has ended, by any clock.
	keysOver = keysSettle + MaxAccessTTL + leeway
	// keysRemoved is the age of a key from which its predecessor is deleted.
	keysRemoved = keysOver + time.Hour
)

// KeysEvery is how often TendKeys wants to be called.
const KeysEvery = keysEvery

// keyring holds the signing keys that all API processes share.
type keyring struct {
	store  store.SigningKeys
	vault  vault
	maxAge time.Duration
	now    func() time.Time
	log    *zap.Logger
	flight singleflight.Group

	mu   sync.RWMutex
	keys []ringKey // newest first
	// signers are the private parts that were opened, by key id.
	signers map[string]ed25519.PrivateKey
	tried   time.Time // the last reading, which may go on
	reading int       // readings that go on
	read    time.Time // the last one that succeeded
	// shut is the key that no master key opened, once it was told of.
	shut string
}

// ringKey is a key as it was read.
type ringKey struct {
	store.SigningKey
	// born is when it came to be by this process's clock.
	born time.Time
}

func (k ringKey) age(now time.Time) time.Duration { return now.Sub(k.born) }

// open agrees with the other processes on a key to sign with and reads all of
// them.
func (k *keyring) open(ctx context.Context) error {
	mine, err := k.make()
	if err != nil {
		return err
	}
	newest, err := k.store.AddSigningKey(ctx, mine, k.maxAge)
	if err != nil {
		return fmt.Errorf("agree on a signing key: %w", err)
	}
	if err := k.refresh(ctx); err != nil {
		return err
	}
	// Also the one that will sign in a moment.
	if _, err := k.private(newest); err != nil {
		return err
	}
	_, _, err = k.signer()
	return err
}

// make gives a new key, its private part sealed.
func (k *keyring) make() (store.SigningKey, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return store.SigningKey{}, fmt.Errorf("make a signing key: %w", err)
	}
	key := store.SigningKey{ID: uuid.Must(uuid.NewV7()).String(), Algorithm: algorithm, Public: public}
	sealed, err := k.vault.seal(private.Seed(), sealContext(key))
	if err != nil {
		return store.SigningKey{}, err
	}
	key.Private = redact.NewBytes(sealed)
	return key, nil
}

// sealContext binds a sealed private key to its row.
func sealContext(key store.SigningKey) []byte {
	return append([]byte("berth signing key "+key.ID+" "), key.Public...)
}

// private opens a key's private part.
func (k *keyring) private(key store.SigningKey) (ed25519.PrivateKey, error) {
	k.mu.RLock()
	known := k.signers[key.ID]
	k.mu.RUnlock()
	if known != nil {
		return known, nil
	}
	seed, err := k.vault.open(key.Private.Reveal(), sealContext(key))
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize || key.Algorithm != algorithm {
		return nil, fmt.Errorf("the signing key %s in the database is damaged", key.ID)
	}
	signer := ed25519.NewKeyFromSeed(seed)
	if !signer.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(key.Public)) {
		return nil, fmt.Errorf("the signing key %s in the database is damaged: its two parts do not belong together", key.ID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.signers == nil {
		k.signers = map[string]ed25519.PrivateKey{}
	}
	k.signers[key.ID] = signer
	return signer, nil
}

// refresh reads the keys. An empty or damaged answer never replaces good keys.
func (k *keyring) refresh(ctx context.Context) error {
	began := k.now()
	k.mu.Lock()
	k.tried, k.reading = began, k.reading+1
	k.mu.Unlock()
	rows, err := k.store.SigningKeys(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading--
	if err != nil {
		return fmt.Errorf("read the signing keys: %w", err)
	}
	var keys []ringKey
	signers := map[string]ed25519.PrivateKey{}
	for _, row := range rows {
		if row.Algorithm == algorithm && len(row.Public) == ed25519.PublicKeySize {
			keys = append(keys, ringKey{row, began.Add(-row.Age)})
			if s, ok := k.signers[row.ID]; ok {
				signers[row.ID] = s
			}
		}
	}
	if len(keys) == 0 {
		return fmt.Errorf("the database has no signing keys: %w", berth.ErrUnavailable)
	}
	k.keys, k.signers, k.read = keys, signers, began
	return nil
}

// share is refresh for many callers at once: none of them may break it off for
// the rest.
func (k *keyring) share(ctx context.Context) error { return k.flying(ctx, "read", 0) }

// flying shares a reading among the callers of one name, unless one began less
// than least ago and is through.
func (k *keyring) flying(ctx context.Context, name string, least time.Duration) error {
	done := k.flight.DoChan(name, func() (any, error) {
		if least > 0 && !k.due(least) {
			return nil, nil // the flight that this caller wanted to join has just landed
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshWithin)
		defer cancel()
		return nil, k.refresh(ctx)
	})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case r := <-done:
		return r.Err
	}
}

// tend reads the keys again, makes a new one when the newest is old, and deletes
// those that have long been over. One of several processes makes it.
func (k *keyring) tend(ctx context.Context) error {
	if err := k.flying(ctx, "find", 0); err != nil { // so that who misses a key just now waits for it
		return err
	}
	now := k.now()
	k.mu.RLock()
	keys := k.keys
	k.mu.RUnlock()
	if keys[0].age(now) >= k.maxAge {
		mine, err := k.make()
		if err != nil {
			return err
		}
		newest, err := k.store.AddSigningKey(ctx, mine, k.maxAge)
		if err != nil {
			return fmt.Errorf("make a signing key: %w", err)
		}
		if newest.ID == mine.ID {
			k.log.Info("made a signing key, because the newest was old", zap.String("kid", mine.ID))
		}
		return k.refresh(ctx)
	}
	for i := 1; i < len(keys); i++ {
		if keys[i-1].age(now) >= keysRemoved {
			removed, err := k.store.RemoveSigningKeys(ctx, berth.System(), keysRemoved)
			if err != nil {
				return fmt.Errorf("remove old signing keys: %w", err)
			}
			if len(removed) > 0 {
				k.log.Info("removed signing keys whose tokens have ended", zap.Strings("kids", removed))
			}
			break
		}
	}
	if _, _, err := k.signer(); err != nil {
		return err
	}
	return nil
}

// rotate makes a key, which signs when it has settled.
func (k *keyring) rotate(ctx context.Context, actor berth.Actor, once store.Once) error {
	mine, err := k.make()
	if err != nil {
		return err
	}
	if err := k.store.RotateSigningKey(ctx, store.RotateKeyParams{Actor: actor, Key: mine, Once: once}); err != nil {
		return err
	}
	return k.share(ctx)
}

// find returns the public key of kid, reading the keys again when it is not
// known and they were not read just now. The error is ErrUnauthenticated, or
// ErrUnavailable when the keys could not be read.
func (k *keyring) find(ctx context.Context, kid string) (ed25519.PublicKey, error) {
	if key, ok := k.known(kid); ok {
		return key, nil
	}
	k.mu.RLock()
	goesOn := k.reading > 0
	k.mu.RUnlock()
	if goesOn || k.due(keysEvery) {
		if err := k.flying(ctx, "find", keysEvery); err != nil {
			return nil, err
		}
	}
	if key, ok := k.known(kid); ok {
		return key, nil
	}
	return nil, bad("unknown key")
}

// due reports whether no reading began within least.
func (k *keyring) due(least time.Duration) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.tried.IsZero() || k.now().Sub(k.tried) >= least
}

func (k *keyring) known(kid string) (ed25519.PublicKey, bool) {
	for _, key := range k.valid() {
		if key.ID == kid {
			return ed25519.PublicKey(key.Public), true
		}
	}
	return nil, false
}

// valid are the keys that verify, newest first: an older one does until the last
// token that it signed has ended.
func (k *keyring) valid() []ringKey {
	k.mu.RLock()
	defer k.mu.RUnlock()
	now := k.now()
	for i := 1; i < len(k.keys); i++ {
		if k.keys[i-1].age(now) >= keysOver {
			return k.keys[:i:i]
		}
	}
	return k.keys
}

// signs is the newest key that has settled, or the first that there was.
func (k *keyring) signs() (ringKey, bool) {
	keys := k.valid()
	for _, key := range keys {
		if key.age(k.now()) >= keysSettle {
			return key, true
		}
	}
	if len(keys) == 0 {
		return ringKey{}, false
	}
	return keys[len(keys)-1], true
}

// signer is the key to sign with, as it was read.
func (k *keyring) signer() (kid string, key ed25519.PrivateKey, err error) {
	ring, ok := k.signs()
	if !ok {
		return "", nil, nil
	}
	key, err = k.private(ring.SigningKey)
	return ring.ID, key, err
}

// signing returns the key to sign with, nil when there is none or it cannot be
// had: a database that does not answer, another process's master key.
func (k *keyring) signing() (kid string, key ed25519.PrivateKey) {
	k.mu.RLock()
	stale := !k.read.IsZero() && k.now().Sub(k.read) >= keysStale
	k.mu.RUnlock()
	if stale && k.share(context.Background()) != nil {
		return "", nil
	}
	kid, key, err := k.signer()
	if err != nil {
		k.warnShut(kid, err)
		return "", nil
	}
	return kid, key
}

// warnShut logs once that a key cannot be opened.
func (k *keyring) warnShut(kid string, err error) {
	k.mu.Lock()
	told := k.shut == kid
	k.shut = kid
	k.mu.Unlock()
	if !told {
		k.log.Error("no token can be signed: the signing key cannot be opened", zap.String("kid", kid), zap.Error(err))
	}
}

// SigningKey is a signing key as administrators see it.
type SigningKey struct {
	ID, Algorithm string
	CreatedAt     time.Time
	// Signs: new tokens are signed with it.
	Signs bool
}

// SigningKeys lists the keys that verify, newest first, as they are now.
func (s *Service) SigningKeys(ctx context.Context) ([]SigningKey, error) {
	if err := s.keys.share(ctx); err != nil {
		return nil, err
	}
	signs, _ := s.keys.signs()
	var out []SigningKey
	for _, k := range s.keys.valid() {
		out = append(out, SigningKey{ID: k.ID, Algorithm: k.Algorithm, CreatedAt: k.CreatedAt, Signs: k.ID == signs.ID})
	}
	return out, nil
}

// RotateSigningKey makes a signing key. It signs from keysSettle on, when all
// processes have read it; the one before it verifies until its last token has
// ended. It obeys store.Once.
func (s *Service) RotateSigningKey(ctx context.Context, actor berth.Actor, once store.Once) error {
	return s.keys.rotate(ctx, actor, once)
}

// TendKeys reads the signing keys again, makes a new one when the newest has
// reached SigningKeyMaxAge, and removes those that are long over. Each process
// calls it every KeysEvery.
func (s *Service) TendKeys(ctx context.Context) error { return s.keys.tend(ctx) }

// jwks is the set of public keys that verify, newest first (RFC 7517).
func (k *keyring) jwks() ([]byte, error) {
	type jwk struct {
		Kty string `json:"kty"`
		Crv string `json:"crv"`
		Use string `json:"use"`
		Alg string `json:"alg"`
		Kid string `json:"kid"`
		X   string `json:"x"`
	}
	set := struct {
		Keys []jwk `json:"keys"`
	}{Keys: []jwk{}}
	for _, key := range k.valid() {
		set.Keys = append(set.Keys, jwk{
			Kty: "OKP", Crv: "Ed25519", Use: "sig", Alg: algorithm, Kid: key.ID,
			X: base64.RawURLEncoding.EncodeToString(key.Public),
		})
	}
	return json.Marshal(set)
}
