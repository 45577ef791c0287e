package external

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// Protocol is the version of what a plugin's process and Berth say to each other.
const Protocol = 1

// request is the document that a process gets on its standard input, in one line.
// It is content: payload and secrets are in it.
type request struct {
	Protocol     int               `json:"protocol"`
	Plugin       named             `json:"plugin"`
	RunID        string            `json:"run_id"`
	TaskID       string            `json:"task_id,omitempty"`
	Attempt      int               `json:"attempt,omitempty"`
	Payload      json.RawMessage   `json:"payload"`
	Secrets      map[string]string `json:"secrets"`
	Device       device            `json:"device"`
	WorkDir      string            `json:"work_dir"`
	InputsDir    string            `json:"inputs_dir,omitempty"`
	Inputs       map[string]string `json:"inputs"`
	ArtifactsDir string            `json:"artifacts_dir"`
	Deadline     string            `json:"deadline,omitempty"`
}

type named struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type device struct {
	ID          string            `json:"id"`
	Driver      string            `json:"driver"`
	HardwareID  string            `json:"hardware_id"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Coordinates map[string]string `json:"coordinates"`
}

// dirs are the directories of one run.
type dirs struct{ work, artifacts string }

func dirsOf(job runtime.Job) dirs {
	return dirs{work: filepath.Join(job.WorkDir, "work"), artifacts: filepath.Join(job.WorkDir, "artifacts")}
}

// describe makes the document and the environment of a process. The environment
// holds neither payload nor secrets: children inherit it.
func (p *Plugin) describe(ctx context.Context, job runtime.Job, d dirs) (doc redact.Bytes, env []string, err error) {
	dev := job.Session.Device()
	r := request{
		Protocol: Protocol, Plugin: named{p.spec.Name, p.spec.Version}, RunID: string(job.RunID), TaskID: job.Task, Attempt: job.Attempt,
		Payload: job.Payload.Reveal(), Secrets: map[string]string{},
		Device: device{
			ID: string(dev.ID), Driver: dev.Driver, HardwareID: dev.HardwareID, Name: dev.Name, Labels: dev.Labels, Coordinates: map[string]string{},
		},
		WorkDir: d.work, InputsDir: job.InputsDir, Inputs: job.Inputs, ArtifactsDir: d.artifacts,
	}
	for name, value := range job.Secrets {
		r.Secrets[name] = value.Reveal()
	}
	if c, ok := job.Session.(runtime.Coordinated); ok {
		r.Device.Coordinates = c.Coordinates()
	}
	if at, ok := ctx.Deadline(); ok {
		r.Deadline = at.UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil { // ends with a newline: a shell can read it
		return redact.Bytes{}, nil, err
	}
	return redact.NewBytes(b.Bytes()), p.environment(r), nil
}

func (p *Plugin) environment(r request) []string {
	env := procs.MinimalEnv(r.WorkDir)
	set := func(name, value string) {
		if value != "" {
			env = append(env, "BERTH_PLUGIN_"+name+"="+value)
		}
	}
	set("PROTOCOL", strconv.Itoa(r.Protocol))
	set("NAME", r.Plugin.Name)
	set("VERSION", r.Plugin.Version)
	set("HOME", p.home)
	set("TASK_ID", r.TaskID)
	if r.Attempt > 0 {
		set("ATTEMPT", strconv.Itoa(r.Attempt))
	}
	set("DEVICE_ID", r.Device.ID)
	set("DEVICE_DRIVER", r.Device.Driver)
	for _, name := range slices.Sorted(maps.Keys(r.Device.Coordinates)) {
		set("COORDINATE_"+strings.ToUpper(name), r.Device.Coordinates[name])
	}
	set("WORK_DIR", r.WorkDir)
	set("INPUTS_DIR", r.InputsDir)
	set("ARTIFACTS_DIR", r.ArtifactsDir)
	set("DEADLINE", r.Deadline)
	return env
}

// grace is how long a process has between SIGTERM and SIGKILL, at most.
const grace = 2 * time.Second
