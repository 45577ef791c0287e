package agentapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/store"
)

var everything = berth.Scope{All: true}

func TestATaskRunsFromClaimToComplete(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		synced := a.sync(1)
		if synced.ProtocolVersion != protocol.Version || synced.Epoch != 1 || synced.Settings.LeaseTTL.Duration() != time.Minute || synced.Undelivered == nil {
			t.Errorf("sync: %+v", synced)
		}
		task, as := a.running(`{"command":["true"]}`)
		if as.Task != task.ID || as.CorrelationID != "corr-1" || as.Device != a.devices[0] || string(as.Payload) != `{"command":["true"]}` || as.Fence < 1 {
			t.Errorf("assignment: %+v", as)
		}
		var beat protocol.HeartbeatResponse
		a.ok(&beat, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{Health: map[berth.DeviceID]berth.Health{as.Device: berth.HealthGood}})
		if beat.Interval.Duration() != 10*time.Second || beat.Resync {
			t.Errorf("heartbeat: %+v", beat)
		}
		half := 0.5
		var leases protocol.LeaseResponse
		a.ok(&leases, "POST", protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder(as), Progress: &half, Note: "half\x00way"}}})
		if leases.Items[0].Status != "granted" || leases.Items[0].Cancel {
			t.Errorf("renew: %+v", leases)
		}

		first, second, shot := []byte("hello\n"), []byte("world\n"), []byte("\x89PNG...")
		for offset, chunk := range map[int64][]byte{0: first} {
			if res := a.putLog(as, offset, chunk); res.status != 200 || string(res.body) != "{\"next_offset\":6}\n" {
				t.Errorf("log: %d %s", res.status, res.body)
			}
		}
		if res := a.putLog(as, 6, second); res.status != 200 || string(res.body) != "{\"next_offset\":12}\n" {
			t.Errorf("log: %d %s", res.status, res.body)
		}
		end := protocol.CompleteItem{
			Holder: holder(as), Outcome: berth.OutcomeSucceeded, Message: "all\x00well", Result: json.RawMessage(`{ "exit_code": 0 }`),
			LogBytes: 12, Artifacts: map[string]string{"page.png": digest(shot)}, DeviceClean: true,
		}
		if x := a.complete(end); x.Status != "missing" || len(x.MissingArtifacts) != 1 || x.MissingArtifacts[0] != "page.png" {
			t.Errorf("complete too early: %+v", x)
		}
		if res := a.putArtifact(as, "page.png", berth.ClassScreenshot, "image/png", shot); res.status != 201 {
			t.Errorf("artifact: %d %s", res.status, res.body)
		}
		if x := a.complete(end); x.Status != "stored" || x.Outcome != berth.OutcomeSucceeded {
			t.Errorf("complete: %+v", x)
		}
		w.check(task.ID, first, second, shot)
	})
}

// check reads back what the life of a task left.
func (w *world) check(task berth.TaskID, first, second, shot []byte) {
	t := w.t
	t.Helper()
	got, err := w.store.GetTask(t.Context(), everything, task)
	must(t, err)
	if got.State != berth.StateSucceeded || string(got.Result.Reveal()) != `{"exit_code":0}` {
		t.Errorf("task: %s %s", got.State, got.Result.Reveal())
	}
	attempts, err := w.store.ListAttempts(t.Context(), everything, task)
	must(t, err)
	if len(attempts) != 1 || attempts[0].Message.Reveal() != "all\uFFFDwell" || attempts[0].ProgressNote.Reveal() != "half\uFFFDway" || attempts[0].Progress != 0.5 {
		t.Errorf("attempts: %+v", attempts)
	}
	blobs, err := blob.OpenDirectory(w.blobs)
	must(t, err)
	read := func(key string) string {
		r, _, err := blobs.Get(t.Context(), blob.Key(key))
		must(t, err)
		defer r.Close()
		b, err := io.ReadAll(r)
		must(t, err)
		return string(b)
	}
	chunks, ended, err := w.store.ReadLog(t.Context(), store.ReadLogParams{Scope: everything, Task: task, Number: 1, Limit: 10})
	must(t, err)
	if len(chunks) != 2 || !ended || read(chunks[0].BlobKey)+read(chunks[1].BlobKey) != string(first)+string(second) {
		t.Errorf("log: %+v", chunks)
	}
	f, err := w.store.GetArtifact(t.Context(), everything, task, 1, "page.png")
	must(t, err)
	if f.ContentType != "image/png" || f.Class != berth.ClassScreenshot || f.Size != int64(len(shot)) || read(f.BlobKey) != string(shot) {
		t.Errorf("artifact: %+v", f)
	}
	if n := w.blobCount(); n != 3 {
		t.Errorf("%d blobs", n)
	}
}

