package berth

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Event names what happened to a task in a transition. The first six are the
// log events that carry every identifier (design.md section 13).
type Event string

// The events.
const (
	EventAssigned  Event = "assigned"
	EventClaimed   Event = "claimed"
	EventRenewed   Event = "renewed"
	EventCompleted Event = "completed" // the attempt ended and finished the task
	EventRetried   Event = "retried"   // the attempt ended and the task will be tried again
	EventFailed    Event = "failed"    // the task was dead-lettered

	EventSubmitted       Event = "submitted"
	EventStarted         Event = "started"
	EventQueued          Event = "queued" // its time had come
	EventReleased        Event = "released"
	EventCancelRequested Event = "cancel_requested"
	EventCancelled       Event = "cancelled" // without a live attempt, or before its start
	EventRetriedByHand   Event = "retried_by_hand"
	EventReprioritised   Event = "reprioritised"
	// EventRepaired: the sweep found it in no place, or in two.
	EventRepaired Event = "repaired"
	// EventDeleted: with all that it left; its state stays what it was.
	EventDeleted Event = "deleted"
)

// Transition is one step of a task: what the audit row stores and what the log
// says. It holds identifiers and codes only, never content. Store operations
// return the transitions that they committed; the caller logs them.
type Transition struct {
	Event Event
	Task  TaskID
	From  TaskState // "" for submitted
	To    TaskState
	// The attempt's coordinates; zero where none is concerned. The attempt's id
	// is the lease's.
	Attempt AttemptID
	Number  int
	Device  DeviceID
	Host    HostID
	Fence   Fence
	// Outcome of the attempt, when it ended.
	Outcome Outcome
	Reason  string
	Pool    PoolID
	// CorrelationID of the submit.
	CorrelationID string
	At            time.Time
}

// EndEvent is the event of an attempt's end that moves the task to next.
func EndEvent(outcome Outcome, next Next) Event {
	switch {
	case outcome == OutcomeReleased && next.Retried():
		return EventReleased
	case next.Retried():
		return EventRetried
	case next.State == StateDeadLetter:
		return EventFailed
	case next.State == StateCancelled:
		return EventCancelled
	}
	return EventCompleted
}

// AuditAction names an administrative act or a transition in the audit trail.
// Transitions use "task." plus their event.
type AuditAction string

// Administrative acts.
const (
	AuditUserCreated      AuditAction = "user.created"
	AuditLogin            AuditAction = "auth.login"
	AuditLoginFailed      AuditAction = "auth.login_failed"
	AuditPoolCreated      AuditAction = "pool.created"
	AuditEnrolmentCreated AuditAction = "enrolment.created"
	AuditEnrolmentRevoked AuditAction = "enrolment.revoked"
	AuditHostEnrolled     AuditAction = "host.enrolled"
	AuditHostSynced       AuditAction = "host.synced"
	AuditHostOffline      AuditAction = "host.offline"
	AuditDeviceAdmin      AuditAction = "device.admin"
	AuditDeviceUnclean    AuditAction = "device.unclean"
	AuditDeviceCleaned    AuditAction = "device.cleaned"
	AuditDeviceHealth     AuditAction = "device.health"
	AuditDeviceLabels     AuditAction = "device.labels"
	AuditDeviceReleased   AuditAction = "device.force_released"
	AuditDeviceMoved      AuditAction = "device.moved"
	AuditDeviceConflict   AuditAction = "device.conflict"
	AuditHostDrain        AuditAction = "host.drain"
	AuditHostUndrain      AuditAction = "host.undrain"
	AuditHostRevoked      AuditAction = "host.revoked"
	AuditPoolPaused       AuditAction = "pool.paused"
	AuditPoolResumed      AuditAction = "pool.resumed"
	AuditPluginEnabled    AuditAction = "plugin.enabled"
	AuditPluginDisabled   AuditAction = "plugin.disabled"
	AuditPluginChanged    AuditAction = "plugin.changed"
	AuditPluginDiffers    AuditAction = "plugin.differs" // a host's, from what is registered
	AuditInputStored      AuditAction = "input.stored"
	AuditInputExpired     AuditAction = "input.expired"
	AuditAmnesty          AuditAction = "leases.amnesty"
	AuditPluginRegistered AuditAction = "plugin.registered"
	AuditKeyCreated       AuditAction = "signing_key.created"
	AuditKeyRemoved       AuditAction = "signing_key.removed"

	AuditUserChanged      AuditAction = "user.changed"
	AuditUserProvisioned  AuditAction = "user.provisioned" // first seen with an external issuer's token
	AuditPasswordChanged  AuditAction = "user.password_changed"
	AuditLogout           AuditAction = "auth.logout"
	AuditSessionRevoked   AuditAction = "auth.session_revoked" // a refresh token was used twice
	AuditAPIKeyCreated    AuditAction = "api_key.created"
	AuditAPIKeyRevoked    AuditAction = "api_key.revoked"
	AuditKeyRotationAsked AuditAction = "host.key_rotation_requested"
	AuditHostKeyOffered   AuditAction = "host.key_offered"
	AuditHostKeyRotated   AuditAction = "host.key_rotated"
	AuditHostRenamed      AuditAction = "host.renamed" // a revoked one, whose name another host took
	AuditResealed         AuditAction = "master_key.resealed"
	AuditSecretCreated    AuditAction = "secret.created"
	AuditSecretChanged    AuditAction = "secret.changed" // a new value, grants or description
	AuditSecretDeleted    AuditAction = "secret.deleted"
	AuditSecretDelivered  AuditAction = "secret.delivered" // to a host, for an attempt
	AuditArtifactRead     AuditAction = "artifact.read"
	AuditLogRead          AuditAction = "log.read"
	AuditInputRead        AuditAction = "input.read"
	AuditScheduleCreated  AuditAction = "schedule.created"
	AuditScheduleChanged  AuditAction = "schedule.changed"
	AuditScheduleDeleted  AuditAction = "schedule.deleted"
	AuditSchedulePaused   AuditAction = "schedule.paused"
	AuditScheduleResumed  AuditAction = "schedule.resumed"
	AuditScheduleRun      AuditAction = "schedule.run" // by hand
	AuditBulkStarted      AuditAction = "bulk_job.started"
	AuditBulkStopped      AuditAction = "bulk_job.stopped"
	AuditBulkFinished     AuditAction = "bulk_job.finished"
)

