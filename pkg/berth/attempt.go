package berth

import (
	"time"

	"github.com/berth-dev/berth/pkg/redact"
)

// AttemptState is where a live attempt stands. An ended attempt has an
// [Outcome] and keeps the state it ended in.
type AttemptState string

// The states of an attempt.
const (
	AttemptAssigned AttemptState = "assigned"
	AttemptClaimed  AttemptState = "claimed"
	AttemptRunning  AttemptState = "running"
)

// TaskState is the state of a task whose live attempt is in s.
func (s AttemptState) TaskState() TaskState { return TaskState(s) }

// Started reports whether the work may have touched the device.
func (s AttemptState) Started() bool { return s == AttemptRunning }

// Outcome is how an attempt ended; each attempt has one, for ever (I3).
type Outcome string

// The outcomes.
const (
	// OutcomeSucceeded: the work said yes.
	OutcomeSucceeded Outcome = "succeeded"
	// OutcomeFailed: the work said no.
	OutcomeFailed Outcome = "failed"
	// OutcomeInfraFailed: device, driver or host broke.
	OutcomeInfraFailed Outcome = "infra_failed"
	// OutcomeTimedOut: the lease or the run time ran out.
	OutcomeTimedOut Outcome = "timed_out"
	// OutcomeCancelled: stopped because it was asked to.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeLost: the host came back without it.
	OutcomeLost Outcome = "lost"
	// OutcomeReleased: handed back unstarted; spends no try.
	OutcomeReleased Outcome = "released"
)

// Outcomes lists every outcome.
func Outcomes() []Outcome {
	return []Outcome{
		OutcomeSucceeded, OutcomeFailed, OutcomeInfraFailed, OutcomeTimedOut,
		OutcomeCancelled, OutcomeLost, OutcomeReleased,
	}
}

// Valid reports whether o is an outcome.
func (o Outcome) Valid() bool {
	for _, k := range Outcomes() {
		if o == k {
			return true
		}
	}
	return false
}

// ReportableByAgent reports whether an agent may complete an attempt with o.
// lost and released are decided by others.
func (o Outcome) ReportableByAgent() bool {
	switch o {
	case OutcomeSucceeded, OutcomeFailed, OutcomeInfraFailed, OutcomeTimedOut, OutcomeCancelled:
		return true
	}
	return false
}

// Reason codes that Berth itself gives to ended attempts and finished tasks.
// Plugins add their own; a reason is a code (ValidReason), never content.
const (
	ReasonLeaseExpired    = "lease_expired"
	ReasonUnclaimed       = "unclaimed"
	ReasonNotStarted      = "not_started"
	ReasonRunTimeout      = "run_timeout"
	ReasonCancelTimeout   = "cancel_timeout"
	ReasonCancelled       = "cancelled"
	ReasonHostLostAttempt = "host_lost_attempt"
	ReasonHandBack        = "handed_back"
	ReasonHandBackLimit   = "hand_back_limit"
	ReasonQueueTimeout    = "queue_timeout"
	ReasonNoTriesLeft     = "no_tries_left"
	ReasonNotRetryable    = "not_retryable"
	ReasonNotRetrySafe    = "not_retry_safe"
	ReasonSucceeded       = "succeeded"
	ReasonForceReleased   = "force_released"
	ReasonDeviceRetired   = "device_retired"
	ReasonHostDraining    = "host_draining"
	ReasonHostRevoked     = "host_revoked"
	// ReasonAgentDowngraded: the host's agent speaks an older protocol now, in which
	// the attempt cannot be handed over ([Deliverable]).
	ReasonAgentDowngraded = "agent_downgraded"
	// ReasonFenced, ReasonAgentStopped, ReasonStartUnanswered, ReasonDraining,
	// ReasonInputs, ReasonInputLost and ReasonJournal are an agent's, for attempts that it ended
	// for want of a server, by its own end, before their start was known, while it
	// drained, without their inputs, or because it could not write them down.
	ReasonFenced          = "fenced"
	ReasonAgentStopped    = "agent_stopped"
	ReasonStartUnanswered = "start_unanswered"
	ReasonDraining        = "draining"
	ReasonInputs          = "input_unavailable"
	ReasonInputLost       = "input_lost" // the server has its bytes no more
	ReasonJournal         = "journal_failed"
	// ReasonPluginStart and ReasonPluginKilled: the host could not start a plugin's
	// process, or something on the host killed it.
	ReasonPluginStart  = "plugin_start_failed"
	ReasonPluginKilled = "plugin_killed"
	// ReasonFoundLost: the sweep found the task in no place.
	ReasonFoundLost = "found_lost"
	// ReasonFoundTwice: the sweep found a token beside the task's place.
	ReasonFoundTwice = "found_twice"
)

// ValidReason reports whether s is a reason code: lower-case letters, digits
// and underscores, at most 64.
func ValidReason(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' {
			return false
		}
	}
	return true
}

// Attempt is one try of a task on one device.
type Attempt struct {
	ID     AttemptID
	Task   TaskID
	Number int // 1, 2, ...; only grows (I9)
	Device DeviceID
	Host   HostID
	Fence  Fence
	State  AttemptState
	// Outcome is "" while the attempt is live.
	Outcome Outcome
	Reason  string
	// Message is the work's own sentence about its end: content, may be shown
	// to those who may see the task, never logged.
	Message redact.String
	Result  redact.Bytes

	AssignedAt        time.Time
	ClaimedAt         time.Time // zero: not yet
	StartedAt         time.Time // zero: not yet
	EndedAt           time.Time // zero: live
	CancelRequestedAt time.Time // zero: no
	// Progress is 0 to 1, as last renewed; ProgressNote is content.
	Progress     float64
	ProgressNote redact.String
	LogBytes     int64

	DeviceName string
	HostName   string
}

// Live reports whether the attempt has not ended.
func (a Attempt) Live() bool { return a.EndedAt.IsZero() }

// Artifact is a file that an attempt left.
type Artifact struct {
	Attempt     AttemptID
	Task        TaskID
	Number      int // of the attempt
	Name        string
	Class       ArtifactClass
	ContentType string
	Size        int64
	SHA256      string // lower-case hex
	BlobKey     string // where the blob store keeps it
	CreatedAt   time.Time
}

// ArtifactClass says what an artifact is, for retention and for display.
type ArtifactClass string

// The classes.
const (
	ClassScreenshot ArtifactClass = "screenshot"
	ClassUITree     ArtifactClass = "ui_tree"
	ClassVideo      ArtifactClass = "video"
	ClassReport     ArtifactClass = "report"
	ClassFile       ArtifactClass = "file"
)

// Valid reports whether c is a class.
func (c ArtifactClass) Valid() bool {
	switch c {
	case ClassScreenshot, ClassUITree, ClassVideo, ClassReport, ClassFile:
		return true
	}
	return false
}

// ValidArtifactName reports whether s can name an artifact: letters, digits
// and . _ -, at most 120, no leading dot, so that it is a safe file name
// everywhere and has one spelling in a URL.
func ValidArtifactName(s string) bool {
	if s == "" || len(s) > 120 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
		default:
			return false
		}
	}
	return true
}

// LogChunk is a piece of an attempt's log: immutable, at an offset that the
// database decided.
type LogChunk struct {
	Attempt AttemptID
	Offset  int64
	Size    int64
	SHA256  string
	BlobKey string
}
