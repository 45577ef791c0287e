package hostagent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/httpserver"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/leasekeeper"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/scheduler"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/store/sqlite"
)

func TestMain(m *testing.M) {
	if os.Getenv(killedAt) != "" {
		fmt.Fprintln(os.Stderr, "not killed:", runUntilKilled())
		os.Exit(1)
	}
	code := m.Run()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// quick are timings with the same order as the default ones, fast enough for
// tests. Between two renewals lie 300 ms, and a busy machine may stand still for
// 6 s before an agent fences itself, which then has 3 s to kill.
func quick() berth.Timings {
	return berth.Timings{
		LeaseTTL: 10 * time.Second, RenewEvery: 300 * time.Millisecond, RequestTimeout: 500 * time.Millisecond,
		FenceMargin: 4 * time.Second, KillMargin: time.Second, ReapGrace: 500 * time.Millisecond,
		ClaimWithin: 10 * time.Second, HostOfflineAfter: 10 * time.Second, HeartbeatEvery: 300 * time.Millisecond, CancelWithin: 6 * time.Second,
	}
}

// roomy leaves what is killed 10 s to die in, on a machine that is busy.
func roomy(t *berth.Timings) {
	t.LeaseTTL, t.FenceMargin, t.KillMargin, t.CancelWithin = 20*time.Second, 12*time.Second, 2*time.Second, 20*time.Second
}

// world is a real control plane on SQLite, and a place for an agent.
type world struct {
	t       *testing.T
	store   *sqlite.Store
	blobs   blob.Store
	server  *httptest.Server
	proxy   *cuttable
	timings berth.Timings
	dir     string
	logs    *observer.ObservedLogs
	log     *zap.Logger
	token   redact.String
	pool    berth.Pool
	last    *Agent // the one that was started last
	// change is applied to the configuration of agents and of their Runtimes.
	change        func(*Config)
	changeRuntime func(*builtin.Config)
}

// cuttable is a proxy between agent and server that can be cut, and that shows
// each request to a test before it goes on.
type cuttable struct {
	*httptest.Server
	cut     atomic.Bool
	seen    atomic.Pointer[func(*http.Request)]
	answers atomic.Pointer[func(*http.Response) error]
}

func (c *cuttable) show(f func(*http.Request)) { c.seen.Store(&f) }

// answered shows each answer to a test, which may change it. An error loses it.
func (c *cuttable) answered(f func(*http.Response) error) { c.answers.Store(&f) }

// errLost loses an answer after the server gave it.
var errLost = errors.New("the answer is lost")

// lose breaks the connection off.
func lose(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

func newWorld(t *testing.T, change ...func(*berth.Timings)) *world {
	t.Helper()
	w := &world{t: t, timings: quick(), dir: t.TempDir()}
	for _, c := range change {
		c(&w.timings)
	}
	core, logs := observer.New(zap.DebugLevel)
	w.logs, w.log = logs, zap.New(core)
	path := filepath.Join(t.TempDir(), "berth.db")
	must(t, schema.Up(t.Context(), "sqlite://"+path))
	st, err := sqlite.Open(t.Context(), path, store.Options{Timings: w.timings})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	w.store = st
	blobs, err := blob.OpenDirectory(filepath.Join(t.TempDir(), "blobs"))
	must(t, err)
	w.blobs = blobs
	master, err := identity.ParseMasterKey(strings.Repeat("ab", 32))
	must(t, err)
	ids, err := identity.New(st, st, identity.Config{MasterKey: master})
	must(t, err)
	must(t, ids.Open(t.Context()))
	drain := httpserver.NewDrain()
	api, err := agentapi.New(agentapi.Config{Store: st, Blobs: blobs, Identity: ids, Timings: w.timings, Drain: drain, PollEvery: 50 * time.Millisecond, Logger: w.log})
	must(t, err)
	e := httpserver.New(httpserver.Options{Kinds: api.Kinds()})
	must(t, api.Register(e))
	w.server = httptest.NewServer(e)
	t.Cleanup(func() { drain.Begin(); w.server.Close() })
	w.proxy = newCuttable(t, w.server.URL)
	w.setUp()
	w.startWorkers()
	return w
}

func newCuttable(t *testing.T, target string) *cuttable {
	u, err := url.Parse(target)
	must(t, err)
	c := &cuttable{}
	rp := httputil.NewSingleHostReverseProxy(u)
	rp.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		if errors.Is(err, errLost) {
			lose(w)
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}
	rp.ModifyResponse = func(r *http.Response) error {
		if f := c.answers.Load(); f != nil {
			return (*f)(r)
		}
		return nil
	}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.cut.Load() {
			lose(w)
			return
		}
		if f := c.seen.Load(); f != nil {
			(*f)(r)
		}
		rp.ServeHTTP(w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (w *world) setUp() {
	ctx, actor := w.t.Context(), berth.Daemon(berth.ActorSystem, "test")
	var plugins []berth.Plugin
	for _, m := range manifest.Builtins() {
		plugins = append(plugins, berth.Plugin{PluginVersion: berth.PluginVersion{Name: m.Name, Version: m.Version}, Enabled: true, Schema: m.Schema, ResultSchema: m.ResultSchema, Requires: m.Selector()})
	}
	must(w.t, w.store.RegisterPlugins(ctx, actor, plugins))
	pool, err := w.store.GetPool(ctx, berth.DefaultPool)
	must(w.t, err)
	w.pool = pool
	token, hash, err := identity.NewEnrolmentToken()
	must(w.t, err)
	_, err = w.store.CreateEnrolment(ctx, store.CreateEnrolmentParams{Actor: actor, ID: berth.EnrolmentID(uuid.Must(uuid.NewV7()).String()), Pool: pool.ID, Pattern: "*", TokenHash: hash, TTL: time.Hour})
	must(w.t, err)
	w.token = token
}

// startWorkers runs scheduler and leasekeeper rounds until the test ends.
func (w *world) startWorkers() {
	sched := scheduler.New(scheduler.Config{Store: w.store})
	keep := leasekeeper.New(leasekeeper.Config{Store: w.store})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				_ = sched.PlaceOnce(ctx)
				_ = sched.PromoteOnce(ctx)
				_ = keep.ReapOnce(ctx)
				_ = keep.SilentHostsOnce(ctx)
			}
		}
	}()
	w.t.Cleanup(func() { stop(); <-done })
}

// agent starts an agent on the world's state directory and waits for its sync;
// the returned function stops it and gives Run's error.
func (w *world) agent(slots int) (stop func() error) {
	w.t.Helper()
	stop, _ = w.start(slots)
	return stop
}

// start is agent, with a channel that is closed when Run returned.
func (w *world) start(slots int) (stop func() error, ended <-chan struct{}) {
	w.t.Helper()
	c := builtin.Config{StateDir: w.dir, ProcessSlots: slots, Logger: w.log}
	if w.changeRuntime != nil {
		w.changeRuntime(&c)
	}
	rt, err := builtin.New(w.t.Context(), c)
	must(w.t, err)
	return w.startOn(rt.Runtime, rt.Close)
}

// startOn starts an agent on a Runtime that is closed with it.
func (w *world) startOn(rt *runtime.Runtime, closing func() error) (stop func() error, ended <-chan struct{}) {
	w.t.Helper()
	c := Config{Server: w.proxy.URL, StateDir: w.dir, Name: "host-1", EnrolmentToken: w.token, Runtime: rt, Version: "test", Logger: w.log, StopWithin: 5 * time.Second}
	if w.change != nil {
		w.change(&c)
	}
	a, err := New(c)
	must(w.t, err)
	w.last = a
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var result error
	go func() {
		defer close(done)
		result = a.Run(ctx)
	}()
	stop = func() error {
		cancel()
		<-done
		must(w.t, closing())
		return result
	}
	w.t.Cleanup(func() { _ = stop() })
	select {
	case <-a.Synced():
	case <-done:
		w.t.Fatalf("the agent ended: %v", result)
	case <-time.After(20 * time.Second):
		w.t.Fatal("the agent did not sync")
	}
	return stop, done
}

// submit queues a task that runs sh -c script.
func (w *world) submit(script string, change ...func(*berth.NewTask)) berth.TaskID {
	w.t.Helper()
	payload, err := json.Marshal(map[string]any{"command": []string{"sh", "-c", script}})
	must(w.t, err)
	task := berth.NewTask{
		ID: berth.TaskID(uuid.Must(uuid.NewV7()).String()), Pool: w.pool.ID, Requirement: berth.Requirement{Plugin: manifest.ProcessRunName},
		Payload: redact.NewBytes(payload), Retry: berth.DefaultRetryPolicy(),
	}
	task.Retry.Initial, task.Retry.Max = 50*time.Millisecond, 50*time.Millisecond
	for _, c := range change {
		c(&task)
	}
	var f berth.Faults
	task.Normalise("", time.Now(), &f)
	must(w.t, f.Err())
	_, err = w.store.SubmitTasks(w.t.Context(), store.SubmitParams{
		Actor: berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "u"}}, Scope: berth.Scope{All: true}, Tasks: []berth.NewTask{task}, BodyDigest: sha256.Sum256(payload), CorrelationID: "corr-" + string(task.ID),
	})
	must(w.t, err)
	return task.ID
}

