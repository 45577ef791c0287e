package eligibility_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
)

func TestEqualNeedsHaveOneClass(t *testing.T) {
	a, err := eligibility.Canonical("", berth.Requirement{Selector: " os in (linux,darwin) , browser = chromium", Plugin: "browser.script", VersionRange: ">= 1.0.0   <2"})
	if err != nil {
		t.Fatal(err)
	}
	b, err := eligibility.Canonical("", berth.Requirement{Selector: "browser=chromium,os in (darwin,linux)", Plugin: "browser.script", VersionRange: ">=1.0.0 <2"})
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Errorf("%+v and %+v should be one class", a, b)
	}
	if eligibility.ClassKey("p", a) != eligibility.ClassKey("p", b) || eligibility.ClassKey("p", a) == eligibility.ClassKey("q", a) {
		t.Error("class keys follow pool and need")
	}
}

func TestRefusedRequirementsNameTheField(t *testing.T) {
	for _, c := range []struct {
		name, path string
		r          berth.Requirement
	}{
		{"broken selector", "tasks[2].selector", berth.Requirement{Plugin: "p", Selector: "os in (linux"}},
		{"empty list", "tasks[2].selector", berth.Requirement{Plugin: "p", Selector: "os in ()"}},
		{"a NUL", "tasks[2].selector", berth.Requirement{Plugin: "p", Selector: "os=linux\x00,os=windows"}},
		{"too long", "tasks[2].selector", berth.Requirement{Plugin: "p", Selector: strings.Repeat("a=b,", 600)}},
		{"too many terms", "tasks[2].selector", berth.Requirement{Plugin: "p", Selector: strings.TrimSuffix(strings.Repeat("a=b,", 20), ",")}},
		{"no plugin", "tasks[2].plugin", berth.Requirement{}},
		{"bad range", "tasks[2].plugin_version", berth.Requirement{Plugin: "p", VersionRange: "banana"}},
	} {
		_, err := eligibility.Canonical("tasks[2]", c.r)
		var inv *berth.InvalidError
		if !errors.As(err, &inv) || inv.Fields[0].Path != c.path || inv.Fields[0].Remedy == "" {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestJoinAsksForBothAndStaysCanonical(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"", "", ""},
		{"", "driver=chromium", "driver=chromium"},
		{"os=linux,driver=chromium", "driver=chromium", "driver=chromium,os=linux"},
		{"driver=process", "driver=chromium", "driver=chromium,driver=process"},
		{"z,a in (2,1)", "m!=x", "a in (1,2),m!=x,z"},
	} {
		got, err := eligibility.Join(c.a, c.b)
		if err != nil || got != c.want {
			t.Errorf("Join(%q, %q) = %q, %v; want %q", c.a, c.b, got, err, c.want)
		}
		again, err := eligibility.Canonical("", berth.Requirement{Plugin: "p", Selector: got})
		if err != nil || again.Selector != got {
			t.Errorf("%q is not canonical: %q, %v", got, again.Selector, err)
		}
	}
	if _, err := eligibility.Join(strings.TrimSuffix(strings.Repeat("a=b,", 16), ","), "c=d"); err != nil {
		t.Errorf("equal terms count once: %v", err)
	}
	var many []string
	for i := range eligibility.MaxSelectorTerms {
		many = append(many, fmt.Sprintf("l%d=x", i))
	}
	if _, err := eligibility.Join(strings.Join(many, ","), "c=d"); err == nil {
		t.Error("too many terms together are refused")
	}
}

func TestFits(t *testing.T) {
	labels := map[string]string{"os": "linux", "browser": "chromium"}
	provided := []berth.PluginVersion{{Name: "browser.script", Version: "1.0.0"}, {Name: "browser.script", Version: "1.10.0"}, {Name: "browser.script", Version: "2.0.0"}}
	for _, c := range []struct {
		r       berth.Requirement
		fits    bool
		version string
	}{
		{berth.Requirement{Plugin: "browser.script"}, true, "2.0.0"},
		{berth.Requirement{Plugin: "browser.script", VersionRange: "^1"}, true, "1.10.0"},
		{berth.Requirement{Plugin: "browser.script", VersionRange: "^3"}, false, ""},
		{berth.Requirement{Plugin: "process.run"}, false, ""},
		{berth.Requirement{Plugin: "browser.script", Selector: "os=linux"}, true, "2.0.0"},
		{berth.Requirement{Plugin: "browser.script", Selector: "os=darwin"}, false, "2.0.0"},
		{berth.Requirement{Plugin: "browser.script", Selector: "gpu!=yes"}, true, "2.0.0"},
		{berth.Requirement{Plugin: "browser.script", Selector: "!gpu,browser"}, true, "2.0.0"},
	} {
		r, err := eligibility.Canonical("", c.r)
		if err != nil {
			t.Fatal(err)
		}
		m, err := eligibility.Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Fits(labels, provided); got != c.fits {
			t.Errorf("%+v fits = %v", c.r, got)
		}
		if v, _ := m.Version(provided); v != c.version {
			t.Errorf("%+v picks %q", c.r, v)
		}
	}
}

// Canonical is a fixed point: what it made, it leaves alone and Compile takes.
func TestCanonicalIsAFixedPoint(t *testing.T) {
	term := rapid.SampledFrom([]string{"a=b", "a!=b", "a in (x,y)", "b notin (z, w)", "c", "!d", "e==f", "n>5"})
	rng := rapid.SampledFrom([]string{"", "*", "1", "^1.2", "~1.2.3", ">=1 <2", ">=1.0.0, <2.0.0 || ^3"})
	rapid.Check(t, func(t *rapid.T) {
		r := berth.Requirement{Plugin: "p", Selector: strings.Join(rapid.SliceOfN(term, 0, 6).Draw(t, "terms"), ","), VersionRange: rng.Draw(t, "range")}
		once, err := eligibility.Canonical("", r)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := eligibility.Canonical("", once)
		if err != nil || once != twice {
			t.Fatalf("%+v became %+v (%v)", once, twice, err)
		}
		if _, err := eligibility.Compile(once); err != nil {
			t.Fatal(err)
		}
	})
}

func TestProbeIsAPinOfOneDevice(t *testing.T) {
	const id = "0000000d-0000-7000-8000-000000000001"
	for selector, want := range map[string]berth.DeviceID{
		berth.LabelProbe + "=" + id:                 id,
		"os=linux," + berth.LabelProbe + "==" + id:  id,
		berth.LabelProbe + " in (" + id + ")":       id,
		berth.LabelProbe + " in (" + id + ",other)": "",
		berth.LabelProbe + "!=" + id:                "",
		berth.LabelProbe + " notin (" + id + ")":    "",
		berth.LabelProbe:                            "",
		berth.LabelProbe + "=":                      "",
		berth.LabelDevice + "=" + id:                "",
		"":                                          "",
		"!!":                                        "",
	} {
		if got, ok := eligibility.Probe(selector); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v", selector, got, ok)
		}
	}
}

func TestInputsRequireAnAgentThatFetchesThem(t *testing.T) {
	speaks := func(protocol string) map[string]string {
		return map[string]string{"driver": "process", berth.LabelProtocol: protocol}
	}
	provided := []berth.PluginVersion{{Name: "p", Version: "1.0.0"}}
	for _, c := range []struct {
		inputs   bool
		protocol string
		want     bool
	}{{false, "1", true}, {false, "2", true}, {true, "1", false}, {true, "2", true}, {true, "10", true}} {
		selector, err := eligibility.Required("driver", "driver=process", c.inputs)
		if err != nil {
			t.Fatal(err)
		}
		m, err := eligibility.Compile(berth.Requirement{Plugin: "p", Selector: selector})
		if err != nil {
			t.Fatal(err)
		}
		if m.Fits(speaks(c.protocol), provided) != c.want {
			t.Errorf("inputs %v, protocol %s: not %v, selector %q", c.inputs, c.protocol, c.want, selector)
		}
	}
	long := strings.Repeat("x", eligibility.MaxSelectorLen)
	if _, err := eligibility.Required(long, "", true); err == nil {
		t.Error("too long a selector was taken")
	}
}
