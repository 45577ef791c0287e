package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal collects what happened, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, s)
}

func (j *journal) part(name string, startErr error) Component {
	return Component{
		Name:  name,
		Start: func(context.Context) error { j.add("start " + name); return startErr },
		Stop:  func(context.Context) error { j.add("stop " + name); return nil },
	}
}

func TestRunStartsInOrderAndStopsInReverse(t *testing.T) {
	var j journal
	ctx, cancel := context.WithCancel(t.Context())
	err := Run(ctx, Config{Components: []Component{j.part("a", nil), j.part("b", nil)}, Started: cancel})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"start a", "start b", "stop b", "stop a"}; !slices.Equal(j.lines, want) {
		t.Fatalf("%q", j.lines)
	}
}

func TestRunEndsOnSIGTERM(t *testing.T) {
	var j journal
	err := Run(t.Context(), Config{Components: []Component{j.part("a", nil)}, Started: func() {
		if err := syscall.Kill(syscall.Getpid(), syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	}})
	if err != nil || !slices.Equal(j.lines, []string{"start a", "stop a"}) {
		t.Fatalf("%v, %q", err, j.lines)
	}
}

func TestAFailedStartStopsWhatWasStarted(t *testing.T) {
	var j journal
	boom := errors.New("boom")
	err := Run(t.Context(), Config{Components: []Component{j.part("a", nil), j.part("b", boom), j.part("c", nil)}})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "start b") {
		t.Fatalf("%v", err)
	}
	if want := []string{"start a", "start b", "stop a"}; !slices.Equal(j.lines, want) {
		t.Fatalf("%q", j.lines)
	}
}

func TestAComponentThatFailsEndsTheDaemon(t *testing.T) {
	var j journal
	failed := make(chan error, 1)
	part := j.part("b", nil)
	part.Failed = failed
	err := Run(t.Context(), Config{Components: []Component{j.part("a", nil), part}, Started: func() { failed <- io.ErrUnexpectedEOF }})
	if !errors.Is(err, io.ErrUnexpectedEOF) || !slices.Equal(j.lines[2:], []string{"stop b", "stop a"}) {
		t.Fatalf("%v %q", err, j.lines)
	}
}

func TestWhatHangsIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := Component{Name: "stuck", Start: func(context.Context) error { return nil }, Stop: func(context.Context) error { <-release; return nil }}
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		err := Run(ctx, Config{Components: []Component{stuck}, Started: cancel})
		if !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), "stuck") {
			t.Fatalf("%v", err)
		}
		if waited := time.Since(begun); waited != DefaultShutdownWithin {
			t.Fatalf("waited %v", waited)
		}
		close(release)
	})
}

func TestLoopGoesOnAfterErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.DebugLevel)
		registry := prometheus.NewRegistry()
		var at []time.Duration
		begun := time.Now()
		ends := []func() error{
			func() error { return errors.New("database unavailable") },
			func() error { panic(errors.New("boom")) },
			func() error { return errors.New("again") },
			func() error { return nil },
			func() error { return nil },
		}
		enough := make(chan struct{})
		l := NewLoop(LoopConfig{
			Name: "t", Interval: time.Second, MaxBackoff: 3 * time.Second, Log: zap.New(core), Metrics: NewLoopMetrics(registry),
			RunOnce: func(context.Context) error {
				at = append(at, time.Since(begun))
				if len(at) == len(ends) {
					close(enough)
				}
				return ends[min(len(at), len(ends))-1]()
			},
		})
		start(t, l)
		<-enough
		stopLoop(t, l)
		want := []time.Duration{0, 2 * time.Second, 5 * time.Second, 8 * time.Second, 9 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("rounds at %v, want %v", at, want)
		}
		if got := counts(t, registry); got["error"] != 2 || got["panic"] != 1 || got["ok"] != 2 {
			t.Errorf("counted %v", got)
		}
		if logs.FilterMessage("round failed").Len() != 2 || logs.FilterMessage("round panicked").Len() != 1 {
			t.Errorf("logged %v", logs.All())
		}
	})
}

func TestNoRoundWhileTheGateIsShut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var code atomic.Value
		code.Store("schema_behind")
		var rounds atomic.Int32
		wake := make(chan struct{}, 1)
		core, logs := observer.New(zap.DebugLevel)
		l := NewLoop(LoopConfig{
			Name: "t", Interval: time.Second, Wake: wake, Log: zap.New(core),
			Gate:    func(context.Context) string { return code.Load().(string) },
			RunOnce: func(context.Context) error { rounds.Add(1); return nil },
		})
		start(t, l)
		wake <- struct{}{}
		time.Sleep(10*time.Second + time.Millisecond) // synctest's clock
		if rounds.Load() != 0 {
			t.Fatalf("%d rounds behind a shut gate", rounds.Load())
		}
		if n := logs.FilterMessage("rounds wait").Len(); n != 1 {
			t.Fatalf("logged %d times that rounds wait", n)
		}
		<-wake
		code.Store("")
		time.Sleep(time.Second)
		if rounds.Load() != 1 {
			t.Fatalf("%d rounds after the gate opened", rounds.Load())
		}
		code.Store("schema_ahead")
		time.Sleep(3 * time.Second)
		if rounds.Load() != 1 {
			t.Fatalf("%d rounds after the gate shut again", rounds.Load())
		}
		stopLoop(t, l)
	})
}

func TestWakeAndJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wake := make(chan struct{}, 1)
		rounds := make(chan time.Time, 100)
		l := NewLoop(LoopConfig{
			Name: "t", Interval: time.Second, Jitter: 0.2, Wake: wake,
			RunOnce: func(context.Context) error { rounds <- time.Now(); return nil },
		})
		start(t, l)
		last := <-rounds
		wake <- struct{}{}
		if at := <-rounds; at != last {
			t.Fatalf("woken after %v", at.Sub(last))
		} else {
			last = at
		}
		for range 50 {
			at := <-rounds
			if d := at.Sub(last); d < 800*time.Millisecond || d > 1200*time.Millisecond {
				t.Fatalf("interval %v", d)
			}
			last = at
		}
		stopLoop(t, l)
	})
}

func TestStopLetsARoundEndThenCancelsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		entered := make(chan struct{})
		var cancelledAfter time.Duration
		l := NewLoop(LoopConfig{Name: "t", Interval: time.Second, RunOnce: func(ctx context.Context) error {
			close(entered)
			begun := time.Now()
			<-ctx.Done()
			cancelledAfter = time.Since(begun)
			return ctx.Err()
		}})
		start(t, l)
		<-entered
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Stop(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("first stop: %v", err)
		}
		stopLoop(t, l)
		stopLoop(t, l) // twice is fine
		if cancelledAfter != DefaultRoundGrace {
			t.Fatalf("cancelled after %v", cancelledAfter)
		}
		if err := l.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDisabledAndNeverStartedLoops(t *testing.T) {
	l := NewLoop(LoopConfig{Name: "t", Interval: time.Second, Disabled: true, RunOnce: func(context.Context) error { t.Error("ran"); return nil }})
	start(t, l)
	stopLoop(t, l)
	stopLoop(t, NewLoop(LoopConfig{Name: "never"}))
	if err := NewLoop(LoopConfig{Name: "empty"}).Start(t.Context()); err == nil {
		t.Error("a loop without RunOnce started")
	}
}

func TestReadinessIsCachedAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := NewReadiness(func(context.Context) string { asked.Add(1); time.Sleep(10 * time.Millisecond); return "schema_dirty" }, "database_unreachable")
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if code := r.Code(t.Context()); code != "schema_dirty" {
					t.Errorf("code %q", code)
				}
			})
		}
		all.Wait()
		time.Sleep(900 * time.Millisecond)
		r.Code(t.Context())
		if asked.Load() != 1 {
			t.Fatalf("asked %d times", asked.Load())
		}
		time.Sleep(200 * time.Millisecond)
		r.Code(t.Context())
		if asked.Load() != 2 {
			t.Fatalf("asked %d times", asked.Load())
		}
		r.Stopping()
		if code := r.Code(t.Context()); code != CodeStopping {
			t.Fatalf("code %q", code)
		}
	})
}

func TestReadinessAnswersWhenItsGateHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := NewReadiness(func(context.Context) string { <-release; return "" }, "database_unreachable")
		begun := time.Now()
		if code := r.Code(t.Context()); code != "database_unreachable" || time.Since(begun) != readinessLimit {
			t.Fatalf("%q after %v", code, time.Since(begun))
		}
		close(release)
		synctest.Wait()
		if code := r.Code(t.Context()); code != "" {
			t.Fatalf("code %q", code)
		}
	})
}

func TestAdminServer(t *testing.T) {
	var code atomic.Value
	code.Store("database_unreachable")
	r := NewReadiness(func(context.Context) string { return code.Load().(string) }, "database_unreachable")
	bound := make(chan net.Addr, 1)
	registry := NewRegistry()
	NewLoopMetrics(registry).record("place", resultOK, time.Millisecond)
	admin := NewAdmin("127.0.0.1:0", r, registry, nil, func(a net.Addr) { bound <- a })
	if err := admin.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	base := "http://" + (<-bound).String()
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/livez":   {200, `{"code":"alive"}`},
		"/readyz":  {503, `{"code":"database_unreachable"}`},
		"/metrics": {200, `berth_loop_rounds_total{loop="place",result="ok"} 1`},
		"/":        {404, ""},
	} {
		status, body := get(t, base+path)
		if status != want.status || !strings.Contains(body, want.body) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	taken := NewServer(ServerConfig{Name: "x", Listen: admin.Addr().String(), Handler: http.NotFoundHandler()})
	if err := taken.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Errorf("second listener: %v", err)
	}
	if err := admin.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := admin.Stop(t.Context()); err != nil {
		t.Error("second stop:", err)
	}
	record := httptest.NewRecorder()
	code.Store("")
	NewReadiness(func(context.Context) string { return "" }, "").ServeHTTP(record, httptest.NewRequest("GET", "/readyz", nil))
	if record.Code != 200 || strings.TrimSpace(record.Body.String()) != `{"code":"ready"}` {
		t.Errorf("%d %s", record.Code, record.Body)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func start(t *testing.T, l *Loop) {
	t.Helper()
	if err := l.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func stopLoop(t *testing.T, l *Loop) {
	t.Helper()
	if err := l.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// counts reads berth_loop_rounds_total by result.
func counts(t *testing.T, g prometheus.Gatherer) map[string]int {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != "berth_loop_rounds_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "result" {
					out[label.GetValue()] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return out
}
