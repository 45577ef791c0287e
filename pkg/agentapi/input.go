package agentapi

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

// Bounds of what a call may hold.
const (
	maxItems = 100
	// Bodies in bytes: of most calls, of lists of attempts or devices, of what
	// plugins bring (results, schemas).
	smallBody, listBody, resultBody = 64 << 10, 1 << 20, 8 << 20
	// allBodies bounds the memory that bodies cost at a time. They have room of their
	// own, so that nobody's submits hold up renewals.
	allBodies = 96 << 20
	// maxCounter bounds fences and epochs, so that JSON numbers stay exact.
	maxCounter = 1 << 52
	// maxReported bounds what the server goes above because an agent reported it:
	// so much is left that no device and no host ever gets to maxCounter.
	maxReported = 1 << 51
)

// reported is a fence or an epoch that the server is to go above.
func reported[T ~int64](n T) T { return min(n, maxReported) }

// pattern is a path of pkg/protocol as echo writes it.
func pattern(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// read decodes the one JSON value of a request's body. Unknown members are
// ignored: version N and N-1 understand each other; members that stand there
// twice are refused, but for those in results, which plugins make. A fault names the member, never its value.
func read[T any](c echo.Context) (T, error) {
	var v T
	r := c.Request()
	if media, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType)); err != nil || media != echo.MIMEApplicationJSON {
		return v, echo.ErrUnsupportedMediaType
	}
	taken, ok := c.Get(bodyKey).(*body)
	if !ok {
		return v, errors.New("agentapi: the route has no bound for its body")
	}
	body, err := taken.read(c)
	if err == nil {
		defer taken.held.Decoded()
		return decode[T](body)
	}
	return v, decodeFault(err)
}

// bodyKey of an echo.Context has the *body.
const bodyKey = "body"

// body is a request's, read when its handler asks for it.
type body struct {
	all   *httpserver.Bodies
	limit int64
	held  *httpserver.Body
}

func (b *body) read(c echo.Context) (content []byte, err error) {
	if b.held, err = b.all.Read(c, hostKey(c), b.limit); err != nil {
		return nil, err
	}
	return b.held.Bytes(), nil
}

// takes bounds the JSON body of a route, and the memory that all of them cost.
func (a *API) takes(limit int64) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			b := &body{all: a.bodies, limit: limit}
			c.Set(bodyKey, b)
			defer func() {
				if b.held != nil {
					b.held.Release()
				}
			}()
			return next(c)
		}
	}
}

func decodeFault(err error) error {
	var (
		own  *problem.Error
		kind *json.UnmarshalTypeError
		over *http.MaxBytesError
	)
	switch {
	case errors.As(err, &over):
		return over
	case errors.As(err, &own):
		return own
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err // it waited for room: nothing is wrong with the body
	case errors.As(err, &kind):
		return berth.Invalid(kind.Field, "the value is of the wrong type", "send what docs/protocol.md names")
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return berth.Invalid("", "the body is not JSON", "send one JSON object")
	}
	// A broken connection, or a member that its own decoder refused: neither text
	// is repeated.
	return berth.Invalid("", "the body cannot be read", "send one JSON object")
}

// headerNumber reads a required counter of 1 or more.
func headerNumber(c echo.Context, name string) (int64, error) {
	values := c.Request().Header.Values(name)
	if len(values) == 1 {
		if n, ok := number(values[0]); ok && n >= 1 {
			return n, nil
		}
	}
	return 0, berth.Invalid(name, "the header is missing or no positive number", "send it once, as sync or the claim gave it")
}

// number reads a decimal number without sign, spaces or leading zeros.
func number(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && n <= maxCounter && strconv.FormatInt(n, 10) == s
}

// pathID reads an id from the path. What is no id names nothing.
func pathID[T ~string](c echo.Context) (T, error) {
	id := c.Param("id")
	if !berth.ValidID(id) {
		return "", berth.ErrNotFound
	}
	return T(id), nil
}

// holders checks a list of (attempt, fence): 1 to maxItems, each attempt once.
// item returns the i-th.
func holders(f *berth.Faults, n int, item func(i int) protocol.Holder) {
	if n < 1 || n > maxItems {
		f.Add("items", fmt.Sprintf("%d items", n), fmt.Sprintf("send 1 to %d", maxItems))
		return
	}
	seen := make(map[berth.AttemptID]bool, n)
	for i := range n {
		h := item(i)
		path := fmt.Sprintf("items[%d]", i)
		checkHolder(f, path, h.Attempt, h.Fence)
		if seen[h.Attempt] {
			f.Add(path+".attempt", "the attempt stands twice in the list", "send each attempt once")
		}
		seen[h.Attempt] = true
	}
}

func checkHolder(f *berth.Faults, path string, attempt berth.AttemptID, fence berth.Fence) {
	if !berth.ValidID(string(attempt)) {
		f.Add(path+".attempt", "it is not an id", "send the id as the claim gave it")
	}
	if fence < 1 || fence > maxCounter {
		f.Add(path+".fence", "it is not a fence", "send the fence as the claim gave it")
	}
}

func toHolder(h protocol.Holder) store.Holder {
	return store.Holder{Attempt: h.Attempt, Fence: h.Fence}
}

// checkReason notes a reason that is no code; "" is none.
func checkReason(f *berth.Faults, path, reason string) {
	if reason != "" && !berth.ValidReason(reason) {
		f.Add(path, "it is no reason code", "use lower-case letters, digits and underscores, at most 64")
	}
}

// clean is content (a note, a message) as databases can keep it and terminals can
// show it: control characters but line ends and tabs, and those that turn the
// direction of text round, become the replacement character. It is not refused: what
// the work of one attempt says must not cost the others of its host their leases.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return r
		case unicode.Is(unicode.Cc, r), unicode.Is(unicode.Bidi_Control, r):
			return utf8.RuneError
		}
		return r
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

// printable reports whether s may name something that people read: 1 to limit bytes
// of UTF-8, without what moves or hides text (control and format characters, which
// turn its direction round) and without the marks of HTML.
func printable(s string, limit int) bool {
	return s != "" && len(s) <= limit && text(s, "") && !strings.ContainsAny(s, "<>") && !strings.ContainsRune(s, utf8.RuneError)
}

// text reports whether s is UTF-8 without control and format characters but those
// of allowed.
func text(s, allowed string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return (unicode.Is(unicode.C, r) || r == 0x2028 || r == 0x2029) && !strings.ContainsRune(allowed, r)
	})
}

// validDigest reports whether s is a SHA-256 in lower-case hex.
func validDigest(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 32 && strings.ToLower(s) == s
}
