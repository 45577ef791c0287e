package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a small module and makes it the working folder, so that the
// real go test is what is reported on.
func module(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example.test/m\n\ngo 1.26.0\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

const header = "package m\n\nimport \"testing\"\n\n"

func TestReport(t *testing.T) {
	for name, c := range map[string]struct {
		files        map[string]string
		wantErr      string
		says, hushes []string
	}{
		"passes": {
			files:  map[string]string{"m_test.go": header + `func TestFine(t *testing.T) { t.Log("chatter"); t.Run("sub", func(t *testing.T) {}) }`},
			says:   []string{"ok  \texample.test/m\t", "tests: 2 passed, 0 failed, 0 skipped"},
			hushes: []string{"chatter", "=== RUN"},
		},
		"fails": {
			files: map[string]string{"m_test.go": header + `func TestFine(t *testing.T) { t.Log("chatter") }
func TestBad(t *testing.T) { t.Log("clue"); t.Error("wrong") }`},
			wantErr: "exit status 1",
			says:    []string{"clue", "wrong", "--- FAIL: TestBad", "FAIL\texample.test/m", "tests: 1 passed, 1 failed, 0 skipped"},
			hushes:  []string{"chatter"},
		},
		"skips": {
			files:   map[string]string{"m_test.go": header + `func TestFine(t *testing.T) {}` + "\n" + `func TestLazy(t *testing.T) { t.Skip("not today") }`},
			wantErr: "example.test/m TestLazy",
			says:    []string{"not today", "--- SKIP: TestLazy", "1 skipped"},
		},
		"panics": {
			files:   map[string]string{"m_test.go": header + `func TestBad(t *testing.T) { panic("boom") }`},
			wantErr: "exit status 1",
			says:    []string{"boom", "FAIL\texample.test/m"},
		},
		"does not compile": {
			files:   map[string]string{"m_test.go": header + `func TestBad(t *testing.T) { undefined() }`},
			wantErr: "exit status 1",
			says:    []string{"undefined: undefined", "[build failed]"},
		},
		"has no tests": {
			files:   map[string]string{"m.go": "package m\n"},
			wantErr: "no test ran",
		},
	} {
		t.Run(name, func(t *testing.T) {
			module(t, c.files)
			var out bytes.Buffer
			err := run(t.Context(), []string{"-vet=off", "./..."}, os.Environ(), &out)
			switch {
			case c.wantErr == "" && err != nil:
				t.Errorf("error: %v", err)
			case c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)):
				t.Errorf("got error %v, want one with %q", err, c.wantErr)
			}
			for _, text := range c.says {
				if !strings.Contains(out.String(), text) {
					t.Errorf("does not say %q:\n%s", text, out.String())
				}
			}
			for _, text := range c.hushes {
				if strings.Contains(out.String(), text) {
					t.Errorf("says %q:\n%s", text, out.String())
				}
			}
		})
	}
}
