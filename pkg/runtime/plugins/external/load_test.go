package external

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/runtime"
)

const good = `{"name": "a.b", "version": "1.2.3", "description": "Does it.", "command": ["run", "-x"], "payload_schema": {"type": "object"}}`

// with is the good manifest with one member changed; value "" leaves it out.
func with(member, value string) string {
	parts := map[string]string{
		"name": `"a.b"`, "version": `"1.2.3"`, "description": `"Does it."`, "command": `["run", "-x"]`, "payload_schema": `{"type": "object"}`,
	}
	parts[member] = value
	var list []string
	for _, m := range []string{"name", "version", "description", "command", "payload_schema", "result_schema", "requires", "limits", "x"} {
		if parts[m] != "" {
			list = append(list, fmt.Sprintf("%q: %s", m, parts[m]))
		}
	}
	return "{" + strings.Join(list, ", ") + "}"
}

func TestEachMistakeInAManifestHasASentence(t *testing.T) {
	for manifest, want := range map[string]string{
		``:                                           `plugin.json: the body is not JSON, from byte 0 on`,
		`[1]`:                                        `plugin.json: it is no JSON object`,
		`null`:                                       `plugin.json: it is no JSON object`,
		good + `{}`:                                  `plugin.json: something follows the JSON value`,
		`{"name": "a", "name": "b"}`:                 `plugin.json: name: the key stands there twice`,
		with("x", "1"):                               `plugin.json: there is no member "x" (the members are name, version,`,
		with("limits", `{"time": 1}`):                `plugin.json: there is no member "time"`,
		with("version", "3"):                         `plugin.json: version: it is of another JSON type`,
		with("name", ""):                             `plugin.json: name: "" cannot name a plugin`,
		with("name", `"A b"`):                        `plugin.json: name: "A b" cannot name a plugin`,
		with("name", `"process.run"`):                `plugin.json: name: "process.run" is a plugin of Berth itself`,
		with("version", `"1.2"`):                     `plugin.json: version: "1.2" is no semantic version (write all three numbers`,
		with("version", `"v1.2.3"`):                  `plugin.json: version: "v1.2.3" is no semantic version`,
		with("description", ""):                      `plugin.json: description: it is missing`,
		with("description", `"\u001b[2J"`):           `plugin.json: description: it is missing, too long or has control characters`,
		with("command", ""):                          `plugin.json: command: it has 0 parts`,
		with("command", `["/bin/sh"]`):               `plugin.json: command: "/bin/sh" is no path within the plugin's folder`,
		with("command", `["../run"]`):                `plugin.json: command: "../run" is no path within the plugin's folder`,
		with("command", `["run", "\u0000"]`):         `plugin.json: command: an argument is too long or has a NUL byte`,
		with("payload_schema", ""):                   `plugin.json: payload_schema: it is missing`,
		with("payload_schema", "null"):               `plugin.json: payload_schema: it is missing`,
		with("payload_schema", "true"):               `plugin.json: payload_schema: it is no JSON object`,
		with("payload_schema", `{"type": "objekt"}`): `plugin.json: payload_schema: it is no JSON schema`,
		with("payload_schema", `{"$ref": "file:///etc/passwd"}`):                         `plugin.json: payload_schema: it is no JSON schema`,
		with("payload_schema", `{"$schema": "http://json-schema.org/draft-07/schema#"}`): `plugin.json: payload_schema: it is of another draft`,
		with("result_schema", `{"type": 1}`):                                             `plugin.json: result_schema: it is no JSON schema`,
		with("requires", `{"driver": "a,b=c"}`):                                          `plugin.json: requires: "driver=a,b=c" is no label with its value`,
		with("requires", `{"": "x"}`):                                                    `plugin.json: requires: "=x" is no label with its value`,
		with("limits", `{"timeout_ms": 0}`):                                              `plugin.json: limits.timeout_ms: 0 is out of range (use 1 to 604800000`,
		with("limits", `{"artifacts": -1}`):                                              `plugin.json: limits.artifacts: -1 is out of range`,
	} {
		var f berth.Faults
		parse("plugin.json", []byte(manifest), &f)
		if err := f.Err(); err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "plugin.json") != 1 {
			t.Errorf("%s\n gives %v\n want  %s", manifest, err, want)
		}
	}
	var f berth.Faults
	s := parse("plugin.json", []byte(with("limits", `{"timeout_ms": 1500, "output_bytes": 7, "artifacts": 3, "artifact_bytes": 9}`)), &f)
	if err := f.Err(); err != nil || s.Limits != (limits{1_500_000_000, 7, 3, 9}) || s.Name != "a.b" || len(s.Command) != 2 {
		t.Errorf("%+v, %v", s, err)
	}
}

