package e2e

import (
	"bytes"
	"crypto/rand"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// TestMainJobOnAnObjectStore: daemons whose blobs are in a bucket. A task brings
// an input in several parts, its agent fetches it, and what it leaves is read
// back through the API; an attempt cannot succeed before its artifacts are there,
// and what comes late under its own fence is kept. Neither key is seen anywhere.
func TestMainJobOnAnObjectStore(t *testing.T) {
	t.Parallel()
	bucket := blobtest.S3(t)
	blobs := map[string]string{
		"BERTH_BLOBS": bucket.URL, "BERTH_BLOBS_ACCESS_KEY": bucket.AccessKey.Reveal(), "BERTH_BLOBS_SECRET_KEY": bucket.SecretKey.Reveal(),
		// The sweep runs all the time and may take nothing.
		"BERTH_LOOP_BLOBS_INTERVAL": "200ms", "BERTH_LOOP_INPUTS_INTERVAL": "200ms",
	}
	c := harness.Prepare(t, harness.Options{Env: blobs})
	for _, d := range c.APIs {
		delete(d.Env, "BERTH_BLOB_DIR")
	}
	c.Migrate(t, "up")
	c.Start(t)
	c.Login(t)

	content := make([]byte, 20<<20+7)
	_, _ = rand.Read(content)
	digest, size, err := client.DigestOf(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	if u, err := c.Client.UploadInput(t.Context(), bytes.NewReader(content), digest, size, nil); err != nil || !u.Stored {
		t.Fatalf("%+v, %v", u, err)
	}
	agent := c.AddAgent(t, harness.AgentOptions{Name: "slots", Processes: 1})
	task := c.Submit(t, client.TaskSpec{
		Name: "digest of an input", Plugin: "process.run",
		Inputs: []client.InputUse{{Name: "app.bin", Digest: digest}},
		Payload: harness.Payload(t, map[string]any{
			"command": []string{"sh", "-c", `sha256sum < "$BERTH_INPUTS/app.bin"; cp "$BERTH_INPUTS/app.bin" copy.bin`}, "files": []string{"copy.bin"},
		}),
	})
	done := harness.Finished(t, c.Client, task.ID, 2*harness.Patience)
	if done.State != client.TaskStateSucceeded {
		t.Fatalf("the task is %s (%s): %+v", done.State, done.Reason, harness.Attempts(t, c.Client, task.ID))
	}
	if got := harness.Artifact(t, c.Client, task.ID, 1, "copy.bin"); !bytes.Equal(got, content) {
		t.Errorf("the artifact has %d bytes, other ones than the input's %d", len(got), len(content))
	}
	agent.Stop(t)
	lateOnS3(t, c)
	c.Stop(t)
	for _, line := range c.Logs(t) {
		if strings.Contains(line, bucket.SecretKey.Reveal()) || strings.Contains(line, bucket.AccessKey.Reveal()) {
			t.Errorf("a key is in the log: %s", line)
		}
	}
	s, _, err := blob.OpenS3(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(t.Context(), "", "", 1000); err != nil || len(all) == 0 {
		t.Errorf("%d blobs in the bucket, %v", len(all), err)
	}
}

// lateOnS3 is an attempt that says that it succeeded before its artifact is
// stored, and whose log comes after its end.
func lateOnS3(t *testing.T, c *harness.Cluster) {
	t.Helper()
	w := c.Enrol(t, "wire")
	w.Sync(t, nil)
	task := c.Submit(t, harness.Shell(t, "true"))
	a := w.Claim(t, 1)[0]
	w.StartAttempt(t, a)
	shot := []byte("bytes of a file")
	sum, _, err := client.DigestOf(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	end := harness.Completion(a, berth.OutcomeSucceeded)
	end.Items[0].Artifacts = map[string]string{"file.bin": sum}
	var res protocol.CompleteResponse
	w.Must(t, http.MethodPost, protocol.PathComplete, end, &res)
	if len(res.Items) != 1 || res.Items[0].Status != "missing" {
		t.Fatalf("complete before the artifact is there: %+v", res)
	}
	put := func(name string, content []byte) int {
		path := strings.NewReplacer("{id}", string(a.Attempt), "{name}", name).Replace(protocol.PathArtifact)
		status, body, err := w.Upload(t.Context(), path, a.Fence, content)
		if err != nil {
			t.Fatalf("%v %s", err, body)
		}
		return status
	}
	if status := put("file.bin", shot); status != http.StatusCreated {
		t.Fatalf("the artifact: %d", status)
	}
	w.Must(t, http.MethodPost, protocol.PathComplete, end, &res)
	if res.Items[0].Status != "stored" {
		t.Fatalf("complete: %+v", res)
	}
	for want, content := range map[int][]byte{http.StatusCreated: []byte("late")} {
		if status := put("late.bin", content); status != want {
			t.Errorf("a late artifact: %d", status)
		}
		if status := put("late.bin", content); status != http.StatusOK {
			t.Errorf("the same again: %d", status)
		}
		if status := put("late.bin", []byte("other")); status != http.StatusConflict {
			t.Errorf("another under its name: %d", status)
		}
	}
	if got := harness.Artifact(t, c.Client, task.ID, 1, "late.bin"); string(got) != "late" {
		t.Errorf("the late artifact is %q", got)
	}
	if state := harness.Task(t, c.Client, task.ID).State; state != client.TaskStateSucceeded {
		t.Errorf("the task is %s", state)
	}
}
