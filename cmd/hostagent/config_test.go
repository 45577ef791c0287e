package main

import (
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/environment"
)

func TestEveryFaultIsNamedByItsVariable(t *testing.T) {
	_, err := parse([]string{"stray"}, []string{"BERTH_PROCESS_SLOTS=many", "BERTH_ALLOW_LOOPBACK=perhaps", "BERTH_LABELS=x"}, io.Discard)
	if !errors.Is(err, berth.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{
		`BERTH_PROCESS_SLOTS: "many" is no number (use a number such as 2)`, "BERTH_ALLOW_LOOPBACK", "BERTH_SERVER", "is no label", "stray",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
}

func TestMisspeltVariablesAreTold(t *testing.T) {
	c, err := parse(nil, []string{"BERTH_SERVER=http://x", "BERTH_HOST_NAME=lab-1", "BERTH_SEVRER=http://y", "BERTH_DATABASE_URL=b.db", "BERTH_PLUGIN_DIR=/p"}, io.Discard)
	if err != nil || !slices.Equal(c.unknown, []string{"BERTH_SEVRER"}) || c.Processes != 2 || c.PluginDir != "/p" {
		t.Errorf("%v, %+v", err, c)
	}
}

func TestHelpListsTheVariables(t *testing.T) {
	var out strings.Builder
	if _, err := parse([]string{"-h"}, nil, &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	for _, v := range environment.Variables(&config{}) {
		if !strings.Contains(out.String(), v.Name) || v.About == "" || len(environment.Unknown([]string{v.Name + "="})) > 0 {
			t.Errorf("%s is not in the help, or not known", v.Name)
		}
	}
}
