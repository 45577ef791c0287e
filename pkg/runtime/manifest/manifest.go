// Package manifest describes the plugins that ship with Berth: name, version
// and payload schema. It imports the standard library only, so the control
// plane can register the built-in plugins without linking any driver.
package manifest

import (
	"embed"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Manifest describes one version of a plugin.
type Manifest struct {
	// Name is made of lower-case words joined by dots: "browser.script".
	Name string `json:"name"`
	// Version is a semantic version without a leading "v".
	Version string `json:"version"`
	// Description says in a sentence what the plugin does.
	Description string `json:"description"`
	// Schema is the JSON Schema (2020-12) of the payload.
	Schema json.RawMessage `json:"schema"`
	// ResultSchema is the JSON Schema of the result of work that succeeded; empty:
	// any object.
	ResultSchema json.RawMessage `json:"result_schema,omitempty"`
	// Requires names the labels that a device must have to run the plugin, such as
	// driver=chromium.
	Requires map[string]string `json:"requires,omitempty"`
}

// Selector is Requires as a selector over device labels: driver=chromium.
func (m Manifest) Selector() string {
	terms := make([]string, 0, len(m.Requires))
	for _, name := range slices.Sorted(maps.Keys(m.Requires)) {
		terms = append(terms, name+"="+m.Requires[name])
	}
	return strings.Join(terms, ",")
}

// The names of the built-in plugins.
const (
	ProcessRunName    = "process.run"
	BrowserScriptName = "browser.script"
)

//go:embed schemas/*.json
var schemas embed.FS

// Builtins returns the manifests of all plugins that ship with Berth, ordered
// by name.
func Builtins() []Manifest { return []Manifest{BrowserScript(), ProcessRun()} }

// ProcessRun describes process.run: run one command in a process slot.
func ProcessRun() Manifest {
	return Manifest{
		Name:        ProcessRunName,
		Version:     "1.1.0",
		Description: "Runs one allowed command in a process slot and keeps its output and files.",
		Schema:      schema("schemas/process.run.json"),
		Requires:    map[string]string{"driver": "process"},
	}
}

// BrowserScript describes browser.script: drive one page step by step.
func BrowserScript() Manifest {
	return Manifest{
		Name:        BrowserScriptName,
		Version:     "1.1.0",
		Description: "Drives a web page in an isolated browser context step by step, with screenshots and UI trees.",
		Schema:      schema("schemas/browser.script.json"),
		Requires:    map[string]string{"driver": "chromium"},
	}
}

// schema returns an embedded file; a missing one is a fault of the build.
func schema(name string) json.RawMessage {
	b, err := schemas.ReadFile(name)
	if err != nil {
		panic("manifest: " + err.Error())
	}
	return b
}
