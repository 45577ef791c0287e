package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
)

func TestOperatorsActOnTheFleet(t *testing.T) {
	sh := newShell(t).as("root", berth.RoleAdmin)
	agent := sh.s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
	for _, step := range []struct{ line, reads string }{
		{"device|cordon|slot a|--note|it flickers", "slot a cordoned"},
		{"device|list|--admin|cordoned", "NAME STATE POOL HOST DRIVER LABELS ID\nslot a cordoned default lab-1 process os=linux ID"},
		{"device|uncordon|lab-1/slot a", "slot a free"},
		{"device|maintenance|slot a|slot b", "slot a maintenance\nslot b maintenance"},
		{"device|activate|slot a|slot b", "slot a free\nslot b free"},
		{"device|label|slot a|rack=b7|os=bsd", "slot a os=bsd,rack=b7"},
		{"device|label|slot a|os-", "slot a os=linux,rack=b7"},
		{"device|trust|slot a", "slot a free"},
		{"device|clean|slot a", "slot a free"},
		{"device|retire|slot b|--yes|--note|broken", "slot b retired"},
		{"host|drain|lab-1", "lab-1 online, draining"},
		{"host|undrain|lab-1", "lab-1 online"},
		{"pool|pause|default", "default paused"},
		{"pool|resume|default", "default active"},
		{"plugin|disable|work|1.2.0", "work 1.2.0 disabled"},
		{"plugin|enable|work@1.2.0", "work 1.2.0 enabled"},
	} {
		sh.reads(step.line, sh.wants(exitOK, sh.run(strings.Split(step.line, "|")...)).out, step.reads)
	}
	shown := sh.wants(exitOK, sh.run("device", "get", "slot b")).out
	for _, want := range []string{"State:         retired", "Admin:         retired (broken)", "Health:        good", "Occupancy:     free"} {
		if !strings.Contains(strings.Join(strings.Fields(shown), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("device get lacks %q:\n%s", want, shown)
		}
	}
	if shown := sh.wants(exitOK, sh.run("plugin", "get", "work")).out; !strings.Contains(shown, "Does work.") || !strings.Contains(shown, `"maxLength": 100`) {
		t.Errorf("plugin get: %s", shown)
	}

	sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`))
	agent.Run(onlyTask(t, sh.s))
	sh.reads("release without yes", sh.wants(exitUsage, sh.run("device", "force-release", "slot a")).err, "error: nobody is there to confirm it\ntry: add --yes")
	sh.reads("release", sh.wants(exitOK, sh.run("device", "force-release", "slot a", "--yes")).out, "slot a unclean")
	sh.reads("release again", sh.wants(exitError, sh.run("device", "force-release", "slot a", "--yes")).err,
		"error: slot a is unclean: nothing holds it\ntry: berth device list --occupancy held shows what is held")
	sh.reads("revoke", sh.wants(exitOK, sh.run("host", "revoke", "lab-1", "--yes")).out, "lab-1 revoked")
	sh.reads("a revoked host's name", sh.wants(exitNotFound, sh.run("host", "drain", "lab-1")).err, "error: host \"lab-1\" is revoked\ntry: let it in anew: berth host enrol\n(code not_found)")
	if list := sh.wants(exitOK, sh.run("device", "list")).out; strings.Count(list, "host revoked") != strings.Count(list, "\n")-1 || strings.Contains(list, "free") {
		t.Errorf("devices of a revoked host: %s", list)
	}
}

func TestNamesThatManyHave(t *testing.T) {
	sh := newShell(t).as("ops", berth.RoleOperator)
	sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	sh.s.Agent("lab-2", map[string]string{"os": "linux"})
	got := sh.wants(exitUsage, sh.run("device", "cordon", "slot a"))
	sh.reads("two devices of a name", got.err, "error: 2 devices have the name \"slot a\"\ntry: name one of lab-1/slot a (ID), lab-2/slot a (ID)")
	sh.wants(exitOK, sh.run("device", "cordon", "lab-2/slot a"))
	for _, args := range [][]string{
		{"device", "cordon"},
		{"device", "label", "slot a"},
		{"device", "label", "lab-1/slot a", "nonsense"},
		{"device", "move", "slot a"},
		{"host", "drain"},
		{"host", "revoke", "lab-1"},
		{"pool", "pause"},
		{"plugin", "enable", "work"},
		{"task", "prioritise", "@last"},
		{"task", "prioritise", "01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10", "high"},
		{"input", "put"},
		{"input", "get", "abc"},
		{"task", "submit", "--plugin", "work", "--input", ".x=y"},
		{"task", "submit", "--plugin", "work", "--input", "x=sha256:abc"},
		{"task", "submit", "-f", "x", "--input", "y"},
	} {
		got := sh.run(args...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "error: ") || !strings.Contains(got.err, "\n  try: ") {
			t.Errorf("%v: exit code %d\nstdout: %s\nstderr: %s", args, got.code, got.out, got.err)
		}
	}
	sh.wants(exitError, sh.run("input", "put", filepath.Join(t.TempDir(), "none")))
	sh.wants(exitError, sh.run("input", "put", t.TempDir()))
}

func TestExplainSaysWhyATaskWaits(t *testing.T) {
	sh := newShell(t).as("ops", berth.RoleOperator)
	sh.s.Agent("lab-1", map[string]string{"os": "linux"}, map[string]string{"os": "darwin"})
	sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--selector", "os=windows"))
	sh.reads("unsatisfiable", sh.wants(exitOK, sh.run("task", "explain", "@last")).out, `
		queued: no device of pool default has os=windows
		try: correct the selector, label a device, or add one
		No registered device of the pool could ever run it.

		IT ASKS FOR WHICH RULES OUT
		os=windows 2 of 2 devices`)
	sh.wants(exitOK, sh.run("device", "cordon", "slot a"))
	sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--selector", "os=linux"))
	got := sh.wants(exitOK, sh.run("task", "explain", "@last")).out
	for _, want := range []string{"queued: the only device that fits is cordoned", "berth device activate", "os=linux", "1 of 2 devices", "cordoned", "Position:  next of its kind"} {
		if !strings.Contains(got, want) {
			t.Errorf("explain lacks %q:\n%s", want, got)
		}
	}
	sh.reads("prioritise", sh.wants(exitOK, sh.run("task", "prioritise", "@last", "9")).out, "ID queued, priority 9")
	got2 := sh.wants(exitOK, sh.run("task", "explain", "@last", "-o", "json"))
	if !strings.Contains(got2.out, `"code": "cordoned"`) {
		t.Errorf("json: %s", got2.out)
	}
}

func TestInputsGoWithASubmit(t *testing.T) {
	sh := newShell(t).as("sub", berth.RoleSubmitter)
	file := filepath.Join(t.TempDir(), "bundle.zip")
	if err := os.WriteFile(file, []byte("the bundle"), 0o600); err != nil {
		t.Fatal(err)
	}
	digest := apitest.SHA256("the bundle")
	got := sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--input", file, "--input", "again.zip="+file, "--input", "old.zip=sha256:"+digest))
	if !strings.Contains(got.err, file+" uploaded (10 B).") || !strings.Contains(got.err, file+" is there already (10 B).") {
		t.Errorf("stderr: %s", got.err)
	}
	if shown := sh.wants(exitOK, sh.run("task", "get", "@last")).out; !strings.Contains(shown, "Inputs:       again.zip (10 B), bundle.zip (10 B), old.zip (10 B)") &&
		!strings.Contains(shown, "bundle.zip (10 B), again.zip (10 B), old.zip (10 B)") {
		t.Errorf("task get: %s", shown)
	}
	sh.reads("put", sh.wants(exitOK, sh.run("input", "put", file)).out, digest+" "+file)
	sh.reads("list", sh.wants(exitOK, sh.run("input", "list")).out, "DIGEST SIZE AGE USED\n"+digest+" 10 B 1s 1s ago")
	back := filepath.Join(t.TempDir(), "back")
	sh.wants(exitOK, sh.run("input", "get", digest, "--to", back))
	if b, err := os.ReadFile(back); err != nil || string(b) != "the bundle" {
		t.Errorf("it came back as %q, %v", b, err)
	}
	sh.reads("get to stdout", sh.wants(exitOK, sh.run("input", "get", "sha256:"+digest, "--to", "-")).out, "the bundle")
	sh.wants(exitNotFound, sh.run("input", "get", strings.Repeat("0", 64)))
	sh.reads("an unknown input", sh.wants(exitError, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--input", "x=sha256:"+strings.Repeat("0", 64))).err,
		"error: inputs[0].digest: you have uploaded no such input, or it has expired\ntry: upload the file first: `berth input put FILE`\n(code invalid, request ID)")
}
