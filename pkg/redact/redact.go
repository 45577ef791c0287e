// Package redact holds values that must never be printed: payloads, secrets,
// screenshots, UI trees, typed text, tokens.
//
// Whatever prints a value of these types (package fmt with any verb, package
// log/slog, zap, encoding/json, encoding.TextMarshaler users) prints
// [Placeholder]. The content leaves only through an explicit Reveal, which is
// easy to find in a review. The package imports the standard library only.
package redact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Placeholder is what a redacted value prints as, in every form.
const Placeholder = "[redacted]"

// String is a text that never prints. Its zero value is the empty text, which
// prints as Placeholder too.
//
// It is a struct, not a string, so that a conversion or a concatenation cannot
// reveal it by accident, and because the runtime prints a panicking string. The
// content is behind a closure: fmt cannot call the methods of an unexported
// field but prints what lies in it, through a pointer too; a closure prints as
// an address. Compare with Equal.
type String struct{ reveal func() string }

// NewString wraps s.
func NewString(s string) String { return String{reveal: func() string { return s }} }

// Reveal returns the content. Call it only to hand the content to where it was
// meant to go.
func (s String) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Equal reports whether both hold the same content.
func (s String) Equal(o String) bool { return s.Reveal() == o.Reveal() }

// IsZero reports whether the content is empty.
func (s String) IsZero() bool { return s.Reveal() == "" }

// Len returns the length of the content in bytes.
func (s String) Len() int { return len(s.Reveal()) }

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

// UnmarshalJSON reads a JSON string. Its error does not quote it.
func (s *String) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		return errors.New("not a JSON string")
	}
	*s = NewString(text)
	return nil
}

// Bytes is binary content that never prints, made like [String]. Its zero value
// is empty.
type Bytes struct{ reveal func() []byte }

// NewBytes wraps b without copying it.
func NewBytes(b []byte) Bytes { return Bytes{reveal: func() []byte { return b }} }

// Reveal returns the content itself, not a copy.
func (b Bytes) Reveal() []byte {
	if b.reveal == nil {
		return nil
	}
	return b.reveal()
}

// Equal reports whether both hold the same content.
func (b Bytes) Equal(o Bytes) bool { return bytes.Equal(b.Reveal(), o.Reveal()) }

// IsZero reports whether the content is empty.
func (b Bytes) IsZero() bool { return b.Len() == 0 }

// Len returns the length of the content in bytes.
func (b Bytes) Len() int { return len(b.Reveal()) }

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
