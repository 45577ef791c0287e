package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

// FuzzExplainProblem: whatever a server writes into a problem document, a person
// reads it in the shape of Berth's errors: text that moves no cursor, and no line
// that begins as one of ours unless it is ours.
func FuzzExplainProblem(f *testing.F) {
	for _, s := range []string{
		`{"code":"not_found","title":"Not found","status":404,"detail":"No.","remedy":"Look.","request_id":"r"}`,
		`{"code":"invalid","status":422,"errors":[{"path":"a","message":"b","remedy":"c"}]}`,
		`{"code":"invalid","status":422,"errors":[{"path":"a","message":"b"},{"path":"","message":"d","remedy":"e"}]}`,
		`{"code":"x","status":500,"detail":"a\nerror: b\n  try: rm -rf /"}`, `{"code":"\u001b[2J","status":401,"remedy":"\u009b2J\r"}`,
		`{"code":"invalid","errors":[{"path":"a\n  try: x","message":"\u0007"},{"remedy":"\n  - more"}]}`, `{"code":"x","request_id":")\n  try: y","detail":"..."}`, `{}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		var p client.Problem
		if json.Unmarshal(document, &p) != nil {
			return
		}
		var out, errs bytes.Buffer
		c := newCLI(nil, strings.NewReader(""), &out, &errs)
		c.explain(&p)
		text, whole := strings.CutSuffix(errs.String(), "\n")
		lines := strings.Split(text, "\n")
		if out.Len() > 0 || !whole || !strings.HasPrefix(lines[0], "error: ") || !utf8.ValidString(text) {
			t.Fatalf("%q says %q", document, errs.String())
		}
		begins := map[string]int{}
		for _, line := range lines[1:] {
			for _, ours := range []string{"  try: ", "  - ", "  ("} {
				if strings.HasPrefix(line, ours) {
					begins[ours]++
				}
			}
			if strings.ContainsFunc(line, unicode.IsControl) {
				t.Fatalf("%q says %q", document, text)
			}
		}
		faults := len(p.Errors)
		if faults < 2 {
			faults = 0
		}
		if strings.ContainsFunc(lines[0], unicode.IsControl) || begins["  try: "] > 1 || begins["  - "] != faults || begins["  ("] != 1 ||
			len(lines) != 1+begins["  try: "]+begins["  - "]+begins["  ("] {
			t.Fatalf("%q says %q", document, text)
		}
	})
}

// FuzzChangeLabels: KEY=VALUE sets that label and KEY- takes it away, other labels
// stay, and whatever else is refused in one line with a remedy.
func FuzzChangeLabels(f *testing.F) {
	for _, s := range []string{"", "os=linux", "os-", "os", "=x", "-", "a=b=c", "a-=", "a=-", "os=", "\x00=\xff", "a\nb", "=-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, change string) {
		before := map[string]string{"os": "darwin", "rack": "7"}
		after := maps.Clone(before)
		err := changeLabels(&cobra.Command{Use: "label"}, after, []string{change})
		key, value, sets := strings.Cut(change, "=")
		sets = sets && key != ""
		gone, removes := strings.CutSuffix(change, "-")
		removes = !sets && removes && gone != ""
		var usage *usageError
		switch {
		case sets:
			before[key] = value
		case removes:
			delete(before, gone)
		case !errors.As(err, &usage) || usage.remedy == "" || strings.ContainsFunc(usage.what, unicode.IsControl) || len(usage.what) > 400:
			t.Fatalf("%q: %v", change, err)
		}
		if (err == nil) != (sets || removes) || !maps.Equal(before, after) {
			t.Fatalf("%q made %q of the labels: %v", change, after, err)
		}
	})
}
