package runtime

import (
	"errors"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
)

// The kinds of refusal and failure; test with errors.Is.
var (
	// ErrUnknownDevice: no driver has a device of that id.
	ErrUnknownDevice = errors.New("no such device")
	// ErrUnknownPlugin: no plugin of that name, or none in the asked range.
	ErrUnknownPlugin = errors.New("no such plugin")
	// ErrUnknownRun: no run of that id is going on.
	ErrUnknownRun = errors.New("no such run")
	// ErrInvalidRequest: the request is not well formed.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrInvalidPayload: the payload does not satisfy the plugin's schema. The
	// error names the faulty places, never their values.
	ErrInvalidPayload = errors.New("invalid payload")
	// ErrBusy: a run or an action holds the device.
	ErrBusy = errors.New("device is busy")
	// ErrUnclean: the device could not be cleaned after its last use; call Clean.
	ErrUnclean = errors.New("device is unclean")
	// ErrUnsupported: the device has no such action.
	ErrUnsupported = errors.New("not supported by this device")
	// ErrDeviceLost: the device went away while it was used.
	ErrDeviceLost = errors.New("device lost")
	// ErrStateDirInUse: another process uses the state directory.
	ErrStateDirInUse = errors.New("state directory is in use by another process")
	// ErrClosed: the Runtime is closed.
	ErrClosed = errors.New("runtime is closed")
)

// Code is a stable, machine-readable reason why something failed.
type Code string

// The codes that drivers, plugins and the Runtime itself use.
const (
	CodeCancelled       Code = "cancelled"
	CodeKilled          Code = "killed"
	CodeRunTimeout      Code = "run_timeout"
	CodeDeviceLost      Code = "device_lost"
	CodeDeviceOpen      Code = "device_open_failed"
	CodeUnsupported     Code = "unsupported_by_device"
	CodePanic           Code = "plugin_panicked"
	CodePluginStuck     Code = "plugin_stuck"
	CodeInternal        Code = "internal_error"
	CodeSecretMissing   Code = "secret_missing"
	CodeInputMissing    Code = "input_missing"
	CodeURLRefused      Code = "url_refused"
	CodeNavigation      Code = "navigation_failed"
	CodeElementMissing  Code = "element_not_found"
	CodeElementHidden   Code = "element_not_visible"
	CodeOptionMissing   Code = "option_not_found"
	CodeUnknownKey      Code = "unknown_key"
	CodeBadSelector     Code = "bad_selector"
	CodeWaitTimeout     Code = "wait_timeout"
	CodeAssertion       Code = "assertion_failed"
	CodeStepTimeout     Code = "step_timeout"
	CodeBrowserMissing  Code = "browser_missing"
	CodeBrowserStart    Code = "browser_start_failed"
	CodeCommandRefused  Code = "command_refused"
	CodeCommandStart    Code = "command_start_failed"
	CodeCommandTimeout  Code = "command_timeout"
	CodeOutputLimit     Code = "output_limit"
	CodeExitCode        Code = "exit_code"
	CodeArtifactMissing Code = "artifact_missing"
	CodeArtifactLimit   Code = "artifact_limit"
	CodeDiskFull        Code = "disk_full"
	CodeBadResult       Code = "bad_result"
	// Of plugins that are processes of their own; docs/plugins.md.
	CodePluginStart       Code = berth.ReasonPluginStart
	CodePluginKilled      Code = berth.ReasonPluginKilled
	CodePluginTimeout     Code = "plugin_timeout"
	CodePluginOutput      Code = "bad_plugin_output"
	CodePluginNoResult    Code = "no_result"
	CodePluginFailed      Code = "plugin_failed"
	CodePluginInfraFailed Code = "plugin_infra_failed"
)

// ActionError is a failed action: a code, and a message for people that holds no
// content (no typed text, page text or payload value) and says the remedy where
// there is one.
type ActionError struct {
	Code    Code
	Message string
	// Err is the cause, or nil; errors.Is sees it, Error does not print it.
	Err error
}

// Error returns the code and the message.
func (e *ActionError) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// Unwrap returns the cause.
func (e *ActionError) Unwrap() error { return e.Err }

// Words are what err says to a person: an [ActionError]'s message without its
// code, which is for programs.
func Words(err error) string {
	var a *ActionError
	if errors.As(err, &a) {
		return a.Message
	}
	return err.Error()
}

// CodeOf returns the code that err carries, or CodeInternal.
func CodeOf(err error) Code {
	var a *ActionError
	if errors.As(err, &a) {
		return a.Code
	}
	switch {
	case errors.Is(err, ErrDeviceLost):
		return CodeDeviceLost
	case errors.Is(err, ErrUnsupported):
		return CodeUnsupported
	}
	return CodeInternal
}

// MessageOf returns the message for people that err carries; for an error that
// is none of this package's it returns fallback, since its text may hold content.
func MessageOf(err error, fallback string) string {
	var a *ActionError
	if errors.As(err, &a) {
		return a.Message
	}
	for _, known := range []error{ErrDeviceLost, ErrUnsupported, ErrUnknownDevice, ErrBusy, ErrUnclean, ErrClosed} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return fallback
}
