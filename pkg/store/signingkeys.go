package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// MaxSigningKeys bounds the stored keys: rotation is refused beyond it until old
// ones are removed.
const MaxSigningKeys = 32

// SigningKeys are the operations on the keys that sign access tokens.
type SigningKeys interface {
	// SigningKeys lists all keys, newest first.
	SigningKeys(ctx context.Context) ([]SigningKey, error)
	// AddSigningKey stores a key if no key is newer than olderThan ago, and
	// returns the newest key, which may be another process's. So several
	// processes that start at once agree on one key.
	AddSigningKey(ctx context.Context, key SigningKey, olderThan time.Duration) (SigningKey, error)
	// RotateSigningKey stores a key, however new the newest is. It obeys Once: a
	// repeat stores none. Beside MaxSigningKeys others it is berth.ErrWrongState.
	RotateSigningKey(ctx context.Context, p RotateKeyParams) error
	// RemoveSigningKeys deletes the keys whose successor (the next newer key) was
	// stored at least over ago, and returns their ids, newest first. The newest key
	// stays.
	RemoveSigningKeys(ctx context.Context, actor berth.Actor, over time.Duration) ([]string, error)
}

// SigningKey signs access tokens.
type SigningKey struct {
	ID        string // kid
	Algorithm string // EdDSA
	Public    []byte
	// Private is sealed under the master key.
	Private   redact.Bytes
	CreatedAt time.Time
	// Age at the reading, by the clock that decides: what processes that share keys
	// may compare, unlike CreatedAt with their own clocks.
	Age time.Duration
}

// RotateKeyParams of RotateSigningKey.
type RotateKeyParams struct {
	Actor berth.Actor
	// Key; its id is a UUID.
	Key  SigningKey
	Once Once
}

// Facts of a key for the audit trail: which one it is, and nothing of the private
// part.
func (k SigningKey) Facts() berth.Facts {
	return berth.NewFacts(map[string]string{"algorithm": k.Algorithm, "key": berth.KeyFingerprint(k.Public)})
}

// Superseded are those of keys (newest first) whose successor is at least over
// old.
func Superseded(keys []SigningKey, over time.Duration) (out []SigningKey) {
	for i := 1; i < len(keys); i++ {
		if keys[i-1].Age >= over {
			out = append(out, keys[i])
		}
	}
	return out
}

// TooManySigningKeys is what an engine refuses a key with beside MaxSigningKeys
// others.
func TooManySigningKeys() error {
	return &berth.WrongStateError{
		Thing: "the set of signing keys", State: "full", Message: "wait until old keys are removed, about an hour and a quarter after their successor was made",
	}
}
