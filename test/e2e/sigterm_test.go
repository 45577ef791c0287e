package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/pgtest"
	"github.com/berth-dev/berth/pkg/pgtest/pgproxy"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

const (
	// exitBound is the daemons' bound (15 s) and some patience for this machine.
	exitBound = 25 * time.Second
	brokenOff = "unexpected EOF on client connection with an open transaction"
	// heldTogether is how many requests are held back at once: few enough that
	// none is held for longer than the server lets a transaction idle.
	heldTogether = 5
)

// quietServer is a server whose log nobody else writes to.
func quietServer(t *testing.T) *pgtest.Server {
	t.Helper()
	server, err := pgtest.StartServer(pgtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

func mustNotBeBrokenOff(t *testing.T, server *pgtest.Server) {
	t.Helper()
	found, err := server.LogContains(brokenOff)
	if err != nil {
		t.Fatal(err)
	}
	if found {
		t.Errorf("the server's log shows %q", brokenOff)
	}
}

// through makes a daemon of the cluster that reaches its database by a proxy.
func through(t *testing.T, c *harness.Cluster, program, name, dsn string, env map[string]string) (*harness.Daemon, *pgproxy.Proxy, *statements) {
	t.Helper()
	p := pgproxy.Start(t, dsn)
	seen := watch(p)
	all := maps.Clone(env)
	all["BERTH_DATABASE_URL"] = p.DSN(dsn)
	return c.Daemon(program, name, all), p, seen
}

// awaitHit waits until a statement is held back.
func awaitHit(t *testing.T, stop *pgproxy.Stop, what string) pgproxy.Statement {
	t.Helper()
	timer := time.NewTimer(harness.Patience)
	defer timer.Stop()
	select {
	case st := <-stop.Hit():
		return st
	case <-timer.C:
		t.Fatalf("%s: never came to the statement", what)
		return pgproxy.Statement{}
	}
}

// Lines of a daemon's log after which what is held back may go on.
const (
	whenItStops = "stopping"
	// whenBrokenOff: the API's grace is over, and so are the requests' contexts.
	whenBrokenOff = "requests were broken off at shutdown"
)

// endsWell lets a daemon that was told to stop go on once it has logged the
// line, and waits for its end.
func endsWell(t *testing.T, d *harness.Daemon, when string, seen *statements, stops ...*pgproxy.Stop) {
	t.Helper()
	d.AwaitLine(t, harness.Patience, when, func(l harness.Line) bool { return l.Text("message") == when })
	if d.Ended() {
		t.Errorf("%s has ended under its open transaction", d.Name)
	}
	for _, s := range stops {
		s.Resume()
	}
	// Requests that had to be broken off are an error; all else is not.
	want := map[string]int{whenItStops: 0, whenBrokenOff: 1}[when]
	if code, err := d.Exit(exitBound); err != nil || code != want {
		t.Errorf("%s ended with %d, want %d; %v", d.Name, code, want, err)
	}
	if left := seen.open(); len(left) > 0 {
		t.Errorf("%s left %d transactions without COMMIT or ROLLBACK", d.Name, len(left))
	}
}

// TestSIGTERMInWorkers: scheduler and leasekeeper are told to stop while a
// transaction is held back at each of its statements.
func TestSIGTERMInWorkers(t *testing.T) {
	t.Parallel()
	server := quietServer(t)
	env := shortLeases()
	env["BERTH_HOST_OFFLINE_AFTER"], env["BERTH_LOOP_REAP_DISABLED"] = "1h", "true"
	base := server.DSN("base")
	createDatabase(t, server, "base", "template0")
	c := harness.NewCluster(t, harness.Options{DSN: base, Env: env, Leasekeepers: -1})
	stageWork(t, c)
	c.APIs[0].Stop(t)

	only := func(loop string) map[string]string {
		// One round each. So rare a sweep wants leases to match; those of the work
		// that was staged have run out all the same.
		env := map[string]string{"BERTH_LOOP_" + loop + "_INTERVAL": "1h", "BERTH_LOOP_REAP_DISABLED": "false", "BERTH_LEASE_TTL": "3h"}
		for _, other := range []string{"PLACE", "PROMOTE", "GIVE_UP", "REAP", "SILENT_HOSTS"} {
			if other != loop {
				env["BERTH_LOOP_"+other+"_DISABLED"] = "true"
			}
		}
		return env
	}
	for _, duty := range []struct {
		name, program string
		env           map[string]string
		before, after string // what the database says before and after the round
		remain        int    // rows of before that the round leaves
	}{
		{"place", "scheduler", only("PLACE"), "SELECT 1 FROM queue", "SELECT 1 FROM attempts WHERE state = 'assigned'", 1},
		{"promote", "scheduler", only("PROMOTE"), "SELECT 1 FROM delayed", "SELECT 1 FROM queue q JOIN tasks t ON t.id = q.task_id WHERE t.not_before IS NOT NULL", 0},
		{"reap", "leasekeeper", only("REAP"), "SELECT 1 FROM attempts WHERE ended_at IS NULL", "SELECT 1 FROM attempts WHERE outcome = 'timed_out'", 0},
	} {
		t.Run(duty.name, func(t *testing.T) {
			run := func(t *testing.T, n int) (done bool, statementsInside int) {
				name := fmt.Sprintf("%s-%d", duty.name, n)
				createDatabase(t, server, name, "base")
				dsn := server.DSN(name)
				d, proxy, seen := through(t, c, duty.program, name, c.Runtime(t, dsn), duty.env)
				if n == 0 { // how many are there?
					d.Start(t)
					harness.Eventually(t, harness.Patience, "the round is done", func() bool { return len(rows(t, dsn, duty.after)) > 0 })
					d.Stop(t)
					return true, seen.inside(0)
				}
				stop := stopAtNth(proxy, n)
				d.Launch(t)
				st := awaitHit(t, stop, name)
				d.Terminate()
				endsWell(t, d, whenItStops, seen, stop)
				before, after := len(rows(t, dsn, duty.before)), len(rows(t, dsn, duty.after))
				if (after > 0) == (before > duty.remain) {
					t.Errorf("stopped at %q: %d rows as before and %d as after", head(st.SQL), before, after)
				}
				checkPlaces(t, dsn)
				return after > 0, 0
			}
			_, most := run(t, 0)
			if most < 3 {
				t.Fatalf("the round has %d statements in transactions", most)
			}
			var committed atomic.Int32
			t.Cleanup(func() {
				t.Logf("%d statements; %d of the rounds committed, the rest was rolled back", most, committed.Load())
			})
			for n := 1; n <= most; n++ {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					t.Parallel()
					if done, _ := run(t, n); done {
						committed.Add(1)
					}
				})
			}
		})
	}
	mustNotBeBrokenOff(t, server)
	checkTheCheck(t, server, c, only("PROMOTE"))
}

