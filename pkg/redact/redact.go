// Package redact holds values that must not print: payloads, results, tokens,
// passwords, screenshots, UI trees, typed text. Every printed form of its
// types (fmt with any verb, encoding/json, encoding/xml, gob-free text, zap,
// an error, a panic) is "[redacted]"; only Reveal gives the value, so that a
// reader can find every place where content leaves its wrapping.
package redact

import (
	"bytes"
	"fmt"
	"log/slog"
)

// Text is what is printed instead.
const Text = "[redacted]"

// Bytes wraps content bytes. The zero value is empty. It is a struct around a
// closure: the runtime prints the bytes of a panicking named slice or string,
// and fmt cannot call the methods of an unexported field but prints what lies
// in it (behind one pointer, too), which here is an address.
type Bytes struct{ reveal func() []byte }

// NewBytes wraps b without copying it.
func NewBytes(b []byte) Bytes { return Bytes{reveal: func() []byte { return b }} }

// Reveal returns the wrapped bytes, not a copy.
func (b Bytes) Reveal() []byte {
	if b.reveal == nil {
		return nil
	}
	return b.reveal()
}

// Len is the number of bytes; sizes are not secret.
func (b Bytes) Len() int { return len(b.Reveal()) }

// Equal reports whether both wrap the same bytes.
func (b Bytes) Equal(o Bytes) bool { return bytes.Equal(b.Reveal(), o.Reveal()) }

// String is Text.
func (Bytes) String() string { return Text }

// GoString is Text.
func (Bytes) GoString() string { return Text }

// Format prints Text for every verb.
func (Bytes) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(Text)) }

// MarshalJSON gives Text as a JSON string: content is revealed on purpose or
// not at all.
func (Bytes) MarshalJSON() ([]byte, error) { return []byte(`"` + Text + `"`), nil }

// MarshalText gives Text.
func (Bytes) MarshalText() ([]byte, error) { return []byte(Text), nil }

// LogValue gives Text to log/slog.
func (Bytes) LogValue() slog.Value { return slog.StringValue(Text) }

// String wraps a content string. The zero value is empty.
type String struct{ reveal func() string }

// NewString wraps s.
func NewString(s string) String { return String{reveal: func() string { return s }} }

// Reveal returns the wrapped string.
func (s String) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	return s.reveal()
}

// Len is the number of bytes.
func (s String) Len() int { return len(s.Reveal()) }

// Equal reports whether both wrap the same string.
func (s String) Equal(o String) bool { return s.Reveal() == o.Reveal() }

// String is Text.
func (String) String() string { return Text }

// GoString is Text.
func (String) GoString() string { return Text }

// Format prints Text for every verb.
func (String) Format(st fmt.State, _ rune) { _, _ = st.Write([]byte(Text)) }

// MarshalJSON gives Text as a JSON string.
func (String) MarshalJSON() ([]byte, error) { return []byte(`"` + Text + `"`), nil }

// MarshalText gives Text.
func (String) MarshalText() ([]byte, error) { return []byte(Text), nil }

// LogValue gives Text to log/slog.
func (String) LogValue() slog.Value { return slog.StringValue(Text) }
