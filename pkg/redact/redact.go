// Package redact holds values that must never be printed: payloads, secrets,
// screenshots, UI trees, typed text, tokens.
//
// Whatever prints a value of these types (package fmt with any verb, package
// log/slog, zap, encoding/json, encoding.TextMarshaler users) prints
// [Placeholder]. The content leaves only through an explicit Reveal, which is
// easy to find in a review. The package imports the standard library only.
package redact

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Placeholder is what a redacted value prints as, in every form.
const Placeholder = "[redacted]"

// String is a text that never prints. Its zero value is the empty text, which
// prints as Placeholder too.
//
// It is a struct, not a string, so that a conversion or a concatenation cannot
// reveal it by accident. Two Strings are comparable with ==.
type String struct{ s string }

// NewString wraps s.
func NewString(s string) String { return String{s: s} }

// Reveal returns the content. Call it only to hand the content to where it was
// meant to go.
func (s String) Reveal() string { return s.s }

// IsZero reports whether the content is empty.
func (s String) IsZero() bool { return s.s == "" }

// Len returns the length of the content in bytes.
func (s String) Len() int { return len(s.s) }

// String returns Placeholder.
func (String) String() string { return Placeholder }

// GoString returns Placeholder.
func (String) GoString() string { return Placeholder }

// Format writes Placeholder for every verb.
func (String) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Placeholder) }

// MarshalJSON returns Placeholder as a JSON string.
func (String) MarshalJSON() ([]byte, error) { return []byte(`"` + Placeholder + `"`), nil }

// MarshalText returns Placeholder.
func (String) MarshalText() ([]byte, error) { return []byte(Placeholder), nil }

// LogValue returns Placeholder.
func (String) LogValue() slog.Value { return slog.StringValue(Placeholder) }

// Bytes is binary content that never prints. Its zero value is empty.
type Bytes struct{ b []byte }

// NewBytes wraps b without copying it.
func NewBytes(b []byte) Bytes { return Bytes{b: b} }

// Reveal returns the content itself, not a copy.
func (b Bytes) Reveal() []byte { return b.b }

// IsZero reports whether the content is empty.
func (b Bytes) IsZero() bool { return len(b.b) == 0 }

// Len returns the length of the content in bytes.
func (b Bytes) Len() int { return len(b.b) }

// String returns Placeholder.
func (Bytes) String() string { return Placeholder }

// GoString returns Placeholder.
func (Bytes) GoString() string { return Placeholder }

// Format writes Placeholder for every verb.
func (Bytes) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Placeholder) }

// MarshalJSON returns Placeholder as a JSON string.
func (Bytes) MarshalJSON() ([]byte, error) { return []byte(`"` + Placeholder + `"`), nil }

// MarshalText returns Placeholder.
func (Bytes) MarshalText() ([]byte, error) { return []byte(Placeholder), nil }

// LogValue returns Placeholder.
func (Bytes) LogValue() slog.Value { return slog.StringValue(Placeholder) }

// Strings maps names to secret texts. The names may print, the values do not.
type Strings map[string]String

// Mask returns text with every non-empty value of s replaced by Placeholder,
// longer values first, so that a secret that contains another is masked whole.
func (s Strings) Mask(text string) string {
	for _, v := range s.values() {
		text = strings.ReplaceAll(text, v, Placeholder)
	}
	return text
}
