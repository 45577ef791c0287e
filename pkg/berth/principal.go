package berth

import "slices"

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
}

// Daemon is the actor of a lifecycle worker.
func Daemon(kind ActorKind, instance string) Actor {
	return Actor{Principal: Principal{Kind: kind, ID: instance}}
}

// User is somebody with a local password.
type User struct {
	ID       UserID
	Name     string
	Roles    []Role
	Disabled bool
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