// AuditActions lists the actions above and those of transitions.
func AuditActions() []AuditAction {
	all := []AuditAction{
		AuditUserCreated, AuditLogin, AuditLoginFailed, AuditPoolCreated,
		AuditEnrolmentCreated, AuditEnrolmentRevoked, AuditHostEnrolled, AuditHostSynced,
		AuditHostOffline, AuditDeviceAdmin, AuditDeviceUnclean, AuditDeviceCleaned,
		AuditDeviceHealth, AuditDeviceLabels, AuditDeviceReleased, AuditDeviceMoved,
		AuditDeviceConflict, AuditHostDrain, AuditHostUndrain, AuditHostRevoked,
		AuditPoolPaused, AuditPoolResumed, AuditPluginEnabled, AuditPluginDisabled,
		AuditInputStored, AuditInputExpired, AuditAmnesty, AuditPluginRegistered,
		AuditKeyCreated, AuditKeyRemoved, AuditUserChanged, AuditUserProvisioned,
		AuditPasswordChanged, AuditLogout, AuditSessionRevoked, AuditAPIKeyCreated,
		AuditAPIKeyRevoked, AuditKeyRotationAsked, AuditHostKeyOffered, AuditHostKeyRotated,
		AuditHostRenamed, AuditResealed, AuditSecretCreated, AuditSecretChanged,
		AuditSecretDeleted, AuditSecretDelivered, AuditArtifactRead, AuditLogRead,
		AuditInputRead, AuditScheduleCreated, AuditScheduleChanged, AuditScheduleDeleted,
		AuditSchedulePaused, AuditScheduleResumed, AuditScheduleRun, AuditBulkStarted,
		AuditBulkStopped, AuditBulkFinished, AuditPluginChanged, AuditPluginDiffers,
	}
	for _, e := range []Event{
		EventAssigned, EventClaimed, EventCompleted, EventRetried, EventFailed, EventSubmitted, EventStarted, EventQueued, EventReleased,
		EventCancelRequested, EventCancelled, EventRetriedByHand, EventReprioritised, EventRepaired, EventDeleted,
	} { // EventRenewed is logged alone
		all = append(all, ActionOf(e))
	}
	return all
}

// ActionOf is the audit action of a transition's event.
func ActionOf(e Event) AuditAction { return AuditAction("task." + string(e)) }

// AuditEvent is one row of the audit trail.
type AuditEvent struct {
	ID     int64
	At     time.Time
	Actor  Actor
	Action AuditAction
	// Target names what was acted on: kind (task, host, device, pool, user,
	// enrolment, plugin, signing_key, schedule) and id.
	TargetKind string
	TargetID   string
	// Transition's coordinates, for task.* actions.
	Attempt AttemptID
	Number  int
	Device  DeviceID
	Host    HostID
	From    TaskState
	To      TaskState
	Outcome Outcome
	Reason  string
	// Before and After are what an administrative act changed, by field: codes,
	// names and numbers, never content.
	Before, After Facts
}

// Facts are texts by field name, as the one JSON object that spells them; "" is
// none.
type Facts string

// What one side of a change may hold in the trail: what is longer is cut, and
// said to be.
const (
	MaxFacts     = 64  // fields
	MaxFactBytes = 256 // of a value
)

// NewFacts spells facts, within the bounds: of more fields than MaxFacts the first
// by name are kept and "..." counts the rest; a longer value ends in "...".
func NewFacts(facts map[string]string) Facts {
	if len(facts) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(facts))
	bounded := make(map[string]string, len(facts))
	for i, name := range names {
		if i == MaxFacts {
			bounded["..."] = strconv.Itoa(len(names) - i)
			break
		}
		bounded[name] = bound(facts[name])
	}
	text, err := json.Marshal(bounded) // sorted by name
	if err != nil {
		panic(err) // a map of texts always has a JSON form
	}
	return Facts(text)
}

func bound(value string) string {
	value = strings.ReplaceAll(value, "\x00", "")
	if len(value) <= MaxFactBytes {
		return value
	}
	return strings.ToValidUTF8(value[:MaxFactBytes-len("...")], "") + "..."
}

// Fact is the facts of a change in one field.
func Fact(name, value string) Facts { return NewFacts(map[string]string{name: value}) }
