package berth

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The kinds of error that cross package borders. Operations wrap them with %w
// and the words of the case; pkg/httpapi alone turns them into statuses.
var (
	// ErrNotFound: the thing does not exist, or the caller may not know that
	// it does (the two are not told apart).
	ErrNotFound = errors.New("not found")
	// ErrWrongState: the thing exists, but its state does not allow the act.
	// See [WrongStateError], which names the state.
	ErrWrongState = errors.New("wrong state")
	// ErrExists: a thing of that name exists; see [ExistsError], which names it.
	ErrExists = errors.New("already exists")
	// ErrInvalid: the input is wrong; see [InvalidError].
	ErrInvalid = errors.New("invalid")
	// ErrIdempotencyMismatch: the idempotency key was used with another body.
	ErrIdempotencyMismatch = errors.New("idempotency key was used with another body")
	// ErrLeaseLost: the attempt no longer holds its lease: it expired, was
	// ended by somebody else or its fence is old. Stop, kill, clean.
	ErrLeaseLost = errors.New("lease lost")
	// ErrStaleEpoch: a newer agent process of the host has synced, or the
	// call's epoch is above the server's (a restored database): sync again in
	// the latter case, stop in the former.
	ErrStaleEpoch = errors.New("stale epoch")
	// ErrEpochAhead is the latter case of ErrStaleEpoch, which it also is.
	ErrEpochAhead = fmt.Errorf("epoch is ahead of the server's, which is a %w", ErrStaleEpoch)
	// ErrMismatch: a repeat of an immutable write with other bytes.
	ErrMismatch = errors.New("already stored with different content")
	// ErrGap: a log chunk that starts after the end of the log; see [GapError].
	ErrGap = errors.New("gap in the log")
	// ErrTooLarge: a limit on size or count would be passed; see [TooLargeError],
	// which names it.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable: the database could not be reached, or gave up for a
	// passing reason; the same call may succeed later.
	ErrUnavailable = errors.New("database unavailable")
	// ErrStorageFull: there is no room for artifacts and logs. It is also an
	// ErrUnavailable: the same call may succeed when an operator has made room.
	ErrStorageFull error = storageFull{}
	// ErrStorageUnavailable: the object store of artifacts, logs and inputs does
	// not answer. It is also an ErrUnavailable.
	ErrStorageUnavailable error = storageUnavailable{}
	// ErrInputLost: an input is recorded, and the store has its bytes no more.
	// Whoever uploads the file again heals it. It is also an ErrUnavailable.
	ErrInputLost error = inputLost{}
	// ErrNotActive: another process is this pool's active scheduler.
	ErrNotActive = errors.New("another process is active")
	// ErrExpired: a token's time is over.
	ErrExpired = errors.New("expired")
	// ErrUsed: a single-use token was used.
	ErrUsed = errors.New("already used")
	// ErrUnauthenticated: no credentials, or ones that do not hold. The error
	// says no more, so that nobody learns which.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrForbidden: the caller is known and its role does not allow the act.
	ErrForbidden = errors.New("not allowed")
	// ErrLoginNeeded: an API key may not do what hands out credentials, whatever
	// its roles: a stolen key must not outlive its revocation. It is also an
	// ErrForbidden.
	ErrLoginNeeded = fmt.Errorf("a login is needed, for with an API key this is %w", ErrForbidden)
	// ErrTooMany: too many calls of a kind; see [TooManyError].
	ErrTooMany = errors.New("too many requests")
)

// RoleError is an ErrForbidden that says which role it takes.
type RoleError struct{ Needs Role }

func (e *RoleError) Error() string { return "not allowed without the role " + string(e.Needs) }

// Unwrap returns ErrForbidden.
func (e *RoleError) Unwrap() error { return ErrForbidden }

// storageFull has words of its own: the database is well.
type storageFull struct{}

func (storageFull) Error() string { return "no space left for artifacts and logs" }

// Is makes errors.Is(err, ErrUnavailable) true.
func (storageFull) Is(target error) bool { return target == ErrUnavailable }

// storageUnavailable has words of its own: the database is well.
type storageUnavailable struct{}

func (storageUnavailable) Error() string { return "the object store is unavailable" }

// Is makes errors.Is(err, ErrUnavailable) true.
func (storageUnavailable) Is(target error) bool { return target == ErrUnavailable }

type inputLost struct{}

func (inputLost) Error() string { return "the input's bytes are lost" }

// Is makes errors.Is(err, ErrUnavailable) true.
func (inputLost) Is(target error) bool { return target == ErrUnavailable }

