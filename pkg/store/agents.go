package store

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Agents are the operations behind the Host Agent protocol. Every one but
// Enrol reads the host's epoch in a statement after its locks and
// refuses another one with berth.ErrStaleEpoch (berth.CheckEpoch); a revoked
// or unknown host is berth.ErrNotFound. Each also counts as a sign of life of
// the host only where its comment says so.
type Agents interface {
	// Enrol consumes a token and makes (or returns) the host. The token + the
	// same key and name within berth.EnrolmentRepeatWithin repeats the answer, unless
	// the host was revoked; otherwise
	// a used token is berth.ErrUsed, an old or revoked one berth.ErrExpired, an
	// unknown one berth.ErrNotFound, a host name that the token's pattern does
	// not match berth.ErrInvalid, and a name taken by another host
	// berth.ErrExists. A revoked host gives its name up to one that enrols under
	// it, and is called berth.FormerHostName from then on.
	Enrol(ctx context.Context, p EnrolParams) (berth.Host, error)

	// SyncHost settles what an agent and the server think of each other, in two
	// transactions: first the epoch (berth.NextEpoch), then, under it: plugins,
	// devices (new ones get a lease row; absent ones lose Present; fences go
	// above HighestFence; clean ones lose Unclean; placeable bits are judged
	// anew), and every live attempt of the host:
	//   - held and known: VerdictKeep, or VerdictCancel when asked to stop;
	//   - held but ended, foreign or with another fence: VerdictGone;
	//   - running but not held: ended as lost, the task goes on by berth.After;
	//   - not started, and not to be delivered in this Protocol (berth.Deliverable):
	//     released, uncounted, also when held (VerdictGone);
	//   - assigned or claimed but not held: in Undelivered, to be claimed again.
	// The host is online and seen. A repeat by the same instance gives the same
	// epoch. Two hosts with one unique hardware id: the second's device is not
	// registered and listed in Conflicts, and the device that is there remembers
	// ConflictHost until the other host reports it no more. Healths go through
	// berth.HealthRecord.Next.
	SyncHost(ctx context.Context, p SyncParams) (SyncResult, error)

	// Heartbeat marks the host seen, stores draining (which clears or judges
	// the placeable bits) and what each device's probe said
	// (berth.HealthRecord.Next; what changes nothing writes nothing; a change of
	// Health is audited). It never renews leases. A host that must sync first
	// (berth.Timings.MustSync: offline, or silent for too long, whether a keeper saw
	// it or not) gets Resync, and is seen no more by this call nor by a claim until
	// it did: so an answer that is lost loses nothing.
	Heartbeat(ctx context.Context, p HeartbeatParams) (HeartbeatResult, error)

	// ClaimAttempts hands over the host's unstarted attempts, oldest first, at
	// most Max: those assigned, those claimed under this ClaimID before, and
	// those claimed under an older epoch. They become claimed with a fresh
	// LeaseTTL (repeats keep the lease they have). Those whose lease is over, and
	// those that a round placed while the host's agent was downgraded
	// (berth.Deliverable), are left to the keeper. An empty answer is no error. The
	// host is seen.
	ClaimAttempts(ctx context.Context, p ClaimParams) ([]Assignment, []berth.Transition, error)

	// StartAttempts decides, each for itself, whether the work may touch the
	// device: granted (claimed becomes running, LeaseTTL fresh, KillBy set),
	// repeated (running already: the time left now), or refused.
	StartAttempts(ctx context.Context, p StartParams) ([]LeaseAnswer, []berth.Transition, error)

	// RenewAttempts extends the leases of running and claimed attempts that are
	// still alive; strict: expired is gone. Progress is stored. Only lease rows
	// are locked. The transitions (berth.EventRenewed) carry every id but are no
	// change of state and write no audit row. At most every
	// Timings.MarkEvery the mark of
	// renewals is moved (berth.Mark), without waiting for its row.
	RenewAttempts(ctx context.Context, p RenewParams) ([]LeaseAnswer, []berth.Transition, error)

	// CompleteAttempts ends attempts with the outcomes that the agent saw, each
	// in its own right: see CompleteAnswer. Accepted after the lease's expiry
	// until the keeper wins the row. The device is free, or unclean when the
	// agent could not clean it. Its health hears of the outcome (berth.SignalOf).
	// An outcome that no agent reports or a Reason that is no code is
	// berth.ErrInvalid, and none is done (CheckComplete).
	CompleteAttempts(ctx context.Context, p CompleteParams) ([]CompleteAnswer, []berth.Transition, error)

	// CompleteMany does the completions of several calls, of any hosts, in one
	// transaction, its locks ordered by attempt; each call has its own answer or
	// error (stale epoch, unknown host, bad input), and one that errs does nothing.
	// An attempt in two calls is ended by the first that may; the other is a
	// repeat. The error is of them all: none was done.
	CompleteMany(ctx context.Context, calls []CompleteParams) ([]CompleteManyAnswer, error)
	// RenewMany does the renewals of several calls likewise. Of one attempt's
	// progress and notes the later ones stay.
	RenewMany(ctx context.Context, calls []RenewParams) ([]RenewManyAnswer, error)

	// ReleaseAttempts hands unstarted attempts back; the task is queued again or,
	// after too many in a row, dead-lettered. A started one is
	// LeaseStarted in its answer; a repeat is accepted. A Reason that is no code is
	// berth.ErrInvalid.
	ReleaseAttempts(ctx context.Context, p ReleaseParams) ([]LeaseAnswer, []berth.Transition, error)

	// CleanDevice ends Unclean on the host's device if Fence is the current one;
	// an older one is berth.ErrLeaseLost. A clean device stays so: no error.
	CleanDevice(ctx context.Context, p CleanParams) error

	// CheckUpload says, before bytes are read, whether this host may write a log
	// chunk or an artifact under (attempt, fence): nil for a live attempt of its
	// own and for UploadWindow after its end; otherwise berth.ErrNotFound
	// (foreign, unknown) or berth.ErrLeaseLost.
	CheckUpload(ctx context.Context, p HolderParams) error

	// AppendLog records a chunk whose bytes the blob store has. The end of the
	// log is decided here under the attempt's row: a chunk at the end is stored;
	// one that is stored already with the same digest is accepted again; with
	// another, berth.ErrMismatch; one past the end, a *berth.GapError. next is
	// the log's new end. An empty chunk is berth.ErrInvalid (CheckChunk), more than
	// MaxLogBytes berth.ErrTooLarge. stored says
	// whether the caller's blob is the one in use.
	AppendLog(ctx context.Context, p AppendLogParams) (next int64, stored bool, err error)

	// AddArtifact records an artifact whose bytes the blob store has: the same
	// name and digest is accepted again (stored false), another digest is
	// berth.ErrMismatch, too many or too much berth.ErrTooLarge.
	AddArtifact(ctx context.Context, p AddArtifactParams) (stored bool, err error)
}

