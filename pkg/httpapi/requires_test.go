package httpapi_test

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

// What a plugin requires of a device is added to each task's selector, so that
// a task without one is not placed where it cannot run.
func TestWhatThePluginRequiresJoinsTheSelector(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		version := berth.PluginVersion{Name: "browse", Version: "1.0.0"}
		if err := s.Store.RegisterPlugins(t.Context(), s.Admin, []berth.Plugin{{PluginVersion: version, Enabled: true, Requires: "driver=chromium"}}); err != nil {
			t.Fatal(err)
		}
		c := s.As("sub", berth.RoleSubmitter)
		for asked, want := range map[string]string{
			"":                          "driver=chromium",
			"os=linux, driver=chromium": "driver=chromium,os=linux",
		} {
			task := submit(t, c, bclient.TaskSpec{Plugin: "browse", Selector: asked})
			if task.Selector != want {
				t.Errorf("asked for %q, got %q", asked, task.Selector)
			}
		}
		full := "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p"
		_, err := c.SubmitTask(t.Context(), bclient.TaskSpec{Plugin: "browse", Selector: full}, bclient.SubmitOptions{})
		if err == nil || !strings.Contains(err.Error(), "selector") || !strings.Contains(err.Error(), "at most 15 terms") {
			t.Errorf("a selector that leaves no room: %v", err)
		}
		p, err := c.GetPlugin(t.Context(), "browse")
		if err != nil || p.Versions[0].Requires != "driver=chromium" {
			t.Errorf("plugin: %+v, %v", p, err)
		}
	})
}
