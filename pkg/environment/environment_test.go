package environment_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/environment"
	"github.com/berth-dev/berth/pkg/redact"
)

type inner struct {
	Every time.Duration `env:"EVERY" about:"how often"`
	Off   bool          `env:"OFF"`
}

type outer struct {
	Slots  int           `env:"BERTH_SLOTS" envDefault:"2" about:"how many"`
	Secret redact.String `env:"BERTH_SECRET" about:"the key"`
	Loop   inner         `envPrefix:"BERTH_LOOP_"`
	List   []string      `env:"-"`
}

func TestEveryUnreadableValueIsNamedByItsVariable(t *testing.T) {
	var into outer
	var f berth.Faults
	environment.Read(&into, map[string]string{
		"BERTH_SLOTS": "many", "BERTH_LOOP_EVERY": "5", "BERTH_LOOP_OFF": "perhaps", "BERTH_SECRET": "hunter2",
	}, &f)
	err := f.Err()
	if err == nil {
		t.Fatal("no fault")
	}
	for _, want := range []string{
		`BERTH_SLOTS: "many" is no number (use a number such as 2)`,
		`BERTH_LOOP_EVERY: "5" is no duration (use a duration such as 15s)`,
		`BERTH_LOOP_OFF: "perhaps" is no truth value (use true or false)`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not in %q: %s", err, want)
		}
	}
	if into.Secret.Reveal() != "hunter2" || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "field") {
		t.Errorf("%v", err)
	}
}

func TestHelpListsVariablesWithDefaults(t *testing.T) {
	var out strings.Builder
	environment.PrintHelp(&out, &outer{}, map[string]string{"BERTH_LOOP_EVERY": "500ms"})
	for _, want := range []string{"BERTH_SLOTS", "how many (default 2)", "how often (default 500ms)", "BERTH_SECRET_FILE", "BERTH_LOOP_OFF"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in:\n%s", want, out.String())
		}
	}
}

func TestOnlyNamesThatNoProgramReadsAreUnknown(t *testing.T) {
	got := environment.Unknown([]string{
		"BERTH_LEASE_TLL=90s", "BERTH_LEASE_TTL=90s", "BERTH_TEST_ANYTHING=1", "BERTH_TOKEN=x", "BERTH_INSTALL=0", "PATH=/bin", "BERTH_ADMIN_PASS=hunter2",
		"BERTH_SERVICE_HOST=10.0.0.1", "BERTH_API_SERVICE_PORT_HTTP=80", "BERTH_PORT=tcp://10.0.0.1:80", "BERTH_PORT_80_TCP_ADDR=10.0.0.1",
	})
	if want := []string{"BERTH_ADMIN_PASS", "BERTH_LEASE_TLL"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