func (w *world) task(id berth.TaskID) berth.Task {
	w.t.Helper()
	task, err := w.store.GetTask(w.t.Context(), berth.Scope{All: true}, id)
	must(w.t, err)
	return task
}

// await polls until the condition holds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (w *world) awaitState(id berth.TaskID, want berth.TaskState) berth.Task {
	w.t.Helper()
	var last berth.Task
	await(w.t, fmt.Sprintf("task in %s", want), func() bool {
		last = w.task(id)
		if last.State.Finished() && last.State != want {
			w.t.Fatalf("task ended as %s (%s), want %s", last.State, last.FinalReason, want)
		}
		return last.State == want
	})
	return last
}

func (w *world) attempts(id berth.TaskID) []berth.Attempt {
	w.t.Helper()
	out, err := w.store.ListAttempts(w.t.Context(), berth.Scope{All: true}, id)
	must(w.t, err)
	return out
}

// pidOf waits for a file with a process id.
func pidOf(t *testing.T, path string) int {
	t.Helper()
	var pid int
	await(t, "a pid in "+path, func() bool {
		b, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && pid > 0
	})
	return pid
}

// alive reports whether a process lives; a zombie does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestRunsATaskAndKeepsItsLogAndFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(2)
	const mark = "mark-5531"
	id := w.submit("echo hello "+mark+"; exit 0", func(n *berth.NewTask) { n.Name = "t" })
	w.awaitState(id, berth.StateSucceeded)
	at := w.attempts(id)
	if len(at) != 1 || at[0].Outcome != berth.OutcomeSucceeded || at[0].LogBytes == 0 {
		t.Fatalf("attempts %+v", at)
	}
	for _, e := range w.logs.All() {
		if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), mark) {
			t.Errorf("the log has content: %s", e.Message)
		}
	}
	await(t, "the journal has all stages", func() bool {
		records, err := ReadJournal(w.dir)
		must(t, err)
		var stages []Stage
		for _, r := range records {
			if r.Attempt == at[0].ID {
				stages = append(stages, r.Stage)
			}
		}
		return fmt.Sprint(stages) == "[claimed starting started finished done]"
	})
	await(t, "the run's files are removed", func() bool {
		left, err := os.ReadDir(filepath.Join(w.dir, "runs"))
		return err == nil && len(left) == 0
	})
}