func TestAnAnswerThatWasLostIsGivenAgain(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		task := w.submit(1, `{}`)[0]
		w.place(w.store)
		claim := protocol.ClaimRequest{ClaimID: uuid.NewString(), Max: 10}
		var one, two protocol.ClaimResponse
		a.ok(&one, "POST", protocol.PathClaims, claim)
		a.ok(&two, "POST", protocol.PathClaims, claim)
		if len(one.Attempts) != 1 || len(two.Attempts) != 1 || one.Attempts[0].Attempt != two.Attempts[0].Attempt || one.Attempts[0].Fence != two.Attempts[0].Fence {
			t.Fatalf("claims: %+v %+v", one, two)
		}
		if others := a.claim(); len(others) != 0 {
			t.Errorf("another claim got %+v", others)
		}
		as := one.Attempts[0]
		a.start(as)
		a.start(as)
		chunk, other := []byte("one line\n"), []byte("another!\n")
		for range 2 {
			if res := a.putLog(as, 0, chunk); res.status != 200 || string(res.body) != "{\"next_offset\":9}\n" {
				t.Errorf("log: %d %s", res.status, res.body)
			}
		}
		if res := a.putLog(as, 0, other); res.status != 409 || res.problem.Code != "content_differs" {
			t.Errorf("other log: %d %s", res.status, res.body)
		}
		for i, want := range []int{201, 200, 200} {
			if res := a.putArtifact(as, "r.txt", berth.ClassReport, "text/plain", chunk); res.status != want {
				t.Errorf("artifact %d: %d %s", i, res.status, res.body)
			}
		}
		if res := a.putArtifact(as, "r.txt", berth.ClassReport, "text/plain", other); res.status != 409 || res.problem.Code != "content_differs" {
			t.Errorf("other artifact: %d %s", res.status, res.body)
		}
		if n := w.blobCount(); n != 2 {
			t.Errorf("%d blobs: repeats and refusals must leave none", n)
		}
		end := protocol.CompleteItem{
			Holder: holder(as), Outcome: berth.OutcomeFailed, Reason: "exit_code", Result: json.RawMessage(`{"a":1,"b":[2.50,"<x>"]}`), LogBytes: 9, DeviceClean: true,
		}
		if x := a.complete(end); x.Status != "stored" {
			t.Errorf("complete: %+v", x)
		}
		end.Result = json.RawMessage("{ \"b\": [2.50,\n \"\\u003cx>\"], \"a\": 1 }") // the same, written otherwise
		end.Artifacts = map[string]string{}
		if x := a.complete(end); x.Status != "stored" || x.Outcome != berth.OutcomeFailed {
			t.Errorf("again: %+v", x)
		}
		end.Result = json.RawMessage(`{"a":2}`)
		if x := a.complete(end); x.Status != "mismatch" || x.Outcome != berth.OutcomeFailed {
			t.Errorf("another body: %+v", x)
		}
		attempts, err := w.store.ListAttempts(t.Context(), everything, task.ID)
		must(t, err)
		if len(attempts) != 1 {
			t.Errorf("%d attempts", len(attempts))
		}
	})
}

func TestReleaseHandsUnstartedWorkBack(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(2)
		w.submit(2, `{}`)
		w.place(w.store)
		got := a.claim()
		if len(got) != 2 {
			t.Fatalf("claimed %d", len(got))
		}
		a.start(got[0])
		var res protocol.LeaseResponse
		for range 2 {
			a.ok(&res, "POST", protocol.PathRelease, protocol.ReleaseRequest{Items: []protocol.Holder{holder(got[0]), holder(got[1])}, Reason: "low_disk"})
			if res.Items[0].Status != "started" || res.Items[1].Status != "released" {
				t.Errorf("release: %+v", res)
			}
		}
		task, err := w.store.GetTask(t.Context(), everything, got[1].Task)
		must(t, err)
		if task.State != berth.StateQueued {
			t.Errorf("task is %s", task.State)
		}
	})
}

