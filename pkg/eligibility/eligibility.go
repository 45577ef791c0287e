// Package eligibility decides which devices fit which tasks: label selectors
// in the grammar people know from Kubernetes, and plugin version ranges. It is
// the one place of this rule: the API canonicalises with it, both engines
// store what it made, and the scheduler matches with it.
package eligibility

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/pkg/berth"
)

// Caps on what a requirement may be, so that a match stays cheap.
const (
	MaxSelectorLen   = 1024
	MaxSelectorTerms = 16
	MaxRangeLen      = 128
)

// Canonical returns r with every string in its canonical form, so that equal
// needs make one class. The error is an *berth.InvalidError whose paths are
// below path (tasks[0]); all faults are named at once.
//
// A != or notin term fits a device that lacks the label, as in Kubernetes.
func Canonical(path string, r berth.Requirement) (berth.Requirement, error) {
	var f berth.Faults
	at := func(s string) string {
		if path == "" {
			return s
		}
		return path + "." + s
	}
	out := berth.Requirement{Plugin: r.Plugin}
	if !berth.ValidName(r.Plugin) {
		f.Add(at("plugin"), fmt.Sprintf("%q is not a plugin's name", berth.Clip(r.Plugin, 40)), "name a plugin such as browser.script; GET /api/v1/plugins lists them")
	}
	sel, err := parseSelector(r.Selector)
	if err == nil {
		// A spelling with more spaces than the one that came may be too long.
		_, err = parseSelector(sel.String())
	}
	if err != nil {
		f.Add(at("selector"), err.Error(), "write label=value terms joined by commas, for example browser=chromium,os in (linux,darwin)")
	} else {
		out.Selector = sel.String()
	}
	rng, err := canonicalRange(r.VersionRange)
	if err != nil {
		f.Add(at("plugin_version"), err.Error(), "write a version range such as ^1.2, >=1.0.0 <2.0.0 or leave it out")
	}
	out.VersionRange = rng
	return out, f.Err()
}

// Join gives the canonical selector that asks for all that both selectors ask
// for. The error says that one cannot be read, or that together they pass the
// caps.
func Join(a, b string) (string, error) {
	left, err := parseSelector(a)
	if err != nil {
		return "", err
	}
	right, err := parseSelector(b)
	if err != nil {
		return "", err
	}
	terms := map[string]bool{}
	for _, sel := range []labels.Selector{left, right} {
		reqs, _ := sel.Requirements()
		for _, r := range reqs {
			terms[r.String()] = true
		}
	}
	both, err := parseSelector(strings.Join(slices.Sorted(maps.Keys(terms)), ","))
	if err != nil {
		return "", err
	}
	return both.String(), nil
}

// Required is the selector of a task with what its plugin requires of a device
// and, when the task brings inputs or names secrets, with the version of the agent
// protocol that can have them. The error says that the selector is too long for
// all that.
func Required(selector, plugin string, brings bool) (string, error) {
	selector, err := Join(selector, plugin)
	if err != nil || !brings {
		return selector, err
	}
	return Join(selector, fmt.Sprintf("%s>%d", berth.LabelProtocol, berth.InputsProtocol-1))
}

func parseSelector(s string) (labels.Selector, error) {
	if len(s) > MaxSelectorLen {
		return nil, fmt.Errorf("the selector has %d bytes, %d are allowed", len(s), MaxSelectorLen)
	}
	if strings.ContainsRune(s, 0) {
		// The parser ends a value there in silence; surely not what was meant.
		return nil, errors.New("the selector has a NUL character")
	}
	sel, err := labels.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("cannot be read as a selector: %s", berth.Clip(err.Error(), 200))
	}
	reqs, _ := sel.Requirements()
	if len(reqs) > MaxSelectorTerms {
		return nil, fmt.Errorf("the selector has %d terms, %d are allowed", len(reqs), MaxSelectorTerms)
	}
	for _, r := range reqs {
		// `os in ()` parses as os in (""): surely not what was meant.
		if vs := r.Values(); (r.Operator() == "in" || r.Operator() == "notin") && vs.Len() == 1 && vs.Has("") {
			return nil, fmt.Errorf("the term for %s has an empty list", r.Key())
		}
	}
	return sel, nil
}

func canonicalRange(s string) (string, error) {
	s = strings.Join(strings.Fields(s), " ")
	if s == "" || s == "*" {
		return "", nil
	}
	if len(s) > MaxRangeLen {
		return "", fmt.Errorf("the version range has %d bytes, %d are allowed", len(s), MaxRangeLen)
	}
	c, err := semver.NewConstraint(s)
	if err != nil {
		return "", fmt.Errorf("%q is not a version range", berth.Clip(s, 40))
	}
	if n := len(c.String()); n > MaxRangeLen {
		return "", fmt.Errorf("the version range has %d bytes when its terms are set apart, %d are allowed", n, MaxRangeLen)
	}
	return c.String(), nil
}

// ValidVersion reports whether s is a full semantic version (1.4.0).
func ValidVersion(s string) bool {
	_, err := semver.StrictNewVersion(s)
	return err == nil
}

// ClassKey is the stable name of the class of pool's tasks that need r: the
// hex SHA-256 of the canonical requirement. r must be canonical.
func ClassKey(pool berth.PoolID, r berth.Requirement) string {
	h := sha256.New()
	for _, s := range []string{string(pool), r.Selector, r.Plugin, r.VersionRange} {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Matcher is a compiled requirement. It is safe for concurrent use.
type Matcher struct {
	plugin   string
	selector labels.Selector
	versions *semver.Constraints // nil: any
}

// Compile makes a Matcher of a canonical requirement.
func Compile(r berth.Requirement) (*Matcher, error) {
	sel, err := parseSelector(r.Selector)
	if err != nil {
		return nil, err
	}
	m := &Matcher{plugin: r.Plugin, selector: sel}
	if r.VersionRange != "" {
		if m.versions, err = semver.NewConstraint(r.VersionRange); err != nil {
			return nil, fmt.Errorf("version range: %w", err)
		}
	}
	return m, nil
}

// Labels reports whether the device's labels satisfy the selector.
func (m *Matcher) Labels(l map[string]string) bool { return m.selector.Matches(labels.Set(l)) }

// Version picks the highest version of the plugin that the host provides and
// the range allows. ok is false when there is none.
func (m *Matcher) Version(provided []berth.PluginVersion) (version string, ok bool) {
	var best *semver.Version
	for _, p := range provided {
		if p.Name != m.plugin {
			continue
		}
		v, err := semver.StrictNewVersion(p.Version)
		if err != nil || (m.versions != nil && !m.versions.Check(v)) {
			continue
		}
		if best == nil || v.GreaterThan(best) {
			best, version = v, p.Version
		}
	}
	return version, best != nil
}

// Fits reports whether a device with these labels on a host with these enabled
// plugins can run the class.
func (m *Matcher) Fits(l map[string]string, provided []berth.PluginVersion) bool {
	_, ok := m.Version(provided)
	return ok && m.Labels(l)
}
