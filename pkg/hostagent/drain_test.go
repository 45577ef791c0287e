package hostagent

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
)

// An operator's drain reaches the agent: it takes nothing more, finishes what
// runs, says that it drains, and takes work again when the drain is over.
func TestAnOperatorsDrain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(2)
	goFile := filepath.Join(t.TempDir(), "go")
	runs := w.submit("while [ ! -e " + goFile + " ]; do sleep 0.05; done")
	w.awaitState(runs, berth.StateRunning)
	drainHost := func(on bool) {
		_, _, err := w.store.DrainHost(t.Context(), berth.Daemon(berth.ActorSystem, "test"), w.last.id.HostID, on)
		must(t, err)
	}
	drainHost(true)
	await(t, "the agent says that it drains", func() bool { return w.host().Draining })
	waits := w.submit("exit 0")
	must(t, os.WriteFile(goFile, nil, 0o600))
	w.awaitState(runs, berth.StateSucceeded)
	if at := w.attempts(runs); len(at) != 1 {
		t.Errorf("what ran has %d attempts", len(at))
	}
	if task := w.task(waits); task.State != berth.StateQueued || len(w.attempts(waits)) != 0 {
		t.Errorf("the other task is %s", task.State)
	}
	drainHost(false)
	w.awaitState(waits, berth.StateSucceeded)
	await(t, "it says so", func() bool { return !w.host().Draining })
}

// What was placed before the server knew that the host drains is handed back at
// once, and that does not count against the task. One mechanism for a directive
// and for SIGTERM.
func TestDrainingHandsBackWhatWasAssigned(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(w *world, stop func() error){
		"directive": func(w *world, _ func() error) { w.last.setDrain("test", true) },
		"SIGTERM":   func(w *world, stop func() error) { must(w.t, stop()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Nothing but the agent ends the assignments.
			w := newWorld(t, func(tm *berth.Timings) { tm.ClaimWithin, tm.HostOfflineAfter = time.Hour, time.Hour })
			stop := w.agent(2)
			// The claim that waits now gets its answer, and the answer is lost: the
			// attempts are claimed and nobody knows.
			w.proxy.answered(func(r *http.Response) error {
				if r.Request.URL.Path == protocol.PathClaims {
					b, _ := io.ReadAll(r.Body)
					r.Body = io.NopCloser(bytes.NewReader(b))
					if bytes.Contains(b, []byte(`"payload"`)) && !w.last.draining() {
						return errLost
					}
				}
				return nil
			})
			var counted atomic.Bool
			w.proxy.show(func(r *http.Request) {
				var req protocol.ReleaseRequest
				if r.URL.Path == protocol.PathRelease {
					peek(r, &req)
					counted.Store(counted.Load() || !req.Draining)
				}
			})
			ids := []berth.TaskID{w.submit("true"), w.submit("true")}
			for _, id := range ids {
				await(t, "claimed", func() bool { at := w.attempts(id); return len(at) == 1 && at[0].State == berth.AttemptClaimed })
			}
			begin(w, stop)
			for _, id := range ids {
				await(t, "handed back", func() bool { return !w.attempts(id)[0].Live() })
				if at := w.attempts(id); len(at) != 1 || at[0].Outcome != berth.OutcomeReleased || at[0].Reason != reasonDraining {
					t.Errorf("attempts %+v", at)
				}
			}
			if counted.Load() {
				t.Error("the hand-backs count against the tasks")
			}
			if !w.host().Draining {
				t.Error("the server does not know that the host drains")
			}
		})
	}
}

// What waits for its device, and has not begun to start, goes back too.
func TestDrainingHandsBackWhatWaitsForItsDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(tm *berth.Timings) { tm.ClaimWithin, tm.HostOfflineAfter = time.Hour, time.Hour })
	w.agent(1)
	w.last.mu.Lock()
	dev := w.last.byKey["process/process-0"]
	w.last.mu.Unlock()
	dev.use <- struct{}{} // as if older work were not dead yet
	id := w.submit("true")
	await(t, "held", func() bool { return len(w.last.held()) == 1 })
	w.last.setDrain("test", true)
	await(t, "handed back", func() bool { return !w.attempts(id)[0].Live() })
	if at := w.attempts(id)[0]; at.Outcome != berth.OutcomeReleased || at.Reason != reasonDraining || at.State.Started() {
		t.Errorf("%+v", at)
	}
	<-dev.use
	w.last.setDrain("test", false)
	w.awaitState(id, berth.StateSucceeded)
}

// A drain that ends while the server is being told of it is told to be over at
// once: the claim that waits again holds nothing up.
func TestADrainThatEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent(1)
	polled := make(chan struct{}, 1)
	var told atomic.Bool
	w.proxy.show(func(r *http.Request) {
		switch r.URL.Path {
		case protocol.PathClaims:
			var req protocol.ClaimRequest
			if peek(r, &req); req.Wait > 0 && !w.last.draining() {
				select {
				case polled <- struct{}{}:
				default:
				}
			}
		case protocol.PathHeartbeat:
			var req protocol.HeartbeatRequest
			if peek(r, &req); req.Draining && told.CompareAndSwap(false, true) {
				w.last.setDrain("test", false)
				select {
				case <-polled:
				case <-r.Context().Done():
				}
			}
		}
	})
	w.last.setDrain("test", true)
	await(t, "the server was told", told.Load)
	began := time.Now()
	await(t, "the host takes work", func() bool { return !w.host().Draining })
	w.awaitState(w.submit("true"), berth.StateSucceeded)
	if took := time.Since(began); took > protocol.MaxClaimWait/2 {
		t.Errorf("it took %v", took)
	}
}

