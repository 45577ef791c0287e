// Package problem turns errors into problem documents (RFC 9457) for both
// APIs. It alone knows which status and which stable code a kind of error has.
//
// A document never repeats the text of an error that a caller did not cause:
// an unknown error becomes a bare 500 that names the request id, under which
// the text stands in the log once.
package problem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// ContentType of a problem document.
const ContentType = "application/problem+json"

// Codes beside those of package protocol. Codes are stable: clients branch on
// them, never on titles.
const (
	CodeExists              = "exists"
	CodeIdempotencyMismatch = "idempotency_mismatch"
	CodeForbidden           = "forbidden"
	CodeTooMany             = "too_many_requests"
	CodeInternal            = "internal"
	CodeTimeout             = "timeout"
	CodeStopping            = "stopping"
	CodeNotActive           = "not_active"
	CodeMethodNotAllowed    = "method_not_allowed"
	CodeUnsupportedMedia    = "unsupported_media_type"
	CodeBadRequest          = "bad_request"
	CodeUploadGap           = "upload_gap" // next_offset says where to go on
	CodeRange               = "range_not_satisfiable"
	CodeURITooLong          = "uri_too_long"
	CodeHeadersTooLarge     = "headers_too_large"
	CodeForeignHost         = "foreign_host"
	CodeForeignOrigin       = "foreign_origin"
	CodeBusy                = "busy" // no memory left for the body

	// Codes of a database whose schema this program cannot use.
	CodeDatabaseUnreachable = "database_unreachable"
	CodeSchemaBehind        = "schema_behind"
	CodeSchemaAhead         = "schema_ahead"
	CodeSchemaDirty         = "schema_dirty"
)

// Error is a fault that the HTTP layer itself finds, with its document. Use it
// where no kind of pkg/berth fits, or where a caller deserves a better sentence
// than the kind's own. None of its texts may hold content or secrets.
type Error struct {
	Status int
	Code   string
	Title  string
	Detail string
	Remedy string
	// RetryAfter, when positive, becomes the Retry-After header.
	RetryAfter time.Duration
	// NextOffset says where an upload goes on; nil where none does.
	NextOffset *int64
	// Err is the kind that it wraps; may be nil.
	Err error
}

// Error is the code and the detail.
func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Code + ": " + e.Title
	}
	return e.Code + ": " + e.Detail
}

// Unwrap returns the wrapped kind.
func (e *Error) Unwrap() error { return e.Err }

// SchemaUnusable is the error of every route but health while the database
// cannot be used; code is one of the schema codes or CodeDatabaseUnreachable.
func SchemaUnusable(code string) *Error {
	e := &Error{
		Status: http.StatusServiceUnavailable, Code: code, Title: "The database cannot be used",
		RetryAfter: 5 * time.Second, Err: berth.ErrUnavailable,
	}
	switch code {
	case CodeSchemaBehind:
		e.Detail, e.Remedy = "The database's schema is older than this program needs.", "Run `berth migrate up`."
	case CodeSchemaAhead:
		e.Detail, e.Remedy = "The database's schema is newer than this program knows.", "Run the program's newer release."
	case CodeSchemaDirty:
		e.Detail, e.Remedy = "A migration was broken off.", "Run `berth migrate status` and follow what it says."
	default:
		e.Detail, e.Remedy = "The database does not answer.", "Try again; `/readyz` tells when it is back."
	}
	return e
}

// Document is a problem with what belongs into its headers.
type Document struct {
	protocol.Problem
	RetryAfter time.Duration
	// Unknown: err is no kind that callers may be told about. Log it.
	Unknown bool
}

// Of makes the document of err, without a request id. err must not be nil.
func Of(err error) Document {
	if d, ok := typed(err); ok {
		return d
	}
	for _, k := range kinds() {
		if errors.Is(err, k.err) {
			return Document{Problem: k.Problem, RetryAfter: k.retryAfter}
		}
	}
	return Document{Unknown: true, Problem: protocol.Problem{
		Status: http.StatusInternalServerError, Code: CodeInternal, Title: "Internal error",
		Remedy: "Tell the operator the request id; the log explains it.",
	}}
}

