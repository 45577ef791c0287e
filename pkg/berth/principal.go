package berth

import (
	"slices"
	"time"
)

// Role is what a principal may do; pkg/identity maps routes to roles.
type Role string

// The roles. Each human role includes the ones before it.
const (
	RoleViewer    Role = "viewer"
	RoleSubmitter Role = "submitter"
	RoleOperator  Role = "operator"
	RoleAdmin     Role = "admin"
	// RoleHost is a Host Agent's; it includes nothing else.
	RoleHost Role = "host"
)

// Roles lists the roles of people, least first.
func Roles() []Role { return []Role{RoleViewer, RoleSubmitter, RoleOperator, RoleAdmin} }

// Includes reports whether somebody with role r may do what asks for other.
func (r Role) Includes(other Role) bool {
	if r == RoleHost || other == RoleHost {
		return r == other
	}
	all := Roles()
	i, j := slices.Index(all, r), slices.Index(all, other)
	return i >= 0 && j >= 0 && i >= j
}

// ActorKind says what kind of actor did something.
type ActorKind string

// The kinds of actor.
const (
	ActorUser        ActorKind = "user"
	ActorHost        ActorKind = "host"
	ActorScheduler   ActorKind = "scheduler"
	ActorLeasekeeper ActorKind = "leasekeeper"
	ActorSystem      ActorKind = "system" // bootstrap, migration, command line on the machine
)

// Principal is who submits and who acts: a kind and a stable id ("user",
// a user id). It is stored with tasks and audit rows.
type Principal struct {
	Kind ActorKind
	ID   string
}

// Actor is a principal in the course of one request or round.
type Actor struct {
	Principal
	// RequestID of the call, or of the round; goes to the audit row.
	RequestID string
	// Client is the caller's address, "" for daemons; goes to the audit row.
	Client string
	// Credential is what the caller proved itself with; goes to the audit row.
	Credential Credential
}

// Credential names, never holds, what a caller proved itself with: "session:ID",
// "key:ID" (an API key), "schedule:ID" (its owner's template), "issuer:URL" or
// "host-key".
type Credential string

// Daemon is the actor of a lifecycle worker.
func Daemon(kind ActorKind, instance string) Actor {
	return Actor{Principal: Principal{Kind: kind, ID: instance}}
}

// User is somebody who may log in, or a service that API keys speak for.
type User struct {
	ID       UserID
	Name     string
	Roles    []Role
	Disabled bool
	// HasPassword: may log in here. Services and users of an issuer may not.
	HasPassword bool
	// Issuer and Subject name a user of an external issuer; "" for local ones.
	Issuer, Subject string
	// Version counts the changes of Roles and Disabled, from 1.
	Version   int
	CreatedAt time.Time
}

// APIKey is a long-lived credential of a user; the secret itself is stored
// nowhere.
type APIKey struct {
	ID       APIKeyID
	User     UserID
	UserName string
	Name     string
	// Prefix is the first part of the key, by which people recognise it.
	Prefix string
	// Roles that it asks for: what it may do is at each use what its user may do
	// as well ([Within]).
	Roles     []Role
	CreatedAt time.Time
	// Zero where it does not expire, was not used, is not revoked.
	ExpiresAt, LastUsedAt, RevokedAt time.Time
}

// SeesAll reports whether somebody with these roles sees everybody's tasks and
// inputs: viewers and operators do, submitters see their own. It is the one thing
// in which a role has less than the one before it.
func SeesAll(roles []Role) bool {
	return slices.ContainsFunc(roles, func(r Role) bool { return r == RoleViewer || r.Includes(RoleOperator) })
}

// Within is those of asked that the user's roles include and may hand on: a
// submitter's key cannot be a viewer, which would see more than the submitter.
func Within(asked, users []Role) []Role {
	var out []Role
	for _, a := range included(asked, users) {
		if a != RoleViewer || SeesAll(users) {
			out = append(out, a)
		}
	}
	return out
}

// included is those of asked that one of roles includes.
func included(asked, roles []Role) []Role {
	var out []Role
	for _, a := range asked {
		if slices.ContainsFunc(roles, func(r Role) bool { return r.Includes(a) }) {
			out = append(out, a)
		}
	}
	return out
}

// Scope is what a caller may see of tasks. The zero value sees nothing.
type Scope struct {
	// All tasks.
	All bool
	// Owner's tasks, when not All.
	Owner Principal
}

// Sees reports whether a task of submitter is inside the scope.
func (s Scope) Sees(submitter Principal) bool {
	return s.All || (s.Owner.ID != "" && s.Owner == submitter)
}
