package hostagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/demo"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/builtin"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/pkg/runtime/process"
	"github.com/berth-dev/berth/pkg/store"
)

// finishedAt waits until the journal says that an attempt's work is over.
func (w *world) finishedAt(id berth.AttemptID) time.Time {
	w.t.Helper()
	var at time.Time
	await(w.t, "the end is journaled", func() bool {
		records, err := ReadJournal(w.dir)
		must(w.t, err)
		i := slices.IndexFunc(records, func(r Record) bool { return r.Attempt == id && r.Stage == StageFinished })
		if i >= 0 {
			at = records[i].At
		}
		return i >= 0
	})
	return at
}

// A plugin and a device that cannot be stopped do not outlast the kill margin
// that the server's settings give: the attempt is over before its lease, its
// device is unclean, and nothing starts there before the work is really over.
func TestWhatCannotBeKilledIsUncleanBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	for name, hang := range map[string]func(*lab) (release func()){
		"a plugin that does not stop": func(l *lab) func() { return func() { close(l.mayEnd) } },
		"a device that does not close": func(l *lab) func() {
			l.obeys, l.closing = true, make(chan struct{})
			return func() { close(l.closing); close(l.mayEnd) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The work has 500 ms from the fence, and its lease 3 s more.
			w := newWorld(t, func(tm *berth.Timings) {
				tm.LeaseTTL, tm.FenceMargin, tm.KillMargin = 5*time.Second, 3500*time.Millisecond, 3*time.Second
			})
			w.enableLab()
			l := newLab(t, "a")
			release := hang(l)
			rt := l.runtime(w)
			var sent sync.Map
			w.proxy.show(func(r *http.Request) {
				if r.URL.Path == protocol.PathRenew || r.URL.Path == protocol.PathStart {
					sent.Store("last", time.Now())
				}
			})
			w.startOn(rt, rt.Close)
			id := w.submitLab()
			<-l.working
			w.awaitState(id, berth.StateRunning)
			first := w.attempts(id)[0]
			w.proxy.cut.Store(true)
			over := w.finishedAt(first.ID)
			last, _ := sent.Load("last")
			if lived := over.Sub(last.(time.Time)); lived > w.timings.LeaseTTL {
				t.Errorf("the run was over %v after the last renewal was sent, and its lease after %v", lived, w.timings.LeaseTTL)
			}
			w.proxy.cut.Store(false)
			await(t, "the end is reported", func() bool { return !w.attempts(id)[0].Live() })
			if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeInfraFailed || at.Reason != reasonFenced {
				t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
			}
			await(t, "the agent tried to clean it", func() bool { return w.said("cannot be cleaned") > 0 })
			if d := w.device("a"); !d.Unclean || len(w.attempts(id)) != 1 {
				t.Errorf("unclean: %v, %d attempts", d.Unclean, len(w.attempts(id)))
			}
			release()
			w.awaitState(id, berth.StateSucceeded)
			if at := w.attempts(id); len(at) != 2 {
				t.Errorf("%d attempts", len(at))
			}
		})
	}
}