// Limits of what an attempt leaves.
const (
	MaxLogBytes         = 64 << 20
	MaxLogChunk         = 1 << 20
	MaxArtifacts        = 200
	MaxArtifactBytes    = 256 << 20
	MaxAttemptArtifacts = 1 << 30
	MaxResultBytes      = 256 << 10
	MaxMessageBytes     = 4 << 10
	// UploadWindow is how long after its end an attempt's own late logs and
	// artifacts are kept.
	UploadWindow = 10 * time.Minute
)

// EnrolParams of Enrol.
type EnrolParams struct {
	Actor     berth.Actor
	TokenHash [32]byte // SHA-256 of the token
	Host      berth.HostID
	Name      string
	PublicKey []byte // Ed25519, 32 bytes
}

// AgentCall is who calls: a host, and the epoch its agent has.
type AgentCall struct {
	Actor berth.Actor
	Host  berth.HostID
	Epoch berth.Epoch
}

// SyncParams of SyncHost. Epoch in AgentCall is the one the process holds, 0
// when it never synced.
type SyncParams struct {
	AgentCall
	// Instance is a random name of the agent process.
	Instance string
	// JournalEpoch is the highest epoch in the agent's journal.
	JournalEpoch berth.Epoch
	AgentVersion string
	// Protocol that was negotiated.
	Protocol int
	Draining bool
	// Plugins the host provides; those not registered and enabled are stored
	// as reported, disabled, unless ApprovePlugins.
	Plugins []berth.Plugin
	// ApprovePlugins registers what the host reports (local mode).
	ApprovePlugins bool
	Devices        []ReportedDevice
	Held           []HeldAttempt
}

