package runtime

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// RunID names a run; the Host Agent uses the attempt's id. It is made of
// letters, digits, '.', '_' and '-', at most 64 of them, and is never used twice.
type RunID string

// Outcome is how a run ended.
type Outcome string

// The outcomes; they are those of an attempt of the same name.
const (
	// OutcomeSucceeded: the work did what it should.
	OutcomeSucceeded Outcome = "succeeded"
	// OutcomeFailed: the work itself said no.
	OutcomeFailed Outcome = "failed"
	// OutcomeInfraFailed: device, driver or host failed, not the work.
	OutcomeInfraFailed Outcome = "infra_failed"
	// OutcomeTimedOut: the run's time limit passed and the work was killed.
	OutcomeTimedOut Outcome = "timed_out"
	// OutcomeCancelled: the work was killed because the caller asked for it.
	OutcomeCancelled Outcome = "cancelled"
)

// ArtifactClass says what an artifact is for.
type ArtifactClass string

// The classes of artifacts.
const (
	ClassScreenshot ArtifactClass = "screenshot"
	ClassUITree     ArtifactClass = "ui_tree"
	ClassReport     ArtifactClass = "report"
	ClassVideo      ArtifactClass = "video"
	ClassFile       ArtifactClass = "file"
)

// Artifact is a file that a run left.
type Artifact struct {
	// Name is unique within the run: letters, digits, '.', '_' and '-', at most
	// 128, beginning with a letter or digit.
	Name        string        `json:"name"`
	Class       ArtifactClass `json:"class"`
	ContentType string        `json:"content_type"`
	// Size in bytes.
	Size int64 `json:"size"`
	// SHA256 is the digest of the content in lower-case hex.
	SHA256 string `json:"sha256"`
	// Path is where the file lies, in the run's directory. Not for the wire.
	Path string `json:"-"`
}

// Plugin does one named, versioned kind of work. A Plugin is used by several
// runs at the same time.
//
// A plugin that lives in another process is a Plugin whose Run speaks with it:
// nothing here supposes that the work is done in this process.
type Plugin interface {
	// Manifest gives name, version and schemas; always the same.
	Manifest() manifest.Manifest
	// Run does the work and returns when it is dead. It returns soon after ctx
	// ended; what it then returns is replaced by the outcome of the reason ctx
	// ended, unless it is OutcomeSucceeded. The payload satisfies the schema.
	Run(ctx context.Context, job Job) Result
}

// Job is what a plugin gets.
type Job struct {
	RunID RunID
	// Task and Attempt are those of the request: empty and 0 in a run that is of
	// no task.
	Task    string
	Attempt int
	Session Session
	// WorkDir is an empty directory that is removed after the run; the session
	// uses the same.
	WorkDir string
	// StopWithin tells how much time is left once ctx ended; [OpenOptions.Grace]
	// says how much of it to use for asking. Never nil.
	StopWithin func() time.Duration
	// Payload is JSON.
	Payload redact.Bytes
	// Secrets are the granted secrets by name.
	Secrets redact.Strings
	// Inputs are the paths of the task's input files by their names: all in
	// InputsDir, read-only. InputsDir is "" when there are none.
	Inputs    map[string]string
	InputsDir string
	// Out is where the plugin reports to.
	Out Out
}

// Out takes what a plugin reports. It may be used by several goroutines until
// the plugin's Run returns.
type Out interface {
	// Progress tells how far the work is, from 0 to 1, and what it does now in
	// a few words without content; secrets are masked in them.
	Progress(fraction float64, message string)
	// Log takes the log of the work; secrets are masked in it. It never fails:
	// what exceeds the limit is dropped and counted.
	Log() io.Writer
	// Artifact creates an artifact. It exists once the writer is closed without
	// an error. A name used twice, a bad name, or a passed limit is an
	// *ActionError with CodeArtifactLimit. Secrets are masked in texts, that is
	// what its content type or its first bytes say to be one; in a structured one,
	// such as a UI tree, mask them before it is encoded. Other bytes, screenshots
	// and archives say, are stored as they are.
	Artifact(name string, class ArtifactClass, contentType string) (io.WriteCloser, error)
}

// Result is how a run ended.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// Reason is empty for OutcomeSucceeded.
	Reason Code `json:"reason,omitempty"`
	// Message is for people and holds no content.
	Message string `json:"message,omitempty"`
	// JSON is the plugin's result, a JSON object or empty; secrets are masked. That
	// of a run that succeeded satisfies the manifest's result schema, or else the
	// run failed with CodeBadResult.
	// It is content: it must not be logged.
	JSON redact.Bytes `json:"-"`

	// What follows is set by the Runtime, not by the plugin.

	// Artifacts in the order in which they were finished.
	Artifacts []Artifact `json:"artifacts,omitempty"`
	// LogPath is the file with the whole log, in the run's directory.
	LogPath string `json:"-"`
	// LogSize is the length of that file in bytes.
	LogSize int64 `json:"log_size"`
	// DeviceClean is whether the device is pristine again.
	DeviceClean bool `json:"device_clean"`
	// Duration is the time between opening the device and having closed it.
	Duration time.Duration `json:"-"`
}

// Object returns v as JSON for Result.JSON. It panics when v cannot be encoded,
// which is a fault of the plugin and ends the run with CodePanic.
func Object(v any) redact.Bytes {
	b, err := json.Marshal(v)
	if err != nil {
		panic("runtime: result is no JSON")
	}
	return redact.NewBytes(b)
}

// Sink hears what happens during a run. Its methods are called one at a time,
// and must not block for long: the work waits meanwhile.
type Sink interface {
	// Progress is called when the plugin reports progress.
	Progress(fraction float64, message string)
	// Log is called with the next piece of the log, already masked. The offset is
	// that of its first byte in the log. The bytes are the callee's own.
	Log(offset int64, chunk redact.Bytes)
	// Artifact is called when an artifact is complete.
	Artifact(a Artifact)
}

// Discard is a Sink that ignores everything.
type Discard struct{}

// Progress does nothing.
func (Discard) Progress(float64, string) {}

// Log does nothing.
func (Discard) Log(int64, redact.Bytes) {}

// Artifact does nothing.
func (Discard) Artifact(Artifact) {}

// RunRequest is a run that is asked for.
type RunRequest struct {
	RunID    RunID
	DeviceID DeviceID
	// Task and Attempt are for the plugin to know; empty and 0 where there is none.
	Task    string
	Attempt int
	// Plugin is the plugin's name, Version a semver version or range; the newest
	// that fits is taken, any when Version is empty.
	Plugin  string
	Version string
	// Payload is JSON; empty means {}.
	Payload redact.Bytes
	// Secrets are the granted secrets by name.
	Secrets redact.Strings
	// Inputs are the files that the run sees, by the names that it sees: absolute
	// paths of files that stay as they are until Run returns. The run gets them as
	// read-only files of its own directory.
	Inputs map[string]string
	// Timeout bounds the run; zero means no bound but ctx. A deadline of ctx is
	// a cancel, not a time-out.
	Timeout time.Duration
	// StopWithin, when not nil, is asked once ctx or the time limit ended: for how
	// long the work may still live. The plugin should return in the first half of
	// that time; then its device is closed under it; when the time is over, Run
	// returns whatever still goes on, and the device is unclean. Nil: two
	// CloseTimeouts.
	StopWithin func() time.Duration
	// Dir is the run's directory: created if needed, it must hold no earlier
	// run. It then holds "log" and "artifacts/"; the caller removes it.
	Dir string
	// Sink may be nil.
	Sink Sink
}
