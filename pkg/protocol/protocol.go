// Package protocol is the wire of /agent/v1: what a Host Agent and the API say
// to each other. JSON in snake_case over HTTPS; durations in milliseconds
// (never deadlines: two clocks differ); ids are canonical UUIDs; unknown fields
// are ignored by both sides, so that version N and N-1 understand each other.
// docs/protocol.md tells the story; the rules are pkg/berth's.
package protocol

import (
	"encoding/json"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// Version is the protocol's version. Server and agent speak it and the one
// before; sync settles which of them ([SyncResponse.ProtocolVersion]), and both
// keep to that until the next sync.
//
//   - 1: the beginning.
//   - 2: the answer to a heartbeat tells whether to drain, a heartbeat tells the
//     health of every device, and claims carry the inputs and the secrets of tasks.
const Version = 2

// Versions are those that this release speaks, the newest first.
func Versions() []int { return []int{Version, Version - 1} }

// Headers of agent calls.
const (
	// HeaderEpoch carries the host's epoch on every call after sync.
	HeaderEpoch = "Berth-Epoch"
	// HeaderFence carries the fence on log and artifact uploads.
	HeaderFence = "Berth-Fence"
	// HeaderArtifactClass carries an artifact's class on its upload.
	HeaderArtifactClass = "Berth-Artifact-Class"
	// HeaderDigest carries "sha-256=<hex>" of the bytes of an upload.
	HeaderDigest = "Berth-Digest"
	// HeaderCorrelation carries a task's correlation id.
	HeaderCorrelation = "Berth-Correlation-Id"
)

// Paths of the agent API; {id} and the like are filled in by the caller.
const (
	PathEnrol     = "/agent/v1/enrol"
	PathToken     = "/agent/v1/token"
	PathSync      = "/agent/v1/sync"
	PathKeys      = "/agent/v1/keys"
	PathHeartbeat = "/agent/v1/heartbeat"
	PathClaims    = "/agent/v1/claims"
	PathStart     = "/agent/v1/attempts/start"
	PathRenew     = "/agent/v1/attempts/renew"
	PathComplete  = "/agent/v1/attempts/complete"
	PathRelease   = "/agent/v1/attempts/release"
	// PathLog is PUT; offset is the position of the chunk's first byte.
	PathLog      = "/agent/v1/attempts/{id}/log/{offset}"
	PathArtifact = "/agent/v1/attempts/{id}/artifacts/{name}"
	PathClean    = "/agent/v1/devices/{id}/clean"
	// PathInput is GET; for inputs of attempts that the host holds. Since 2.
	PathInput = "/agent/v1/inputs/{digest}"
)

// MaxClaimWait bounds a claim's long poll.
const MaxClaimWait = 25 * time.Second

// Problem codes of agent calls (problem+json "code").
const (
	CodeLeaseLost          = "lease_lost"      // 410: stop, kill, clean
	CodeStaleEpoch         = "stale_epoch"     // 412: a newer agent runs, stop
	CodeEpochAhead         = "epoch_ahead"     // 412: the database was restored, sync again
	CodeLogGap             = "log_gap"         // 416: next_offset says where to go on
	CodeMismatch           = "content_differs" // 409
	CodeNotFound           = "not_found"
	CodeWrongState         = "wrong_state"
	CodeTokenUsed          = "enrolment_token_used"
	CodeTokenExpired       = "enrolment_token_expired"
	CodeUnsupported        = "protocol_unsupported"
	CodeUnavailable        = "database_unavailable" // 503 with Retry-After
	CodeStorageFull        = "storage_full"         // 503 with Retry-After
	CodeStorageUnavailable = "storage_unavailable"  // 503 with Retry-After
	CodeInputLost          = "input_lost"           // 503 with Retry-After: until the file is uploaded again
	CodeUnauthorised       = "unauthenticated"
	CodeInvalid            = "invalid"
	CodeTooLarge           = "too_large"
	CodeClientCertificate  = "client_certificate_required" // 403: mutual TLS
)

// Millis is a duration on the wire.
type Millis int64

// MillisOf rounds down, so that a lease is never told longer than it is.
func MillisOf(d time.Duration) Millis { return Millis(d.Milliseconds()) }

// Duration is m as a duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) * time.Millisecond }

// EnrolRequest is the first call of a new host, with a one-time token.
type EnrolRequest struct {
	Token     string `json:"token"`
	Name      string `json:"name"`
	PublicKey []byte `json:"public_key"` // Ed25519, base64
}

// EnrolResponse names the host.
type EnrolResponse struct {
	HostID berth.HostID `json:"host_id"`
	Pool   string       `json:"pool"`
	// TokenAudience is the aud that assertions for PathToken must carry.
	TokenAudience string `json:"token_audience"`
}

// TokenRequest asks for an access token with a signed assertion (RFC 7523):
// a compact EdDSA JWT with iss = sub = host id, aud = TokenAudience, iat, exp at
// most 60 s ahead, and a unique jti.
type TokenRequest struct {
	GrantType string `json:"grant_type"` // GrantJWTBearer
	Assertion string `json:"assertion"`
}

// GrantJWTBearer is the only grant type.
const GrantJWTBearer = "urn:ietf:params:oauth:grant-type:jwt-bearer"

// TokenResponse carries a short access token of role host.
type TokenResponse struct {
	AccessToken string `json:"access_token"`
	TokenType   string `json:"token_type"` // Bearer
	ExpiresIn   int    `json:"expires_in"` // seconds
}

// KeyRequest offers the key that is to follow the host's. Two compact EdDSA JWTs of
// typ berth-host-key+jwt with the claims of an assertion and key (the offered public
// key, base64url) say that this is meant: Consent under the key in force, Proof under
// the offered one. The host's first token under the offered key puts it in force.
type KeyRequest struct {
	PublicKey []byte `json:"public_key"` // Ed25519, base64
	Consent   string `json:"consent"`
	Proof     string `json:"proof"`
}

// SyncRequest is an agent's first call after its start, after a reconnect, and
// when it is told to.
type SyncRequest struct {
	ProtocolVersions []int         `json:"protocol_versions"`
	Instance         string        `json:"instance"` // random, one a process
	Epoch            berth.Epoch   `json:"epoch"`    // held by this process, 0: never synced
	JournalEpoch     berth.Epoch   `json:"journal_epoch"`
	AgentVersion     string        `json:"agent_version"`
	Draining         bool          `json:"draining"`
	Plugins          []Plugin      `json:"plugins"`
	Devices          []Device      `json:"devices"`
	Held             []HeldAttempt `json:"held"`
}

// Plugin is a version that the host provides, with its payload schema so that
// it can be approved.
type Plugin struct {
	berth.PluginVersion
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	// ResultSchema of what succeeded work returns; optional.
	ResultSchema json.RawMessage `json:"result_schema,omitempty"`
	// Requires is a selector that a device must satisfy to run it.
	Requires string `json:"requires,omitempty"`
}

// Device is a device as the agent sees it.
type Device struct {
	Driver         string            `json:"driver"`
	HardwareID     string            `json:"hardware_id"`
	HardwareUnique bool              `json:"hardware_unique"`
	Name           string            `json:"name"`
	Labels         map[string]string `json:"labels"`
	Health         berth.Health      `json:"health"`
	HighestFence   berth.Fence       `json:"highest_fence"`
	Clean          bool              `json:"clean"`
}

// HeldAttempt is an attempt that the agent holds.
type HeldAttempt struct {
	Attempt berth.AttemptID `json:"attempt"`
	Fence   berth.Fence     `json:"fence"`
}

// SyncResponse settles things.
type SyncResponse struct {
	ProtocolVersion int         `json:"protocol_version"`
	Epoch           berth.Epoch `json:"epoch"`
	Settings        Settings    `json:"settings"`
	// Devices in the order reported.
	Devices []SyncedDevice `json:"devices"`
	// Attempts in the order held.
	Attempts []SyncedAttempt `json:"attempts"`
	// Undelivered attempts wait for a claim.
	Undelivered []berth.AttemptID `json:"undelivered"`
	// DisabledPlugins wait for approval.
	DisabledPlugins []berth.PluginVersion `json:"disabled_plugins,omitempty"`
	// DifferingPlugins are not what is registered under that name and version, and
	// get no tasks.
	DifferingPlugins []berth.PluginVersion `json:"differing_plugins,omitempty"`
}

// Settings are the installation's durations.
type Settings struct {
	LeaseTTL       Millis `json:"lease_ttl_ms"`
	RenewEvery     Millis `json:"renew_every_ms"`
	RequestTimeout Millis `json:"request_timeout_ms"`
	FenceMargin    Millis `json:"fence_margin_ms"`
	KillMargin     Millis `json:"kill_margin_ms"`
	HeartbeatEvery Millis `json:"heartbeat_every_ms"`
	CancelWithin   Millis `json:"cancel_within_ms"`
	MaxLogChunk    int64  `json:"max_log_chunk"`
	MaxLogBytes    int64  `json:"max_log_bytes"`
	MaxArtifact    int64  `json:"max_artifact_bytes"`
	MaxArtifacts   int    `json:"max_artifacts"`
}

// SyncedDevice is the server's id for a reported device.
type SyncedDevice struct {
	ID       berth.DeviceID `json:"id,omitempty"`
	Conflict bool           `json:"conflict,omitempty"`
}

// SyncedAttempt is a verdict on a held attempt: keep, cancel or gone.
type SyncedAttempt struct {
	Attempt berth.AttemptID `json:"attempt"`
	Verdict string          `json:"verdict"`
}

// HeartbeatRequest is a sign of life. It never renews leases. (Agents of
// version 1 also send free_disk_bytes, which nobody reads: an agent has a metric
// of it.)
type HeartbeatRequest struct {
	// Draining: the agent takes nothing more, whoever decided that.
	Draining bool `json:"draining"`
	// Health that the drivers' last probes saw: since 2 of every device, in 1 of
	// those whose health changed.
	Health map[berth.DeviceID]berth.Health `json:"health,omitempty"`
}

// HeartbeatResponse carries directives.
type HeartbeatResponse struct {
	Interval Millis `json:"interval_ms"`
	// Drain: take no new attempts, hand back what has not started, finish what
	// runs, until an answer without it. Since 2.
	Drain bool `json:"drain"`
	// Resync: call sync again with the epoch held.
	Resync bool `json:"resync"`
	// RotateKey: an administrator asks for a new key ([PathKeys]).
	RotateKey bool `json:"rotate_key,omitempty"`
}

// ClaimRequest takes assigned attempts; the same ClaimID gives the same set
// until they are started.
type ClaimRequest struct {
	ClaimID string `json:"claim_id"`
	Wait    Millis `json:"wait_ms"` // up to MaxClaimWait
	Max     int    `json:"max"`
}

// ClaimResponse lists attempts; empty after the wait.
type ClaimResponse struct {
	Attempts []Assignment `json:"attempts"`
}

// Assignment is an attempt with all that the agent needs.
type Assignment struct {
	Attempt       berth.AttemptID     `json:"attempt"`
	Task          berth.TaskID        `json:"task"`
	TaskName      string              `json:"task_name,omitempty"`
	Number        int                 `json:"number"`
	Device        berth.DeviceID      `json:"device"`
	Fence         berth.Fence         `json:"fence"`
	LeaseLeft     Millis              `json:"lease_left_ms"`
	Plugin        berth.PluginVersion `json:"plugin"`
	Payload       json.RawMessage     `json:"payload"` // content: never log it
	RunTimeout    Millis              `json:"run_timeout_ms"`
	CorrelationID string              `json:"correlation_id"`
	TraceParent   string              `json:"trace_parent,omitempty"`
	// Inputs that the work is to see as files of these names; [PathInput] has the
	// bytes. Since 2.
	Inputs []Input `json:"inputs,omitempty"`
	// Secrets are the values of the secrets that the task names, by name. They read
	// from JSON and write as [redacted]: the API's answer to a claim alone shows
	// them. Since 2.
	Secrets redact.Strings `json:"secrets,omitempty"`
	// MissingSecrets are those that the task names and does not get: deleted, or not
	// granted any more. The attempt is started and fails with secret_missing. Since 2.
	MissingSecrets []string `json:"missing_secrets,omitempty"`
}

// Input is a file that a task brings.
type Input struct {
	Name   string `json:"name"`
	Digest string `json:"digest"` // SHA-256, lower-case hex
	Size   int64  `json:"size"`   // bytes
}

// Holder is one (attempt, fence).
type Holder struct {
	Attempt berth.AttemptID `json:"attempt"`
	Fence   berth.Fence     `json:"fence"`
}

// StartRequest asks whether the work may begin.
type StartRequest struct {
	Items []Holder `json:"items"`
}

// RenewRequest extends leases.
type RenewRequest struct {
	Items []RenewItem `json:"items"`
}

// RenewItem is one lease to renew.
type RenewItem struct {
	Holder
	Progress *float64 `json:"progress,omitempty"` // 0 to 1
	Note     string   `json:"note,omitempty"`     // content
}

// ReleaseRequest hands unstarted attempts back.
type ReleaseRequest struct {
	Items    []Holder `json:"items"`
	Reason   string   `json:"reason,omitempty"`
	Draining bool     `json:"draining,omitempty"`
}

// LeaseResponse answers start, renew and release, in the order asked.
type LeaseResponse struct {
	Items []LeaseAnswer `json:"items"`
}

// LeaseAnswer is store.LeaseAnswer on the wire: status granted, cancelled,
// gone, released or started.
type LeaseAnswer struct {
	Attempt   berth.AttemptID `json:"attempt"`
	Status    string          `json:"status"`
	LeaseLeft Millis          `json:"lease_left_ms,omitempty"`
	Cancel    bool            `json:"cancel,omitempty"`
}

// CompleteRequest ends attempts.
type CompleteRequest struct {
	Items []CompleteItem `json:"items"`
}

// CompleteItem is one attempt's end.
type CompleteItem struct {
	Holder
	Outcome     berth.Outcome     `json:"outcome"`
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message,omitempty"` // content
	Result      json.RawMessage   `json:"result,omitempty"`  // content
	LogBytes    int64             `json:"log_bytes"`
	Artifacts   map[string]string `json:"artifacts,omitempty"` // name -> sha-256 hex
	DeviceClean bool              `json:"device_clean"`
}

// CompleteResponse answers in the order asked.
type CompleteResponse struct {
	Items []CompleteAnswer `json:"items"`
}

// CompleteAnswer is store.CompleteAnswer on the wire: status stored, missing,
// mismatch, gone or not_started.
type CompleteAnswer struct {
	Attempt          berth.AttemptID `json:"attempt"`
	Status           string          `json:"status"`
	Outcome          berth.Outcome   `json:"outcome,omitempty"`
	MissingArtifacts []string        `json:"missing_artifacts,omitempty"`
	LogNext          int64           `json:"log_next"`
}

// LogResponse answers a chunk.
type LogResponse struct {
	NextOffset int64 `json:"next_offset"`
}

// CleanRequest proves a device clean under its current fence.
type CleanRequest struct {
	Fence berth.Fence `json:"fence"`
}

// Problem is the error body of both APIs (RFC 9457).
type Problem struct {
	Type      string             `json:"type,omitempty"`
	Title     string             `json:"title"`
	Status    int                `json:"status"`
	Detail    string             `json:"detail,omitempty"`
	Code      string             `json:"code"`
	Remedy    string             `json:"remedy,omitempty"`
	RequestID string             `json:"request_id,omitempty"`
	Errors    []berth.FieldError `json:"errors,omitempty"`
	// NextOffset comes with CodeLogGap.
	NextOffset *int64 `json:"next_offset,omitempty"`
}