// claiming tells when a claim has reached the database.
func (w *world) claiming() <-chan struct{} {
	reached := make(chan struct{}, 1)
	f := func(op string, n int) error {
		if op == "ClaimAttempts" && n == 1 {
			select {
			case reached <- struct{}{}:
			default:
			}
		}
		return nil
	}
	w.before.Store(&f)
	return reached
}

// waiting begins a claim that waits long.
func (a *agent) waiting(ctx context.Context, claimID string) <-chan answer {
	c := make(chan answer, 1)
	go func() {
		res, err := a.w.send(ctx, "POST", protocol.PathClaims,
			protocol.ClaimRequest{ClaimID: claimID, Max: 10, Wait: 25_000}, a.header(nil))
		if err != nil {
			res.status = -1
		}
		c <- res
	}()
	return c
}

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(within):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

func TestAWaitingClaimIsWokenByAHint(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		reached := w.claiming()
		answered := a.waiting(t.Context(), uuid.NewString())
		wait(t, "the claim", reached)
		w.submit(1, `{}`)
		w.place(w.store)
		res := wait(t, "the answer", answered)
		if res.status != 200 || !strings.Contains(string(res.body), `"attempt":"`) {
			t.Errorf("%d %s", res.status, res.body)
		}
	}, pollEvery(time.Hour)) // a hint alone can wake it
}

func TestAWaitingClaimFindsWorkWithoutAHint(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		other := w.open(store.Options{}) // its hints reach nobody here
		a := w.newAgent("lab-1")
		a.sync(1)
		reached := w.claiming()
		answered := a.waiting(t.Context(), uuid.NewString())
		wait(t, "the claim", reached)
		w.submit(1, `{}`)
		w.place(other)
		res := wait(t, "the answer", answered)
		if res.status != 200 || !strings.Contains(string(res.body), `"attempt":"`) {
			t.Errorf("%d %s", res.status, res.body)
		}
	})
}

func TestAWaitingClaimEndsWhenTheServerStops(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		reached := w.claiming()
		answered := a.waiting(t.Context(), uuid.NewString())
		wait(t, "the claim", reached)
		must(t, w.stop())
		if res := wait(t, "the answer", answered); res.status != 200 || string(res.body) != "{\"attempts\":[]}\n" {
			t.Errorf("%d %s", res.status, res.body)
		}
	}, pollEvery(time.Hour))
}

func TestAClaimOfAClientThatWentAwayLosesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		w.submit(1, `{}`)
		w.place(w.store)
		// The client goes while its claim is being committed.
		ctx, leave := context.WithCancel(t.Context())
		committing := make(chan struct{}, 1)
		f := func(op string, n int) error {
			if op == "ClaimAttempts" && n == 1 {
				leave()
				committing <- struct{}{}
			}
			return nil
		}
		w.before.Store(&f)
		claimID := uuid.NewString()
		answered := a.waiting(ctx, claimID)
		wait(t, "the claim", committing)
		if res := wait(t, "the client's end", answered); res.status != -1 {
			t.Fatalf("the client got %d", res.status)
		}
		w.before.Store(nil)
		var res protocol.ClaimResponse
		a.ok(&res, "POST", protocol.PathClaims, protocol.ClaimRequest{ClaimID: claimID, Max: 10})
		if len(res.Attempts) != 1 {
			t.Errorf("got %+v", res)
		}
	}, pollEvery(time.Hour))
}

