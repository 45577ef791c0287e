package kill

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// TestStoppedAgent: an agent is stopped (SIGSTOP) past its lease and goes on
// after the keeper took its attempt back and a second one was started.
func TestStoppedAgent(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c := harness.NewCluster(t, harness.Options{Engine: engine, Env: quarter()})
		t.Run("second attempt", func(t *testing.T) {
			for name, test := range map[string]func(*testing.T, *harness.Cluster){"on the same device": sameDevice, "elsewhere": elsewhere} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, c)
				})
			}
		})
		c.CheckHistory(t)
	})
}

// witness is a task's script: it holds a lock of its device while anything of
// it is alive, and names those that found the device in other hands. The first
// run sleeps on; later ones wait until they may go, and say so.
type witness struct{ lock, first, release, twice string }

func newWitness(c *harness.Cluster, name string) witness {
	file := func(what string) string { return filepath.Join(c.Folder, name+"-"+what) }
	return witness{lock: file("lock"), first: file("first"), release: file("release"), twice: file("twice")}
}

func (w witness) script() string {
	return fmt.Sprintf(`exec 9>%s
flock -n 9 || { echo "$BERTH_RUN_ID" >>%s; exit 9; }
[ -e %[3]s ] || { : >%[3]s; exec sleep 600; }
until [ -e %s ]; do sleep 0.2; done
echo "$BERTH_RUN_ID" went on`, w.lock, w.twice, w.first, w.release)
}

// alive reports whether anything of the work is alive.
func (w witness) alive(t *testing.T) bool {
	t.Helper()
	f, err := os.OpenFile(w.lock, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	return err != nil
}

// noneTwice: nobody found the device in other hands.
func (w witness) noneTwice(t *testing.T) {
	t.Helper()
	if twice := lines(t, w.twice); len(twice) > 0 {
		t.Errorf("work found its device in other hands: %v", twice)
	}
}

// stopWithWork submits a task for the agent's only device and stops the agent
// once its work is alive; it returns when the keeper has taken the attempt back.
func stopWithWork(t *testing.T, c *harness.Cluster, a *harness.Agent, selector string, w witness) client.Task {
	t.Helper()
	spec := harness.Shell(t, w.script())
	spec.Selector = selector
	task := c.Submit(t, spec)
	harness.Eventually(t, harness.Patience, "the work is alive", func() bool {
		_, err := os.Stat(w.first)
		return err == nil
	})
	a.Pause()
	await(t, harness.Patience, "the keeper takes the attempt back", func() bool {
		return !harness.Attempts(t, c.Client, task.ID)[0].EndedAt.IsZero()
	})
	first := harness.Attempts(t, c.Client, task.ID)[0]
	if first.Outcome != client.OutcomeTimedOut || first.Reason != berth.ReasonLeaseExpired {
		t.Errorf("the first attempt ended as %s (%s)", first.Outcome, first.Reason)
	}
	if !w.alive(t) {
		t.Fatal("the work of the stopped agent died by itself: nothing is at stake")
	}
	d, err := c.Client.GetDevice(t.Context(), first.DeviceID)
	must(t, err)
	if d.Occupancy != client.Unclean {
		t.Errorf("the device is %s while old work is alive on it", d.Occupancy)
	}
	return task
}

// secondRuns waits until the task's second attempt runs.
func secondRuns(t *testing.T, c *harness.Cluster, id string) client.Attempt {
	t.Helper()
	await(t, harness.Patience, "the second attempt runs", func() bool {
		all := harness.Attempts(t, c.Client, id)
		return len(all) == 2 && all[1].State == client.AttemptStateRunning
	})
	return harness.Attempts(t, c.Client, id)[1]
}

// refused sends what the first holder would: renew and complete change nothing.
func refused(t *testing.T, w *harness.Wire, first client.Attempt, wants string) {
	t.Helper()
	h := protocol.Holder{Attempt: berth.AttemptID(first.ID), Fence: berth.Fence(first.Fence)}
	for path, in := range map[string]any{
		protocol.PathRenew:    protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: h}}},
		protocol.PathComplete: protocol.CompleteRequest{Items: []protocol.CompleteItem{{Holder: h, Outcome: berth.OutcomeSucceeded, DeviceClean: true}}},
	} {
		status, body, err := w.Call(t.Context(), http.MethodPost, path, in)
		must(t, err)
		got := fmt.Sprint(status)
		var res struct {
			Code  string                    `json:"code"`
			Items []struct{ Status string } `json:"items"`
		}
		must(t, json.Unmarshal(body, &res))
		if got += " " + res.Code; len(res.Items) == 1 {
			got += res.Items[0].Status
		}
		if got != wants {
			t.Errorf("%s of the first holder: %s, want %s", path, got, wants)
		}
	}
}