// The bounds follow the settings of the last sync.
func TestTheTimeToStopFollowsTheSettings(t *testing.T) {
	s := func(fence, kill, cancel time.Duration) protocol.Settings {
		return protocol.Settings{FenceMargin: protocol.MillisOf(fence), KillMargin: protocol.MillisOf(kill), CancelWithin: protocol.MillisOf(cancel)}
	}
	h := &hold{stage: StageStarted}
	h.extend(10*time.Second, 60*time.Second) // the lease ends at 70 s
	h.extend(5*time.Second, 60*time.Second)  // an older answer that came late
	for _, c := range []struct {
		name     string
		settings protocol.Settings
		now      time.Duration
		overdue  bool
		within   time.Duration
	}{
		{"long before the fence", s(15*time.Second, 5*time.Second, 30*time.Second), 20 * time.Second, false, 10 * time.Second},
		{"at the fence", s(15*time.Second, 5*time.Second, 30*time.Second), 55 * time.Second, true, 10 * time.Second},
		{"seen late", s(15*time.Second, 5*time.Second, 30*time.Second), 62 * time.Second, true, 3 * time.Second},
		{"the machine slept", s(15*time.Second, 5*time.Second, 30*time.Second), time.Hour, true, tooLate},
		{"other settings", s(40*time.Second, 30*time.Second, 30*time.Second), 30 * time.Second, true, 10 * time.Second},
		{"a short cancel", s(40*time.Second, 20*time.Second, 4*time.Second), 20 * time.Second, false, 4 * time.Second},
		{"small ones", s(300*time.Millisecond, 100*time.Millisecond, time.Second), time.Hour, true, 200 * time.Millisecond},
	} {
		if got := h.overdue(c.now, c.settings.FenceMargin.Duration()); got != c.overdue {
			t.Errorf("%s: overdue is %v", c.name, got)
		}
		if got := h.stopWithin(c.now, c.settings); got != c.within {
			t.Errorf("%s: it has %v, want %v", c.name, got, c.within)
		}
	}
}

// A device that is pulled out takes its attempt with it, at once; the server
// knows that it is absent, and the other devices go on.
func TestADeviceThatIsUnpluggedInMidRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enableLab()
	l := newLab(t, "a", "b")
	l.obeys = true
	rt := l.runtime(w)
	w.startOn(rt, rt.Close)
	pin := func(n *berth.NewTask) {
		n.Requirement.Selector = berth.LabelDevice + "=" + string(w.device("a").ID)
	}
	id := w.submitLab(pin)
	<-l.working
	w.awaitState(id, berth.StateRunning)
	l.pull("a")
	await(t, "the attempt ended", func() bool { return !w.attempts(id)[0].Live() })
	if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeInfraFailed || at.Reason != string(runtime.CodeDeviceLost) {
		t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
	}
	await(t, "the server knows", func() bool { return !w.device("a").Present })
	if !w.device("b").Present {
		t.Error("the other device is gone too")
	}
	// A driver that cannot list its devices says nothing about them.
	other := w.submitLab()
	<-l.working
	l.blind.Store(true)
	await(t, "the driver was asked in vain", func() bool { return w.said("cannot list its devices") > 2 })
	if !w.device("b").Present || !w.attempts(other)[0].Live() {
		t.Error("a driver's fault made its device absent")
	}
	l.blind.Store(false)
	close(l.mayEnd)
	w.awaitState(other, berth.StateSucceeded)
	l.plug("a")
	w.awaitState(id, berth.StateSucceeded)
}

// A probe that hangs keeps neither heartbeats nor renewals from going out; its
// device is told to be suspect, every device in every heartbeat.
func TestProbesAreNotOnTheWayOfHeartbeatsAndRenewals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.enableLab()
	l := newLab(t, "a")
	rt := l.runtime(w)
	var healths sync.Map
	w.proxy.show(func(r *http.Request) {
		if r.URL.Path != protocol.PathHeartbeat {
			return
		}
		var req protocol.HeartbeatRequest
		peek(r, &req)
		for _, health := range req.Health {
			n, _ := healths.LoadOrStore(health, new(sync.Map))
			n.(*sync.Map).Store(time.Now(), true)
		}
	})
	seen := func(health berth.Health) (n int) {
		if times, ok := healths.Load(health); ok {
			times.(*sync.Map).Range(func(any, any) bool { n++; return true })
		}
		return n
	}
	w.startOn(rt, rt.Close)
	id := w.submitLab()
	<-l.working
	w.awaitState(id, berth.StateRunning)
	await(t, "the health is told again and again", func() bool { return seen(berth.HealthGood) >= 3 })
	probed := make(chan struct{})
	l.probing.Store(&probed)
	await(t, "the device is suspect", func() bool { return seen(berth.HealthSuspect) >= 3 })
	until := time.Now().Add(w.timings.LeaseTTL)
	await(t, "a lease's length passed", func() bool { return time.Now().After(until) })
	if h := w.host(); h.State != berth.HostOnline || !w.attempts(id)[0].Live() {
		t.Errorf("the host is %s, the attempt %+v", h.State, w.attempts(id)[0])
	}
	close(probed)
	close(l.mayEnd)
	w.awaitState(id, berth.StateSucceeded)
}

