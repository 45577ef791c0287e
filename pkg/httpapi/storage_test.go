package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
)

// An object store that hangs is unavailable, soon, and the same calls succeed when
// it is back; an input that it has lost is named, and healed by an upload.
func TestAStoreThatHangsOrLostAnInput(t *testing.T) {
	blobs, door := blobtest.Stalling(t)
	s := apitest.OnSQLiteOver(t, blobs)
	c := s.As("sub", berth.RoleSubmitter)
	token, digest, next := s.Token("sub"), apitest.SHA256(bundle), apitest.SHA256(bundle+bundle)
	upload := func() {
		t.Helper()
		u, err := c.UploadInput(t.Context(), strings.NewReader(bundle), digest, int64(len(bundle)), nil)
		if err != nil || !u.Stored {
			t.Fatalf("upload: %+v, %v", u, err)
		}
	}
	upload()
	if _, err := c.BeginInput(t.Context(), next, int64(2*len(bundle))); err != nil {
		t.Fatal(err)
	}
	task := submit(t, c, work("x"))
	attempt := s.Agent("h1", map[string]string{"os": "linux"}).Run(task.ID)
	attempt.Artifact("report.txt", "text/plain", "a report")
	content := "/api/v1/inputs/" + digest + "/content"
	calls := map[string]func() answer{
		"part":  func() answer { return part(t, s, token, next, "", bundle) },
		"input": func() answer { return send(t, s, "GET", content, token, "") },
		"artifact": func() answer {
			return send(t, s, "GET", "/api/v1/tasks/"+task.ID+"/attempts/1/artifacts/report.txt", token, "")
		},
	}
	door.Shut()
	for name, call := range calls {
		a := call()
		if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || p.Code != "storage_unavailable" || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	door.Open()
	for name, call := range calls {
		if a := call(); a.StatusCode != http.StatusOK {
			t.Errorf("%s, again: %d %s", name, a.StatusCode, a.body)
		}
	}
	all, err := blobs.List(t.Context(), string(blob.KindInput), "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range all {
		if err := blobs.Delete(t.Context(), b.Key); err != nil {
			t.Fatal(err)
		}
	}
	a := calls["input"]()
	if p := a.problem(t); a.StatusCode != http.StatusGone || p.Code != "input_lost" || !strings.Contains(p.Remedy, "berth input put") {
		t.Errorf("a lost input: %d %s", a.StatusCode, a.body)
	}
	upload()
	if a := calls["input"](); a.StatusCode != http.StatusOK || a.body != bundle {
		t.Errorf("healed: %d %s", a.StatusCode, a.body)
	}
}