// secondStands: the task succeeded by its second attempt, whose words are kept.
func secondStands(t *testing.T, c *harness.Cluster, id string, second client.Attempt) {
	t.Helper()
	task := harness.Finished(t, c.Client, id, harness.Patience)
	all := harness.Attempts(t, c.Client, id)
	if task.State != client.TaskStateSucceeded || len(all) != 2 || all[0].Outcome != client.OutcomeTimedOut || all[1].Outcome != client.OutcomeSucceeded {
		t.Errorf("the task is %s (%s), attempts %+v", task.State, task.Reason, all)
	}
	log, err := c.Client.ReadLog(t.Context(), id, 2, 0, false)
	must(t, err)
	if want := second.ID + " went on\n"; string(log.Bytes) != want {
		t.Errorf("the second attempt's log is %q, want %q", log.Bytes, want)
	}
}

// sameDevice: while the agent is stopped another one of its host starts, on a
// copy of the state directory: it kills what the first left running before it
// syncs, and gets the task again, on the same device.
func sameDevice(t *testing.T, c *harness.Cluster) {
	a := c.AddAgent(t, harness.AgentOptions{Name: "stopped", Processes: 1, Labels: []string{"site=stopped"}})
	old := c.Impersonate(t, a)
	w := newWitness(c, "same")
	task := stopWithWork(t, c, a, "site=stopped", w)
	if n := len(harness.Attempts(t, c.Client, task.ID)); n != 1 {
		t.Errorf("%d attempts while the only device is not clean", n)
	}
	b := c.Clone(t, a, "twin")
	first, second := harness.Attempts(t, c.Client, task.ID)[0], secondRuns(t, c, task.ID)
	if second.DeviceID != first.DeviceID || second.Fence <= first.Fence {
		t.Errorf("the second attempt is on %s under fence %d, the first was on %s under %d", second.DeviceID, second.Fence, first.DeviceID, first.Fence)
	}
	refused(t, old, first, "412 "+protocol.CodeStaleEpoch)
	a.Continue()
	code, err := a.Exit(harness.Patience)
	must(t, err)
	if _, stderr := a.Output(t); code != 1 || !strings.Contains(stderr, "newer agent") {
		t.Errorf("the stopped agent ended with %d: %s", code, stderr)
	}
	refused(t, old, first, "412 "+protocol.CodeStaleEpoch)
	if !w.alive(t) {
		t.Error("the end of the first agent ended the second attempt's work")
	}
	must(t, touch(w.release))
	secondStands(t, c, task.ID, second)
	w.noneTwice(t)
	b.Stop(t)
	harness.CheckJournals(t, a, b)
	if e := c.Impersonate(t, b).Epoch; e <= old.Epoch {
		t.Errorf("the second agent has epoch %d, the first had %d", e, old.Epoch)
	}
}

// elsewhere: the second attempt runs on another host. The stopped agent goes on,
// is refused, kills its work and cleans its device; then that gets new work.
func elsewhere(t *testing.T, c *harness.Cluster) {
	a := c.AddAgent(t, harness.AgentOptions{Name: "paused", Processes: 1, Labels: []string{"site=paused"}})
	old := c.Impersonate(t, a)
	w := newWitness(c, "elsewhere")
	task := stopWithWork(t, c, a, "site in (paused, other)", w)
	first := harness.Attempts(t, c.Client, task.ID)[0]
	// The old work is alive, so the one on the other host gets a lock of its own.
	must(t, os.Rename(w.lock, w.lock+"-first"))
	b := c.AddAgent(t, harness.AgentOptions{Name: "other", Processes: 1, Labels: []string{"site=other"}})
	second := secondRuns(t, c, task.ID)
	refused(t, old, first, "200 gone")
	// The next task for the device of the first waits until that is clean.
	next := w
	next.lock += "-first"
	spec := harness.Shell(t, next.script())
	spec.Selector = "site=paused"
	third := c.Submit(t, spec)
	if !next.alive(t) {
		t.Fatal("the work of the stopped agent died by itself: nothing is at stake")
	}
	if got := harness.Task(t, c.Client, third.ID); got.State != client.TaskStateQueued {
		t.Errorf("the next task is %s while old work is alive on its device", got.State)
	}
	a.Continue()
	harness.AwaitState(t, c.Client, third.ID, client.TaskStateRunning, 2*harness.Patience)
	refused(t, old, first, "200 gone")
	must(t, touch(w.release))
	secondStands(t, c, task.ID, second)
	if done := harness.Finished(t, c.Client, third.ID, harness.Patience); done.State != client.TaskStateSucceeded || done.Attempts != 1 {
		t.Errorf("the next task is %s after %d attempts", done.State, done.Attempts)
	}
	w.noneTwice(t)
	a.Stop(t)
	b.Stop(t)
	harness.CheckJournals(t, a, b)
}
