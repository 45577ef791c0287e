package harness

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"
)

// Line is a line of a JSON log.
type Line map[string]any

// Text is a field that is a string, or "".
func (l Line) Text(field string) string {
	s, _ := l[field].(string)
	return s
}

// ReadLog reads a JSON log. A last line without its end is left out; any other
// line that is no JSON object is returned under the field "raw".
func ReadLog(path string) ([]Line, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []Line
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte{'\n'})
		if !whole {
			break
		}
		b = rest
		l := Line{}
		if err := json.Unmarshal(line, &l); err != nil {
			l = Line{"raw": string(line)}
		}
		out = append(out, l)
	}
	return out, nil
}

// Lines reads the process's log.
func (p *Process) Lines(tb testing.TB) []Line {
	tb.Helper()
	lines, err := ReadLog(p.LogPath)
	if err != nil {
		tb.Fatal(err)
	}
	return lines
}

// AwaitLine waits for a line of the log. It fails the test when the process
// ends without it.
func (p *Process) AwaitLine(tb testing.TB, within time.Duration, what string, match func(Line) bool) Line {
	tb.Helper()
	var found Line
	look := func() bool {
		for _, l := range p.Lines(tb) {
			if match(l) {
				found = l
				return true
			}
		}
		return false
	}
	if !poll(within, func() bool { return look() || p.Ended() }) || (found == nil && !look()) {
		tb.Fatalf("%s has not logged within %v: %s", p.Name, within, what)
	}
	return found
}

// Address waits until the process logs where its server (admin, api, demo page)
// listens, and returns host:port.
func (p *Process) Address(tb testing.TB, server string) string {
	tb.Helper()
	l := p.AwaitLine(tb, Patience, "where its "+server+" listens", func(l Line) bool {
		return l.Text("message") == "listening" && l.Text("server") == server
	})
	return l.Text("address")
}
