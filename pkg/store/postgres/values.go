package postgres

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// uid is an id as a parameter. What is no UUID is NULL, which equals nothing:
// an id that cannot exist is not found.
func uid[T ~string](id T) pgtype.UUID {
	var u pgtype.UUID
	_ = u.Scan(string(id))
	return u
}

func uids[T ~string](ids []T) []pgtype.UUID {
	out := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		out[i] = uid(id)
	}
	return out
}

// mapped makes a column out of rows, for unnest.
func mapped[T, U any](rows []T, f func(T) U) []U {
	out := make([]U, len(rows))
	for i, r := range rows {
		out[i] = f(r)
	}
	return out
}

// unique sorts ids and drops repeats: the order of the locks.
func unique[T ~string](ids []T) []T {
	out := slices.Clone(ids)
	slices.Sort(out)
	return slices.Compact(out)
}

// nullable scans a column of text or uuid that may be NULL ("").
func nullable[T ~string](dst *T) nullText[T] { return nullText[T]{dst} }

type nullText[T ~string] struct{ dst *T }

// ScanText makes it a pgtype.TextScanner.
func (n nullText[T]) ScanText(v pgtype.Text) error {
	*n.dst = T(v.String)
	return nil
}

// instant scans a timestamp that may be NULL (zero).
func instant(dst *time.Time) *zeronull.Timestamptz { return (*zeronull.Timestamptz)(dst) }

// orNull is a timestamp as a parameter; zero is NULL.
func orNull(at time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: at, Valid: !at.IsZero()}
}

// textOrNull is a text as a parameter; "" is NULL.
func textOrNull[T ~string](s T) pgtype.Text {
	return pgtype.Text{String: string(s), Valid: s != ""}
}

// clean makes content that people or devices wrote acceptable to a text
// column: valid UTF-8 without NUL.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// cleanJSON does the same for a document; empty is "".
func cleanJSON(b []byte) string {
	return string(bytes.ReplaceAll(bytes.ToValidUTF8(b, []byte("\uFFFD")), []byte{0}, nil))
}

// arrayLiteral writes a text[] as text, so that rows of different lengths can
// travel in one unnest.
func arrayLiteral[T ~string](items []T) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, item := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		b.WriteString(strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(string(item)))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// digestOf turns hex into bytes; what is no hex matches nothing that is stored.
func digestOf(hexed string) []byte {
	b, err := hex.DecodeString(hexed)
	if err != nil {
		return []byte(hexed)
	}
	return b
}

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
