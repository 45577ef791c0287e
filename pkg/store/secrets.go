package store

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Secrets are the operations on secrets. No operation but SecretValues gives a
// value, and that gives it sealed.
type Secrets interface {
	// PutSecret makes a secret or gives it a new value, description or grants;
	// each part of p that is not set stays. A repeat that changes nothing writes no
	// audit row; a value is a change unless p.Same says that it is the old one.
	// Grants that are none, or that name a user who is not there, are
	// berth.ErrInvalid.
	PutSecret(ctx context.Context, p PutSecretParams) (berth.Secret, error)
	// GetSecret returns a secret, or berth.ErrNotFound.
	GetSecret(ctx context.Context, name string) (berth.Secret, error)
	// ListSecrets by name; the cursor is the name. With a grantee only those that
	// it may name.
	ListSecrets(ctx context.Context, grantee *Grantee, page Page) (secrets []berth.Secret, next string, err error)
	// DeleteSecret removes a secret; an unknown one is berth.ErrNotFound.
	DeleteSecret(ctx context.Context, actor berth.Actor, name string) error
	// SecretValues returns, by name, the sealed values of the secrets that the
	// tasks of the host's claimed attempts name and their submitters may (still)
	// name, and writes an audit row (berth.AuditSecretDelivered) for each with the
	// attempt and the host. What an attempt's task names and is not in the answer is
	// gone or not granted any more; so is what a disabled user's task names. An
	// attempt of another host, one that has started and one that has ended get
	// nothing. The epoch is judged as in Agents.
	SecretValues(ctx context.Context, call AgentCall, attempts []berth.AttemptID) (map[berth.AttemptID][]SealedValue, error)
}

// Grantee is whom a grant is for: a user with its roles.
type Grantee struct {
	User  berth.UserID
	Roles []berth.Role
}

// PutSecretParams of PutSecret.
type PutSecretParams struct {
	Actor berth.Actor
	Name  string
	// Seal seals the new value for the version that it will have; nil keeps the
	// value that is there. For a secret that does not exist nil is
	// berth.ErrInvalid.
	Seal func(version int) (redact.Bytes, error)
	// Same reports whether the sealed value that is there is the one to be put;
	// nil: never.
	Same        func(old SealedValue) bool
	Description *string
	Grants      berth.GrantChange
}
