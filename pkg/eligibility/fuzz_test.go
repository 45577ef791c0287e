package eligibility_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
)

// FuzzCanonical: a requirement is refused with its field and a remedy, or becomes
// one spelling that stays as it is, that an engine can store, that still compiles,
// and that asks a device for what the requirement asked.
func FuzzCanonical(f *testing.F) {
	var values []string // as many as a selector's bytes allow
	for i := range 254 {
		values = append(values, strconv.Itoa(100+i))
	}
	for _, c := range [][2]string{
		{"os in (linux,darwin),!gpu", "^1.2"},
		{"a=b,,", ">="},
		{"berth.dev/probe in (0000000d-0000-7000-8000-000000000001)", "*"},
		{"n>5,n<10,a notin (x,,y),b==", ">=1.0.0, <2.0.0 || ~3"},
		{"abcd in(" + strings.Join(values, ",") + ")", ""},
		{"", strings.Repeat("1||", 31) + ">=1.0.0,<2.0.0,!=1.5.0"},
		{"a,A,a.b/c-d!=e", "1.x - 2"},
		{"a=\xff", "\xff"},
		{"", " "},
	} {
		f.Add(c[0], c[1])
	}
	provided := []berth.PluginVersion{{Name: "p", Version: "1.0.0"}, {Name: "p", Version: "1.2.3-rc.1"}, {Name: "p", Version: "2.10.0"}}
	devices := []map[string]string{{}, {"a": "b", "n": "7"}, {"a": "x", "os": "linux", "b": ""}, {"gpu": "", "os": "windows", "a.b/c-d": "e"}}
	f.Fuzz(func(t *testing.T, sel, rng string) {
		asked := berth.Requirement{Plugin: "p", Selector: sel, VersionRange: rng}
		r, err := eligibility.Canonical("", asked)
		if err != nil {
			var invalid *berth.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("another kind of error: %v", err)
			}
			for _, fault := range invalid.Fields {
				if fault.Path != "selector" && fault.Path != "plugin_version" || fault.Remedy == "" || len(fault.Message) > 400 || !utf8.ValidString(fault.Message) {
					t.Fatalf("%+v", fault)
				}
			}
			return
		}
		if !utf8.ValidString(r.Selector+r.VersionRange) || strings.ContainsRune(r.Selector+r.VersionRange, 0) {
			t.Fatalf("%+v cannot be stored", r)
		}
		if again, err := eligibility.Canonical("", r); err != nil || again != r {
			t.Fatalf("%+v became %+v: %v", r, again, err)
		}
		m, err := eligibility.Compile(r)
		if err != nil {
			t.Fatalf("canonical but not compilable: %v", err)
		}
		asked.VersionRange = strings.Join(strings.Fields(rng), " ") // Compile takes it in one spelling
		first, err := eligibility.Compile(asked)
		if err != nil {
			t.Fatalf("not compilable, but canonical: %v", err)
		}
		for _, labels := range devices {
			if m.Fits(labels, provided) != first.Fits(labels, provided) {
				t.Fatalf("%+v and %+v do not fit the same: %v", asked, r, labels)
			}
			all := true
			for _, term := range m.Terms() {
				all = all && term.Matches(labels)
			}
			if all != m.Labels(labels) {
				t.Fatalf("the terms of %+v say %v of %v", r, all, labels)
			}
		}
		judgePin(t, r.Selector)
	})
}

// judgePin: a probe is a term about the probe's label, and adding what is asked
// already changes nothing.
func judgePin(t *testing.T, selector string) {
	t.Helper()
	if id, ok := eligibility.Probe(selector); ok && (id == "" || !eligibility.Mentions(selector, berth.LabelProbe)) {
		t.Fatalf("%q pins %q", selector, id)
	}
	once, err := eligibility.Join(selector, "")
	if err != nil {
		t.Fatalf("%q with nothing: %v", selector, err)
	}
	if twice, err := eligibility.Join(once, selector); err != nil || twice != once {
		t.Fatalf("%q with itself is %q, not %q: %v", selector, twice, once, err)
	}
}

// FuzzLabels: a label that a device may carry can be stored, asked for, and asked
// for fits that device and no device without it.
func FuzzLabels(f *testing.F) {
	for _, c := range [][2]string{
		{"os", "linux"},
		{"example.com/rack", "7"},
		{"a", ""},
		{"in", "notin"},
		{"a b", "c"},
		{"a", "b,c"},
		{"a", "\xff"},
		{"a/b/c", "x"},
		{"\x00", "\x00"},
		{"a", strings.Repeat("v", 64)},
		{strings.Repeat("p", 254) + "/a", "x"},
		{"A_.b", "-"},
		{"!a", "x"},
	} {
		f.Add(c[0], c[1])
	}
	provided := []berth.PluginVersion{{Name: "p", Version: "1.0.0"}}
	f.Fuzz(func(t *testing.T, key, value string) {
		var faults berth.Faults
		labels := map[string]string{key: value}
		eligibility.CheckLabels("labels", labels, &faults)
		if err := faults.Err(); err != nil {
			var invalid *berth.InvalidError
			if !errors.As(err, &invalid) || !strings.HasPrefix(invalid.Fields[0].Path, "labels") || invalid.Fields[0].Remedy == "" ||
				len(err.Error()) > 800 || !utf8.ValidString(err.Error()) {
				t.Fatalf("%v", err)
			}
			return
		}
		if len(key) > 317 || len(value) > 63 || !utf8.ValidString(key+value) || strings.ContainsFunc(key+value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Fatalf("%q=%q passes", key, value)
		}
		r, err := eligibility.Canonical("", berth.Requirement{Plugin: "p", Selector: key + "=" + value})
		if err != nil {
			t.Fatalf("%q=%q cannot be asked for: %v", key, value, err)
		}
		m, err := eligibility.Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		if !m.Fits(labels, provided) || m.Fits(map[string]string{}, provided) || m.Fits(map[string]string{key: value + "x"}, provided) {
			t.Fatalf("%q does not mean the device with %q=%q", r.Selector, key, value)
		}
	})
}
