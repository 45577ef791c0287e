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
	"golang.org/x/sync/singleflight"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	algorithm = "EdDSA"
	// refreshEvery is the least time between two readings of the keys, so that
	// tokens with made-up key ids cost the database nothing.
	refreshEvery = 5 * time.Second
	// refreshWithin bounds one reading.
	refreshWithin = 5 * time.Second
)

// keyring holds the signing keys that all API processes share.
type keyring struct {
	accounts store.Accounts
	vault    vault
	maxAge   time.Duration
	flight   singleflight.Group

	mu     sync.RWMutex
	public map[string]ed25519.PublicKey
	order  []string // newest first
	kid    string   // of the key that signs
	signer ed25519.PrivateKey
	read   time.Time // by the monotonic clock
}

// open agrees with the other processes on a key to sign with and reads all of
// them.
func (k *keyring) open(ctx context.Context) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make a signing key: %w", err)
	}
	mine := store.SigningKey{ID: uuid.Must(uuid.NewV7()).String(), Algorithm: algorithm, Public: public}
	sealed, err := k.vault.seal(private.Seed(), sealContext(mine))
	if err != nil {
		return err
	}
	mine.Private = redact.NewBytes(sealed)
	newest, err := k.accounts.AddSigningKey(ctx, mine, k.maxAge)
	if err != nil {
		return fmt.Errorf("agree on a signing key: %w", err)
	}
	seed, err := k.vault.open(newest.Private.Reveal(), sealContext(newest))
	if err != nil {
		return err
	}
	if len(seed) != ed25519.SeedSize || newest.Algorithm != algorithm {
		return fmt.Errorf("the signing key %s in the database is damaged", newest.ID)
	}
	signer := ed25519.NewKeyFromSeed(seed)
	if !signer.Public().(ed25519.PublicKey).Equal(ed25519.PublicKey(newest.Public)) {
		return fmt.Errorf("the signing key %s in the database is damaged: its two parts do not belong together", newest.ID)
	}
	k.mu.Lock()
	k.kid, k.signer = newest.ID, signer
	k.mu.Unlock()
	return k.refresh(ctx)
}

// sealContext binds a sealed private key to its row.
func sealContext(key store.SigningKey) []byte {
	return append([]byte("berth signing key "+key.ID+" "), key.Public...)
}

// refresh reads the keys. An empty or damaged answer never replaces good keys.
func (k *keyring) refresh(ctx context.Context) error {
	rows, err := k.accounts.SigningKeys(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read = time.Now()
	if err != nil {
		return fmt.Errorf("read the signing keys: %w", err)
	}
	public := make(map[string]ed25519.PublicKey, len(rows))
	var order []string
	for _, row := range rows {
		if row.Algorithm == algorithm && len(row.Public) == ed25519.PublicKeySize {
			public[row.ID] = ed25519.PublicKey(row.Public)
			order = append(order, row.ID)
		}
	}
	if len(public) == 0 {
		return fmt.Errorf("the database has no signing keys: %w", berth.ErrUnavailable)
	}
	k.public, k.order = public, order
	return nil
}

// find returns the public key of kid, reading the keys again when it is not
// known and they were not read just now. The error is ErrUnauthenticated, or
// ErrUnavailable when the keys could not be read.
func (k *keyring) find(ctx context.Context, kid string) (ed25519.PublicKey, error) {
	if key, ok := k.known(kid); ok {
		return key, nil
	}
	k.mu.RLock()
	due := time.Since(k.read) >= refreshEvery
	k.mu.RUnlock()
	if due {
		done := k.flight.DoChan("keys", func() (any, error) {
			// Shared by many callers: none of them may break it off for the rest.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshWithin)
			defer cancel()
			return nil, k.refresh(ctx)
		})
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case r := <-done:
			if r.Err != nil {
				return nil, r.Err
			}
		}
	}
	if key, ok := k.known(kid); ok {
		return key, nil
	}
	return nil, bad("unknown key")
}

func (k *keyring) known(kid string) (ed25519.PublicKey, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	key, ok := k.public[kid]
	return key, ok
}

// signing returns the key to sign with.
func (k *keyring) signing() (kid string, key ed25519.PrivateKey) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.kid, k.signer
}

// jwks is the set of public keys, newest first (RFC 7517).
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
	k.mu.RLock()
	for _, kid := range k.order {
		set.Keys = append(set.Keys, jwk{
			Kty: "OKP", Crv: "Ed25519", Use: "sig", Alg: algorithm, Kid: kid,
			X: base64.RawURLEncoding.EncodeToString(k.public[kid]),
		})
	}
	k.mu.RUnlock()
	return json.Marshal(set)
}
