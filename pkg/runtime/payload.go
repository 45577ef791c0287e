package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// compiled is a plugin with its parsed version and schema.
type compiled struct {
	plugin   Plugin
	manifest manifest.Manifest
	version  *semver.Version
	schema   *jsonschema.Schema
}

func (c compiled) is(o compiled) bool {
	return c.manifest.Name == o.manifest.Name && c.version.Equal(o.version)
}

// compile checks a plugin's manifest.
func compile(p Plugin) (compiled, error) {
	m := p.Manifest()
	if !namePattern.MatchString(m.Name) {
		return compiled{}, fmt.Errorf("plugin name %q: letters, digits, '.', '_' and '-' only", m.Name)
	}
	v, err := semver.StrictNewVersion(m.Version)
	if err != nil {
		return compiled{}, fmt.Errorf("plugin %s: version %q is not a semantic version", m.Name, m.Version)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.Schema))
	if err != nil {
		return compiled{}, fmt.Errorf("plugin %s %s: payload schema is no JSON", m.Name, m.Version)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	// A schema must stand alone: no loader means no file and no network access.
	c.UseLoader(jsonschema.SchemeURLLoader{})
	const url = "berth:payload"
	if err := c.AddResource(url, doc); err != nil {
		return compiled{}, fmt.Errorf("plugin %s %s: payload schema: %w", m.Name, m.Version, err)
	}
	s, err := c.Compile(url)
	if err != nil {
		return compiled{}, fmt.Errorf("plugin %s %s: payload schema: %w", m.Name, m.Version, err)
	}
	return compiled{plugin: p, manifest: m, version: v, schema: s}, nil
}

// check validates a payload. The error names places and rules, never values:
// schema messages quote values, so they are not used.
func (c compiled) check(payload redact.Bytes) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload.Reveal()))
	if err != nil {
		return fmt.Errorf("%w: not a single JSON document", ErrInvalidPayload)
	}
	err = c.schema.Validate(doc)
	if err == nil {
		return nil
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return fmt.Errorf("%w for %s %s", ErrInvalidPayload, c.manifest.Name, c.version)
	}
	var places []string
	collect(ve, &places)
	slices.Sort(places)
	places = slices.Compact(places)
	const most = 8
	if len(places) > most {
		places = append(places[:most], fmt.Sprintf("and %d more", len(places)-most))
	}
	return fmt.Errorf("%w for %s %s: %s", ErrInvalidPayload, c.manifest.Name, c.version, strings.Join(places, "; "))
}

// collect lists the leaves of a validation error as "/place (rule)".
func collect(e *jsonschema.ValidationError, out *[]string) {
	if len(e.Causes) == 0 {
		place := "/" + strings.Join(e.InstanceLocation, "/")
		*out = append(*out, fmt.Sprintf("%s (%s)", place, rule(e.ErrorKind)))
		return
	}
	for _, c := range e.Causes {
		collect(c, out)
	}
}
