package kill

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/hostagent"
	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/test/harness"
)

// atLeast so many attempts run at each kill.
const atLeast = 50

// victim is what is killed, by SIGKILL, and started again.
type victim struct {
	name        string
	kill, start func()
}

// TestKills kills each process, the database and all of them at random instants,
// while at least 50 attempts run, and submits and cancels go on: nothing
// acknowledged is lost, no attempt has two outcomes, nothing starts after its
// cancel, no device is held twice, and all tasks end.
func TestKills(t *testing.T) {
	t.Parallel()
	random := randomness(t)
	server, dsn := breakable(t)
	c := harness.NewCluster(t, harness.Options{DSN: dsn, Env: quarter()})
	for _, name := range []string{"left", "right"} {
		c.AddAgent(t, harness.AgentOptions{Name: name, Processes: 30})
	}
	l := newLoad(t, c, rand.New(rand.NewPCG(random.Uint64(), 0)))
	l.start()
	victims := victimsOf(t, c, server, random)
	rounds := 1
	if long() {
		rounds = 10
	}
	order := make([]int, 0, rounds*len(victims))
	for range rounds {
		order = append(order, random.Perm(len(victims))...)
	}
	began, loggedIn := time.Now(), time.Now()
	for n, i := range order {
		running := int64(0)
		enough := func() bool { running = l.running.Load(); return running >= atLeast }
		await(t, 3*harness.Patience, "50 attempts run", enough)
		pass(t, time.Duration(random.Int64N(int64(4*time.Second))))
		await(t, 3*harness.Patience, "50 attempts run", enough)
		victims[i].kill()
		pass(t, time.Duration(random.Int64N(int64(time.Second))))
		victims[i].start()
		t.Logf("%v: kill %d of %d: %s, %d attempts ran", time.Since(began).Round(time.Millisecond), n+1, len(order), victims[i].name, running)
		if time.Since(loggedIn) > 4*time.Minute {
			l.login()
			loggedIn = time.Now()
		}
	}
	l.end()
	await(t, 5*harness.Patience, "every task ends", func() bool {
		var left int
		return l.db.QueryRowContext(t.Context(), `SELECT count(*) FROM tasks WHERE final_state IS NULL`).Scan(&left) == nil && left == 0
	})
	l.login()
	l.repeatKeys(20)
	for _, a := range c.Agents {
		a.Stop(t)
	}
	c.Stop(t)
	c.CheckHistory(t)
	harness.CheckJournals(t, c.Agents...)
	l.check()
}

// await is harness.Eventually at a slower pace, beside much work.
func await(t *testing.T, within time.Duration, what string, condition func() bool) {
	t.Helper()
	end := time.NewTimer(within)
	defer end.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-end.C:
			t.Fatalf("not within %v: %s", within, what)
		case <-tick.C:
		}
	}
}

