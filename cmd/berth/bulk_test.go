package main

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestBulkJobsFromTheCommandLine(t *testing.T) {
	sh := newShell(t).as("ops", berth.RoleOperator)
	for range 3 {
		sh.wants(exitOK, sh.run("task", "submit", "--plugin", "work", "--payload", `{"do":"x"}`, "--tag", "nightly"))
	}
	preview := sh.wants(exitOK, sh.run("bulk", "cancel", "--tag", "nightly", "--preview"))
	if !strings.Contains(preview.err, "Cancel 3 tasks") || strings.Count(preview.out, "queued") != 3 {
		t.Errorf("preview: %s%s", preview.out, preview.err)
	}
	sh.reads("nobody confirms", sh.wants(exitUsage, sh.run("bulk", "cancel", "--tag", "nightly")).err, "error: nobody is there to confirm it\ntry: add --yes")
	started := sh.wants(exitOK, sh.run("bulk", "cancel", "--tag", "nightly", "--yes"))
	if !strings.Contains(started.out, "tag=nightly") || !strings.Contains(started.out, "running") || !strings.Contains(started.err, "next: berth bulk get ") {
		t.Errorf("started: %s%s", started.out, started.err)
	}
	if _, err := sh.s.Store.RunBulkPage(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	list := sh.wants(exitOK, sh.run("bulk", "list")).out
	if !strings.Contains(list, "cancel  done") {
		t.Errorf("list: %s", list)
	}
	id := strings.Fields(strings.Split(list, "\n")[1])[0]
	for _, verb := range []string{"get", "stop"} {
		if shown := sh.wants(exitOK, sh.run("bulk", verb, id)).out; !strings.Contains(shown, "done") || !strings.Contains(shown, "Changed") {
			t.Errorf("%s: %s", verb, shown)
		}
	}
	sh.wants(exitOK, sh.run("dead-letter", "list"))
	for _, args := range [][]string{
		{"bulk", "reprioritise", "--all"},
		{"bulk", "get", "abc"},
		{"bulk", "cancel", "what"},
		{"dead-letter", "retry"},
		{"dead-letter", "purge", "abc"},
	} {
		got := sh.run(args...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "error: ") || !strings.Contains(got.err, "\n  try: ") {
			t.Errorf("%v: exit code %d\nstdout: %s\nstderr: %s", args, got.code, got.out, got.err)
		}
	}
	sh.wants(exitError, sh.run("bulk", "cancel", "--tag", "none", "--yes"))
	if got := sh.run("bulk", "delete", "--yes"); got.code == exitOK || !strings.Contains(got.err, "filter") {
		t.Errorf("without a filter: %d %s", got.code, got.err)
	}
}
