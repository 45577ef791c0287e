package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/berth-dev/berth/pkg/client"
)

// printJSON writes v in the API's own shape. What moves the cursor or turns text
// round stands in escapes, of which it is the same text.
func (c *cli) printJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	var out []byte
	for _, r := range b.String() {
		if moves(r) && r != '\n' { // of these, JSON has line ends alone outside of its texts
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	_, err := c.stdout.Write(out)
	return err
}

// printTable writes columns for people. Without rows it says so on stderr.
func (c *cli) printTable(header []any, rows [][]any, none string) {
	if len(rows) == 0 {
		c.say("%s", none)
		return
	}
	t := table.NewWriter()
	style := table.StyleDefault
	style.Name = "berth"
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.AppendHeader(row(header))
	for _, r := range rows {
		t.AppendRow(row(r))
	}
	for line := range strings.SplitSeq(t.Render(), "\n") {
		fmt.Fprintln(c.stdout, strings.TrimRight(line, " "))
	}
}

// painted is text of this program's own with colours in it; every other text
// in a table is made printable.
type painted string

func row(cells []any) table.Row {
	out := make(table.Row, len(cells))
	for i, cell := range cells {
		if own, ok := cell.(painted); ok {
			out[i] = string(own)
			continue
		}
		out[i] = printable(fmt.Sprint(cell))
	}
	return out
}

// printable keeps text that others wrote from moving the cursor or forging
// lines.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if moves(r) {
			return '?'
		}
		return r
	}, s)
}

// say writes a line for people to stderr, so that stdout stays data.
func (c *cli) say(format string, args ...any) {
	fmt.Fprintf(c.stderr, format+"\n", args...)
}

// printFields writes "name: value" lines, without those that are empty.
func (c *cli) printFields(fields [][2]string) {
	width := 0
	for _, f := range fields {
		if f[1] != "" {
			width = max(width, len(f[0]))
		}
	}
	for _, f := range fields {
		if f[1] != "" {
			fmt.Fprintf(c.stdout, "%-*s  %s\n", width+1, f[0]+":", f[1])
		}
	}
}

// stateWord is a task's state in its colour, for a terminal.
func (c *cli) stateWord(s client.TaskState) painted {
	if !c.colour() {
		return painted(printable(string(s)))
	}
	paint := text.Colors{text.FgBlue}
	switch s {
	case client.TaskStateSucceeded:
		paint = text.Colors{text.FgGreen}
	case client.TaskStateFailed:
		paint = text.Colors{text.FgYellow}
	case client.TaskStateDeadLetter:
		paint = text.Colors{text.FgRed}
	case client.TaskStateQueued, client.TaskStateScheduled, client.TaskStateCancelled:
		paint = text.Colors{text.FgHiBlack}
	}
	return painted(paint.EscapeSeq() + printable(string(s)) + text.Reset.EscapeSeq())
}

// since is how long ago t was, in one unit or two.
func (c *cli) since(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return span(c.now().Sub(t))
}

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// stamp is an instant for people.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05 MST")
}

func size(n int64) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000*1000:
		return fmt.Sprintf("%.1f kB", float64(n)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