func victimsOf(t *testing.T, c *harness.Cluster, server *pgtest.Server, random *rand.Rand) []victim {
	t.Helper()
	daemon := func(name string, d *harness.Daemon) victim {
		return victim{name, func() { d.Process.Kill() }, func() { d.Start(t) }}
	}
	var agent *harness.Agent
	all := []victim{
		{"agent", func() { agent = c.Agents[random.IntN(len(c.Agents))]; agent.Process.Kill() }, func() { agent.Start(t) }},
		daemon("api", c.APIs[0]), daemon("scheduler", c.Schedulers[0]), daemon("leasekeeper", c.Leasekeepers[0]),
		{"postgres", func() { must(t, server.Stop(true)) }, func() { must(t, server.Start()) }},
	}
	killAll := func() {
		var wg sync.WaitGroup
		for _, d := range c.Daemons() {
			wg.Go(d.Process.Kill)
		}
		for _, a := range c.Agents {
			wg.Go(a.Process.Kill)
		}
		wg.Go(func() {
			if err := server.Stop(true); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
	return append(all, victim{"all at once", killAll, func() {
		starts := []func(){func() { must(t, server.Start()) }}
		for _, d := range c.Daemons() {
			starts = append(starts, func() { d.Start(t) })
		}
		for _, a := range c.Agents {
			starts = append(starts, func() { a.Start(t) })
		}
		for _, i := range random.Perm(len(starts)) {
			starts[i]()
		}
	}})
}

// check compares what was acknowledged, what the database says, what the agents
// wrote and what the work did.
func (l *load) check() {
	t := l.t
	t.Helper()
	l.checkTasks()
	begun, done := lines(t, l.begun), lines(t, l.done)
	if twice := lines(t, l.twice); len(twice) > 0 {
		t.Errorf("work found its device in other hands: %v", twice)
	}
	outcomes := map[string]string{}
	for _, r := range l.c.Query(t, `SELECT id, outcome, started_at FROM attempts`) {
		id, outcome, started := r[0], r[1], r[2] != ""
		outcomes[id] = outcome
		switch {
		case begun[id] > 1:
			t.Errorf("attempt %s ran %d times", id, begun[id])
		case begun[id] == 1 && !started:
			t.Errorf("attempt %s ran without a start", id)
		case outcome == string(berth.OutcomeSucceeded) && done[id] != 1:
			t.Errorf("attempt %s succeeded, and its work did not come to its end", id)
		}
	}
	for id := range begun {
		if _, known := outcomes[id]; !known {
			t.Errorf("attempt %s ran, and nobody knows it", id)
		}
	}
	for _, a := range l.c.Agents {
		reported := map[berth.AttemptID]berth.Outcome{}
		for _, records := range a.Journals(t) {
			for _, r := range records {
				switch {
				case r.Stage == hostagent.StageFinished:
					reported[r.Attempt] = r.Outcome
				case r.Stage == hostagent.StageDone && r.Reason == "stored" && outcomes[string(r.Attempt)] != string(reported[r.Attempt]):
					t.Errorf("%s was told that attempt %s is stored as %s; it is %s", a.Name, r.Attempt, reported[r.Attempt], outcomes[string(r.Attempt)])
				}
			}
		}
	}
	t.Logf("%d tasks were acknowledged, %d cancels; attempts: %v", len(l.submitted), len(l.cancelled),
		l.c.Query(t, `SELECT outcome, reason, count(*) FROM attempts GROUP BY 1, 2 ORDER BY 1, 2`))
}

// checkTasks: each acknowledged task is there and ended as its work says, each
// acknowledged cancel cancelled.
func (l *load) checkTasks() {
	l.t.Helper()
	states := map[string]client.TaskState{}
	for _, r := range l.c.Query(l.t, `SELECT id, final_state FROM tasks`) {
		states[r[0]] = client.TaskState(r[1])
	}
	want := map[kindOf]client.TaskState{saysYes: client.TaskStateSucceeded, saysNo: client.TaskStateDeadLetter}
	for id, kind := range l.submitted {
		state, known := states[id]
		switch {
		case !known:
			l.t.Errorf("task %s was acknowledged and is lost", id)
		case state != want[kind] && (state != client.TaskStateCancelled || !l.asked[id]):
			l.t.Errorf("task %s (%s) ended as %q", id, kind, state)
		}
	}
	for _, id := range l.cancelled {
		if states[id] != client.TaskStateCancelled {
			l.t.Errorf("the cancel of task %s was acknowledged, it ended as %q", id, states[id])
		}
	}
	if len(l.submitted) < atLeast || len(l.cancelled) == 0 {
		l.t.Errorf("only %d tasks and %d cancels", len(l.submitted), len(l.cancelled))
	}
}

// lines counts the lines of a file that may not be there.
func lines(t *testing.T, path string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range bytes.Lines(b) {
		out[strings.TrimSpace(string(line))]++
	}
	return out
}
