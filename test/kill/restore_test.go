package kill

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/test/harness"
)

// backup takes a backup of a running cluster as docs/operations.md says, and
// returns what puts it back while the control plane is stopped.
func backup(t *testing.T, engine harness.Engine) (c *harness.Cluster, take func() (restore func())) {
	t.Helper()
	if engine == harness.Postgres {
		server, dsn := breakable(t)
		u, err := url.Parse(dsn)
		must(t, err)
		name := strings.TrimPrefix(u.Path, "/")
		return harness.NewCluster(t, harness.Options{DSN: dsn, Env: quarter()}), func() func() {
			dump, err := server.Dump(name)
			must(t, err)
			return func() { must(t, server.Restore(name, dump)) }
		}
	}
	c = harness.NewCluster(t, harness.Options{Engine: engine, Env: quarter()})
	return c, func() func() {
		copied := c.File() + ".backup"
		db, err := sql.Open("sqlite3", "file:"+c.File()+"?_busy_timeout=10000")
		must(t, err)
		defer func() { _ = db.Close() }()
		_, err = db.ExecContext(t.Context(), "VACUUM INTO ?", copied)
		must(t, err)
		return func() {
			for _, more := range []string{"", "-wal", "-shm"} {
				if err := os.Remove(c.File() + more); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			must(t, os.Rename(copied, c.File()))
		}
	}
}

// lostHour is what happened between a backup and its restore.
type lostHour struct {
	t *testing.T
	c *harness.Cluster
	// stays runs through it all, idle does too and holds nothing at the end of the
	// hour, restarts is killed and started again in it, newcomer enrols in it.
	stays, idle, restarts, newcomer *harness.Agent
	// kept were submitted before the backup: two ran, two waited. lost after it.
	kept, lost []client.Task
	witnesses  []witness // of the work that is alive at the end of the hour
}

// TestRestoredDatabase: the database is put back to a backup while agents run.
// What the backup does not know is gone; agents are told so, kill that work, and
// go on under higher epochs and fences.
func TestRestoredDatabase(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c, take := backup(t, engine)
		h := &lostHour{t: t, c: c}
		release := h.before()
		restore := take()
		must(t, touch(release))
		h.pass()
		epoch := c.Impersonate(t, h.restarts).Epoch
		c.Kill()
		restore()
		c.Start(t)
		h.after()
		for _, a := range []*harness.Agent{h.stays, h.idle, h.restarts} {
			a.Stop(t)
		}
		if again := c.Impersonate(t, h.restarts).Epoch; again <= epoch {
			t.Errorf("the epoch is %d after the restore, it was %d", again, epoch)
		}
		c.CheckHistory(t)
		// The journals know the lost hour: fences and epochs grow through it.
		harness.CheckJournals(t, h.stays, h.idle, h.restarts)
		h.newcomer.Process.Kill()
	})
}

// before is what the backup knows: each device has been leased, on two of the
// hosts a task runs and another waits.
func (h *lostHour) before() (release string) {
	h.t.Helper()
	h.stays = h.c.AddAgent(h.t, harness.AgentOptions{Name: "stays", Processes: 1, Labels: []string{"site=stays"}})
	h.restarts = h.c.AddAgent(h.t, harness.AgentOptions{Name: "restarts", Processes: 1, Labels: []string{"site=restarts"}})
	h.idle = h.c.AddAgent(h.t, harness.AgentOptions{Name: "idle", Processes: 1, Labels: []string{"site=idle"}})
	h.ends(h.submit("idle", "true"), client.TaskStateSucceeded)
	release = filepath.Join(h.c.Folder, "release")
	for _, site := range []string{"stays", "restarts"} {
		h.ends(h.submit(site, "true"), client.TaskStateSucceeded)
		for range 2 {
			h.kept = append(h.kept, h.submit(site, "until [ -e "+release+" ]; do sleep 0.2; done"))
		}
	}
	for i := 0; i < len(h.kept); i += 2 {
		harness.AwaitState(h.t, h.c.Client, h.kept[i].ID, client.TaskStateRunning, harness.Patience)
	}
	return release
}

