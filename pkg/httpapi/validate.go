package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"
	verrors "github.com/pb33f/libopenapi-validator/errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/strictjson"
)

// Bounds of request bodies in bytes.
const (
	maxBody      = 64 << 10
	maxTaskBody  = berth.MaxPayloadBytes + 64<<10
	maxBatchBody = 8 << 20
	// allBodies bounds the memory that bodies cost at a time.
	allBodies = 160 << 20
)

func (op operation) maxBody() int64 {
	switch op.id {
	case "submitTask", "createSchedule", "editSchedule":
		return maxTaskBody
	case "submitTasks":
		return maxBatchBody
	}
	return maxBody
}

// validate refuses a request that the document does not describe, with every
// fault at once, before any handler sees it.
func (s *Server) validate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		op, ok := s.document.operations[route{c.Request().Method, c.Path()}]
		if !ok {
			return echo.ErrNotFound
		}
		if op.streams {
			return s.validateStream(c, op, next)
		}
		held, err := s.readBody(c, op)
		if err != nil {
			return err
		}
		defer held.Release()
		body := held.Bytes()
		var f berth.Faults
		op.judgeQuery(c, &f)
		if len(body) > 0 {
			if err := strictjson.Check(body, s.document.isProperty); err != nil {
				return err
			}
			if err := op.judgeCount(body); err != nil {
				return err
			}
		}
		if valid, found := s.document.validator.ValidateHttpRequestSync(c.Request()); !valid {
			s.document.faults(op, found, body, &f)
		}
		if f.Err() == nil {
			op.judgeForms(c, c.Request().URL.Query(), &f)
		}
		if err := f.Err(); err != nil {
			return err
		}
		held.Decoded()
		// The validator has read the body; the handler reads it again.
		var again *http.Request
		again = c.Request().WithContext(withBodyDone(c.Request().Context(), func() {
			again.Body = http.NoBody
			held.Release()
		}))
		again.Body, again.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		c.SetRequest(again)
		return next(c)
	}
}

// validateStream judges all but the body, and hands that on bounded in size and
// in the time between its bytes.
func (s *Server) validateStream(c echo.Context, op operation, next echo.HandlerFunc) error {
	r := c.Request()
	if kind, _, err := mime.ParseMediaType(r.Header.Get(echo.HeaderContentType)); err != nil || kind != echo.MIMEOctetStream {
		return echo.ErrUnsupportedMediaType
	}
	var f berth.Faults
	op.judgeQuery(c, &f)
	parameters := s.document.validator.GetParameterValidator()
	for _, judge := range []func(*http.Request) (bool, []*verrors.ValidationError){
		parameters.ValidatePathParams, parameters.ValidateQueryParams, parameters.ValidateHeaderParams,
	} {
		if valid, found := judge(r); !valid {
			s.document.faults(op, found, nil, &f)
		}
	}
	if f.Err() == nil {
		op.judgeForms(c, r.URL.Query(), &f)
	}
	if err := f.Err(); err != nil {
		return err
	}
	if r.ContentLength > berth.MaxInputPart {
		return &http.MaxBytesError{Limit: berth.MaxInputPart}
	}
	if r.Body != nil {
		r.Body = patient{httpserver.Steady(c, http.MaxBytesReader(c.Response(), r.Body, berth.MaxInputPart), partIdle, partWithin)}
	}
	return next(c)
}