func TestFailuresAreTriedAgainAndDeadLettered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	id := w.submit("exit 3", func(n *berth.NewTask) { n.Retry.MaxAttempts = 2 })
	task := w.awaitState(id, berth.StateDeadLetter)
	at := w.attempts(id)
	if task.FinalReason != berth.ReasonNoTriesLeft || len(at) != 2 || at[1].Outcome != berth.OutcomeFailed || at[1].Reason != "exit_code" {
		t.Errorf("%s; attempts %+v", task.FinalReason, at)
	}
}

func TestCancelKillsTheProcessTree(t *testing.T) {
	t.Parallel()
	w := newWorld(t, roomy)
	w.agent(1)
	pidFile := filepath.Join(t.TempDir(), "pid")
	id := w.submit("trap '' TERM; sleep 600 & echo $! > " + pidFile + "; wait")
	pid := pidOf(t, pidFile)
	w.awaitState(id, berth.StateRunning)
	_, _, err := w.store.CancelTask(t.Context(), store.TaskParams{Task: id, Scope: berth.Scope{All: true}, Actor: berth.Daemon(berth.ActorSystem, "test")})
	must(t, err)
	w.awaitState(id, berth.StateCancelled)
	if alive(pid) {
		t.Error("the process outlived its task")
	}
	if at := w.attempts(id); at[0].Outcome != berth.OutcomeCancelled {
		t.Errorf("outcome %s", at[0].Outcome)
	}
}

