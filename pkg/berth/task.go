package berth

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/redact"
)

// TaskState is where a task is. A task is in exactly one place and the place
// is its state; it is derived, never stored as such (docs/states.md).
type TaskState string

// The states of a task, by place.
const (
	// StateScheduled: in `delayed`, waiting for its not-before.
	StateScheduled TaskState = "scheduled"
	// StateFailed: in `delayed`, waiting for its retry.
	StateFailed TaskState = "failed"
	// StateQueued: in `queue`.
	StateQueued TaskState = "queued"
	// StateAssigned: a live attempt that the agent has not yet taken.
	StateAssigned TaskState = "assigned"
	// StateClaimed: a live attempt that the agent took and has not started.
	StateClaimed TaskState = "claimed"
	// StateRunning: a live attempt that was started.
	StateRunning TaskState = "running"
	// StateSucceeded, StateDeadLetter and StateCancelled: finished.
	StateSucceeded  TaskState = "succeeded"
	StateDeadLetter TaskState = "dead_letter"
	StateCancelled  TaskState = "cancelled"
)

// TaskStates lists every state, in the order of a task's life.
func TaskStates() []TaskState {
	return []TaskState{
		StateScheduled, StateQueued, StateAssigned, StateClaimed, StateRunning,
		StateFailed, StateSucceeded, StateDeadLetter, StateCancelled,
	}
}

// Finished reports whether a task in s is only left by a manual retry.
func (s TaskState) Finished() bool {
	return s == StateSucceeded || s == StateDeadLetter || s == StateCancelled
}

// Live reports whether a task in s has a live attempt.
func (s TaskState) Live() bool {
	return s == StateAssigned || s == StateClaimed || s == StateRunning
}

// Valid reports whether s is a state.
func (s TaskState) Valid() bool {
	for _, k := range TaskStates() {
		if s == k {
			return true
		}
	}
	return false
}

// Requirement is what tasks of one class ask for. Its strings are canonical
// (package eligibility makes them so): equal needs have equal strings.
type Requirement struct {
	// Selector over device labels; "" fits every device.
	Selector string
	// Plugin is the plugin's name.
	Plugin string
	// VersionRange of the plugin; "" or "*" fits every version.
	VersionRange string
}

// Limits of a task's fields.
const (
	MaxNameLen         = 200
	MaxTags            = 32
	MaxTagLen          = 64
	MaxPayloadBytes    = 256 << 10
	MinPriority        = 0
	MaxPriority        = 9
	MaxBulkSubmit      = 1000
	MaxRunTimeout      = 7 * 24 * time.Hour
	MinRunTimeout      = time.Second
	DefaultRunTimeout  = time.Hour
	MaxTries           = 100
	MaxIdempotencyKey  = 200
	MaxCorrelationID   = 128
	MaxNotBeforeFuture = 366 * 24 * time.Hour
)

// NewTask is a task to be submitted: validated ([NewTask.Normalise]), its
// requirement canonical.
type NewTask struct {
	ID          TaskID
	Pool        PoolID
	Name        string
	Tags        []string // sorted, unique
	Requirement Requirement
	// Payload is the plugin's input, a JSON object. It is content: it prints
	// as [redacted].
	Payload  redact.Bytes
	Priority int // 0-9, 9 most urgent, default 0
	// NotBefore is zero for at once.
	NotBefore time.Time
	// RunTimeout bounds one attempt from its start.
	RunTimeout time.Duration
	// QueueTimeout bounds waiting, counted from not-before and moved on by
	// each live attempt's length; zero waits for ever.
	QueueTimeout time.Duration
	Retry        RetryPolicy
	// Inputs by name, at most MaxTaskInputs; Size is the server's to fill in.
	Inputs []InputRef
	// Secrets that the work is given, by name, each once, at most MaxTaskSecrets.
	Secrets []string
	// Schedule that the task is of; "": somebody submitted it.
	Schedule ScheduleID
}

// Task is a task as it is read.
type Task struct {
	ID           TaskID
	Pool         PoolID
	PoolName     string
	Class        ClassID
	Name         string
	Tags         []string
	Requirement  Requirement
	Payload      redact.Bytes
	Priority     int
	NotBefore    time.Time // zero: none
	RunTimeout   time.Duration
	QueueTimeout time.Duration // zero: none
	Retry        RetryPolicy
	Inputs       []InputRef
	Secrets      []string
	Schedule     ScheduleID // "": none; it may be deleted
	// Budget is the number of tries allowed: Retry.MaxAttempts, raised by
	// manual retries.
	Budget int
	// Tries counts the attempts that were not released.
	Tries int
	// Attempts counts all attempts.
	Attempts int

	Submitter     Principal
	CorrelationID string
	TraceParent   string
	SubmittedAt   time.Time

	State TaskState
	// DueAt is when a scheduled or failed task becomes queued; zero otherwise.
	DueAt time.Time
	// GiveUpAt is when a waiting task is given up; zero: never.
	GiveUpAt time.Time
	// CancelRequested: the live attempt was asked to stop.
	CancelRequested bool
	// Live attempt's coordinates; zero unless State.Live().
	Attempt AttemptID
	Device  DeviceID
	Host    HostID
	// FinishedAt is zero until the task is finished.
	FinishedAt time.Time
	// FinalReason is a code: why the task is dead_letter or cancelled.
	FinalReason string
	// Cause of a dead letter; "" in every other state.
	Cause CauseKey
	// Result is what the successful attempt returned: content.
	Result redact.Bytes
}

