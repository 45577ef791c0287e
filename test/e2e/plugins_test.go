package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// TestPluginsThatArePrograms: a host reports the plugins of its directory with
// their schemas and what they require, tasks are held to that and run by the
// programs, and what these say and leave is the task's.
func TestPluginsThatArePrograms(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs("../../examples/plugins")
	if err != nil {
		t.Fatal(err)
	}
	c := harness.NewCluster(t, harness.Options{Env: map[string]string{"BERTH_APPROVE_PLUGINS": "true"}})
	agent := c.AddAgent(t, harness.AgentOptions{Name: "programs", Processes: 1, PluginDir: dir})
	for _, name := range []string{"text.words", "files.checksum"} {
		known, err := c.Client.GetPlugin(t.Context(), name)
		if err != nil || len(known.Versions) != 1 {
			t.Fatalf("%s was not reported: %+v, %v", name, known, err)
		}
		if v := known.Versions[0]; !v.Enabled || v.Requires != "driver=process" || !strings.Contains(string(v.Schema), "additionalProperties") {
			t.Errorf("%+v", v)
		}
	}
	const text = "the ship and the berth\n"
	digest, size, err := client.DigestOf(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if u, err := c.Client.UploadInput(t.Context(), strings.NewReader(text), digest, size, nil); err != nil || !u.Stored {
		t.Fatalf("%+v, %v", u, err)
	}
	spec := client.TaskSpec{
		Plugin: "text.words", PluginVersion: "^1", Payload: json.RawMessage(`{"top": 1}`), Inputs: []client.InputUse{{Name: "x.txt", Digest: digest}},
	}
	refused := spec
	refused.Payload = json.RawMessage(`{"top": "many"}`)
	if _, err := c.Client.SubmitTask(t.Context(), refused, client.SubmitOptions{}); err == nil || !strings.Contains(err.Error(), "payload.top") {
		t.Errorf("a payload against the plugin's schema: %v", err)
	}
	task := c.Submit(t, spec)
	task = harness.Finished(t, c.Client, task.ID, 2*harness.Patience)
	if task.State != client.TaskStateSucceeded || !strings.Contains(string(task.Result), `"the"`) {
		t.Fatalf("the task is %s (%s), result %s: %+v", task.State, task.Reason, task.Result, harness.Attempts(t, c.Client, task.ID))
	}
	if words := harness.Artifact(t, c.Client, task.ID, 1, "words.json"); !strings.Contains(string(words), `"berth": 1`) {
		t.Errorf("artifact %s", words)
	}
	agent.Stop(t)
	c.Stop(t)
}
