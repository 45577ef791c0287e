package berth

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/redact"
)

const (
	// MaxCauseMessage bounds a cause's text in characters.
	MaxCauseMessage = 300
	// causeLooksAt bounds the bytes of a message that its cause is made of.
	causeLooksAt = 4 << 10
)

// UnknownCause is the key of the dead letters from before causes were kept.
const UnknownCause CauseKey = "00000000000000000000000000000000"

// CauseKey names a cause: 32 lower-case hex digits.
type CauseKey string

// Valid reports whether k has the form of a key.
func (k CauseKey) Valid() bool {
	return len(k) == len(UnknownCause) && strings.Trim(string(k), "0123456789abcdef") == ""
}

// Cause is what dead letters have in common.
type Cause struct {
	Key    CauseKey
	Plugin string
	// Reason is a code.
	Reason string
	// Message is what was said of it, less what differs from one task to the next.
	Message redact.String
}

// DeadLetters are all with one cause.
type DeadLetters struct {
	Cause
	// Count of them, as far as it was counted; More says that there are more.
	Count int
	More  bool
	// Newest of them, by its submit, and when that was dead-lettered.
	Newest   TaskID
	NewestAt time.Time
	// Since is when the cause was first met; zero where that is unknown.
	Since time.Time
}

// CauseOf is the cause of a dead letter: its plugin, the reason and the message
// with placeholders for what differs from one task to the next (numbers, ids,
// times, paths, addresses, quoted texts). The message of a cause has itself for
// its cause.
func CauseOf(plugin, reason, message string) Cause {
	c := Cause{Plugin: plugin, Reason: reason}
	text := normalised(message)
	c.Message = redact.NewString(text)
	sum := sha256.Sum256([]byte(plugin + "\x00" + reason + "\x00" + text))
	c.Key = CauseKey(hex.EncodeToString(sum[:len(UnknownCause)/2]))
	return c
}

// DeadLetterReason is the reason of a dead letter's cause: where the end of the
// last attempt decided, that attempt's, else the task's own.
func DeadLetterReason(final, attempt string) string {
	switch final {
	case ReasonNoTriesLeft, ReasonNotRetryable, ReasonNotRetrySafe:
		if attempt != "" {
			return attempt
		}
	}
	return final
}

// normalised replaces what differs between two messages of one cause. It reads
// tokens from the left; every placeholder is made of signs that no rule replaces,
// so that nothing changes when it is done twice.
func normalised(message string) string {
	if len(message) > causeLooksAt {
		message = message[:causeLooksAt]
	}
	message = strings.ToValidUTF8(message, "\uFFFD")
	var out strings.Builder
	last := ' ' // that was written
	write := func(s string) {
		if s != "" {
			out.WriteString(s)
			last, _ = utf8.DecodeLastRuneInString(s)
		}
	}
	for message != "" {
		r, width := utf8.DecodeRuneInString(message)
		switch {
		case unicode.IsSpace(r) || !unicode.IsPrint(r):
			if last != ' ' {
				write(" ")
			}
			message = message[width:]
		case r == '"' || r == '`' || r == '\'' && !unicode.IsLetter(last):
			_, rest, closed := strings.Cut(message[width:], string(r))
			if closed {
				write("<text>")
				message = rest
			} else {
				write(string(r))
				message = message[width:]
			}
		case separates(r):
			write(string(r))
			message = message[width:]
		default:
			token := message
			if end := strings.IndexFunc(message, separates); end >= 0 {
				token = message[:end]
			}
			message = message[len(token):]
			bare := strings.TrimRight(token, ".:!?")
			write(placeholder(bare))
			write(token[len(bare):])
		}
	}
	return clipped(strings.TrimRight(out.String(), " "))
}

func separates(r rune) bool {
	return unicode.IsSpace(r) || !unicode.IsPrint(r) || strings.ContainsRune("\"'`<>()[]{},;|=", r)
}

func clipped(text string) string {
	if utf8.RuneCountInString(text) <= MaxCauseMessage {
		return text
	}
	return string([]rune(text)[:MaxCauseMessage-1]) + "…"
}

// placeholder is what stands for a token: itself where nothing in it differs.
func placeholder(token string) string {
	digits := strings.ContainsFunc(token, unicode.IsDigit)
	slashes := strings.Count(token, "/") + strings.Count(token, `\`)
	switch {
	case strings.Contains(token, "://"):
		return "<url>"
	case slashes > 1, slashes == 1 && (digits || strings.IndexAny(token, `/\`) <= 1):
		return "<path>"
	case !digits:
		return token
	case isTime(token):
		return "<time>"
	case isID(token):
		return "<id>"
	case isNumber(token):
		return "<n>"
	}
	return withoutDigits(token)
}

// isTime: dates, times of day, both.
func isTime(token string) bool {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", time.DateOnly, "15:04:05.999999999Z07:00", "15:04:05.999999999"} {
		if _, err := time.Parse(layout, token); err == nil {
			return true
		}
	}
	return false
}

// isID: hexadecimal, or a long word with digits in it.
func isID(token string) bool {
	word := strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || r == ':' {
			return -1
		}
		return r
	}, strings.TrimPrefix(token, "0x"))
	if strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		return false
	}
	hexadecimal := strings.Trim(strings.ToLower(word), "0123456789abcdef") == "" && strings.ContainsAny(strings.ToLower(word), "abcdef")
	return hexadecimal && (len(word) >= 8 || strings.HasPrefix(token, "0x")) || len(word) >= 20
}

// isNumber: digits with signs, and a unit.
func isNumber(token string) bool {
	number := strings.TrimRightFunc(token, func(r rune) bool { return unicode.IsLetter(r) || r == '%' || r == '/' })
	if len(token)-len(number) > 3 {
		return false
	}
	return !strings.ContainsFunc(number, func(r rune) bool { return !unicode.IsDigit(r) && !strings.ContainsRune("+-.:_", r) })
}

func withoutDigits(token string) string {
	var out strings.Builder
	in := false
	for _, r := range token {
		digit := unicode.IsDigit(r)
		switch {
		case !digit:
			out.WriteRune(r)
		case !in:
			out.WriteString("<n>")
		}
		in = digit
	}
	return out.String()
}
