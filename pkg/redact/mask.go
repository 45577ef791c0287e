package redact

import (
	"bytes"
	"io"
	"slices"
	"strings"
)

// values returns the distinct non-empty values, longest first.
func (s Strings) values() []string {
	var vs []string
	for _, v := range s {
		if s := v.Reveal(); s != "" && !slices.Contains(vs, s) {
			vs = append(vs, s)
		}
	}
	slices.SortFunc(vs, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	return vs
}

// Writer returns a writer that passes on to w what is written to it with every
// value of s replaced by Placeholder, also where a value is spread over several
// writes. It holds back a possible beginning of a value until the next write
// or Close; Close passes on the rest and does not close w. Write reports all of
// p as written unless w failed. It is not safe for use by several goroutines.
func (s Strings) Writer(w io.Writer) io.WriteCloser {
	m := &maskWriter{w: w}
	for _, v := range s.values() {
		m.values = append(m.values, []byte(v))
	}
	return m
}

type maskWriter struct {
	w      io.Writer
	values [][]byte // longest first
	held   []byte   // not passed on yet: may be the beginning of a value
}

func (m *maskWriter) Write(p []byte) (int, error) {
	if len(m.values) == 0 {
		return m.w.Write(p)
	}
	m.held = append(m.held, p...)
	if err := m.pass(false); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (m *maskWriter) Close() error { return m.pass(true) }

// pass writes what cannot be part of a value any more.
func (m *maskWriter) pass(all bool) error {
	var out []byte
	in := m.held
	for len(in) > 0 {
		if n := m.match(in); n > 0 {
			// A longer value could still turn out to begin here; masking the
			// shorter one now would leave the longer one's tail readable.
			if !all && m.couldGrow(in, n) {
				break
			}
			out = append(out, Placeholder...)
			in = in[n:]
			continue
		}
		if !all && m.couldGrow(in, 0) {
			break
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

// match returns the length of the longest value that in begins with, or 0.
func (m *maskWriter) match(in []byte) int {
	for _, v := range m.values {
		if bytes.HasPrefix(in, v) {
			return len(v)
		}
	}
	return 0
}

// couldGrow reports whether in is the beginning of a value longer than n.
func (m *maskWriter) couldGrow(in []byte, n int) bool {
	for _, v := range m.values {
		if len(v) > n && len(in) < len(v) && bytes.HasPrefix(v, in) {
			return true
		}
	}
	return false
}
