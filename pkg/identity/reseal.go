package identity

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// MasterKeys are the current master key, and those that open what is still
// sealed under them.
type MasterKeys struct {
	Current MasterKey
	Old     []MasterKey
}

// SealedCounts count sealed values by the master key they are under.
type SealedCounts struct {
	// Current, Old and Unknown are under the current master key, an old one, and
	// one that is not configured. Resealed were brought under the current one.
	Current, Old, Unknown, Resealed int
}

// resealBatch is how many values are read at once.
const resealBatch = 100

// SealedStatus counts what is sealed under which master key. It changes nothing.
func SealedStatus(ctx context.Context, s store.Sealed, _ berth.Actor, keys MasterKeys) (n SealedCounts, err error) {
	err = eachSealed(ctx, s, func(v store.SealedValue) error {
		switch value := v.Value.Reveal(); {
		case keys.Current.sealed(value):
			n.Current++
		case keys.opens(value):
			n.Old++
		default:
			n.Unknown++
		}
		return nil
	})
	return n, err
}

// Reseal seals every value anew that is not under the current master key. Each
// is a step of its own that is done whole or not at all, so it may be broken off
// anywhere and repeated, also at the same time by several; a value that changes
// meanwhile is left as it is, and counted as Old. What no master key opens is
// left, too, and counted as Unknown; a damaged value is an error.
func Reseal(ctx context.Context, s store.Sealed, actor berth.Actor, keys MasterKeys) (n SealedCounts, err error) {
	v := vault{current: keys.Current, old: keys.Old}
	err = eachSealed(ctx, s, func(old store.SealedValue) error {
		if keys.Current.sealed(old.Value.Reveal()) {
			n.Current++
			return nil
		}
		anew, err := v.anew(old)
		if errors.Is(err, ErrMasterKey) {
			n.Unknown++
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", old.Kind, old.ID, err)
		}
		old.Under = markName(old.Value.Reveal())
		replaced, err := s.ReplaceSealed(ctx, actor, old, anew)
		switch {
		case err != nil:
			return err
		case replaced:
			n.Resealed++
		default:
			n.Old++
		}
		return nil
	})
	return n, err
}

func (k MasterKeys) opens(value []byte) bool {
	for _, m := range k.Old {
		if m.sealed(value) {
			return true
		}
	}
	return false
}

// anew is a value sealed under the current master key.
func (v vault) anew(old store.SealedValue) (store.SealedValue, error) {
	var context []byte
	switch old.Kind {
	case store.SealedSecret:
		context = secretContext(old.ID, old.Version)
	case store.SealedSigningKey:
		context = sealContext(store.SigningKey{ID: old.ID, Public: old.Public})
	default:
		return old, errors.New("this program does not know such sealed values; use the newest one")
	}
	secret, err := v.open(old.Value.Reveal(), context)
	if err != nil {
		return old, err
	}
	sealed, err := v.seal(secret, context)
	if err != nil {
		return old, err
	}
	old.Value, old.Under = redact.NewBytes(sealed), v.current.name()
	return old, nil
}

func eachSealed(ctx context.Context, s store.Sealed, do func(store.SealedValue) error) error {
	for after := ""; ; {
		values, next, err := s.SealedValues(ctx, after, resealBatch)
		if err != nil {
			return err
		}
		for _, v := range values {
			if err := do(v); err != nil {
				return err
			}
		}
		if after = next; after == "" {
			return nil
		}
	}
}
