package redact

import (
	"fmt"
	"unicode/utf8"
)

// loose finds values whose characters were escaped one by one on their way,
// each in any of the ways of [escapesOf], which differ from program to program:
// JavaScript, Python, Go, curl and browsers leave other characters as they are
// when they percent-encode.
type loose struct {
	values  [256][][]rune // by the first byte of what the first character may look like
	escapes map[rune][]string
}

func (l *loose) add(value string) {
	runes := []rune(value)
	for _, r := range runes {
		if _, ok := l.escapes[r]; !ok {
			l.escapes[r] = escapesOf(r)
		}
	}
	seen := map[byte]bool{}
	for _, e := range l.escapes[runes[0]] {
		if !seen[e[0]] {
			seen[e[0]] = true
			l.values[e[0]] = append(l.values[e[0]], runes)
		}
	}
}

// escapesOf lists what a character may look like: itself first, percent-encoded,
// as in a form, in JSON, JavaScript and Python texts, in HTML and XML, and behind
// a shell's backslash or out of its quotes.
func escapesOf(r rune) []string {
	raw := string(r)
	percent, hex := "", ""
	for i := range len(raw) {
		percent += fmt.Sprintf("%%%02x", raw[i])
		hex += fmt.Sprintf(`\x%02x`, raw[i])
	}
	out := []string{raw, percent, hex, fmt.Sprintf("&#%d;", r), fmt.Sprintf("&#x%x;", r)}
	if r > 0xffff {
		high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
		out = append(out, fmt.Sprintf(`\u%04x\u%04x`, high, low), fmt.Sprintf(`\U%08x`, r))
	} else {
		out = append(out, fmt.Sprintf(`\u%04x`, r))
	}
	if r > ' ' && r < utf8.RuneSelf && !alphanumeric(r) {
		out = append(out, `\`+raw)
	}
	return append(out, map[rune][]string{
		' ': {"+", `\ `}, '\n': {`\n`}, '\r': {`\r`}, '\t': {`\t`}, '\b': {`\b`}, '\f': {`\f`},
		'&': {"&amp;"}, '<': {"&lt;"}, '>': {"&gt;"}, '"': {"&quot;"}, '\'': {"&apos;", "&#039;", `'\''`, `'"'"'`},
	}[r]...)
}

func alphanumeric(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// match returns the length of the longest value that in begins with, or 0, and
// whether more of the text could make it a longer one; last: there is no more.
func (l *loose) match(in []byte, last bool) (longest int, more bool) {
	for _, value := range l.values[in[0]] {
		n, m := l.one(value, in, last)
		longest, more = max(longest, n), more || m
	}
	return longest, more
}

// one is match of one value. Where two looks of a character fit, the longer one
// counts: a value that stands there as it is, is found as that.
func (l *loose) one(value []rune, in []byte, last bool) (n int, more bool) {
	for _, r := range value {
		best := 0
		for i, e := range l.escapes[r] {
			rest := in[n:]
			k := min(len(e), len(rest))
			switch {
			case !begins(rest, e[:k], i == 0):
			case k == len(e):
				best = max(best, k)
			case !last:
				return 0, true
			}
		}
		if best == 0 {
			return 0, false
		}
		n += best
	}
	return n, false
}

// begins reports whether in begins with text; unless exact, whatever the case of
// letters, as hexadecimal digits may have either.
func begins(in []byte, text string, exact bool) bool {
	for i := range len(text) {
		a, b := in[i], text[i]
		if !exact {
			a, b = lower(a), lower(b)
		}
		if a != b {
			return false
		}
	}
	return true
}

func lower(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		b += 'a' - 'A'
	}
	return b
}
