package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
)

const (
	// MinMasked is the length in bytes from which a value is masked. To mask
	// shorter ones would hit so much of a text that it showed them.
	MinMasked = 3
	// minPart is the length from which a part of a value is masked by itself: a
	// line of it, or its base64 form, whose edges depend on what stands beside it.
	minPart = 8
)

// Masker replaces the values of Strings by Placeholder, and what they look like
// where they were encoded on their way: without the white space around them,
// each line of a value of several, as a JSON string, percent-encoded, and inside
// base64 text at each of its three alignments. Not masked are values shorter
// than MinMasked, and any other form: in pieces, reversed, in hex, compressed,
// hashed, in a picture. It may be used by several goroutines. It never prints.
type Masker struct{ forms func() *forms }

// forms are texts to be masked, by their first byte, each list longest first.
type forms [256][][]byte

// Masker prepares the masking of the values of s. That of no values changes
// nothing.
func (s Strings) Masker() Masker {
	seen := map[string]bool{}
	for _, v := range s {
		for _, f := range formsOf(v.Reveal()) {
			seen[f] = true
		}
	}
	if len(seen) == 0 {
		return Masker{}
	}
	table := &forms{}
	for f := range seen {
		table[f[0]] = append(table[f[0]], []byte(f))
	}
	for _, list := range table {
		slices.SortFunc(list, func(a, b []byte) int { return len(b) - len(a) })
	}
	return Masker{forms: func() *forms { return table }}
}

// formsOf lists what a value may look like.
func formsOf(value string) []string {
	var out []string
	add := func(form string, least int) {
		if len(form) >= least {
			out = append(out, form)
		}
	}
	plain := []string{value, strings.TrimSpace(value)}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minPart {
			plain = append(plain, line)
		}
	}
	for _, v := range plain {
		if len(v) < MinMasked {
			continue
		}
		add(v, MinMasked)
		add(url.QueryEscape(v), MinMasked)
		add(url.PathEscape(v), MinMasked)
		add(jsonEscaped(v, true), MinMasked)
		add(jsonEscaped(v, false), MinMasked)
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			for shift := range 3 {
				add(base64Inside(enc, v, shift), minPart)
			}
		}
	}
	return out
}

// jsonEscaped is the text of a JSON string without its quotes.
func jsonEscaped(value string, html bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	if enc.Encode(value) != nil {
		return ""
	}
	text := strings.TrimSuffix(b.String(), "\n")
	return text[1 : len(text)-1]
}

// base64Inside is what base64 makes of a value that begins shift bytes after a
// multiple of three, less the characters at its edges that its neighbours have a
// part in.
func base64Inside(enc *base64.Encoding, value string, shift int) string {
	text := enc.EncodeToString(append(make([]byte, shift), value...))
	begin := [3]int{0, 2, 3}[shift]
	end := (shift + len(value)) / 3 * 4
	switch (shift + len(value)) % 3 {
	case 1:
		end++
	case 2:
		end += 2
	}
	if begin >= end {
		return ""
	}
	return text[begin:end]
}

// IsZero reports whether there is nothing to mask.
func (m Masker) IsZero() bool { return m.forms == nil }

// String returns Placeholder.
func (Masker) String() string { return Placeholder }

// Format writes Placeholder for every verb.
func (Masker) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Placeholder) }

// Mask returns text with every value replaced by Placeholder, the longest where
// several begin at one place.
func (m Masker) Mask(text string) string {
	if m.forms == nil {
		return text
	}
	var b strings.Builder
	w := maskWriter{w: &b, forms: m.forms()}
	_, _ = w.Write([]byte(text)) // a Builder takes everything
	_ = w.Close()
	return b.String()
}

// Writer returns a writer that passes on to w what is written to it with every
// value replaced by Placeholder, also where a value is spread over several
// writes. It holds back a possible beginning of a value until the next write
// or Close; Close passes on the rest and does not close w. Write reports all of
// p as written unless w failed. It is not safe for use by several goroutines.
func (m Masker) Writer(w io.Writer) io.WriteCloser {
	out := &maskWriter{w: w}
	if m.forms != nil {
		out.forms = m.forms()
	}
	return out
}

// Mask is Masker().Mask, for a single text.
func (s Strings) Mask(text string) string { return s.Masker().Mask(text) }

// Writer is Masker().Writer.
func (s Strings) Writer(w io.Writer) io.WriteCloser { return s.Masker().Writer(w) }

type maskWriter struct {
	w     io.Writer
	forms *forms
	held  []byte // not passed on yet: may be the beginning of a form
}

func (m *maskWriter) Write(p []byte) (int, error) {
	if m.forms == nil {
		return m.w.Write(p)
	}
	m.held = append(m.held, p...)
	if err := m.pass(false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (m *maskWriter) Close() error { return m.pass(true) }

// pass writes what cannot be part of a form any more.
func (m *maskWriter) pass(all bool) error {
	var out []byte
	in := m.held
	for len(in) > 0 {
		list := m.forms[in[0]]
		if len(list) == 0 {
			out = append(out, in[0])
			in = in[1:]
			continue
		}
		n := match(list, in)
		// A longer form could still turn out to begin here; masking the shorter one
		// now would leave the longer one's tail readable.
		if !all && couldGrow(list, in, n) {
			break
		}
		if n > 0 {
			out = append(out, Placeholder...)
			in = in[n:]
			continue
		}
		out = append(out, in[0])
		in = in[1:]
	}
	m.held = append(m.held[:0], in...)
	if len(out) == 0 {
		return nil
	}
	_, err := m.w.Write(out)
	return err
}

// match returns the length of the longest form that in begins with, or 0.
func match(list [][]byte, in []byte) int {
	for _, f := range list {
		if bytes.HasPrefix(in, f) {
			return len(f)
		}
	}
	return 0
}

// couldGrow reports whether in is the beginning of a form longer than n.
func couldGrow(list [][]byte, in []byte, n int) bool {
	for _, f := range list {
		if len(f) > n && len(in) < len(f) && bytes.HasPrefix(f, in) {
			return true
		}
	}
	return false
}
