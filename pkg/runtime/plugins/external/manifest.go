package external

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/Masterminds/semver/v3"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/strictjson"
)

// ManifestName is the file that makes a folder a plugin.
const ManifestName = "plugin.json"

const (
	maxManifest    = 192 << 10
	maxSchema      = 64 << 10 // what the control plane takes at sync
	maxDescription = 2000
	maxArgs        = 64
	maxArgLen      = 4096
	maxVersionLen  = 64
	draft          = "https://json-schema.org/draft/2020-12/schema"
)

// spec is what a plugin.json says.
type spec struct {
	manifest.Manifest
	// Command is the program, a path within the folder, and its arguments.
	Command []string
	Limits  limits
}

// limits are a plugin's own, below those of the host.
type limits struct {
	Timeout       time.Duration // of a run; 0: the task's alone
	OutputBytes   int64         // of standard output and standard error together
	Artifacts     int           // 0: the host's limit
	ArtifactBytes int64         // of each; 0: the host's limit
}

const (
	defaultOutput = 64 << 20
	maxOutput     = 1 << 30
	maxTimeout    = 7 * 24 * time.Hour
)

// document is the form of a plugin.json.
type document struct {
	Name          string            `json:"name"`
	Version       string            `json:"version"`
	Description   string            `json:"description"`
	Command       []string          `json:"command"`
	PayloadSchema json.RawMessage   `json:"payload_schema"`
	ResultSchema  json.RawMessage   `json:"result_schema"`
	Requires      map[string]string `json:"requires"`
	Limits        struct {
		TimeoutMS     *int64 `json:"timeout_ms"`
		OutputBytes   *int64 `json:"output_bytes"`
		Artifacts     *int64 `json:"artifacts"`
		ArtifactBytes *int64 `json:"artifact_bytes"`
	} `json:"limits"`
}

// members are the words of a plugin.json, for people who misspell one.
func members() []string {
	return []string{
		"name", "version", "description", "command", "payload_schema", "result_schema", "requires", "limits",
		"timeout_ms", "output_bytes", "artifacts", "artifact_bytes",
	}
}

// parse reads a plugin.json and adds each mistake to f, under path.
func parse(path string, b []byte, f *berth.Faults) spec {
	at := func(member string) string { return path + ": " + member }
	doc, ok := decode(path, b, f)
	if !ok {
		return spec{}
	}
	s := spec{
		Manifest: manifest.Manifest{
			Name: doc.Name, Version: doc.Version, Description: doc.Description,
			Schema: doc.PayloadSchema, ResultSchema: present(doc.ResultSchema), Requires: doc.Requires,
		},
		Command: doc.Command,
	}
	switch {
	case !berth.ValidName(doc.Name):
		f.Add(at("name"), fmt.Sprintf("%q cannot name a plugin", berth.Clip(doc.Name, 63)), "use up to 63 lower-case letters, digits, dots, hyphens and underscores, for example files.checksum")
	case slices.ContainsFunc(manifest.Builtins(), func(m manifest.Manifest) bool { return m.Name == doc.Name }):
		f.Add(at("name"), fmt.Sprintf("%q is a plugin of Berth itself", doc.Name), "choose another name")
	}
	if _, err := semver.StrictNewVersion(doc.Version); err != nil || len(doc.Version) > maxVersionLen {
		f.Add(at("version"), fmt.Sprintf("%q is no semantic version", berth.Clip(doc.Version, maxVersionLen)), "write all three numbers, for example 1.4.0")
	}
	if doc.Description == "" || len(doc.Description) > maxDescription || strings.ContainsFunc(doc.Description, unprintable) {
		f.Add(at("description"), "it is missing, too long or has control characters", fmt.Sprintf("say in a sentence what the plugin does, in at most %d bytes", maxDescription))
	}
	checkCommand(at("command"), doc.Command, f)
	checkSchema(at("payload_schema"), doc.PayloadSchema, f)
	if s.ResultSchema != nil {
		checkSchema(at("result_schema"), s.ResultSchema, f)
	}
	checkRequires(at("requires"), doc.Requires, f)
	s.Limits.Timeout = time.Duration(bounded(at("limits.timeout_ms"), doc.Limits.TimeoutMS, 0, maxTimeout.Milliseconds(), f)) * time.Millisecond
	s.Limits.OutputBytes = bounded(at("limits.output_bytes"), doc.Limits.OutputBytes, defaultOutput, maxOutput, f)
	s.Limits.Artifacts = int(bounded(at("limits.artifacts"), doc.Limits.Artifacts, 0, 1000, f))
	s.Limits.ArtifactBytes = bounded(at("limits.artifact_bytes"), doc.Limits.ArtifactBytes, 0, 1<<40, f)
	return s
}