// ReportedDevice is a device as an agent sees it.
type ReportedDevice struct {
	// ID to give it if it is new: a fresh one in each call. One that another
	// device has is berth.ErrExists.
	ID             berth.DeviceID
	Driver         string
	HardwareID     string
	HardwareUnique bool
	Name           string
	Labels         map[string]string
	Health         berth.Health
	// HighestFence in the agent's journal for it.
	HighestFence berth.Fence
	// Clean: nothing of an earlier attempt touches it, as far as the agent
	// can prove.
	Clean bool
}

// HeldAttempt is an attempt that the agent says it holds: claimed, running in
// this process, or finished and not yet reported.
type HeldAttempt struct {
	Attempt berth.AttemptID
	Fence   berth.Fence
}

// Verdict on a held attempt.
type Verdict string

// The verdicts.
const (
	VerdictKeep   Verdict = "keep"
	VerdictCancel Verdict = "cancel"
	VerdictGone   Verdict = "gone"
)

// SyncResult of SyncHost.
type SyncResult struct {
	Epoch berth.Epoch
	Pool  berth.PoolID
	// Devices in the order reported: their ids, "" for a conflict.
	Devices []berth.DeviceID
	// Conflicts are indexes into Devices.
	Conflicts []int
	// Verdicts in the order held.
	Verdicts []Verdict
	// Undelivered attempts await a claim.
	Undelivered []berth.AttemptID
	// DisabledPlugins that the host provides and may not serve.
	DisabledPlugins []berth.PluginVersion
	// DifferingPlugins are those whose report differs from what is registered
	// (berth.Plugin.Report); the host may not serve them either.
	DifferingPlugins []berth.PluginVersion
	Transitions      []berth.Transition
}

// HeartbeatParams of Heartbeat.
type HeartbeatParams struct {
	AgentCall
	Draining bool
	// Health of each device as its probe said; unknown ones are ignored.
	Health map[berth.DeviceID]berth.Health
}

// HeartbeatResult of Heartbeat.
type HeartbeatResult struct {
	// Resync: sync again (same epoch), the server had given the host up.
	Resync bool
	// Drain: an operator asked the host to take nothing more.
	Drain bool
	// RotateKey: an administrator asked the host to change its key.
	RotateKey bool
}

// ClaimParams of ClaimAttempts.
type ClaimParams struct {
	AgentCall
	ClaimID string // a UUID of the agent's
	Max     int    // 1 to 100
}

// Assignment is an attempt with all that the agent needs.
type Assignment struct {
	Attempt berth.AttemptID
	Task    berth.TaskID
	Number  int
	Device  berth.DeviceID
	Fence   berth.Fence
	// Left of the lease, by the database's clock.
	Left          time.Duration
	Plugin        berth.PluginVersion // the version placement picked
	Payload       redact.Bytes
	RunTimeout    time.Duration
	CorrelationID string
	TraceParent   string
	TaskName      string
	Inputs        []berth.InputRef
	// Secrets that the task names; SecretValues has them.
	Secrets []string
}

// Holder is one (attempt, fence) that an agent acts under.
type Holder struct {
	Attempt berth.AttemptID
	Fence   berth.Fence
}

// StartParams of StartAttempts.
type StartParams struct {
	AgentCall
	Items []Holder
}

// RenewParams of RenewAttempts.
type RenewParams struct {
	AgentCall
	Items []RenewItem
}

// RenewItem is one lease to renew.
type RenewItem struct {
	Holder
	// Progress is 0 to 1; negative: unchanged.
	Progress float64
	Note     redact.String
}

// LeaseStatus answers a start, a renewal or a release.
type LeaseStatus string