func TestFencesItselfBeforeTheLeaseEndsAndReportsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	pidFile := filepath.Join(t.TempDir(), "pid")
	id := w.submit("echo $$ > "+pidFile+"; exec sleep 600", func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	pid := pidOf(t, pidFile)
	w.awaitState(id, berth.StateRunning)
	at := w.attempts(id)[0]
	w.proxy.cut.Store(true)
	await(t, "the work is dead", func() bool { return !alive(pid) })
	// Whoever acts next on the device must find it untouched: the keeper acts
	// at expiry + grace, so the attempt is live still.
	if now := w.attempts(id)[0]; !now.Live() {
		t.Fatalf("the work outlived its lease: %+v", now)
	}
	w.proxy.cut.Store(false)
	await(t, "the attempt ended", func() bool { return !w.attempts(id)[0].Live() })
	if now := w.attempts(id)[0]; now.ID != at.ID || now.Outcome != berth.OutcomeInfraFailed || now.Reason != reasonFenced {
		t.Errorf("ended as %s (%s)", now.Outcome, now.Reason)
	}
}

func TestAnAttemptTheServerEndedIsKilledAndItsDeviceProvedClean(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	pidFile := filepath.Join(t.TempDir(), "pid")
	id := w.submit("echo $$ >> " + pidFile + "; exec sleep 2")
	first := pidOf(t, pidFile)
	w.awaitState(id, berth.StateRunning)
	w.proxy.cut.Store(true)
	await(t, "the keeper reaped", func() bool { return !w.attempts(id)[0].Live() })
	w.proxy.cut.Store(false)
	// The device was unclean; the second attempt runs on it once it is proved.
	w.awaitState(id, berth.StateSucceeded)
	at := w.attempts(id)
	if alive(first) || len(at) < 2 || at[0].Outcome != berth.OutcomeTimedOut || at[1].Fence <= at[0].Fence {
		t.Errorf("attempts %+v", at)
	}
}

func TestStoppingReportsWhatRanAndHandsBackTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t, roomy)
	stop := w.agent(1)
	pidFile := filepath.Join(t.TempDir(), "pid")
	id := w.submit("echo $$ > " + pidFile + "; exec sleep 600")
	pid := pidOf(t, pidFile)
	must(t, stop())
	if alive(pid) {
		t.Error("the work outlived the agent")
	}
	at := w.attempts(id)
	if at[0].Outcome != berth.OutcomeInfraFailed || at[0].Reason != reasonAgentStopped {
		t.Errorf("ended as %s (%s)", at[0].Outcome, at[0].Reason)
	}
	// The next process of the host has a higher epoch and goes on.
	must(t, os.WriteFile(pidFile, nil, 0o600))
	w.agent(1)
	second := pidOf(t, pidFile)
	if second == pid {
		t.Error("no second attempt")
	}
}

