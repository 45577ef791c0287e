package berth_test

import (
	"maps"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

// The whole table: nothing beats absence, dirt, an unfit host or an operator's
// word; a cordoned or quarantined device takes probes only.
func TestPlaceableOfEveryMix(t *testing.T) {
	both := []bool{false, true}
	mixes := 0
	for _, present := range both {
		for _, health := range []berth.Health{berth.HealthGood, berth.HealthSuspect, berth.HealthQuarantined} {
			for _, admin := range []berth.AdminState{berth.AdminActive, berth.AdminCordoned, berth.AdminMaintenance, berth.AdminRetired} {
				for _, unclean := range both {
					for _, host := range []berth.HostState{berth.HostEnrolled, berth.HostOnline, berth.HostOffline, berth.HostRevoked} {
						for _, draining := range both {
							mixes++
							want := berth.PlaceAll
							if admin == berth.AdminCordoned || health == berth.HealthQuarantined {
								want = berth.PlaceProbes
							}
							if !present || unclean || draining || host != berth.HostOnline || admin == berth.AdminMaintenance || admin == berth.AdminRetired {
								want = berth.PlaceNothing
							}
							if got := berth.PlaceableOf(present, health, admin, unclean, host, draining); got != want {
								t.Errorf("present %v, %s, %s, unclean %v, host %s, draining %v: %d, should be %d", present, health, admin, unclean, host, draining, got, want)
							}
						}
					}
				}
			}
		}
	}
	if mixes != 2*3*4*2*4*2 {
		t.Errorf("%d mixes", mixes)
	}
}

func TestOccupancyOf(t *testing.T) {
	for _, c := range []struct {
		holder  berth.AttemptID
		unclean bool
		want    berth.Occupancy
	}{{"", false, berth.OccupancyFree}, {"", true, berth.OccupancyUnclean}, {"a", false, berth.OccupancyHeld}, {"a", true, berth.OccupancyHeld}} {
		if got := berth.OccupancyOf(c.holder, c.unclean); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestMergeLabels(t *testing.T) {
	reported := map[string]string{"os": "linux", "gpu": "yes", "berth.dev/device": "forged", "berth.dev/zone": "x", "berth.dev": "kept"}
	admin := map[string]string{"os": "plan9", "rack": "7", "berth.dev/zone": "eu", "berth.dev/device": "mistaken"}
	got := berth.MergeLabels("d1", reported, admin, 2)
	want := map[string]string{"os": "plan9", "gpu": "yes", "rack": "7", "berth.dev": "kept", "berth.dev/zone": "eu", "berth.dev/device": "d1", "berth.dev/probe": "d1", "berth.dev/protocol": "2"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, should be %v", got, want)
	}
	if reported["os"] != "linux" || len(reported) != 5 || len(admin) != 4 {
		t.Error("the inputs were changed")
	}
	if got := berth.MergeLabels("d1", nil, nil, 0); !maps.Equal(got, map[string]string{"berth.dev/device": "d1", "berth.dev/probe": "d1", "berth.dev/protocol": "1"}) {
		t.Errorf("without labels: %v", got)
	}
}

func TestMergedLabelsObeyTheAdmin(t *testing.T) {
	label := rapid.MapOf(rapid.SampledFrom([]string{"a", "b", "berth.dev/x", "berth.dev/device"}), rapid.SampledFrom([]string{"1", "2"}))
	rapid.Check(t, func(t *rapid.T) {
		reported, admin := label.Draw(t, "reported"), label.Draw(t, "admin")
		for k, v := range berth.MergeLabels("d", reported, admin, 1) {
			switch {
			case k == berth.LabelProtocol:
			case k == berth.LabelDevice || k == berth.LabelProbe:
				if v != "d" {
					t.Fatalf("%s is %q", k, v)
				}
			case admin[k] != "":
				if v != admin[k] {
					t.Fatalf("%s is %q, the admin said %q", k, v, admin[k])
				}
			case strings.HasPrefix(k, berth.ReportedLabelPrefix) || v != reported[k]:
				t.Fatalf("%s is %q", k, v)
			}
		}
	})
}

func TestHostNameMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"lab-*", "lab-1", true},
		{"lab-*", "lab-", true},
		{"lab-*", "xlab-1", false},
		{"*", "anything", true},
		{"lab-?", "lab-12", false},
		{"lab-[0-9]", "lab-7", true},
		{"lab-[0-9]", "lab-x", false},
		{"lab-1", "lab-1", true},
		{"", "lab-1", false},
		{"", "", true},
		{"[", "[", false},
		{"lab-[", "lab-[", false},
		{"*", "a/b", false},
		{"Lab-*", "lab-1", false},
	} {
		if got := berth.HostNameMatches(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}