// typed handles the errors that carry more than their kind.
func typed(err error) (d Document, ok bool) {
	var (
		own     *Error
		invalid *berth.InvalidError
		wrong   *berth.WrongStateError
		exists  *berth.ExistsError
		large   *berth.TooLargeError
		gap     *berth.GapError
		many    *berth.TooManyError
		role    *berth.RoleError
		body    *http.MaxBytesError
		routing *echo.HTTPError
	)
	switch {
	case errors.As(err, &own):
		return Document{Problem: protocol.Problem{
			Status: own.Status, Code: own.Code, Title: own.Title, Detail: berth.Clip(own.Detail, maxText), Remedy: berth.Clip(own.Remedy, maxText), NextOffset: own.NextOffset,
		}, RetryAfter: own.RetryAfter}, true
	case errors.As(err, &invalid):
		d := ofKind(berth.ErrInvalid)
		d.Errors = listed(invalid.Fields)
		return d, true
	case errors.As(err, &wrong):
		d := ofKind(berth.ErrWrongState)
		d.Detail = berth.Clip(wrong.Error(), maxText)
		return d, true
	case errors.As(err, &exists):
		d := ofKind(berth.ErrExists)
		d.Detail = sentence(exists.Error())
		return d, true
	case errors.As(err, &large):
		d := ofKind(berth.ErrTooLarge)
		d.Detail = sentence(large.Error())
		return d, true
	case errors.As(err, &gap):
		d := ofKind(berth.ErrGap)
		next := gap.Next
		d.NextOffset = &next
		return d, true
	case errors.As(err, &many):
		d := ofKind(berth.ErrTooMany)
		d.RetryAfter = many.RetryAfter
		return d, true
	case errors.As(err, &role):
		d := ofKind(berth.ErrForbidden)
		if role.Needs == berth.RoleHost {
			d.Remedy = "Only Host Agents may call this, with tokens of their own."
		} else {
			d.Remedy = fmt.Sprintf("Ask an administrator for the role %s.", role.Needs)
		}
		return d, true
	case errors.As(err, &body):
		d := ofKind(berth.ErrTooLarge)
		d.Detail = fmt.Sprintf("The request's body has more than the %d bytes that are allowed here.", body.Limit)
		return d, true
	case errors.As(err, &routing):
		// What a middleware wrapped may be a better known thing.
		if routing.Internal != nil {
			if d := Of(routing.Internal); !d.Unknown {
				return d, true
			}
		}
		return ofStatus(routing.Code), true
	}
	return Document{}, false
}

// sentence is an error's text as a problem's detail.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if size == 0 {
		return ""
	}
	return berth.Clip(string(unicode.ToUpper(first))+text[size:], maxText) + "."
}

// Bounds of a document, so that an answer is never much longer than what it
// answers: of the faults that it lists, and of each text in bytes.
const (
	maxFaults = 100
	maxText   = 1000
)

// listed are the faults that a document lists.
func listed(all []berth.FieldError) []berth.FieldError {
	out := make([]berth.FieldError, 0, min(len(all), maxFaults+1))
	for _, f := range all[:min(len(all), maxFaults)] {
		out = append(out, berth.FieldError{Path: berth.Clip(f.Path, maxText), Message: berth.Clip(f.Message, maxText), Remedy: berth.Clip(f.Remedy, maxText)})
	}
	if more := len(all) - len(out); more > 0 {
		out = append(out, berth.FieldError{Message: fmt.Sprintf("%d more faults are not listed", more), Remedy: "mend these first"})
	}
	return out
}

// storageFullRetry leaves a person the time to act without losing an attempt's
// upload to a long pause.
const storageFullRetry = 5 * time.Second

// inputLostRetry: a person has to upload the file again.
const inputLostRetry = 10 * time.Second

type kind struct {
	err error
	protocol.Problem
	retryAfter time.Duration
}

func ofKind(err error) Document {
	for _, k := range kinds() {
		if errors.Is(err, k.err) {
			return Document{Problem: k.Problem, RetryAfter: k.retryAfter}
		}
	}
	return Document{Unknown: true}
}