func TestAnEndThatCouldNotBeReportedIsReportedByTheNextProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(tm *berth.Timings) { tm.LeaseTTL = time.Minute })
	stop := w.agent(1)
	goFile := filepath.Join(t.TempDir(), "go")
	id := w.submit("while [ ! -e "+goFile+" ]; do sleep 0.05; done; echo late line", func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	w.awaitState(id, berth.StateRunning)
	w.proxy.cut.Store(true)
	must(t, os.WriteFile(goFile, nil, 0o600))
	await(t, "the end is journaled", func() bool {
		records, err := ReadJournal(w.dir)
		must(t, err)
		for _, r := range records {
			if r.Stage == StageFinished {
				return true
			}
		}
		return false
	})
	must(t, stop())
	w.proxy.cut.Store(false)
	w.agent(1)
	w.awaitState(id, berth.StateSucceeded)
	if at := w.attempts(id); len(at) != 1 || at[0].LogBytes == 0 {
		t.Errorf("attempts %+v", at)
	}
}

func TestANewerAgentEndsTheOlder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop, ended := w.start(1)
	pidFile := filepath.Join(t.TempDir(), "pid")
	w.submit("echo $$ > " + pidFile + "; exec sleep 600")
	pid := pidOf(t, pidFile)
	other := *w
	other.dir = t.TempDir()
	for _, f := range []string{"host.json", "host-key.pem"} {
		b, err := os.ReadFile(filepath.Join(w.dir, f))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(other.dir, f), b, 0o600))
	}
	(&other).agent(1)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the older agent goes on")
	}
	if alive(pid) {
		t.Error("the older agent's work goes on")
	}
	if err := stop(); !errors.Is(err, berth.ErrStaleEpoch) {
		t.Errorf("the older agent ended with %v", err)
	}
}

func TestNotEnrolledSaysWhatToDo(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, ln.Close())
	rt, err := builtin.New(t.Context(), builtin.Config{StateDir: t.TempDir(), ProcessSlots: 1})
	must(t, err)
	defer func() { must(t, rt.Close()) }()
	a, err := New(Config{Server: "http://" + ln.Addr().String(), StateDir: t.TempDir(), Name: "h", Runtime: rt.Runtime})
	must(t, err)
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "berth host enrol") {
		t.Errorf("err = %v", err)
	}
	if _, err := New(Config{Server: "berth.example.com", StateDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "https://") {
		t.Errorf("err = %v", err)
	}
}

func TestARelativeStateDirectoryWorks(t *testing.T) {
	w := newWorld(t)
	t.Chdir(t.TempDir())
	w.dir = "state"
	w.agent(1)
	w.awaitState(w.submit("exit 0", func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 }), berth.StateSucceeded)
}

func TestARefusedEnrolmentSaysWhichFieldAndWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt, err := builtin.New(t.Context(), builtin.Config{StateDir: t.TempDir(), ProcessSlots: 1})
	must(t, err)
	defer func() { must(t, rt.Close()) }()
	a, err := New(Config{Server: w.proxy.URL, StateDir: t.TempDir(), Name: "Not A Name", EnrolmentToken: w.token, Runtime: rt.Runtime})
	must(t, err)
	if err := a.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "the server refused the enrolment: name: ") {
		t.Errorf("err = %v", err)
	}
}

// Whoever looks for why a host is gone finds it in its agent's last line.
func TestARevokedHostsAgentEndsWithTheReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop, ended := w.start(1)
	_, _, err := w.store.RevokeHost(t.Context(), berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: "op"}}, w.last.id.HostID)
	must(t, err)
	w.last.askSync()
	<-ended
	var setup *berth.SetupError
	if err := stop(); !errors.As(err, &setup) || !strings.Contains(setup.What, "it was revoked") || !strings.Contains(setup.Remedy, "new enrolment token") {
		t.Errorf("it ended with %v", err)
	}
}
