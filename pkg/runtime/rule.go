package runtime

import (
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// rule names the broken rule of a schema, with the names that the schema itself
// holds and nothing of the payload.
func rule(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Required:
		return "missing: " + strings.Join(k.Missing, ", ")
	case *kind.Type:
		return "must be " + strings.Join(k.Want, " or ")
	case *kind.AdditionalProperties:
		return "has unknown properties"
	case nil:
		return "invalid"
	}
	if path := k.KeywordPath(); len(path) > 0 {
		return "breaks " + path[len(path)-1]
	}
	return "invalid"
}
