package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile is what a task's log or a name can hold: it sets the clipboard, renames
// the window, asks the terminal for an answer, clears the screen, moves the cursor
// up, does so in 8 bits, and turns text round.
const hostile = "\x1b]52;c;cm0gLXJm\x07\x1b]0;title\x07\x1b[6n\x1b[2J\x1b[1A\u009b2J\x9b2J\x1bc\x1bP$qm\x1b\\\x7f\b\u202egpj.exe"

func TestALogOnATerminalIsTextAndColours(t *testing.T) {
	const log = "plain \u00e4\t\x1b[1;31mred\x1b[0m\r\n" + hostile + "\x1b[" // broken off
	var whole string
	for size := len(log); size > 0; size-- {
		var out bytes.Buffer
		s := &screen{w: &out}
		for i := 0; i < len(log); i += size {
			piece := log[i:min(i+size, len(log))]
			if n, err := s.Write([]byte(piece)); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if whole == "" {
			whole = out.String()
		}
		if out.String() != whole {
			t.Fatalf("in pieces of %d: %q", size, out.String())
		}
	}
	rest, ok := strings.CutPrefix(whole, "plain \u00e4\t\x1b[1;31mred\x1b[0m\r\n")
	if !ok {
		t.Errorf("text and colours are %q", whole)
	}
	if rest, ok = strings.CutSuffix(rest, "\x1b[0m"); !ok || !utf8.ValidString(rest) || strings.ContainsAny(rest, "\x1b\x07\x7f\b\u009b\u202e") {
		t.Errorf("the rest is %q", rest)
	}
}

func TestNothingThatIsPrintedMovesTheCursor(t *testing.T) {
	var out bytes.Buffer
	c := &cli{stdout: &out, stderr: &out}
	if err := c.printJSON(map[string]string{"name": hostile + "\n"}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["name"] != strings.ToValidUTF8(hostile, "\ufffd")+"\n" {
		t.Errorf("JSON reads %q, %v", back["name"], err)
	}
	c.printTable([]any{"name"}, [][]any{{hostile}}, "")
	if got := out.String(); strings.ContainsAny(got, "\x1b\x07\x7f\b\u009b\u202e") || !strings.Contains(got, "gpj.exe") {
		t.Errorf("printed %q", got)
	}
}
