package httpapi

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/berth-dev/berth/api"
)

// BaseURL is where the public API is mounted.
const BaseURL = "/api/v1"

// rolePublic marks an operation that needs no token.
const rolePublic = "public"

// document is api/openapi.yaml, read: what the server needs to know of it.
type document struct {
	validator  validator.Validator
	operations map[route]operation
	// patterns maps each named schema's pattern to its description, so that a
	// fault says in words what is wanted.
	patterns map[string]string
	// properties are the names of all members that the document knows.
	properties map[string]bool
}

// isProperty reports whether a key is a name of the API's own, which faults may
// repeat.
func (d *document) isProperty(key string) bool { return d.properties[key] }

// route is a method and a path as echo writes it: POST, /api/v1/tasks/:id/cancel.
type route struct{ method, path string }

// operation is what stands in the document about a route.
type operation struct {
	id string
	// role is public or the least role that may call it.
	role string
	// login: an API key will not do (x-berth-login).
	login bool
	// query and path hold these parameters by name.
	query, path map[string]parameter
	// body: the operation takes one.
	body bool
	// streams: its body is bytes, which no validator reads.
	streams bool
}

// parameter of a query, a path or a header.
type parameter struct {
	kind  string // of its value: string, integer, number, boolean, array
	time  bool   // a string that is a time
	enum  []string
	array bool // may be repeated
}

// readDocument parses the embedded document and compiles its schemas, once a
// server.
func readDocument() (*document, error) {
	parsed, err := libopenapi.NewDocument(api.Document)
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	d := &document{operations: map[route]operation{}, patterns: map[string]string{}, properties: map[string]bool{}}
	for name, schema := range model.Model.Components.Schemas.FromOldest() {
		s, err := schema.BuildSchema()
		if err != nil {
			return nil, fmt.Errorf("openapi document: schema %s: %w", name, err)
		}
		for property := range s.Properties.KeysFromOldest() {
			d.properties[property] = true
		}
		if s.Pattern != "" && s.Description != "" {
			d.patterns[s.Pattern] = phrase(s.Description)
		}
	}
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			r := route{strings.ToUpper(method), BaseURL + echoPath(path)}
			if d.operations[r], err = readOperation(op); err != nil {
				return nil, fmt.Errorf("openapi document: %s %s: %w", r.method, path, err)
			}
		}
	}
	// Strict mode is not used: it refuses every header that is not listed and
	// every field of a free-form object. Instead each request schema forbids
	// unknown fields (a test sees to it) and unknown queries are refused here.
	d.validator = validator.NewValidatorFromV3Model(&model.Model,
		config.WithFormatAssertions(), config.WithoutSecurityValidation(), config.WithRejectUndeclaredRequestBody())
	return d, nil
}

func readOperation(op *v3.Operation) (operation, error) {
	out := operation{id: op.OperationId, query: map[string]parameter{}, path: map[string]parameter{}, body: op.RequestBody != nil}
	if out.body {
		_, out.streams = op.RequestBody.Content.Get("application/octet-stream")
	}
	if node := op.Extensions.GetOrZero("x-berth-role"); node != nil {
		out.role = node.Value
	}
	if out.role == "" {
		return out, errors.New("x-berth-role is missing")
	}
	if node := op.Extensions.GetOrZero("x-berth-login"); node != nil {
		out.login = node.Value == "true"
	}
	for _, p := range op.Parameters {
		place := map[string]map[string]parameter{"query": out.query, "path": out.path}[p.In]
		if place == nil {
			continue
		}
		s, err := p.Schema.BuildSchema()
		if err != nil {
			return out, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		q := parameter{kind: strings.Join(s.Type, " or "), time: s.Format == "date-time"}
		if q.kind == "array" {
			q.array = true
			if s, err = s.Items.A.BuildSchema(); err != nil {
				return out, fmt.Errorf("parameter %s: %w", p.Name, err)
			}
			q.kind = strings.Join(s.Type, " or ")
		}
		for _, node := range s.Enum {
			q.enum = append(q.enum, node.Value)
		}
		place[p.Name] = q
	}
	return out, nil
}

// echoPath turns /tasks/{id} into /tasks/:id.
func echoPath(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// phrase makes a description the end of "must be ...".
func phrase(description string) string {
	s := strings.TrimSuffix(strings.TrimSpace(description), ".")
	first, size := utf8.DecodeRuneInString(s)
	// An abbreviation keeps its capitals.
	if second, _ := utf8.DecodeRuneInString(s[size:]); unicode.IsUpper(second) {
		return s
	}
	return string(unicode.ToLower(first)) + s[size:]
}