// present is nothing for a member that is not there, or null.
func present(b json.RawMessage) json.RawMessage {
	if string(b) == "null" {
		return nil
	}
	return b
}

func unprintable(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }

// decode takes JSON of the form alone: no member that there is none of, none
// twice, nothing behind it.
func decode(path string, b []byte, f *berth.Faults) (doc document, ok bool) {
	var invalid *berth.InvalidError
	err := strictjson.Check(b, func(key string) bool { return utf8.RuneCountInString(key) <= 64 })
	if errors.As(err, &invalid) {
		for _, fault := range invalid.Fields {
			where := path
			if fault.Path != "" {
				where += ": " + fault.Path
			}
			f.Add(where, fault.Message, fault.Remedy)
		}
		return doc, false
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		err = dec.Decode(&doc)
	} else {
		err = errors.New("no object")
	}
	if err == nil {
		return doc, true
	}
	var wrong *json.UnmarshalTypeError
	switch name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); {
	case unknown:
		f.Add(path, "there is no member "+berth.Clip(name, 80), "the members are "+strings.Join(members(), ", "))
	case errors.As(err, &wrong) && wrong.Field != "":
		f.Add(path+": "+wrong.Field, "it is of another JSON type than it must be", "docs/plugins.md has an example of each member")
	default:
		f.Add(path, "it is no JSON object", "docs/plugins.md has an example")
	}
	return doc, false
}

func checkCommand(path string, command []string, f *berth.Faults) {
	if len(command) == 0 || len(command) > maxArgs {
		f.Add(path, fmt.Sprintf("it has %d parts", len(command)), fmt.Sprintf("give the program's path within the folder, then its arguments, at most %d in all, for example [\"main.py\"]", maxArgs))
		return
	}
	for _, arg := range command {
		if len(arg) > maxArgLen || strings.ContainsRune(arg, 0) {
			f.Add(path, "an argument is too long or has a NUL byte", fmt.Sprintf("use at most %d bytes each", maxArgLen))
			return
		}
	}
	if !filepath.IsLocal(command[0]) {
		f.Add(path, fmt.Sprintf("%q is no path within the plugin's folder", berth.Clip(command[0], 80)), "put the program, or a script that calls it, into the folder and name it relative to that")
	}
}

func checkSchema(path string, schema json.RawMessage, f *berth.Faults) {
	var doc struct {
		Draft *string `json:"$schema"`
	}
	switch err := json.Unmarshal(schema, &doc); {
	case len(present(schema)) == 0:
		f.Add(path, "it is missing", `give a JSON Schema (2020-12); {"type": "object"} takes every object`)
	case err != nil:
		f.Add(path, "it is no JSON object", `give a JSON Schema (2020-12); {"type": "object"} takes every object`)
	case doc.Draft != nil && strings.TrimSuffix(*doc.Draft, "#") != draft:
		f.Add(path, "it is of another draft of JSON Schema", "leave $schema out or write "+draft)
	case len(schema) > maxSchema:
		f.Add(path, "it is too long", fmt.Sprintf("use at most %d bytes", maxSchema))
	default:
		if err := runtime.CheckSchema(schema); err != nil {
			f.Add(path, "it "+berth.Clip(oneLine(err.Error()), 400), "correct it; it can refer to nothing outside of itself")
		}
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func checkRequires(path string, requires map[string]string, f *berth.Faults) {
	for _, label := range slices.Sorted(maps.Keys(requires)) {
		one := manifest.Manifest{Requires: map[string]string{label: requires[label]}}
		if _, err := eligibility.Join("", one.Selector()); err != nil || strings.ContainsAny(label+requires[label], ",=!()<> ") || label == "" {
			f.Add(path, fmt.Sprintf("%q is no label with its value", berth.Clip(one.Selector(), 80)), `name labels that a device must have, for example {"driver": "process"}`)
			return
		}
	}
	if _, err := eligibility.Join("", manifest.Manifest{Requires: requires}.Selector()); err != nil {
		f.Add(path, "it names too many labels", "name fewer labels")
	}
}

// bounded is a limit, or what holds without it.
func bounded(path string, n *int64, without, most int64, f *berth.Faults) int64 {
	if n == nil {
		return without
	}
	if *n < 1 || *n > most {
		f.Add(path, fmt.Sprintf("%d is out of range", *n), fmt.Sprintf("use 1 to %d, or leave it out", most))
		return without
	}
	return *n
}