// Every answer of the server is lost once, after it did what was asked: the
// repeats give the same, and the task runs once.
func TestEveryAnswerIsLostOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var lost [8]atomic.Int32
	paths := []string{
		protocol.PathEnrol, protocol.PathToken, protocol.PathSync, protocol.PathHeartbeat, protocol.PathClaims,
		protocol.PathStart, protocol.PathRenew, protocol.PathComplete,
	}
	w.proxy.answered(func(r *http.Response) error {
		for i, path := range paths {
			if r.Request.URL.Path != path || r.StatusCode != http.StatusOK {
				continue
			}
			if path == protocol.PathClaims { // one that brings something
				b, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(b))
				if !bytes.Contains(b, []byte(`"payload"`)) {
					return nil
				}
			}
			if lost[i].Add(1) == 1 {
				return errLost
			}
		}
		return nil
	})
	w.agent(1)
	ran := filepath.Join(t.TempDir(), "ran")
	id := w.submit("echo x >> " + ran + "; sleep 1")
	w.awaitState(id, berth.StateSucceeded)
	b, err := os.ReadFile(ran)
	if at := w.attempts(id); err != nil || string(b) != "x\n" || len(at) != 1 {
		t.Errorf("it ran %d times in %d attempts, %v", bytes.Count(b, []byte("x")), len(at), err)
	}
	for i, path := range paths {
		// What an answer tells is in the database before the answer is on its way.
		await(t, "an answer of "+path+" was lost", func() bool { return lost[i].Load() > 0 })
	}
}

// A release whose answer is lost is repeated; one that came too late, because
// the start was committed and its answer lost, is reported as what it is.
func TestAStartWhoseAnswerIsLostCannotBeHandedBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.agent(1)
	var released atomic.Int32
	asked := make(chan struct{}, 1)
	w.proxy.answered(func(r *http.Response) error {
		switch r.Request.URL.Path {
		case protocol.PathStart:
			select {
			case asked <- struct{}{}:
			default:
			}
			return errLost
		case protocol.PathRelease:
			if released.Add(1) == 1 {
				return errLost
			}
		}
		return nil
	})
	ran := filepath.Join(t.TempDir(), "ran")
	id := w.submit("echo x >> "+ran, func(n *berth.NewTask) { n.Retry.MaxAttempts = 1 })
	<-asked
	must(t, stop())
	at := w.attempts(id)[0]
	if at.Outcome != berth.OutcomeInfraFailed || at.Reason != reasonAgentStopped || released.Load() < 2 {
		t.Errorf("ended as %s (%s) after %d releases", at.Outcome, at.Reason, released.Load())
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the work began without a granted start")
	}
}

// What the server asks for in Retry-After is kept to, within bounds, and not by
// everybody at the same instant.
func TestRetryAfterIsKept(t *testing.T) {
	t.Parallel()
	busy := &apiError{Problem: protocol.Problem{Status: 503, Code: protocol.CodeUnavailable}, retryAfter: 10 * time.Second}
	spread := map[time.Duration]bool{}
	for range 50 {
		d := pauseAfter(busy, time.Second, maxPause)
		spread[d] = true
		if d < 10*time.Second || d > 12*time.Second {
			t.Errorf("waits %v", d)
		}
	}
	if len(spread) < 10 {
		t.Errorf("only %d different pauses", len(spread))
	}
	if d := pauseAfter(busy, time.Second, 3*time.Second); d != 3*time.Second {
		t.Errorf("where it may not wait for longer: %v", d)
	}
	if d := pauseAfter(io.EOF, time.Second, maxPause); d < 800*time.Millisecond || d > 1200*time.Millisecond {
		t.Errorf("without an answer: %v", d)
	}
	w := newWorld(t)
	w.agent(1)
	var refusals atomic.Int32
	var first, second atomic.Int64
	w.proxy.answered(func(r *http.Response) error {
		if r.Request.URL.Path != protocol.PathStart {
			return nil
		}
		if refusals.Add(1) == 1 {
			first.Store(time.Now().UnixNano())
			b, _ := json.Marshal(protocol.Problem{Title: "busy", Status: 503, Code: protocol.CodeUnavailable})
			r.StatusCode, r.Status = http.StatusServiceUnavailable, ""
			r.Header.Set("Retry-After", "2")
			r.Header.Del("Content-Length")
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			return nil
		}
		second.CompareAndSwap(0, time.Now().UnixNano())
		return nil
	})
	id := w.submit("true")
	w.awaitState(id, berth.StateSucceeded)
	if gap := time.Duration(second.Load() - first.Load()); gap < 2*time.Second {
		t.Errorf("it came back after %v", gap)
	}
}