func TestSyncSettlesWhatIsHeld(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(3)
		w.submit(3, `{}`)
		w.place(w.store)
		got := a.claim()
		if len(got) != 3 {
			t.Fatalf("claimed %d", len(got))
		}
		a.start(got[0])
		a.start(got[1])
		_, _, err := w.store.CancelTask(t.Context(), store.TaskParams{Scope: everything, Task: got[1].Task})
		must(t, err)
		var leases protocol.LeaseResponse
		a.ok(&leases, "POST", protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{
			{Holder: holder(got[0])}, {Holder: holder(got[1])},
		}})
		if leases.Items[0].Cancel || !leases.Items[1].Cancel || leases.Items[1].Status != "granted" {
			t.Errorf("renew: %+v", leases)
		}
		old := holder(got[0])
		old.Fence += 7
		a.epoch = 0 // what follows is the first sync of one process, and its repeats
		for _, tc := range []struct {
			name string
			held protocol.Holder
			want string
		}{
			{"kept", holder(got[0]), "keep"},
			{"cancelled", holder(got[1]), "cancel"},
			{"unknown", protocol.Holder{Attempt: berth.AttemptID(uuid.NewString()), Fence: 1}, "gone"},
			{"another fence", old, "gone"}, // last: what is not reported under its fence is lost
		} {
			req := syncRequest(3)
			req.Instance, req.Epoch = "the same process", a.epoch
			req.Held = []protocol.HeldAttempt{protocol.HeldAttempt(tc.held)}
			for _, other := range got[:2] {
				if other.Attempt != tc.held.Attempt {
					req.Held = append(req.Held, protocol.HeldAttempt(holder(other)))
				}
			}
			var res protocol.SyncResponse
			a.ok(&res, "POST", protocol.PathSync, req)
			if res.Epoch != 2 {
				t.Errorf("%s: epoch %d", tc.name, res.Epoch)
			}
			a.epoch = res.Epoch
			if len(res.Attempts) != len(req.Held) || res.Attempts[0].Attempt != tc.held.Attempt || res.Attempts[0].Verdict != tc.want {
				t.Errorf("%s: %+v", tc.name, res.Attempts)
			}
			if len(res.Undelivered) != 1 || res.Undelivered[0] != got[2].Attempt {
				t.Errorf("%s: undelivered %v", tc.name, res.Undelivered)
			}
		}
	})
}

func TestOnePhoneOnTwoHostsIsAConflict(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		phone := func() protocol.SyncRequest {
			req := syncRequest(2)
			req.Devices[1].Driver, req.Devices[1].HardwareID, req.Devices[1].HardwareUnique = "adb", "SERIAL1", true
			return req
		}
		var first, second protocol.SyncResponse
		w.newAgent("lab-1").ok(&first, "POST", protocol.PathSync, phone())
		w.newAgent("lab-2").ok(&second, "POST", protocol.PathSync, phone())
		if first.Devices[1].Conflict || first.Devices[1].ID == "" {
			t.Errorf("first: %+v", first.Devices)
		}
		if !second.Devices[1].Conflict || second.Devices[1].ID != "" || second.Devices[0].Conflict || second.Devices[0].ID == "" {
			t.Errorf("second: %+v", second.Devices)
		}
	})
}

func TestAnUploadWhoseCommitIsUnknownKeepsItsBytes(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		_, as := a.running(`{}`)
		fail := func(op string, _ int) error {
			if op == "AppendLog" || op == "AddArtifact" {
				return fmt.Errorf("the connection broke: %w", berth.ErrUnavailable)
			}
			return nil
		}
		w.before.Store(&fail)
		line := []byte("line\n")
		for _, res := range []answer{a.putLog(as, 0, line), a.putArtifact(as, "a.txt", berth.ClassFile, "text/plain", line)} {
			if res.status != 503 || res.problem.Code != "database_unavailable" || res.header.Get("Retry-After") == "" {
				t.Errorf("%d %s", res.status, res.body)
			}
		}
		if n := w.blobCount(); n != 2 {
			t.Errorf("%d blobs: what may be recorded must stay", n)
		}
		w.before.Store(nil)
		if res := a.putLog(as, 0, line); res.status != 200 {
			t.Errorf("log again: %d %s", res.status, res.body)
		}
		if res := a.putArtifact(as, "a.txt", berth.ClassFile, "text/plain", line); res.status != 201 {
			t.Errorf("artifact again: %d %s", res.status, res.body)
		}
	})
}
