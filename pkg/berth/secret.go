package berth

import "time"

// MaxTaskSecrets bounds the secrets of one task.
const MaxTaskSecrets = 20

// MaxSecretLen bounds a secret's value in bytes.
const MaxSecretLen = 16 << 10

// Secret is a named value that tasks may be given; the value is stored sealed
// and told to nobody but the host that runs such a task.
type Secret struct {
	Name        string
	Description string
	// Version counts the values, from 1.
	Version              int
	CreatedAt, UpdatedAt time.Time
	Grants               []SecretGrant
}

// GrantKind says who a grant is for.
type GrantKind string

// The kinds of grant.
const (
	GrantUser GrantKind = "user"
	GrantRole GrantKind = "role"
)

// SecretGrant lets a user's tasks, or those of everybody who has a role, name a
// secret.
type SecretGrant struct {
	Kind GrantKind
	// Grantee is a user's id or a role.
	Grantee string
}