// put makes a directory of one plugin; change then spoils it.
func put(t *testing.T, change func(dir, folder string) error) string {
	t.Helper()
	dir := t.TempDir()
	folder := filepath.Join(dir, "one")
	err := os.MkdirAll(filepath.Join(folder, "lib"), 0o755)
	for name, file := range map[string]struct {
		content string
		mode    os.FileMode
	}{"plugin.json": {good, 0o644}, "run": {"#!/bin/sh\n", 0o755}, "lib/words": {"x", 0o644}} {
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), []byte(file.content), file.mode)
		}
	}
	if err == nil {
		err = change(dir, folder)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEachMistakeInAFolderHasASentence(t *testing.T) {
	replace := func(name, target string) func(string, string) error {
		return func(_, folder string) error {
			if err := os.Remove(filepath.Join(folder, name)); err != nil || target == "" {
				return err
			}
			return os.Symlink(target, filepath.Join(folder, name))
		}
	}
	mode := func(name string, m os.FileMode) func(string, string) error {
		return func(_, folder string) error { return os.Chmod(filepath.Join(folder, name), m) }
	}
	for name, c := range map[string]struct {
		change func(dir, folder string) error
		want   string // "" for none
	}{
		"good": {func(string, string) error { return nil }, ""},
		"a link within": {func(_, f string) error {
			return errorsOf(os.Rename(f+"/run", f+"/lib/run"), os.Symlink("lib/run", f+"/run"))
		}, ""},
		"files beside":          {func(dir, _ string) error { return os.WriteFile(dir+"/README.md", nil, 0o644) }, ""},
		"hidden folders":        {func(dir, _ string) error { return os.Mkdir(dir+"/.git", 0o755) }, ""},
		"no manifest":           {replace("plugin.json", ""), "/one/plugin.json: it is missing (each folder"},
		"a linked manifest":     {replace("plugin.json", "/etc/passwd"), "/one/plugin.json: it is no regular file"},
		"no program":            {replace("run", ""), `/one/plugin.json: command: "run" is not in the folder (no such file or directory) (name a file`},
		"a link out of it":      {replace("run", "/bin/sh"), `command: "run" is a symbolic link that leads out of the folder`},
		"a program of none":     {func(_, f string) error { return errorsOf(os.Remove(f+"/run"), os.Mkdir(f+"/run", 0o755)) }, `"run" is no regular file`},
		"not executable":        {mode("run", 0o644), `command: "run" cannot be executed (chmod +x it)`},
		"an open program":       {mode("run", 0o757), `/one/run: everybody on this machine may write to it (chmod o-w it`},
		"an open manifest":      {mode("plugin.json", 0o646), `/one/plugin.json: everybody on this machine may write to it`},
		"an open library":       {mode("lib/words", 0o666), `/one/lib/words: everybody on this machine may write to it`},
		"an open folder":        {mode(".", 0o777), `/one: everybody on this machine may write to it`},
		"an open directory":     {func(dir, _ string) error { return os.Chmod(dir, 0o777) }, `: everybody on this machine may write to it`},
		"a linked folder":       {func(dir, f string) error { return os.Symlink(f, dir+"/two") }, `/two: it is a symbolic link or no folder`},
		"one version twice":     {func(dir, f string) error { return os.CopyFS(dir+"/two", os.DirFS(f)) }, `/two/plugin.json: a.b 1.2.3 is in `},
		"a manifest of nothing": {func(_, f string) error { return os.WriteFile(f+"/plugin.json", nil, 0o644) }, `/one/plugin.json: the body is not JSON`},
	} {
		dir := put(t, c.change)
		plugins, err := Load(dir, nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), dir) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
		if err == nil && (len(plugins) != 1 || plugins[0].Manifest().Name != "a.b") {
			t.Errorf("%s: %d plugins", name, len(plugins))
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none"), nil); err == nil || !strings.Contains(err.Error(), "cannot be read (no such file or directory)") || !strings.Contains(err.Error(), "--plugin-dir") {
		t.Errorf("no directory: %v", err)
	}
}

func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Whatever is in a plugin.json: a mistake is told, or the Runtime takes it.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(with("limits", `{"timeout_ms": 1500}`)))
	f.Add([]byte(with("requires", `{"driver": "process", "a/b": ""}`)))
	f.Add([]byte(with("result_schema", `{"$ref": "#/$defs/a", "$defs": {"a": {}}}`)))
	f.Add([]byte(`{"name":`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var faults berth.Faults
		s := parse("plugin.json", b, &faults)
		if faults.Err() != nil {
			return
		}
		if _, err := runtime.New(runtime.Config{Plugins: []runtime.Plugin{&Plugin{spec: s}}}); err != nil {
			t.Fatalf("a manifest without mistakes is refused: %v", err)
		}
		if !filepath.IsLocal(s.Command[0]) || s.Limits.OutputBytes < 1 || s.Limits.OutputBytes > maxOutput {
			t.Fatalf("%+v", s)
		}
	})
}