func (s *Server) readBody(c echo.Context, op operation) (*httpserver.Body, error) {
	r := c.Request()
	held, err := s.bodies.Read(c, callerKey(c), op.maxBody())
	if err != nil && problem.Of(err).Unknown {
		// What came is no body: chunks that are none, or too few bytes.
		return nil, &problem.Error{
			Status: http.StatusBadRequest, Code: problem.CodeBadRequest, Title: "Bad request",
			Detail: "The body cannot be read to its end.", Remedy: "Check the client, and what is between it and the server.", Err: err,
		}
	}
	if err != nil {
		return nil, err
	}
	body := held.Bytes()
	if len(body) == 0 {
		r.Body = http.NoBody
		return held, nil
	}
	if err := op.takes(r.Header.Get(echo.HeaderContentType)); err != nil {
		held.Release()
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return held, nil
}

// takes refuses a body that is none of the operation's.
func (op operation) takes(contentType string) error {
	if !op.body {
		return berth.Invalid("", "this operation takes no body", "send none")
	}
	if kind, _, err := mime.ParseMediaType(contentType); err != nil || kind != echo.MIMEApplicationJSON {
		return echo.ErrUnsupportedMediaType
	}
	return nil
}

// judgeCount refuses a batch of too many tasks before the validator sees it, which
// finds every fault of each of them, at a thousand times the bytes of a small one.
func (op operation) judgeCount(body []byte) error {
	if op.id != "submitTasks" {
		return nil
	}
	var batch struct {
		Tasks []json.RawMessage `json:"tasks"`
	}
	// What is no batch at all the validator says better.
	if json.Unmarshal(body, &batch) == nil && len(batch.Tasks) > berth.MaxBulkSubmit {
		return berth.Invalid("tasks", "must have at most "+strconv.Itoa(berth.MaxBulkSubmit)+" items", "send them in several batches")
	}
	return nil
}

type bodyDoneKey struct{}

func withBodyDone(ctx context.Context, done func()) context.Context {
	return context.WithValue(ctx, bodyDoneKey{}, done)
}

// bodyDone gives back the room of the request's body, when a handler has done what
// it says and may yet wait, or write to a slow client.
func bodyDone(ctx context.Context) {
	if done, ok := ctx.Value(bodyDoneKey{}).(func()); ok {
		done()
	}
}

// judgeQuery refuses parameters that do not exist, which are misspelt ones:
// without this a filter that is not understood would pass everything.
// For the same reason a query that cannot be read is refused whole: the standard
// library drops what it cannot decode and goes on with the rest.
func (op operation) judgeQuery(c echo.Context, f *berth.Faults) {
	query, err := url.ParseQuery(c.Request().URL.RawQuery)
	if err != nil {
		f.Add("", "the query cannot be read", "percent-encode names and values, and join parameters with &")
		return
	}
	for _, name := range sorted(query) {
		values := query[name]
		p, ok := op.query[name]
		switch {
		case !ok && len(op.query) == 0:
			f.Add(berth.Clip(name, 40), "is not a parameter of this operation", "leave it out; it takes none")
		case !ok:
			f.Add(berth.Clip(name, 40), "is not a parameter of this operation", "use "+strings.Join(sorted(op.query), ", "))
		case len(values) > 1 && !p.array:
			f.Add(name, "stands there twice", "give it once")
		case slices.ContainsFunc(values, unstorable):
			f.Add(name, "is no UTF-8 text, or has a NUL character", "send UTF-8, percent-encoded")
		}
	}
}

// unstorable reports whether s can be part of no row, so that asking the
// database for it would be an error of the statement.
func unstorable(s string) bool { return !utf8.ValidString(s) || strings.ContainsRune(s, 0) }

// sorted are the keys in one order, so that two answers to one request are alike.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// faults turns the validator's findings into field faults. The findings quote
// the request, so none of their texts is used.
func (d *document) faults(op operation, found []*verrors.ValidationError, body []byte, f *berth.Faults) {
	for _, e := range found {
		root, instance := e.ParameterName, any(nil)
		if e.ValidationType == "requestBody" {
			root = ""
			if len(body) == 0 {
				f.Add("", "the request body is missing", "send a JSON object")
				continue
			}
			_ = json.Unmarshal(body, &instance) // strictjson has read it
		}
		d.finding(op, e, root, instance, f)
	}
}

func (d *document) finding(op operation, e *verrors.ValidationError, root string, instance any, f *berth.Faults) {
	for _, failure := range e.SchemaValidationErrors {
		if failure.OriginalJsonSchemaError != nil {
			// It is the same tree in each failure.
			v := fromRequest(failure.OriginalJsonSchemaError)
			v.patterns = d.patterns
			v.faults(root, instance, f)
			return
		}
	}
	p := op.query[root]
	switch {
	case root == "":
		f.Add("", "the request does not fit the API", "see the API's document")
	case len(p.enum) > 0:
		f.Add(root, "must be one of "+strings.Join(p.enum, ", "), "")
	case p.kind != "":
		f.Add(root, "must be "+article(p.kind), "")
	default:
		f.Add(root, "is missing or malformed", "see the API's document")
	}
}