// kinds is in the order of asking: the more special kind stands first.
func kinds() []kind {
	p := func(status int, code, title, detail, remedy string) protocol.Problem {
		return protocol.Problem{Status: status, Code: code, Title: title, Detail: detail, Remedy: remedy}
	}
	soon := time.Second
	return []kind{
		{berth.ErrUnauthenticated, p(401, protocol.CodeUnauthorised, "Not authenticated", "The call carries no valid credentials.", "Log in again, or send a fresh token as `Authorization: Bearer`."), 0},
		{berth.ErrLoginNeeded, p(403, CodeForbidden, "Not with an API key", "An API key hands out no credentials and manages no users.", "Log in with a name and a password."), 0},
		{berth.ErrForbidden, p(403, CodeForbidden, "Not allowed", "Your role does not allow this.", "Ask an administrator for a role that allows it."), 0},
		{berth.ErrNotFound, p(404, protocol.CodeNotFound, "Not found", "It does not exist, or it is not yours to see.", "Check the id or name; a list shows what you may see."), 0},
		{berth.ErrWrongState, p(409, protocol.CodeWrongState, "Wrong state", "Its state does not allow this.", "Read it again and decide anew."), 0},
		{berth.ErrExists, p(409, CodeExists, "Already exists", "Something of that name exists already.", "Choose another name, or use what exists."), 0},
		{berth.ErrMismatch, p(409, protocol.CodeMismatch, "Content differs", "Other content is stored there already, and it never changes.", "Send exactly what was sent before, or use another name or offset."), 0},
		{berth.ErrLeaseLost, p(410, protocol.CodeLeaseLost, "Lease lost", "The attempt no longer holds its lease.", "Stop the work, kill what is left of it, and clean the device."), 0},
		{berth.ErrUsed, p(410, protocol.CodeTokenUsed, "Token already used", "The token lets in one host, once.", "Make a new one with: berth host enrol"), 0},
		{berth.ErrExpired, p(410, protocol.CodeTokenExpired, "Token expired", "The token's time is over, or it was revoked.", "Make a new one with: berth host enrol"), 0},
		{berth.ErrEpochAhead, p(412, protocol.CodeEpochAhead, "Epoch ahead", "The call's epoch is above the server's; the database was restored.", "Sync again."), 0},
		{berth.ErrStaleEpoch, p(412, protocol.CodeStaleEpoch, "Stale epoch", "A newer agent of this host runs.", "Stop this agent."), 0},
		{berth.ErrTooLarge, p(413, protocol.CodeTooLarge, "Too large", "The request has more bytes or parts than are allowed here.", "Send less, or send it in smaller parts."), 0},
		{berth.ErrGap, p(416, protocol.CodeLogGap, "Gap in the log", "The chunk starts after the end of the log.", "Go on at `next_offset`."), 0},
		{berth.ErrInvalid, p(422, protocol.CodeInvalid, "Invalid", "The input has faults.", "Mend what `errors` lists."), 0},
		{berth.ErrIdempotencyMismatch, p(422, CodeIdempotencyMismatch, "Idempotency key used with another body", "The idempotency key belongs to an earlier request with another body.", "Use a new key for a new request."), 0},
		{berth.ErrTooMany, p(429, CodeTooMany, "Too many requests", "", "Wait as long as Retry-After says."), soon},
		{berth.ErrNotActive, p(503, CodeNotActive, "Another process is active", "", "Try again."), soon},
		{berth.ErrStorageFull, p(503, protocol.CodeStorageFull, "Storage full", "The server has no space left for artifacts and logs.", "Free space in the server's blob directory; then send the same request again."), storageFullRetry},
		{berth.ErrStorageUnavailable, p(503, protocol.CodeStorageUnavailable, "Object store unavailable", "The server's object store did not answer.", "Send the same request again."), soon},
		{berth.ErrInputLost, p(503, protocol.CodeInputLost, "Input lost", "The input is recorded, but the server's store has its bytes no more.", "Upload the file again (`berth input put FILE`); all that use it have it then."), inputLostRetry},
		{berth.ErrUnavailable, p(503, protocol.CodeUnavailable, "Database unavailable", "The database did not answer, or gave up for a passing reason.", "Send the same request again."), soon},
		{context.DeadlineExceeded, p(503, CodeTimeout, "Timed out", "The request took too long and was broken off.", "Send the same request again."), soon},
		{context.Canceled, p(503, CodeStopping, "Broken off", "The request was broken off; the server may be stopping.", "Send the same request again."), soon},
	}
}

// ofStatus is the document of a status that echo or its middleware chose.
func ofStatus(status int) Document {
	p := protocol.Problem{Status: status}
	switch status {
	case http.StatusNotFound:
		d := ofKind(berth.ErrNotFound)
		d.Detail, d.Remedy = "No such route.", "See the API's document for the routes."
		return d
	case http.StatusUnauthorized:
		return ofKind(berth.ErrUnauthenticated)
	case http.StatusForbidden:
		return ofKind(berth.ErrForbidden)
	case http.StatusRequestEntityTooLarge:
		return ofKind(berth.ErrTooLarge)
	case http.StatusTooManyRequests:
		return ofKind(berth.ErrTooMany)
	case http.StatusServiceUnavailable:
		return ofKind(context.DeadlineExceeded)
	case http.StatusMethodNotAllowed:
		p.Code, p.Title, p.Remedy = CodeMethodNotAllowed, "Method not allowed", "The Allow header names the methods of this route."
	case http.StatusUnsupportedMediaType:
		p.Code, p.Title, p.Remedy = CodeUnsupportedMedia, "Unsupported media type", "Send `Content-Type: application/json`, or what the documentation names."
	default:
		if status < 400 || status >= 500 {
			return Document{Unknown: true, Problem: protocol.Problem{
				Status: http.StatusInternalServerError, Code: CodeInternal, Title: "Internal error",
			}}
		}
		p.Code, p.Title, p.Remedy = CodeBadRequest, http.StatusText(status), "Check the request against the documentation."
		if p.Title == "" {
			p.Title = "Bad request"
		}
	}
	return Document{Problem: p}
}
