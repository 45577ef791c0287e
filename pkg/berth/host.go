package berth

import (
	"path"
	"time"
)

// Host is a machine that runs a Host Agent and owns devices.
type Host struct {
	ID       HostID
	Name     string
	Pool     PoolID
	PoolName string
	State    HostState
	// Draining: its agent says that it takes nothing more.
	Draining bool
	// DrainRequestedAt is when an operator asked for that; zero: not asked.
	DrainRequestedAt time.Time
	// Protocol that its agent spoke at its last sync; 1 before the first.
	Protocol     int
	Epoch        Epoch
	AgentVersion string
	Plugins      []PluginVersion
	LastSeenAt   time.Time // zero: never
	EnrolledAt   time.Time
	// KeyChangedAt is when its key changed last; zero: it has the one that it enrolled
	// with. KeyRotationRequestedAt is when an administrator asked for a change that
	// has not come yet; zero: not asked.
	KeyChangedAt, KeyRotationRequestedAt time.Time

	Devices int
	// Held counts its devices that are held.
	Held int
}

// HostState is a host's presence.
type HostState string

// The host states.
const (
	// HostEnrolled: never synced.
	HostEnrolled HostState = "enrolled"
	HostOnline   HostState = "online"
	HostOffline  HostState = "offline"
	HostRevoked  HostState = "revoked"
)

// HostFresh reports whether a host that was last seen at seen counts as
// present at now.
func (t Timings) HostFresh(seen, now time.Time) bool {
	return !seen.IsZero() && now.Sub(seen) <= t.HostOfflineAfter
}

// MustSync reports whether a host has to sync before its calls are signs of life
// again: it was given up, or it was silent for so long that it would have been, had
// a keeper been there to see it. What the server knows of it is too old to place
// work by; and since only a sync ends this, an answer that is lost loses nothing.
func (t Timings) MustSync(state HostState, seen, now time.Time) bool {
	return state != HostOnline || !t.HostFresh(seen, now)
}

// Pool is a named set of devices that one queue serves.
type Pool struct {
	ID         PoolID
	Name       string
	Paused     bool
	AgeingStep time.Duration
	CreatedAt  time.Time
}

// DefaultPool is the name of the pool that the first migration makes.
const DefaultPool = "default"

// EnrolmentToken lets one host in, once.
type EnrolmentToken struct {
	ID        EnrolmentID
	Pool      PoolID
	PoolName  string
	Pattern   string // glob over host names: lab-*
	CreatedAt time.Time
	ExpiresAt time.Time
	UsedAt    time.Time // zero: unused
	UsedBy    HostID
	RevokedAt time.Time // zero: not revoked
}

// EnrolmentRepeatWithin is how long the same key may repeat an enrolment and
// gets the same answer.
const EnrolmentRepeatWithin = 10 * time.Minute

// HostNameMatches reports whether a host of that name may use a token with
// that pattern (path.Match syntax). A broken pattern matches nothing.
func HostNameMatches(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}