var (
	tagPattern  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.:/=-]*[A-Za-z0-9])?$`)
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)
)

// ValidName reports whether s can name a pool, a host or a plugin: lower-case
// letters, digits, dots, hyphens and underscores, at most 63 characters,
// starting and ending with a letter or digit.
func ValidName(s string) bool { return len(s) <= 63 && namePattern.MatchString(s) }

// Normalise fills defaults, sorts what has no order and notes every fault
// under path (for example tasks[0]). now bounds NotBefore. It does not judge
// the requirement's strings or the payload's schema.
func (t *NewTask) Normalise(path string, now time.Time, f *Faults) {
	at := func(field string) string {
		if path == "" {
			return field
		}
		return path + "." + field
	}
	t.Name = strings.TrimSpace(t.Name)
	switch {
	case !utf8.ValidString(t.Name):
		f.Add(at("name"), "the name is no UTF-8", "send text in UTF-8")
	case len(t.Name) > MaxNameLen || !plain(t.Name):
		f.Add(at("name"), "the name is too long or has control characters", fmt.Sprintf("use at most %d bytes of printable characters", MaxNameLen))
	}
	t.Tags = normaliseTags(at("tags"), t.Tags, f)
	normalisePriority(at("priority"), t.Priority, f)
	if n := len(t.Payload.Reveal()); n > MaxPayloadBytes {
		f.Add(at("payload"), fmt.Sprintf("the payload has %d bytes", n), fmt.Sprintf("keep it under %d bytes; larger things are inputs", MaxPayloadBytes))
	}
	if t.RunTimeout == 0 {
		t.RunTimeout = DefaultRunTimeout
	}
	if t.RunTimeout < MinRunTimeout || t.RunTimeout > MaxRunTimeout {
		f.Add(at("run_timeout_seconds"), "out of range", fmt.Sprintf("use %d to %d seconds", int(MinRunTimeout.Seconds()), int(MaxRunTimeout.Seconds())))
	}
	if t.QueueTimeout < 0 || t.QueueTimeout > MaxNotBeforeFuture {
		f.Add(at("queue_timeout_seconds"), "out of range", "use a positive number of seconds, at most a year, or leave it out to wait for ever")
	}
	if !t.NotBefore.IsZero() && t.NotBefore.After(now.Add(MaxNotBeforeFuture)) {
		f.Add(at("not_before"), "more than a year ahead", "use a nearer time, or a schedule")
	}
	t.Retry.normalise(at("retry"), f)
	normaliseInputs(at("inputs"), t.Inputs, f)
	checkSecretNames(at("secrets"), t.Secrets, f)
}

func normalisePriority(path string, priority int, f *Faults) {
	if priority < MinPriority || priority > MaxPriority {
		f.Add(path, fmt.Sprintf("%d is out of range", priority), "use 0 (least urgent) to 9 (most urgent)")
	}
}

// CheckPriority is nil, or an *InvalidError that names path.
func CheckPriority(path string, priority int) error {
	var f Faults
	normalisePriority(path, priority, &f)
	return f.Err()
}

func normaliseInputs(path string, inputs []InputRef, f *Faults) {
	if len(inputs) > MaxTaskInputs {
		f.Add(path, fmt.Sprintf("%d inputs", len(inputs)), fmt.Sprintf("use at most %d; pack many files into one", MaxTaskInputs))
		return
	}
	seen := map[string]bool{}
	for i, in := range inputs {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !ValidArtifactName(in.Name):
			f.Add(at+".name", fmt.Sprintf("%q cannot name a file", Clip(in.Name, 40)), "use letters, digits and . _ -, at most 120, no leading dot or hyphen")
		case seen[in.Name]:
			f.Add(at+".name", fmt.Sprintf("%q is named twice", in.Name), "give each input a name of its own")
		}
		seen[in.Name] = true
		if !ValidDigest(in.Digest) {
			f.Add(at+".digest", "it is no SHA-256", "use 64 lower-case hex digits, as `berth input put FILE` prints them")
		}
	}
}

func normaliseTags(path string, tags []string, f *Faults) []string {
	if len(tags) > MaxTags {
		f.Add(path, fmt.Sprintf("%d tags", len(tags)), fmt.Sprintf("use at most %d", MaxTags))
		return tags
	}
	for i, tag := range tags {
		if len(tag) > MaxTagLen || !tagPattern.MatchString(tag) {
			f.Add(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%q is not a tag", Clip(tag, 40)), fmt.Sprintf("use letters, digits and _ . : / = -, at most %d", MaxTagLen))
		}
	}
	return sortedUnique(tags)
}
