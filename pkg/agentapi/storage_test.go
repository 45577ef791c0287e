package agentapi_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/blob/blobtest"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// An object store that hangs is unavailable, soon, and what was sent is sent again;
// an input that it has lost is named, and healed by an upload.
func TestAStoreThatHangsOrLostAnInput(t *testing.T) {
	blobs, door := blobtest.Stalling(t)
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		user := berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: uuid.NewString()}}
		service, content := inputs.New(w.store, blobs, nil), []byte("the bytes of an app")
		upload := func() {
			t.Helper()
			_, err := service.Begin(t.Context(), user, digest(content), int64(len(content)))
			must(t, err)
			in, err := service.Append(t.Context(), user, digest(content), 0, bytes.NewReader(content))
			must(t, err)
			if !in.Stored {
				t.Fatalf("uploaded: %+v", in)
			}
		}
		upload()
		as := a.runningWith(user, berth.InputRef{Name: "app.bin", Digest: digest(content)})
		input, shot := "/agent/v1/inputs/"+digest(content), []byte("\x89PNG...")
		calls := map[string]func() answer{
			"log":      func() answer { return a.putLog(as, 0, []byte("hello\n")) },
			"artifact": func() answer { return a.putArtifact(as, "page.png", berth.ClassScreenshot, "image/png", shot) },
			"input":    func() answer { return a.call("GET", input, nil) },
		}
		refused := func(code string, names ...string) {
			t.Helper()
			for _, name := range names {
				if res := calls[name](); res.status != 503 || res.problem.Code != code || res.header.Get("Retry-After") == "" {
					t.Errorf("%s: %d %v %s", name, res.status, res.header, res.body)
				}
			}
		}
		door.Shut()
		refused(protocol.CodeStorageUnavailable, "log", "artifact", "input")
		door.Open()
		for name, call := range calls {
			if res := call(); res.status != 200 && res.status != 201 {
				t.Errorf("%s, again: %d %s", name, res.status, res.body)
			}
		}
		all, err := blobs.List(t.Context(), string(blob.KindInput), "", 10)
		must(t, err)
		must(t, blobs.Delete(t.Context(), all[0].Key))
		refused(protocol.CodeInputLost, "input")
		upload()
		if res := calls["input"](); res.status != 200 || !bytes.Equal(res.body, content) {
			t.Errorf("healed: %d %s", res.status, res.body)
		}
	}, func(c *agentapi.Config) { c.Blobs = blobs })
}

// runningWith is running with an input.
func (a *agent) runningWith(user berth.Actor, in berth.InputRef) protocol.Assignment {
	a.w.t.Helper()
	requirement, err := eligibility.Canonical("", berth.Requirement{Plugin: "process.run"})
	must(a.w.t, err)
	task := berth.NewTask{
		ID: berth.TaskID(uuid.Must(uuid.NewV7()).String()), Pool: a.w.pool, Name: "a task", Requirement: requirement,
		Payload: redact.NewBytes([]byte(`{}`)), Retry: berth.DefaultRetryPolicy(), Inputs: []berth.InputRef{in},
	}
	var f berth.Faults
	task.Normalise("", time.Now(), &f)
	must(a.w.t, f.Err())
	_, err = a.w.store.SubmitTasks(a.w.t.Context(), store.SubmitParams{Actor: user, Scope: berth.Scope{All: true}, Tasks: []berth.NewTask{task}})
	must(a.w.t, err)
	a.w.place(a.w.store)
	got := a.claim()
	if len(got) != 1 || len(got[0].Inputs) != 1 {
		a.w.t.Fatalf("claimed %+v", got)
	}
	a.start(got[0])
	return got[0]
}
