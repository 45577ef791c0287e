package store

import (
	"context"
	"crypto/ed25519"

	"github.com/berth-dev/berth/pkg/berth"
)

// HostKeyring are the operations on the keys that hosts prove themselves with. A
// host has one, and for a while the one that is to follow it. A revoked or unknown
// host is berth.ErrNotFound.
type HostKeyring interface {
	// HostKeys returns the keys that an assertion of the host may be signed with.
	HostKeys(ctx context.Context, id berth.HostID) (HostKeys, error)
	// OfferHostKey notes the key that is to follow, in place of one that was offered
	// before; the key in force counts until PromoteHostKey. It reads the epoch as
	// Agents do. A repeat, also one that comes after the promotion, is no error and
	// changes nothing. An offer that was made under a key which is in force no more
	// is berth.ErrUnauthenticated, an epoch that is not the host's
	// berth.ErrStaleEpoch.
	OfferHostKey(ctx context.Context, p OfferHostKeyParams) error
	// PromoteHostKey puts the offered key in force, because the host has just used
	// it. The one before it is dead from then on, and a rotation that was asked for
	// is done. Again is no error; a key that is neither offered nor in force is
	// berth.ErrNotFound.
	PromoteHostKey(ctx context.Context, actor berth.Actor, id berth.HostID, key []byte) error
	// RequestKeyRotation has the host's agent told, by each answer to a heartbeat, to
	// change its key, until it has. Again is no error and moves nothing. A revoked
	// host is berth.ErrWrongState.
	RequestKeyRotation(ctx context.Context, actor berth.Actor, id berth.HostID) (berth.Host, error)
}

// HostKeys are the Ed25519 public keys of a host.
type HostKeys struct {
	// Current is in force.
	Current []byte
	// Next was offered to follow it; nil without an offer.
	Next []byte
}

// OfferHostKeyParams of OfferHostKey.
type OfferHostKeyParams struct {
	AgentCall
	// Key that is offered.
	Key []byte
	// Under is the key that the offer was signed with.
	Under []byte
}

// CheckEnrol judges the form of an enrolment.
func CheckEnrol(p EnrolParams) error {
	var f berth.Faults
	if len(p.PublicKey) != ed25519.PublicKeySize {
		f.Add("public_key", "it is no Ed25519 public key", "send 32 bytes")
	}
	if !berth.ValidName(p.Name) {
		f.Add("name", "it cannot name a host", "use lower-case letters, digits, dots, hyphens and underscores, at most 63")
	}
	return f.Err()
}