// peek decodes a request's body and leaves it as it was.
func peek(r *http.Request, out any) {
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, out)
	setBody(r, b)
}

func setBody(r *http.Request, b []byte) { r.Body, r.ContentLength = bodyOf(b), int64(len(b)) }

func bodyOf(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// Work that does its worst to the host ends as it should, and nothing of it
// lives on.
func TestWorkThatMisbehaves(t *testing.T) {
	w := newWorld(t, roomy)
	w.changeRuntime = func(c *builtin.Config) {
		c.Limits = runtime.Limits{LogBytes: 1 << 20}
		c.Process = process.Config{OutputBytes: 64 << 20, Grace: 300 * time.Millisecond}
	}
	w.agent(2)
	once := func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 }

	t.Run("floods its output", func(t *testing.T) {
		var before goruntime.MemStats
		goruntime.ReadMemStats(&before)
		var most uint64
		id := w.submit("yes 'all work and no play'", once)
		await(t, "it ends", func() bool {
			var now goruntime.MemStats
			goruntime.ReadMemStats(&now)
			most = max(most, now.HeapInuse)
			return w.task(id).State.Finished()
		})
		at := w.attempts(id)[0]
		if at.Outcome != berth.OutcomeFailed || at.Reason != string(runtime.CodeOutputLimit) {
			t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
		}
		if at.LogBytes < 1<<20 || at.LogBytes > 1<<20+200 {
			t.Errorf("its log has %d bytes", at.LogBytes)
		}
		if grown := int64(most) - int64(before.HeapInuse); grown > 48<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
	})

	t.Run("prints what is no text", func(t *testing.T) {
		id := w.submit("head -c 300000 /dev/urandom; printf '\\000\\377\\033[2J no newline'", once)
		w.awaitState(id, berth.StateSucceeded)
		if at := w.attempts(id)[0]; at.LogBytes != 300000+2+4+11 {
			t.Errorf("its log has %d bytes", at.LogBytes)
		}
	})

	t.Run("ignores SIGTERM, forks and leaves its session", func(t *testing.T) {
		dir := t.TempDir()
		id := w.submit(fmt.Sprintf(`trap '' TERM INT HUP
			for i in 1 2 3; do setsid sh -c "trap '' TERM; echo \$\$ > %[1]s/\$0; while :; do sleep 0.1; done" s$i & done
			sh -c "trap '' TERM; echo \$\$ > %[1]s/child; while :; do sleep 0.1; done" &
			echo $$ > %[1]s/self
			while :; do sleep 0.1; done`, dir))
		var pids []int
		for _, name := range []string{"s1", "s2", "s3", "child", "self"} {
			pids = append(pids, pidOf(t, filepath.Join(dir, name)))
		}
		w.awaitState(id, berth.StateRunning)
		_, _, err := w.store.CancelTask(t.Context(), store.TaskParams{Task: id, Scope: berth.Scope{All: true}, Actor: berth.Daemon(berth.ActorSystem, "test")})
		must(t, err)
		w.awaitState(id, berth.StateCancelled)
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("process %d lives on", pid)
			}
		}
		if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeCancelled {
			t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
		}
	})
}

