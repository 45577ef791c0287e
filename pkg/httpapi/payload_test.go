package httpapi

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

// A schema comes from whoever registers a plugin; it must not make the server
// read a file or call an address.
func TestASchemaThatNamesAnotherDocumentIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(file, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"file://" + file, "http://127.0.0.1:1/other.json", "other.json"} {
		var s schemas
		schema, _ := json.Marshal(map[string]any{"properties": map[string]any{"a": map[string]string{"$ref": ref}}})
		var f berth.Faults
		err := s.check("payload", []byte(`{"a":1}`), berth.Plugin{Schema: schema}, &f)
		if err == nil || f.Err() != nil {
			t.Errorf("%s: error %v, faults %v; want an error of the server's own", ref, err, f.Err())
		}
	}
}

func TestAFaultInAnAlternativeIsThatOfTheOneMeant(t *testing.T) {
	schema := []byte(`{"items": {"oneOf": [
		{"type": "object", "additionalProperties": false, "required": ["goto"], "properties": {"goto": {"type": "object", "properties": {"url": {"type": "string"}}}}},
		{"type": "object", "additionalProperties": false, "required": ["click"], "properties": {"click": {"type": "string"}}}
	]}}`)
	for payload, want := range map[string][]string{
		`[{"click": "#a"}, {"goto": {"url": 7}}]`: {"payload[1].goto.url: must be a string"},
		`[{"what": 1}]`:            {"payload[0]: fits none of the allowed forms (see the schema for the forms)"},
		`[{"goto": {"url": "x"}}]`: nil,
	} {
		var s schemas
		var f berth.Faults
		if err := s.check("payload", []byte(payload), berth.Plugin{Schema: schema}, &f); err != nil {
			t.Fatal(err)
		}
		var got []string
		if err := f.Err(); err != nil {
			var invalid *berth.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatal(err)
			}
			for _, field := range invalid.Fields {
				line := field.Path + ": " + field.Message
				if field.Remedy != "" {
					line += " (" + field.Remedy + ")"
				}
				got = append(got, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", payload, got, want)
		}
	}
}

func TestCorrelationAndTraceOfStrangersAreTamed(t *testing.T) {
	for sent, want := range map[string]string{
		"order-7": "order-7", "a b\nc": "abc", "": "req-1", "\x1b[31m": "31m", "é": "req-1",
	} {
		if got := correlationID(sent, "req-1"); got != want {
			t.Errorf("%q gives %q, want %q", sent, got, want)
		}
	}
	const good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for sent, want := range map[string]string{
		good: good, "": "", "00-x": "", "ff" + good[2:]: "", good + "-x": "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01": "",
	} {
		if got := traceParent(sent); got != want {
			t.Errorf("%q gives %q, want %q", sent, got, want)
		}
	}
}