// DatabaseAccessError is that the database lets nobody in, for a reason that an
// operator can mend. errors.Is(err, ErrUnavailable) holds, for it may be mended
// while the process runs. It holds neither credentials nor an address.
type DatabaseAccessError struct{ What, Remedy string }

// Error is what hinders and what to do.
func (e *DatabaseAccessError) Error() string { return e.What + ": " + e.Remedy }

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *DatabaseAccessError) Is(target error) bool { return target == ErrUnavailable }

// SetupError is a fault of the machine or the configuration that keeps a program
// from starting, and that its operator can mend.
type SetupError struct{ What, Remedy string }

// Error is what is wrong and what to do.
func (e *SetupError) Error() string { return e.What + ": " + e.Remedy }

// FieldError is one fault of an input.
type FieldError struct {
	// Path of the field, as in the JSON body: tasks[3].priority.
	Path string `json:"path"`
	// Message says what is wrong. It never repeats payload bytes.
	Message string `json:"message"`
	// Remedy says what to do.
	Remedy string `json:"remedy,omitempty"`
}

// InvalidError is an input with all its faults. errors.Is(err, ErrInvalid)
// holds.
type InvalidError struct{ Fields []FieldError }

// Invalid makes an InvalidError of one fault.
func Invalid(path, message, remedy string) *InvalidError {
	return &InvalidError{Fields: []FieldError{{Path: path, Message: message, Remedy: remedy}}}
}

// Error lists the faults in one line.
func (e *InvalidError) Error() string {
	parts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		parts[i] = f.Path + ": " + f.Message
		if f.Remedy != "" {
			parts[i] += " (" + f.Remedy + ")"
		}
	}
	return strings.Join(parts, "; ")
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Faults collects field faults; its zero value is ready.
type Faults struct{ fields []FieldError }

// Add notes a fault.
func (f *Faults) Add(path, message, remedy string) {
	f.fields = append(f.fields, FieldError{Path: path, Message: message, Remedy: remedy})
}

// Err is nil without faults, otherwise an *InvalidError with all of them.
func (f *Faults) Err() error {
	if len(f.fields) == 0 {
		return nil
	}
	return &InvalidError{Fields: f.fields}
}

// WrongStateError says which state stood in the way. errors.Is(err,
// ErrWrongState) holds.
type WrongStateError struct {
	// Thing is what was in the wrong state: task, attempt, device, host.
	Thing string
	// State is the state it is in.
	State string
	// Message says which states would do, or what to do instead.
	Message string
}

// Error names the thing, its state and the way out.
func (e *WrongStateError) Error() string {
	return e.Thing + " is " + e.State + ": " + e.Message
}

// Is makes errors.Is(err, ErrWrongState) true.
func (e *WrongStateError) Is(target error) bool { return target == ErrWrongState }

// ExistsError says what is there already. errors.Is(err, ErrExists) holds.
type ExistsError struct {
	// What it is, with its name: a pool named lab.
	What string
}

// Error names the thing.
func (e *ExistsError) Error() string { return e.What + " exists already" }

// Is makes errors.Is(err, ErrExists) true.
func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// TooLargeError says which limit would be passed. errors.Is(err, ErrTooLarge)
// holds.
type TooLargeError struct {
	// What is too large, and what is allowed.
	What string
}

// TooLarge makes a TooLargeError of a thing with size bytes.
func TooLarge(what string, size, allowed int64) *TooLargeError {
	return &TooLargeError{What: fmt.Sprintf("%s has %d bytes, %d are allowed", what, size, allowed)}
}

// Error names the thing and the limit.
func (e *TooLargeError) Error() string { return e.What }

// Is makes errors.Is(err, ErrTooLarge) true.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// GapError says where the log really ends. errors.Is(err, ErrGap) holds.
type GapError struct {
	// Next is the offset that the log wants next, in bytes.
	Next int64
}

// Error is a fixed sentence.
func (e *GapError) Error() string { return "the chunk starts after the end of the log" }

// Is makes errors.Is(err, ErrGap) true.
func (e *GapError) Is(target error) bool { return target == ErrGap }

// TooManyError says when to come back. errors.Is(err, ErrTooMany) holds.
type TooManyError struct {
	// RetryAfter is how long to wait.
	RetryAfter time.Duration
}

// Error is a fixed sentence.
func (e *TooManyError) Error() string { return ErrTooMany.Error() }

// Is makes errors.Is(err, ErrTooMany) true.
func (e *TooManyError) Is(target error) bool { return target == ErrTooMany }