// The lease statuses.
const (
	// LeaseGranted: go on, for Left.
	LeaseGranted LeaseStatus = "granted"
	// LeaseGone: expired, ended (also by a cancel), foreign, or another fence.
	// Stop, kill, clean.
	LeaseGone LeaseStatus = "gone"
	// LeaseReleased: handed back.
	LeaseReleased LeaseStatus = "released"
	// LeaseStarted: cannot be released, it was started.
	LeaseStarted LeaseStatus = "started"
)

// LeaseAnswer is the answer for one item, in the order asked.
type LeaseAnswer struct {
	Attempt berth.AttemptID
	Status  LeaseStatus
	Left    time.Duration
	// Cancel asks the agent to stop running work and complete it.
	Cancel bool
}

// CompleteParams of CompleteAttempts.
type CompleteParams struct {
	AgentCall
	Items []CompleteItem
}

// CompleteItem is one attempt's end.
type CompleteItem struct {
	Holder
	Outcome berth.Outcome // ReportableByAgent
	Reason  string        // a code (berth.ValidReason); "" means the outcome's name
	Message redact.String
	Result  redact.Bytes // JSON or empty
	// LogBytes is the length of the log that was sent.
	LogBytes int64
	// Artifacts that were sent: name -> SHA-256 in hex.
	Artifacts map[string]string
	// DeviceClean: nothing of the attempt touches the device any more.
	DeviceClean bool
	// Digest of the item's canonical form, to tell a repeat from another body.
	Digest [32]byte
}

// CompleteStatus answers a complete.
type CompleteStatus string

// The complete statuses.
const (
	// CompleteStored: now, or before with the same digest.
	CompleteStored CompleteStatus = "stored"
	// CompleteMissing: send what is missing first, then complete again. Only
	// for succeeded (I3); other outcomes are stored with what there is.
	CompleteMissing CompleteStatus = "missing"
	// CompleteMismatch: completed before with another body; Outcome is stored.
	CompleteMismatch CompleteStatus = "mismatch"
	// CompleteGone: ended by somebody else, foreign, or another fence.
	CompleteGone CompleteStatus = "gone"
	// CompleteNotStarted: only a started attempt can be completed by
	// succeeded, failed, timed_out; release it, or start it.
	// (infra_failed and cancelled of an unstarted one are stored.)
	CompleteNotStarted CompleteStatus = "not_started"
)

// CompleteAnswer is the answer for one item, in the order asked.
type CompleteAnswer struct {
	Attempt berth.AttemptID
	Status  CompleteStatus
	// Outcome that is stored.
	Outcome berth.Outcome
	// State the task went to when the attempt ended, for CompleteStored: a late
	// repeat gets the same answer, wherever the task is by then.
	TaskState berth.TaskState
	// What is missing: artifacts by name, and the log's end so far.
	MissingArtifacts []string
	LogNext          int64
}

// CompleteManyAnswer is one call's.
type CompleteManyAnswer struct {
	Answers     []CompleteAnswer
	Transitions []berth.Transition
	Err         error
}

// RenewManyAnswer is one call's.
type RenewManyAnswer struct {
	Answers     []LeaseAnswer
	Transitions []berth.Transition
	Err         error
}

// ReleaseParams of ReleaseAttempts.
type ReleaseParams struct {
	AgentCall
	Items []Holder
	// Reason is a code; "" means berth.ReasonHandBack.
	Reason string
	// Draining: the hand-back does not count against the task.
	Draining bool
}

// CleanParams of CleanDevice.
type CleanParams struct {
	AgentCall
	Device berth.DeviceID
	Fence  berth.Fence
}

// HolderParams of CheckUpload.
type HolderParams struct {
	AgentCall
	Holder
}

// AppendLogParams of AppendLog.
type AppendLogParams struct {
	HolderParams
	Chunk berth.LogChunk
}

// AddArtifactParams of AddArtifact.
type AddArtifactParams struct {
	HolderParams
	// Artifact with Name, Class, ContentType, Size, SHA256, BlobKey.
	Artifact berth.Artifact
}
