package store

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Sealed are the values in the database that the master key seals.
type Sealed interface {
	// SealedValues lists them by kind and id after a cursor ("" at first); next is
	// "" at the end.
	SealedValues(ctx context.Context, after string, limit int) (values []SealedValue, next string, err error)
	// ReplaceSealed replaces a value by the same one sealed anew, if it is still
	// the old one: otherwise nothing is done and replaced is false.
	ReplaceSealed(ctx context.Context, actor berth.Actor, old, anew SealedValue) (replaced bool, err error)
}

// The kinds of sealed values.
const (
	SealedSecret     = "secret"
	SealedSigningKey = "signing_key"
)

// SealedValue is a value under the master key.
type SealedValue struct {
	// Kind is SealedSigningKey or SealedSecret, ID the key's id or the secret's
	// name.
	Kind, ID string
	// Version of a secret; 0 for keys.
	Version int
	// Public part of a signing key.
	Public []byte
	Value  redact.Bytes
	// Under names the master key, for the audit trail; "" where it is not said. The
	// engines do not know it.
	Under string
}

// Facts of a sealed value for the audit trail.
func (v SealedValue) Facts() berth.Facts {
	if v.Under == "" {
		return ""
	}
	return berth.Fact("master_key", v.Under)
}
