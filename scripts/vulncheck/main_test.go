package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

const report = `{"config":{}}
{"osv":{"id":"GO-1","summary":"called"}}
{"osv":{"id":"GO-2","summary":"imported only"}}
{"osv":{"id":"GO-3","summary":"allowed once"}}
{"finding":{"osv":"GO-1","fixed_version":"v2","trace":[{"module":"m","version":"v1","function":"F"}]}}
{"finding":{"osv":"GO-1","fixed_version":"v2","trace":[{"module":"m","version":"v1","function":"G"}]}}
{"finding":{"osv":"GO-2","trace":[{"module":"m","version":"v1"}]}}
{"finding":{"osv":"GO-3","trace":[{"module":"m","version":"v1","function":"F"}]}}
`

func TestJudge(t *testing.T) {
	found, err := reached(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		allow string
		now   time.Time
		says  string
		fails bool
	}{
		"not allowed":    {"GO-3 2026-11-30 why", day, "GO-1: called (m v1, fixed in v2;", true},
		"allowed":        {"# a comment\n\nGO-1 2026-11-30 it does no harm\nGO-3 2026-11-30 why", day, "2 reached, 2 allowed, 0 to mend", false},
		"expired":        {"GO-1 2026-11-30 why\nGO-3 2026-11-29 why", day, "GO-3: its day in", true},
		"not needed":     {"GO-1 2026-11-30 why\nGO-3 2026-11-30 why\nGO-9 2026-11-30 why", day, "GO-9: in tools/vuln/allow.txt, and not found", false},
		"expired midday": {"GO-1 2026-11-30 why\nGO-3 2026-11-30 why", day.Add(12 * time.Hour), "GO-1: its day", true},
	} {
		t.Run(name, func(t *testing.T) {
			allowed, err := parseAllowed(c.allow)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = judge(&out, found, allowed, c.now)
			if (err != nil) != c.fails || !strings.Contains(out.String(), c.says) {
				t.Errorf("error %v, said:\n%s", err, out.String())
			}
		})
	}
}

func TestAllowListIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"GO-1 2026-11-30":     "line 1: write id",
		"\nGO-1 tomorrow why": `line 2: "tomorrow" is no day`,
	} {
		if _, err := parseAllowed(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := reached(strings.NewReader(`{"config":{}}`)); err == nil {
		t.Error("an empty database passes")
	}
}
