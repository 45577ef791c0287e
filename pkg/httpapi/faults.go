package httpapi

import (
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	pb33f "github.com/pb33f/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/strictjson"
)

// violation is one node of a JSON Schema error. Requests are judged by one
// implementation of JSON Schema and payloads by another, a fork of the first
// with the same shapes under other names; this is what both become.
type violation struct {
	// at is the place in the instance: keys and, for arrays, decimal indexes.
	at []string
	// rule is the schema's keyword, such as maxLength.
	rule string
	// kind is the implementation's struct for the rule; see want.
	kind   any
	causes []violation
	// patterns says in words what patterns want; may be nil.
	patterns map[string]string
	// known are the keys that paths may name, nil for all: others of a payload are
	// its sender's own, and may be content.
	known map[string]bool
}

// under gives a cause what is said of the whole.
func (v violation) under(c violation) violation {
	c.patterns, c.known = v.patterns, v.known
	return c
}

func fromPayload(e *jsonschema.ValidationError) violation {
	v := violation{at: e.InstanceLocation, rule: lastOf(e.ErrorKind.KeywordPath()), kind: e.ErrorKind}
	for _, c := range e.Causes {
		v.causes = append(v.causes, fromPayload(c))
	}
	return v
}

func fromRequest(e *pb33f.ValidationError) violation {
	v := violation{at: e.InstanceLocation, rule: lastOf(e.ErrorKind.KeywordPath()), kind: e.ErrorKind}
	for _, c := range e.Causes {
		v.causes = append(v.causes, fromRequest(c))
	}
	return v
}

func lastOf(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[0]
}

// faults lists the leaves of v under root as field faults. instance, the value
// that was judged, tells indexes from keys that look like numbers. No message
// holds a value of the instance: rules and the schema's own limits only.
func (v violation) faults(root string, instance any, f *berth.Faults) {
	switch {
	case v.rule == "oneOf" || v.rule == "anyOf":
		if best, ok := v.closest(); ok {
			v.under(best).faults(root, instance, f)
			return
		}
		f.Add(v.path(root, instance), "fits none of the allowed forms", "see the schema for the forms")
	case len(v.causes) > 0:
		for _, c := range v.causes {
			v.under(c).faults(root, instance, f)
		}
	default:
		v.leaf(v.path(root, instance), f)
	}
}

// closest picks the alternative that went deepest into the instance, which is
// most likely the one that was meant; without such a one there is none.
func (v violation) closest() (violation, bool) {
	var best violation
	deepest := len(v.at)
	for _, c := range v.causes {
		if d := c.depth(); d > deepest {
			best, deepest = c, d
		}
	}
	return best, deepest > len(v.at)
}

func (v violation) depth() int {
	d := len(v.at)
	for _, c := range v.causes {
		d = max(d, c.depth())
	}
	return d
}

func (v violation) leaf(path string, f *berth.Faults) {
	switch v.rule {
	case "required":
		for _, name := range v.names("Missing") {
			f.Add(joinPath(path, name), "is missing", "add it")
		}
	case "additionalProperties":
		for _, name := range v.names("Properties") {
			f.Add(joinPath(path, v.shown(name)), "is not a field here", "remove it, or mend its spelling")
			if v.shown(name) != name {
				break // one for all that are not shown
			}
		}
	case "":
		f.Add(path, "is not allowed here", "see the schema")
	default:
		f.Add(path, v.sentence(), "")
	}
}

// sentence says what the rule wants.
func (v violation) sentence() string {
	want := v.want()
	switch v.rule {
	case "type":
		return "must be " + article(want)
	case "enum":
		return "must be one of " + want
	case "const":
		return "must be " + want
	case "format":
		return "must be a " + want
	case "pattern":
		if words, ok := v.patterns[want]; ok {
			return "must be " + words
		}
		return "must match " + want
	case "minLength":
		return "must have at least " + count(want, "character")
	case "maxLength":
		return "must have at most " + count(want, "character")
	case "minItems":
		return "must have at least " + count(want, "item")
	case "maxItems":
		return "must have at most " + count(want, "item")
	case "minProperties":
		return "must have at least " + count(want, "field")
	case "maxProperties":
		return "must have at most " + count(want, "field")
	case "minimum":
		return "must be at least " + want
	case "maximum":
		return "must be at most " + want
	case "exclusiveMinimum":
		return "must be more than " + want
	case "exclusiveMaximum":
		return "must be less than " + want
	case "uniqueItems":
		return "must not hold the same item twice"
	}
	return "breaks the schema's rule " + v.rule
}

func count(n, noun string) string {
	if n == "1" {
		return n + " " + noun
	}
	return n + " " + noun + "s"
}

func article(types string) string {
	switch {
	case types == "":
		return "of another type"
	case strings.ContainsAny(types[:1], "aeiou"):
		return "an " + types
	}
	return "a " + types
}

// want is the schema's own limit: the kind's field Want, read by reflection
// because the two implementations share no type.
func (v violation) want() string {
	field, ok := v.field("Want")
	if !ok {
		return ""
	}
	if field.Kind() == reflect.Slice {
		parts := make([]string, field.Len())
		for i := range parts {
			parts[i] = fmt.Sprint(field.Index(i).Interface())
		}
		return strings.Join(parts, ", ")
	}
	if r, ok := field.Interface().(*big.Rat); ok {
		n, _ := r.Float64()
		return fmt.Sprint(n)
	}
	return fmt.Sprint(field.Interface())
}

func (v violation) names(name string) []string {
	if field, ok := v.field(name); ok {
		if names, ok := field.Interface().([]string); ok {
			return slices.Sorted(slices.Values(names))
		}
	}
	return nil
}

func (v violation) field(name string) (reflect.Value, bool) {
	r := reflect.Indirect(reflect.ValueOf(v.kind))
	if r.Kind() != reflect.Struct {
		return reflect.Value{}, false
	}
	field := r.FieldByName(name)
	return field, field.IsValid()
}

// shown is a key as paths show it.
func (v violation) shown(key string) string {
	if v.known == nil || v.known[key] {
		return key
	}
	return strictjson.Hidden
}

// path spells the place as in the JSON body: tasks[3].priority.
func (v violation) path(root string, instance any) string {
	path := root
	for _, segment := range v.at {
		switch here := instance.(type) {
		case []any:
			path += "[" + segment + "]"
			var i int
			if _, err := fmt.Sscanf(segment, "%d", &i); err == nil && i >= 0 && i < len(here) {
				instance = here[i]
			}
		case map[string]any:
			path = joinPath(path, v.shown(segment))
			instance = here[segment]
		default:
			path = joinPath(path, v.shown(segment))
		}
	}
	return path
}

func joinPath(path, key string) string {
	key = berth.Clip(key, 80)
	if path == "" {
		return key
	}
	return path + "." + key
}

func joinIndex(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