// Work that takes all of the processor does not keep leases from being renewed,
// also where this process may use one thread at a time.
func TestAStarvedProcessorDoesNotStopRenewals(t *testing.T) {
	w := newWorld(t)
	w.agent(1)
	before := goruntime.GOMAXPROCS(1)
	defer goruntime.GOMAXPROCS(before)
	var mu sync.Mutex
	var renewals []time.Time
	w.proxy.show(func(r *http.Request) {
		if r.URL.Path == protocol.PathRenew {
			mu.Lock()
			renewals = append(renewals, time.Now())
			mu.Unlock()
		}
	})
	pidFile := filepath.Join(t.TempDir(), "pid")
	goFile := filepath.Join(t.TempDir(), "go")
	loops := 16 * goruntime.NumCPU()
	id := w.submit(fmt.Sprintf(`for i in $(seq %d); do (while [ ! -e %s ]; do :; done) & done; echo $$ > %s; wait`, loops, goFile, pidFile),
		func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	pid := pidOf(t, pidFile)
	if own, child := nice(t, 0), nice(t, pid); child <= own {
		t.Errorf("the work's niceness is %d, the agent's %d", child, own)
	}
	began := time.Now()
	await(t, "a lease's length passed", func() bool { return time.Since(began) > w.timings.LeaseTTL+time.Second })
	must(t, os.WriteFile(goFile, nil, 0o600))
	w.awaitState(id, berth.StateSucceeded)
	mu.Lock()
	defer mu.Unlock()
	fence := w.timings.LeaseTTL - w.timings.FenceMargin
	for i := 1; i < len(renewals); i++ {
		if gap := renewals[i].Sub(renewals[i-1]); gap > fence {
			t.Errorf("no renewal for %v, the fence is at %v", gap, fence)
		}
	}
	if len(renewals) < 3 || len(w.attempts(id)) != 1 {
		t.Errorf("%d renewals, %d attempts", len(renewals), len(w.attempts(id)))
	}
}

func nice(t *testing.T, pid int) int {
	t.Helper()
	raised, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
	must(t, err)
	return 20 - raised
}

// A browser that is killed costs the attempt, not the device: the next task runs
// on it.
func TestABrowserThatIsKilledInMidRun(t *testing.T) {
	site := httptest.NewServer(demo.Handler())
	defer site.Close()
	w := newWorld(t, roomy, func(tm *berth.Timings) { tm.HostOfflineAfter = 20 * time.Second })
	w.changeRuntime = func(c *builtin.Config) {
		c.ProcessSlots, c.BrowserContexts = 0, 1
		c.Chromium = chromium.Config{Policy: chromium.Policy{AllowLoopback: true}}
	}
	w.agent(0)
	browse := func(steps ...map[string]any) berth.TaskID {
		payload, err := json.Marshal(map[string]any{"steps": append([]map[string]any{{"goto": map[string]any{"url": site.URL + "/"}}}, steps...)})
		must(t, err)
		return w.submit("", func(n *berth.NewTask) {
			n.Requirement = berth.Requirement{Plugin: manifest.BrowserScriptName}
			n.Payload, n.Retry.MaxAttempts = redact.NewBytes(payload), 1
		})
	}
	id := browse(map[string]any{"wait": map[string]any{"text": "never there"}, "timeout_ms": 120000})
	await(t, "the page is open", func() bool { at := w.attempts(id); return len(at) == 1 && at[0].LogBytes > 0 })
	must(t, syscall.Kill(browserOf(t), syscall.SIGKILL))
	w.awaitState(id, berth.StateDeadLetter)
	if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeInfraFailed || at.Reason != string(runtime.CodeDeviceLost) {
		t.Errorf("ended as %s (%s)", at.Outcome, at.Reason)
	}
	w.awaitState(browse(), berth.StateSucceeded)
}

// browserOf finds the browser among this process's children.
func browserOf(t *testing.T) int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	must(t, err)
	for _, path := range tasks {
		b, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(b)) {
			if line, _ := os.ReadFile("/proc/" + field + "/cmdline"); strings.Contains(string(line), "--remote-debugging-pipe") {
				pid, err := strconv.Atoi(field)
				must(t, err)
				return pid
			}
		}
	}
	t.Fatal("no browser")
	return 0
}