// checkTheCheck: kill -9 in the same place does leave the line in the log.
func checkTheCheck(t *testing.T, server *pgtest.Server, c *harness.Cluster, env map[string]string) {
	t.Helper()
	createDatabase(t, server, "killed", "base")
	d, proxy, _ := through(t, c, "scheduler", "killed", c.Runtime(t, server.DSN("killed")), env)
	stop := stopAtNth(proxy, 2)
	d.Launch(t)
	awaitHit(t, stop, "killed")
	d.Process.Kill()
	proxy.Close()
	harness.Eventually(t, harness.Patience, "the server's log shows the broken transaction of a killed process", func() bool {
		found, err := server.LogContains(brokenOff)
		return err == nil && found
	})
}

// stageWork leaves a running attempt whose lease is over, queued tasks with a
// free device, and tasks whose time has come.
func stageWork(t *testing.T, c *harness.Cluster) {
	t.Helper()
	w := c.Enrol(t, "staged")
	w.Sync(t, map[string]string{"slot": "a"}, map[string]string{"slot": "b"})
	spec := harness.Shell(t, "true")
	spec.Selector = "slot=a"
	c.Submit(t, spec)
	w.StartAttempt(t, w.Claim(t, 1)[0])
	for _, d := range c.Schedulers {
		d.Stop(t)
	}
	spec.Selector = "slot=b"
	c.Submit(t, spec)
	c.Submit(t, spec)
	spec.NotBefore = time.Now().Add(time.Second)
	c.Submit(t, spec)
	c.Submit(t, spec)
	harness.Eventually(t, harness.Patience, "the lease is over and the times have come", func() bool {
		return len(c.Query(t, `SELECT 1 FROM leases WHERE expires_at < berth_now() - interval '3 s'`)) == 1 &&
			len(c.Query(t, `SELECT 1 FROM delayed WHERE due_at < berth_now()`)) == 2
	})
}

func head(sql string) string {
	return strings.Join(strings.Fields(sql[:min(len(sql), 60)]), " ")
}

func createDatabase(t *testing.T, server *pgtest.Server, name, template string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+pgx.Identifier{template}.Sanitize()); err != nil {
		t.Fatal(err)
	}
}

