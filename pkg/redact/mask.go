package redact

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
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
// each line of a value of several, with each character escaped for itself or not
// (percent-encoded, in JSON, JavaScript, Python, HTML and shells, see escapesOf),
// and inside base64 text at each of its three alignments. Not masked are values
// shorter than MinMasked, and any other form: in pieces, reversed, in hex,
// escaped twice, compressed, hashed, in a picture. It may be used by several
// goroutines. It never prints.
type Masker struct{ forms func() *forms }

// forms are texts to be masked.
type forms struct {
	exact [256][][]byte // by their first byte, each list longest first
	loose loose
}

// Masker prepares the masking of the values of s. That of no values changes
// nothing.
func (s Strings) Masker() Masker {
	seen, table := map[string]bool{}, &forms{loose: loose{escapes: map[rune][]string{}}}
	add := func(f string) bool {
		if seen[f] {
			return false
		}
		seen[f] = true
		table.exact[f[0]] = append(table.exact[f[0]], []byte(f))
		return true
	}
	for _, v := range s {
		for _, plain := range plainOf(v.Reveal()) {
			if add(plain) {
				table.loose.add(plain)
			}
			for _, f := range base64Of(plain) {
				add(f)
			}
		}
	}
	if len(seen) == 0 {
		return Masker{}
	}
	for _, list := range table.exact {
		slices.SortFunc(list, func(a, b []byte) int { return len(b) - len(a) })
	}
	return Masker{forms: func() *forms { return table }}
}

// plainOf lists the texts that a value is made of: itself, and without the white
// space around it, and each longer line of it.
func plainOf(value string) (out []string) {
	for _, v := range []string{value, strings.TrimSpace(value)} {
		if len(v) >= MinMasked {
			out = append(out, v)
		}
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minPart {
			out = append(out, line)
		}
	}
	return out
}

// base64Of lists what a value looks like inside base64 text.
func base64Of(value string) (out []string) {
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			if form := base64Inside(enc, value, shift); len(form) >= minPart {
				out = append(out, form)
			}
		}
	}
	return out
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
		n, more := m.forms.match(in, all)
		switch {
		// A longer form could still turn out to begin here; masking the shorter one
		// now would leave the longer one's tail readable.
		case more && !all:
			m.held = append(m.held[:0], in...)
			return m.write(out)
		case n > 0:
			out = append(out, Placeholder...)
			in = in[n:]
		default:
			out = append(out, in[0])
			in = in[1:]
		}
	}
	m.held = m.held[:0]
	return m.write(out)
}

func (m *maskWriter) write(out []byte) error {
	if len(out) == 0 {
		return nil
	}
	_, err := m.w.Write(out)
	return err
}

// match returns the length of the longest form that in begins with, or 0, and
// whether more of the text could make it a longer one; last: there is no more.
func (f *forms) match(in []byte, last bool) (n int, more bool) {
	list := f.exact[in[0]]
	if len(list) > 0 {
		n = match(list, in)
		more = couldGrow(list, in, n)
	}
	loosely, grows := f.loose.match(in, last)
	return max(n, loosely), more || grows
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
