package manifest_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

func TestBuiltinsAreCompleteAndOrdered(t *testing.T) {
	var names []string
	for _, m := range manifest.Builtins() {
		names = append(names, m.Name)
		var schema struct {
			Schema string `json:"$schema"`
			Title  string
		}
		if err := json.Unmarshal(m.Schema, &schema); err != nil || schema.Schema != "https://json-schema.org/draft/2020-12/schema" || schema.Title != m.Name+" "+m.Version {
			t.Errorf("%s %s: schema is %+v, %v", m.Name, m.Version, schema, err)
		}
		if m.Description == "" || m.Requires["driver"] == "" {
			t.Errorf("manifest %+v", m)
		}
	}
	if strings.Join(names, " ") != "browser.script process.run" {
		t.Errorf("names %v", names)
	}
}

// The control plane imports this package; it must not link drivers with it.
func TestImportsTheStandardLibraryOnly(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "github.com/berth-dev/berth/pkg/runtime/manifest" {
		t.Errorf("depends on %s", got)
	}
}
