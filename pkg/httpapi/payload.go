package httpapi

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/berth-dev/berth/pkg/berth"
)

// schemas keeps compiled payload schemas by their digest. It is safe for
// concurrent use.
type schemas struct {
	mu       sync.Mutex
	compiled map[[32]byte]payloadSchema
}

type payloadSchema struct {
	*jsonschema.Schema
	// names are the keys that the schema itself names.
	names map[string]bool
}

// maxSchemas bounds the cache; an installation has far fewer live versions.
const maxSchemas = 512

// compile returns the schema, compiled once. A schema that names another file
// or address is refused: nothing is ever fetched.
func (s *schemas) compile(schema []byte) (payloadSchema, error) {
	key := sha256.Sum256(schema)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.compiled[key]; ok {
		return c, nil
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return payloadSchema{}, errors.New("the schema is not JSON")
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.UseLoader(jsonschema.SchemeURLLoader{})
	// With a host and a path, so that a relative reference is another document's
	// address and not this one's.
	const url = "berth://schemas/payload.json"
	if err := compiler.AddResource(url, doc); err != nil {
		return payloadSchema{}, err
	}
	compiled, err := compiler.Compile(url)
	if err != nil {
		return payloadSchema{}, err
	}
	c := payloadSchema{compiled, map[string]bool{}}
	addNames(doc, c.names)
	if s.compiled == nil || len(s.compiled) >= maxSchemas {
		s.compiled = map[[32]byte]payloadSchema{}
	}
	s.compiled[key] = c
	return c, nil
}

// addNames notes every name of a property in a schema.
func addNames(schema any, names map[string]bool) {
	switch schema := schema.(type) {
	case []any:
		for _, part := range schema {
			addNames(part, names)
		}
	case map[string]any:
		properties, _ := schema["properties"].(map[string]any)
		for name := range properties {
			names[name] = true
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if text, ok := name.(string); ok {
				names[text] = true
			}
		}
		for _, part := range schema {
			addNames(part, names)
		}
	}
}

// check judges a payload by a plugin version's schema and adds its faults
// under path. The error is not the caller's fault: the registered schema is
// unusable.
func (s *schemas) check(path string, payload []byte, plugin berth.Plugin, f *berth.Faults) error {
	if len(plugin.Schema) == 0 {
		return nil
	}
	schema, err := s.compile(plugin.Schema)
	if err != nil {
		return fmt.Errorf("schema of plugin %s %s: %w", plugin.Name, plugin.Version, err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		f.Add(path, "is not JSON", "send a JSON object")
		return nil
	}
	var broken *jsonschema.ValidationError
	if err := schema.Validate(instance); errors.As(err, &broken) {
		v := fromPayload(broken)
		v.known = schema.names
		v.faults(path, instance, f)
	}
	return nil
}
