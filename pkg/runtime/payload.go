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

// compiled is a plugin with its parsed version and schemas.
type compiled struct {
	plugin   Plugin
	manifest manifest.Manifest
	version  *semver.Version
	schema   *jsonschema.Schema
	result   *jsonschema.Schema // nil: any object
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
	c := compiled{plugin: p, manifest: m, version: v}
	if c.schema, err = compileSchema(m.Schema); err != nil {
		return compiled{}, fmt.Errorf("plugin %s %s: payload schema %w", m.Name, m.Version, err)
	}
	if len(m.ResultSchema) > 0 {
		if c.result, err = compileSchema(m.ResultSchema); err != nil {
			return compiled{}, fmt.Errorf("plugin %s %s: result schema %w", m.Name, m.Version, err)
		}
	}
	return c, nil
}

// CheckSchema says what is wrong with a JSON schema, in words that follow its name.
func CheckSchema(schema []byte) error {
	_, err := compileSchema(schema)
	return err
}

func compileSchema(schema []byte) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, errors.New("is no JSON")
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	// A schema must stand alone: no loader means no file and no network access.
	c.UseLoader(jsonschema.SchemeURLLoader{})
	const url = "berth:schema"
	if err := c.AddResource(url, doc); err != nil {
		return nil, fmt.Errorf("is no JSON schema: %w", err)
	}
	s, err := c.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("is no JSON schema: %w", err)
	}
	return s, nil
}

// check validates a payload. The error names places and rules, never values:
// schema messages quote values, so they are not used.
func (c compiled) check(payload redact.Bytes) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload.Reveal()))
	if err != nil {
		return fmt.Errorf("%w: not a single JSON document", ErrInvalidPayload)
	}
	if broken := brokenRules(c.schema, doc); broken != "" {
		return fmt.Errorf("%w for %s %s: %s", ErrInvalidPayload, c.manifest.Name, c.version, broken)
	}
	return nil
}

// checkResult fails a run that succeeded with a result that its plugin does not
// promise.
func (c compiled) checkResult(res Result) Result {
	if res.Outcome != OutcomeSucceeded || c.result == nil {
		return res
	}
	b := res.JSON.Reveal()
	if len(b) == 0 {
		b = []byte("{}")
	}
	broken := "it is no JSON"
	if doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b)); err == nil {
		broken = brokenRules(c.result, doc)
	}
	if broken != "" {
		res.Outcome, res.Reason, res.Message = OutcomeFailed, CodeBadResult, "the plugin's result breaks its own schema: "+broken
	}
	return res
}

// brokenRules names the places and the rules that doc breaks, or is empty.
func brokenRules(schema *jsonschema.Schema, doc any) string {
	err := schema.Validate(doc)
	if err == nil {
		return ""
	}
	var ve *jsonschema.ValidationError
	if !errors.As(err, &ve) {
		return "/ (invalid)"
	}
	var places []string
	collect(ve, &places)
	slices.Sort(places)
	places = slices.Compact(places)
	const most = 8
	if len(places) > most {
		places = append(places[:most], fmt.Sprintf("and %d more", len(places)-most))
	}
	return strings.Join(places, "; ")
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
