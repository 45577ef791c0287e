package sqlite

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// micros stores a time; the zero time is NULL.
func micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// null stores a text; "" is NULL.
func null[T ~string](s T) any {
	if s == "" {
		return nil
	}
	return string(s)
}

// content stores redacted bytes as text; empty ones are NULL.
func content(b redact.Bytes) any {
	if b.IsZero() {
		return nil
	}
	return string(b.Reveal())
}

// jsonText stores a list or a map as JSON.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("sqlite: " + err.Error()) // only strings, slices and maps of them come here
	}
	return string(b)
}

func list[T any](s []T) string {
	if len(s) == 0 {
		return "[]"
	}
	return jsonText(s)
}

// scanner is a destination that reads one column.
type scanner func(v any) error

// Scan implements sql.Scanner.
func (f scanner) Scan(v any) error { return f(v) }

// at reads a time; NULL is the zero time.
func at(p *time.Time) scanner {
	return func(v any) error {
		switch x := v.(type) {
		case nil:
			*p = time.Time{}
		case int64:
			*p = time.UnixMicro(x).UTC()
		default:
			return fmt.Errorf("a time is stored as %T", v)
		}
		return nil
	}
}

// span reads a duration.
func span(p *time.Duration) scanner {
	return func(v any) error {
		x, ok := v.(int64)
		if !ok {
			return fmt.Errorf("a duration is stored as %T", v)
		}
		*p = time.Duration(x) * time.Microsecond
		return nil
	}
}

// opt reads a text; NULL is "".
func opt[T ~string](p *T) scanner {
	return func(v any) error {
		switch x := v.(type) {
		case nil:
			*p = ""
		case string:
			*p = T(x)
		default:
			return fmt.Errorf("a text is stored as %T", v)
		}
		return nil
	}
}

// optInt reads a number; NULL is 0.
func optInt[T ~int | ~int64](p *T) scanner {
	return func(v any) error {
		x, ok := v.(int64)
		if v != nil && !ok {
			return fmt.Errorf("a number is stored as %T", v)
		}
		*p = T(x)
		return nil
	}
}

// hidden reads content; NULL is empty.
func hidden(p *redact.Bytes) scanner {
	return func(v any) error {
		var s string
		if err := opt(&s)(v); err != nil {
			return err
		}
		*p = redact.Bytes{}
		if s != "" {
			*p = redact.NewBytes([]byte(s))
		}
		return nil
	}
}

// hiddenText reads content that is a sentence; NULL is empty.
func hiddenText(p *redact.String) scanner {
	return func(v any) error {
		var s string
		if err := opt(&s)(v); err != nil {
			return err
		}
		*p = redact.NewString(s)
		return nil
	}
}

// fromJSON reads what jsonText stored.
func fromJSON(p any) scanner {
	return func(v any) error {
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("JSON is stored as %T", v)
		}
		return json.Unmarshal([]byte(s), p)
	}
}

// digest reads a SHA-256 as lower-case hex.
func digest(p *string) scanner {
	return func(v any) error {
		b, ok := v.([]byte)
		if !ok {
			return fmt.Errorf("a digest is stored as %T", v)
		}
		*p = hex.EncodeToString(b)
		return nil
	}
}

// digestBytes is the stored form of a SHA-256 in hex.
func digestBytes(s string) ([]byte, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 {
		return nil, berth.Invalid("sha256", "is not a SHA-256 in hex", "send 64 hex digits")
	}
	return b, nil
}

// page cuts what was read with one row too many to the page's size and gives
// the cursor of the next page, "" at the end.
func page[T any](all []T, size int, key func(T) string) ([]T, string) {
	if len(all) <= size {
		return all, ""
	}
	return all[:size], key(all[size-1])
}
