package eligibility

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/berth-dev/berth/pkg/berth"
)

// Term is one term of a selector; all must hold.
type Term struct{ requirement labels.Requirement }

// Matches reports whether the labels satisfy the term.
func (t Term) Matches(l map[string]string) bool { return t.requirement.Matches(labels.Set(l)) }

// String is the term's canonical form.
func (t Term) String() string { return t.requirement.String() }

// Terms are the terms of the matcher's selector, in canonical order.
func (m *Matcher) Terms() []Term {
	requirements, _ := m.selector.Requirements()
	terms := make([]Term, len(requirements))
	for i, r := range requirements {
		terms[i] = Term{r}
	}
	return terms
}

// Probe is the device that a selector pins as an operator's probe
// (berth.LabelProbe=ID), which reaches also a cordoned or quarantined one.
func Probe(selector string) (berth.DeviceID, bool) {
	sel, err := parseSelector(selector)
	if err != nil {
		return "", false
	}
	requirements, _ := sel.Requirements()
	for _, r := range requirements {
		op, values := r.Operator(), r.Values()
		pins := op == selection.Equals || op == selection.DoubleEquals || op == selection.In
		if r.Key() == berth.LabelProbe && pins && values.Len() == 1 {
			id, _ := values.PopAny()
			return berth.DeviceID(id), id != ""
		}
	}
	return "", false
}

// Mentions reports whether a selector has a term about the label.
func Mentions(selector, label string) bool {
	sel, err := parseSelector(selector)
	if err != nil {
		return false
	}
	requirements, _ := sel.Requirements()
	for _, r := range requirements {
		if r.Key() == label {
			return true
		}
	}
	return false
}