// pass is the lost hour: all that the backup knows ends, other tasks come and
// end, an agent gets another epoch and a host enrols; then work is under way.
func (h *lostHour) pass() {
	h.t.Helper()
	for _, task := range h.kept {
		h.ends(task, client.TaskStateSucceeded)
	}
	h.restarts.Process.Kill()
	h.restarts.Start(h.t)
	h.restarts.AwaitSynced(h.t)
	h.newcomer = h.c.AddAgent(h.t, harness.AgentOptions{Name: "newcomer", Processes: 1, Labels: []string{"site=newcomer"}})
	// One lease on the idle host: the restored database will give its fence again.
	again := h.submit("idle", "true")
	h.ends(again, client.TaskStateSucceeded)
	h.lost = append(h.lost, again)
	for _, site := range []string{"stays", "restarts"} {
		task := h.submit(site, "true")
		h.ends(task, client.TaskStateSucceeded)
		w := newWitness(h.c, site)
		h.witnesses = append(h.witnesses, w)
		h.lost = append(h.lost, task, h.submit(site, w.script()), h.submit(site, "true"))
	}
	for _, w := range h.witnesses {
		harness.Eventually(h.t, harness.Patience, "work is under way", func() bool {
			_, err := os.Stat(w.first)
			return err == nil && w.alive(h.t)
		})
	}
}

// after is what docs/operations.md says of a restore.
func (h *lostHour) after() {
	h.t.Helper()
	t, c := h.t, h.c
	for _, task := range h.lost {
		_, err := c.Client.GetTask(t.Context(), task.ID, 0)
		if !client.HasCode(err, "not_found") {
			t.Errorf("a task of the lost hour: %v", err)
		}
	}
	h.ends(h.submit("idle", "true"), client.TaskStateSucceeded)
	for _, task := range h.kept {
		h.ends(task, client.TaskStateSucceeded)
	}
	for _, w := range h.witnesses {
		await(t, harness.Patience, "work that nobody knows is dead", func() bool { return !w.alive(t) })
	}
	// No agent is stuck: each device gets new work.
	for _, site := range []string{"stays", "idle", "restarts"} {
		h.ends(h.submit(site, "true"), client.TaskStateSucceeded)
	}
	// The hosts told that the work was taken from them, and why.
	for _, a := range []*harness.Agent{h.stays, h.restarts} {
		gone := 0
		for _, r := range a.Journal(t) {
			if r.Stage == hostagent.StageDone && r.Reason == "gone" {
				gone++
			}
		}
		if gone == 0 {
			t.Errorf("%s was not told that its attempt is gone", a.Name)
		}
	}
	h.enrolAgain()
}

// enrolAgain: a host of the lost hour is nobody; with a new token it is let in.
func (h *lostHour) enrolAgain() {
	h.t.Helper()
	t, c := h.t, h.c
	h.newcomer.Process.AwaitLine(t, harness.Patience, "the host of the lost hour says that it is nobody", func(l harness.Line) bool {
		return strings.Contains(l.Text("message"), "the server takes nothing of this host any more")
	})
	h.newcomer.Process.MustExit(t, harness.Patience, 1)
	must(t, os.Remove(filepath.Join(h.newcomer.StateDir, "host.json")))
	token, err := c.Client.CreateEnrolmentToken(t.Context(), client.EnrolmentTokenSpec{HostNamePattern: "newcomer"})
	must(t, err)
	must(t, os.WriteFile(h.newcomer.Env["BERTH_ENROLMENT_TOKEN_FILE"], []byte(token.Token), 0o600))
	h.newcomer.Start(t)
	h.newcomer.AwaitSynced(t)
	h.ends(h.submit("newcomer", "true"), client.TaskStateSucceeded)
}

func (h *lostHour) submit(site, script string) client.Task {
	h.t.Helper()
	spec := harness.Shell(h.t, script)
	spec.Selector = "site=" + site
	return h.c.Submit(h.t, spec)
}

func (h *lostHour) ends(task client.Task, state client.TaskState) {
	h.t.Helper()
	got := harness.Finished(h.t, h.c.Client, task.ID, 2*harness.Patience)
	if got.State != state {
		h.t.Errorf("task %s is %s (%s), want %s; attempts %s", task.ID, got.State, got.Reason, state, fmt.Sprintf("%+v", harness.Attempts(h.t, h.c.Client, task.ID)))
	}
}
