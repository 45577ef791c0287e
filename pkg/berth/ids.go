package berth

import "fmt"

// Identifiers are canonical lower-case UUIDs (version 7, so that they sort by
// creation) with a type of their own each, because they are easily swapped.
type (
	// TaskID names a task.
	TaskID string
	// AttemptID names one try of a task. It is also the id of the lease that
	// the attempt holds; logs call it both attempt_id and lease_id.
	AttemptID string
	// DeviceID names a device.
	DeviceID string
	// HostID names a host.
	HostID string
	// PoolID names a pool. People use its name; everything else its id.
	PoolID string
	// UserID names a user.
	UserID string
	// APIKeyID names an API key (never the key itself).
	APIKeyID string
	// ScheduleID names a schedule. People use its name.
	ScheduleID string
	// EnrolmentID names an enrolment token (never the token itself).
	EnrolmentID string
)

// ClassID names a class: the tasks of one pool that ask for the same thing.
type ClassID int64

// Fence is a device's counter, raised by each new lease of that device. A
// write of a holder that carries an older fence changes no state (I2, I10).
type Fence int64

// Epoch is a host's counter, raised at each start of its agent. An older epoch
// is refused for ever.
type Epoch int64

// Rank orders the waiting tasks of a pool, smallest first; see [RankOf].
type Rank int64

// ValidID reports whether s is a UUID in its canonical form: 36 characters,
// lower case, with hyphens. Braces, urn: prefixes and upper case are not
// accepted, so that one thing has one spelling.
func ValidID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// ParseID turns s into an identifier of type T. The error is an
// *InvalidError that names path.
func ParseID[T ~string](path, s string) (T, error) {
	if !ValidID(s) {
		return "", Invalid(path, fmt.Sprintf("%q is not an id", Clip(s, 40)), "use the id exactly as Berth printed it, for example 01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10")
	}
	return T(s), nil
}

// Clip shortens s to at most n bytes for use in a message, on a rune boundary.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "..."
}
