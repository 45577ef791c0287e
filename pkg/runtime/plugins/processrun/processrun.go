// Package processrun is the plugin process.run: one command in a process slot.
package processrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// Plugin implements runtime.Plugin.
type Plugin struct{}

// New returns the plugin.
func New() Plugin { return Plugin{} }

// Manifest implements runtime.Plugin.
func (Plugin) Manifest() manifest.Manifest { return manifest.ProcessRun() }

// payload mirrors the schema.
type payload struct {
	Command           []string          `json:"command"`
	Env               map[string]string `json:"env"`
	SecretEnv         map[string]string `json:"secret_env"`
	Stdin             string            `json:"stdin"`
	TimeoutMS         int64             `json:"timeout_ms"`
	Files             []string          `json:"files"`
	ExpectedExitCodes []int             `json:"expected_exit_codes"`
}

// result is what a task's result shows.
type result struct {
	ExitCode   int    `json:"exit_code"`
	Signal     string `json:"signal,omitempty"`
	DurationMS int64  `json:"duration_ms"`
}

// Run implements runtime.Plugin.
func (Plugin) Run(ctx context.Context, job runtime.Job) runtime.Result {
	slot, ok := job.Session.(runtime.Commander)
	if !ok {
		return failed(runtime.CodeUnsupported, "the device does not run commands; select one with driver=process")
	}
	var p payload
	if err := json.Unmarshal(job.Payload.Reveal(), &p); err != nil {
		return failed(runtime.CodeInternal, "the payload does not match the plugin's schema")
	}
	env, missing := environment(p, job.Secrets)
	if missing != "" {
		return failed(runtime.CodeSecretMissing, "a secret that secret_env names was not granted to the task: "+missing)
	}
	if job.InputsDir != "" {
		env[runtime.EnvInputs] = redact.NewString(job.InputsDir)
	}
	if p.TimeoutMS > 0 {
		var stop context.CancelFunc
		limit := time.Duration(p.TimeoutMS) * time.Millisecond
		ctx, stop = context.WithTimeoutCause(ctx, limit, &runtime.ActionError{
			Code: runtime.CodeCommandTimeout, Message: fmt.Sprintf("the command ran longer than its timeout_ms of %d", p.TimeoutMS),
		})
		defer stop()
	}
	job.Out.Progress(0, "running the command")
	exit, err := slot.Command(ctx, runtime.Command{
		Args: p.Command, Env: env, Stdin: redact.NewBytes([]byte(p.Stdin)), Output: job.Out.Log(),
	})
	if err != nil {
		return stopped(err)
	}
	res := runtime.Result{
		Outcome: runtime.OutcomeSucceeded,
		JSON:    runtime.Object(result{ExitCode: exit.Code, Signal: exit.Signal, DurationMS: exit.Duration.Milliseconds()}),
	}
	if !expected(exit, p.ExpectedExitCodes) {
		res.Outcome, res.Reason, res.Message = runtime.OutcomeFailed, runtime.CodeExitCode, fmt.Sprintf("the command exited with code %d", exit.Code)
		if exit.Signal != "" {
			res.Message = "the command was ended by " + exit.Signal
		}
	}
	// Files are kept of a failed command too: that is when they are wanted.
	job.Out.Progress(0.9, "keeping files")
	if err := keep(slot.Dir(), p.Files, job.Out); err != nil && res.Outcome == runtime.OutcomeSucceeded {
		res.Outcome, res.Reason, res.Message = runtime.OutcomeFailed, runtime.CodeOf(err), runtime.MessageOf(err, "a file could not be kept")
	}
	job.Out.Progress(1, "done")
	return res
}

func failed(code runtime.Code, message string) runtime.Result {
	return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: code, Message: message}
}

// stopped judges a command that did not exit by itself.
func stopped(err error) runtime.Result {
	code := runtime.CodeOf(err)
	switch {
	case errors.Is(err, runtime.ErrUnclean), errors.Is(err, runtime.ErrClosed):
		return runtime.Result{Outcome: runtime.OutcomeInfraFailed, Reason: code, Message: "the slot could not run or end the command"}
	case code == runtime.CodeCommandTimeout:
		return runtime.Result{Outcome: runtime.OutcomeTimedOut, Reason: code, Message: runtime.MessageOf(err, "")}
	}
	return failed(code, runtime.MessageOf(err, "the command was stopped"))
}

func expected(exit runtime.Exit, codes []int) bool {
	if exit.Signal != "" {
		return false
	}
	if len(codes) == 0 {
		return exit.Code == 0
	}
	return slices.Contains(codes, exit.Code)
}

// environment joins plain and secret variables; missing names a secret that was
// not granted.
func environment(p payload, secrets redact.Strings) (env redact.Strings, missing string) {
	env = redact.Strings{}
	for name, value := range p.Env {
		env[name] = redact.NewString(value)
	}
	for name, secret := range p.SecretEnv {
		value, ok := secrets[secret]
		if !ok {
			return nil, secret
		}
		env[name] = value
	}
	return env, ""
}

// keep copies files of the command's directory to artifacts named after their
// path, with '/' as '_'. It goes on after a fault and returns the first.
func keep(dir string, files []string, out runtime.Out) error {
	if len(files) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir) // a symbolic link cannot lead out of it
	if err != nil {
		return &runtime.ActionError{Code: runtime.CodeInternal, Message: "the command's directory cannot be read", Err: err}
	}
	defer func() { _ = root.Close() }()
	var first error
	for i, name := range files {
		if err := keepOne(root, i, name, out); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func keepOne(root *os.Root, i int, name string, out runtime.Out) error {
	missing := &runtime.ActionError{
		Code:    runtime.CodeArtifactMissing,
		Message: fmt.Sprintf("files[%d] is not a regular file inside the command's directory", i),
	}
	if !filepath.IsLocal(name) {
		return missing
	}
	// Stat before opening: opening a fifo would wait for its writer.
	if fi, err := root.Stat(name); err != nil || !fi.Mode().IsRegular() {
		return missing
	}
	f, err := root.Open(name)
	if err != nil {
		return missing
	}
	defer func() { _ = f.Close() }()
	w, err := out.Artifact(strings.ReplaceAll(filepath.Clean(name), "/", "_"), runtime.ClassFile, contentType(name))
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	return err
}

// contentType is by extension from a short fixed list: that of the host's MIME
// database would differ from host to host.
func contentType(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".txt", ".log", ".md", ".csv":
		return "text/plain; charset=utf-8"
	case ".json":
		return "application/json"
	case ".xml":
		return "application/xml"
	case ".png":
		return "image/png"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	}
	return "application/octet-stream"
}