func rows(t *testing.T, dsn, query string) [][]string {
	t.Helper()
	out, err := harness.Query(t.Context(), "pgx", dsn, query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return out
}

// checkPlaces: every task is in one place, whatever was rolled back.
func checkPlaces(t *testing.T, dsn string) {
	t.Helper()
	lost := rows(t, dsn, `SELECT t.id FROM tasks t WHERE (SELECT count(*) FROM queue q WHERE q.task_id = t.id) + (SELECT count(*) FROM delayed d WHERE d.task_id = t.id)
	+ (SELECT count(*) FROM attempts a WHERE a.task_id = t.id AND a.ended_at IS NULL) + (CASE WHEN t.final_state IS NULL THEN 0 ELSE 1 END) <> 1`)
	if len(lost) > 0 {
		t.Errorf("%d tasks are not in exactly one place", len(lost))
	}
}

// operation of the API: prepare makes what one call needs, and returns the call
// at the server whose URL it is given, and a check of what stands afterwards.
type operation struct {
	name    string
	prepare func(t *testing.T, c *harness.Cluster, key string) (call func(ctx context.Context, url string) (int, []byte, error), happened func() bool)
}

// TestSIGTERMInTheAPI: the API is told to stop while requests are held back at
// each statement of their transactions.
func TestSIGTERMInTheAPI(t *testing.T) {
	t.Parallel()
	server := quietServer(t)
	createDatabase(t, server, "api", "template0")
	c := harness.NewCluster(t, harness.Options{DSN: server.DSN("api"), Leasekeepers: -1, Env: map[string]string{"BERTH_HOST_OFFLINE_AFTER": "1h"}})
	for _, op := range operations() {
		t.Run(op.name, func(t *testing.T) {
			most := countStatements(t, c, op)
			if most < 2 {
				t.Fatalf("%d statements in transactions", most)
			}
			answered, happened := 0, 0
			together := heldTogether
			if op.name == "complete" {
				// Completions share a transaction: one that is held holds those after it.
				together = 1
			}
			for first := 1; first <= most; first += together {
				a, h := holdGroup(t, c, op, whenItStops, first, min(first+together-1, most))
				answered, happened = answered+a, happened+h
			}
			t.Logf("%d statements; %d requests were answered with success, %d had their effect", most, answered, happened)
			if answered != most {
				t.Errorf("%d of %d requests were answered with success", answered, most)
			}
			if op.name != "submit" && op.name != "complete" {
				return
			}
			happened = 0
			for first := 1; first <= most; first += together {
				_, h := holdGroup(t, c, op, whenBrokenOff, first, min(first+together-1, most))
				happened += h
			}
			t.Logf("broken off: %d of %d had their effect, the rest was rolled back", happened, most)
			if happened == most {
				t.Error("no transaction was rolled back")
			}
		})
	}
	checkHistory(t, c)
	mustNotBeBrokenOff(t, server)
}

// countStatements does the operation once without holding anything back.
func countStatements(t *testing.T, c *harness.Cluster, op operation) int {
	t.Helper()
	d, _, seen := through(t, c, "api", "count-"+op.name, c.DatabaseURL, c.APIs[0].Env)
	d.Env["BERTH_LISTEN"], d.Env["BERTH_ADMIN_LISTEN"], d.Server = "127.0.0.1:0", "127.0.0.1:0", "api"
	d.Start(t)
	d.AwaitReady(t)
	call, happened := op.prepare(t, c, "count")
	from := seen.mark()
	status, body, err := call(t.Context(), d.URL())
	if err != nil || status/100 != 2 || !happened() {
		t.Fatalf("%s: %d %s %v", op.name, status, body, err)
	}
	most := seen.inside(from)
	d.Stop(t)
	return most
}

type reply struct {
	status int
	body   []byte
	err    error
}

// holdGroup holds one request back at each of the statements first to last,
// stops the API, and lets them go.
func holdGroup(t *testing.T, c *harness.Cluster, op operation, when string, first, last int) (answered, happened int) {
	t.Helper()
	d, proxy, seen := through(t, c, "api", fmt.Sprintf("%s-%s-%d", op.name, when[:4], first), c.DatabaseURL, c.APIs[0].Env)
	d.Env["BERTH_LISTEN"], d.Env["BERTH_ADMIN_LISTEN"], d.Server = "127.0.0.1:0", "127.0.0.1:0", "api"
	if when == whenBrokenOff {
		// The requests' grace is half of it, below the 3 s for which the server
		// lets a transaction idle.
		d.Env["BERTH_SHUTDOWN_WITHIN"] = "4s"
	}
	d.Start(t)
	d.AwaitReady(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*harness.Patience)
	defer cancel()
	type one struct {
		n        int
		happened func() bool
		call     func(ctx context.Context, url string) (int, []byte, error)
		reply    chan reply
	}
	var group []one
	for n := first; n <= last; n++ {
		o := one{n: n, reply: make(chan reply, 1)}
		o.call, o.happened = op.prepare(t, c, fmt.Sprintf("%d-%s", n, when[:4]))
		group = append(group, o)
	}
	var stops []*pgproxy.Stop
	for _, o := range group {
		stop := stopAtNth(proxy, o.n)
		stops = append(stops, stop)
		go func() {
			status, body, err := o.call(ctx, d.URL())
			o.reply <- reply{status, body, err}
		}()
		awaitHit(t, stop, fmt.Sprintf("%s at %d", op.name, o.n))
	}
	d.Terminate()
	endsWell(t, d, when, seen, stops...)
	for _, o := range group {
		r := <-o.reply
		done := o.happened()
		switch {
		case r.err == nil && r.status/100 == 2:
			answered++
			if !done {
				t.Errorf("%s at %d: answered %d, and nothing has happened", op.name, o.n, r.status)
			}
		case r.err == nil && r.status != http.StatusServiceUnavailable:
			t.Errorf("%s at %d: %d %s", op.name, o.n, r.status, r.body)
		}
		if done {
			happened++
		}
	}
	return answered, happened
}

// operations of clients and agents that write.
func operations() []operation {
	// ready makes a host with one device, and a task for it that is queued.
	ready := func(t *testing.T, c *harness.Cluster, key string) (*harness.Wire, client.Task) {
		t.Helper()
		label := strings.ToLower(strings.NewReplacer("/", ".", "_", "-").Replace(t.Name())) + "." + key
		label = label[len(label)-min(len(label), 50):]
		w := c.Enrol(t, "h"+fmt.Sprint(time.Now().UnixNano()))
		w.Sync(t, map[string]string{"slot": strings.Trim(label, ".")})
		spec := harness.Shell(t, "true")
		spec.Selector = "slot=" + strings.Trim(label, ".")
		return w, c.Submit(t, spec)
	}
	is := func(t *testing.T, c *harness.Cluster, id string, states ...client.TaskState) func() bool {
		return func() bool {
			got := harness.Task(t, c.Client, id).State
			for _, s := range states {
				if got == s {
					return true
				}
			}
			return false
		}
	}
	type caller = func(ctx context.Context, url string) (int, []byte, error)
	agentCall := func(w *harness.Wire, path string, in any) caller {
		return func(ctx context.Context, url string) (int, []byte, error) {
			return w.At(url).Call(ctx, http.MethodPost, path, in)
		}
	}
	return []operation{
		{"submit", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			name := "sigterm-" + key
			return func(ctx context.Context, url string) (int, []byte, error) {
					spec := harness.Shell(t, "true")
					spec.Name, spec.Selector = name, "slot=nowhere-"+key
					return userCall(ctx, c, url, "/api/v1/tasks", spec, "key-"+key)
				}, func() bool {
					return len(c.Query(t, "SELECT 1 FROM tasks WHERE name = '"+name+"'")) == 1
				}
		}},
		{"cancel", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			spec := harness.Shell(t, "true")
			spec.Selector = "slot=nowhere-to-cancel"
			task := c.Submit(t, spec)
			return func(ctx context.Context, url string) (int, []byte, error) {
				return userCall(ctx, c, url, "/api/v1/tasks/"+task.ID+"/cancel", nil, "")
			}, is(t, c, task.ID, client.TaskStateCancelled)
		}},
		{"claim", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			w, task := ready(t, c, key)
			harness.AwaitState(t, c.Client, task.ID, client.TaskStateAssigned, harness.Patience)
			return agentCall(w, protocol.PathClaims, protocol.ClaimRequest{ClaimID: newUUID(), Wait: 0, Max: 1}), is(t, c, task.ID, client.TaskStateClaimed)
		}},
		{"start", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			w, task := ready(t, c, key)
			a := w.Claim(t, 1)[0]
			return agentCall(w, protocol.PathStart, protocol.StartRequest{Items: []protocol.Holder{harness.Holder(a)}}), is(t, c, task.ID, client.TaskStateRunning)
		}},
		{"complete", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			w, task := ready(t, c, key)
			a := w.Claim(t, 1)[0]
			w.StartAttempt(t, a)
			return agentCall(w, protocol.PathComplete, harness.Completion(a, berth.OutcomeSucceeded)), is(t, c, task.ID, client.TaskStateSucceeded)
		}},
		{"heartbeat", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			w, _ := ready(t, c, key)
			seen := func() string {
				return c.Query(t, "SELECT last_seen_at FROM hosts WHERE id = '"+string(w.Host)+"'")[0][0]
			}
			before := seen()
			return agentCall(w, protocol.PathHeartbeat, protocol.HeartbeatRequest{}), func() bool { return seen() != before }
		}},
		{"sync", func(t *testing.T, c *harness.Cluster, key string) (caller, func() bool) {
			w, _ := ready(t, c, key)
			epoch := func() string { return c.Query(t, "SELECT epoch FROM hosts WHERE id = '"+string(w.Host)+"'")[0][0] }
			before := epoch()
			again := *w
			again.Epoch = 0
			return agentCall(&again, protocol.PathSync, harness.SyncRequest(map[string]string{"slot": "synced-again"})), func() bool { return epoch() != before }
		}},
	}
}
