package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
)

func TestSchedulesByHand(t *testing.T) {
	sh := newShell(t).as("ops", berth.RoleOperator)
	sh.s.Agent("lab-1", map[string]string{"os": "linux"})
	file := filepath.Join(t.TempDir(), "task.json")
	if err := os.WriteFile(file, []byte(`{"plugin":"work","payload":{"do":"x"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out := sh.wants(exitOK, sh.run("schedule", "create", "yearly", "--cron", "0 0 1 1 *", "--time-zone", "Europe/Berlin", "--overlap", "queue_one", "-f", file)).out
	for _, want := range []string{"yearly", "active", "0 0 1 1 * in Europe/Berlin, fixed", "latest, within 1h0m0s", "queue_one", "work in default"} {
		if !strings.Contains(out, want) {
			t.Errorf("create lacks %q:\n%s", want, out)
		}
	}
	for _, step := range []struct{ line, contains string }{
		{"schedule|list", "yearly"},
		{"schedule|get|yearly", "Europe/Berlin"},
		{"schedule|edit|yearly|--cron|0 0 2 1 *", "0 0 2 1 *"},
		{"schedule|preview|yearly|-n|2", "-01-02T00:00"},
		{"schedule|preview|--cron|30 2 * * *|--time-zone|UTC|-n|1", "T02:30"},
		{"schedule|pause|yearly", "paused  -"},
		{"schedule|resume|yearly", "active"},
		{"schedule|run|yearly", "queued"},
		{"schedule|fires|yearly", "run:"},
		{"schedule|list|-o|json", `"schedules"`},
	} {
		if got := sh.wants(exitOK, sh.run(strings.Split(step.line, "|")...)).out; !strings.Contains(got, step.contains) {
			t.Errorf("%s lacks %q:\n%s", step.line, step.contains, got)
		}
	}
	for _, args := range [][]string{
		{"schedule", "create", "x"},
		{"schedule", "create", "x", "--cron", "@daily"},
		{"schedule", "edit", "yearly"},
		{"schedule", "preview"},
		{"schedule", "preview", "yearly", "--cron", "@daily"},
		{"schedule", "delete", "yearly"},
		{"schedule", "pause"},
	} {
		sh.wants(exitUsage, sh.run(args...))
	}
	if got := sh.wants(exitError, sh.run("schedule", "preview", "--cron", "0 0 30 2 *")).err; !strings.Contains(got, "never fire") {
		t.Errorf("what never fires: %s", got)
	}
	sh.wants(exitOK, sh.run("schedule", "delete", "yearly", "--yes"))
	sh.wants(exitNotFound, sh.run("schedule", "get", "yearly"))
}
