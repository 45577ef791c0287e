package runtime_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a driver with one device whose failures a test chooses. The real
// drivers cannot be made to fail at a wanted moment.
type bench struct {
	closeErr, cleanErr, openErr error
	stuck                       chan struct{} // Close waits for it, unless nil, or for its context
	deaf                        bool          // then it does not look at its context
	openStuck, probeStuck       chan struct{} // Open and Probe wait for them, unless nil
	lost                        chan struct{}
	opened, closed, cleaned     int
}

func (b *bench) Name() string { return "bench" }
func (b *bench) Discover(context.Context) ([]runtime.Device, error) {
	return []runtime.Device{{ID: "bench-0", Driver: "bench", Health: runtime.HealthGood}}, nil
}

func (b *bench) Probe(ctx context.Context, _ runtime.DeviceID) (runtime.Device, error) {
	if b.probeStuck != nil {
		<-b.probeStuck
	}
	ds, err := b.Discover(ctx)
	return ds[0], err
}

func (b *bench) Open(context.Context, runtime.DeviceID, runtime.OpenOptions) (runtime.Session, error) {
	b.opened++
	if b.openStuck != nil {
		<-b.openStuck
	}
	if b.openErr != nil {
		return nil, b.openErr
	}
	return benchSession{b}, nil
}
func (b *bench) Clean(context.Context, runtime.DeviceID) error { b.cleaned++; return b.cleanErr }
func (b *bench) Close() error                                  { return nil }

type benchSession struct{ b *bench }

func (s benchSession) Device() runtime.Device { return runtime.Device{ID: "bench-0"} }
func (s benchSession) Lost() <-chan struct{}  { return s.b.lost }
func (s benchSession) Close(ctx context.Context) error {
	s.b.closed++
	if s.b.stuck != nil && s.b.deaf {
		<-s.b.stuck
	} else if s.b.stuck != nil {
		select {
		case <-s.b.stuck:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return s.b.closeErr
}

// plugin is a function as a plugin.
type plugin struct {
	name, version string
	run           func(context.Context, runtime.Job) runtime.Result
}

func (p plugin) Manifest() manifest.Manifest {
	return manifest.Manifest{Name: p.name, Version: p.version, Schema: json.RawMessage(`{"type":"object"}`)}
}
func (p plugin) Run(ctx context.Context, job runtime.Job) runtime.Result { return p.run(ctx, job) }

var succeeded = runtime.Result{Outcome: runtime.OutcomeSucceeded}

func compose(t *testing.T, b *bench, log *zap.Logger, run func(context.Context, runtime.Job) runtime.Result) *runtime.Runtime {
	t.Helper()
	rt, err := runtime.New(runtime.Config{
		Drivers: []runtime.Driver{b}, Plugins: []runtime.Plugin{plugin{"test.work", "1.0.0", run}},
		Limits: runtime.Limits{LogBytes: 100, ArtifactBytes: 50, Artifacts: 3}, CloseTimeout: 100 * time.Millisecond, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := rt.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := rt.Run(context.Background(), request(t)); !errors.Is(err, runtime.ErrClosed) {
			t.Errorf("run after close: %v", err)
		}
	})
	return rt
}

func request(t *testing.T) runtime.RunRequest {
	return runtime.RunRequest{RunID: "r-1", DeviceID: "bench-0", Plugin: "test.work", Dir: filepath.Join(t.TempDir(), "run")}
}

func must(t *testing.T, rt *runtime.Runtime, req runtime.RunRequest) runtime.Result {
	t.Helper()
	res, err := rt.Run(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestDeviceThatCannotBeCleanedRefusesRunsUntilItIs(t *testing.T) {
	for name, b := range map[string]*bench{
		"fails":   {closeErr: errors.New("close fails")},
		"hangs":   {stuck: make(chan struct{})},
		"at open": {openErr: fmt.Errorf("%w: at open", runtime.ErrUnclean)},
	} {
		t.Run(name, func(t *testing.T) {
			rt := compose(t, b, nil, func(context.Context, runtime.Job) runtime.Result { return succeeded })
			if res := must(t, rt, request(t)); res.DeviceClean {
				t.Fatal("the device is said to be clean")
			}
			if _, err := rt.Run(t.Context(), request(t)); !errors.Is(err, runtime.ErrUnclean) {
				t.Errorf("next run: %v", err)
			}
			if d, _ := rt.Device(t.Context(), "bench-0"); !d.Unclean || d.Busy {
				t.Errorf("device: %+v", d)
			}
			b.cleanErr = errors.New("not yet")
			if err := rt.Clean(t.Context(), "bench-0"); err == nil {
				t.Error("clean does not say that it failed")
			}
			if _, err := rt.Run(t.Context(), request(t)); !errors.Is(err, runtime.ErrUnclean) {
				t.Errorf("run after a failed clean: %v", err)
			}
			*b = bench{}
			if err := rt.Clean(t.Context(), "bench-0"); err != nil {
				t.Fatal(err)
			}
			if res := must(t, rt, request(t)); res.Outcome != runtime.OutcomeSucceeded || !res.DeviceClean {
				t.Errorf("after clean: %+v", res)
			}
		})
	}
}

func TestPanicIsTheRunsFailureAndRevealsNothing(t *testing.T) {
	const marker = "payload-marker"
	var log bytes.Buffer
	logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&log), zap.DebugLevel))
	b := &bench{}
	rt := compose(t, b, logger, func(_ context.Context, job runtime.Job) runtime.Result {
		panic(string(job.Payload.Reveal()))
	})
	req := request(t)
	req.Payload = redact.NewBytes([]byte(`{"x":"` + marker + `"}`))
	res := must(t, rt, req)
	if res.Outcome != runtime.OutcomeFailed || res.Reason != runtime.CodePanic || !res.DeviceClean || b.closed != 1 {
		t.Errorf("%+v, closed %d times", res, b.closed)
	}
	if strings.Contains(log.String()+res.Message, marker) || !strings.Contains(log.String(), "runtime_test.go") {
		t.Errorf("log: %s", log.String())
	}
}

func TestPluginThatDoesNotStopLeavesTheDeviceUnclean(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	rt := compose(t, &bench{}, nil, func(context.Context, runtime.Job) runtime.Result {
		defer close(ended)
		<-release
		return succeeded
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	res, err := rt.Run(ctx, request(t))
	if err != nil || res.Outcome != runtime.OutcomeInfraFailed || res.Reason != runtime.CodePluginStuck || res.DeviceClean {
		t.Errorf("%+v, %v", res, err)
	}
	close(release)
	<-ended
}

func TestWorkThatSucceededStaysSucceededWhenCancelledLate(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	rt := compose(t, &bench{}, nil, func(context.Context, runtime.Job) runtime.Result {
		cancel()
		return succeeded
	})
	res, err := rt.Run(ctx, request(t))
	if err != nil || res.Outcome != runtime.OutcomeSucceeded {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestLostDeviceIsInfraFailedWhateverThePluginSays(t *testing.T) {
	b := &bench{lost: make(chan struct{})}
	rt := compose(t, b, nil, func(context.Context, runtime.Job) runtime.Result {
		close(b.lost)
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: "anything"}
	})
	if res := must(t, rt, request(t)); res.Outcome != runtime.OutcomeInfraFailed || res.Reason != runtime.CodeDeviceLost {
		t.Errorf("%+v", res)
	}
}

func TestLimitsOfLogAndArtifacts(t *testing.T) {
	var late runtime.Out
	rt := compose(t, &bench{}, nil, func(_ context.Context, job runtime.Job) runtime.Result {
		late = job.Out
		_, _ = fmt.Fprint(job.Out.Log(), strings.Repeat("x", 80), strings.Repeat("y", 80))
		write := func(name string, content string) error {
			w, err := job.Out.Artifact(name, runtime.ClassFile, "text/plain")
			if err != nil {
				return err
			}
			_, err = w.Write([]byte(content))
			return errors.Join(err, w.Close())
		}
		for _, c := range []struct {
			name, content string
			ok            bool
		}{
			{"a", "content", true},
			{"a", "again", false},
			{"../b", "", false},
			{"", "", false},
			{".hidden", "", false},
			{"large", strings.Repeat("z", 51), false},
			{"b", "", true},
			{"c", "x", true},
			{"d", "one too many", false},
		} {
			err := write(c.name, c.content)
			if (err == nil) != c.ok || (err != nil && runtime.CodeOf(err) != runtime.CodeArtifactLimit) {
				t.Errorf("artifact %q: %v", c.name, err)
			}
		}
		return succeeded
	})
	res := must(t, rt, request(t))
	log, err := os.ReadFile(res.LogPath)
	if err != nil || !strings.HasPrefix(string(log), strings.Repeat("x", 80)+strings.Repeat("y", 20)+"\n[log limit reached: 60 bytes dropped]") || int64(len(log)) != res.LogSize {
		t.Errorf("log: %s, %v", log, err)
	}
	var names []string
	for _, a := range res.Artifacts {
		names = append(names, a.Name)
	}
	sum := sha256.Sum256([]byte("content"))
	if strings.Join(names, " ") != "a b c" || res.Artifacts[0].SHA256 != hex.EncodeToString(sum[:]) || res.Artifacts[0].Size != 7 {
		t.Errorf("artifacts: %+v", res.Artifacts)
	}
	if _, err := late.Artifact("late", runtime.ClassFile, "text/plain"); err == nil {
		t.Error("an artifact after the end is taken")
	}
	if _, err := late.Log().Write([]byte("late")); err != nil {
		t.Error("a log line after the end is an error")
	}
	files, _ := os.ReadDir(filepath.Dir(res.Artifacts[0].Path))
	if len(files) != 3 {
		t.Errorf("files: %v", files)
	}
}

func TestNewestVersionInTheRangeRuns(t *testing.T) {
	ran := ""
	var plugins []runtime.Plugin
	for _, v := range []string{"1.0.0", "1.10.0", "1.2.0", "2.0.0-rc.1"} {
		plugins = append(plugins, plugin{"test.work", v, func(context.Context, runtime.Job) runtime.Result { ran = v; return succeeded }})
	}
	rt, err := runtime.New(runtime.Config{Drivers: []runtime.Driver{&bench{}}, Plugins: plugins})
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{"": "2.0.0-rc.1", "^1.0.0": "1.10.0", "1.2.0": "1.2.0", "~1.2": "1.2.0", ">=1, <2": "1.10.0"} {
		req := request(t)
		req.Version = asked
		if must(t, rt, req); ran != want {
			t.Errorf("%q ran %s, want %s", asked, ran, want)
		}
	}
	if got := rt.Plugins()[0].Version; got != "2.0.0-rc.1" {
		t.Errorf("first is %s", got)
	}
	_, err = runtime.New(runtime.Config{Drivers: []runtime.Driver{&bench{}, &bench{}}, Plugins: append(plugins, plugins[0], plugin{"bad name", "x", nil})})
	for _, part := range []string{"driver", "1.0.0", "bad name"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("faults: %v", err)
		}
	}
}

func TestDirectSessionEndsBeforeARun(t *testing.T) {
	b := &bench{}
	rt := compose(t, b, nil, func(context.Context, runtime.Job) runtime.Result { return succeeded })
	for range 2 {
		if err := rt.Direct(t.Context(), "bench-0", func(context.Context, runtime.Session) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if b.opened != 1 || b.closed != 0 {
		t.Errorf("opened %d, closed %d", b.opened, b.closed)
	}
	must(t, rt, request(t))
	if b.opened != 2 || b.closed != 2 {
		t.Errorf("after a run: opened %d, closed %d", b.opened, b.closed)
	}
	boom := errors.New("boom")
	if err := rt.Direct(t.Context(), "bench-0", func(context.Context, runtime.Session) error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
}

// Whatever hangs once the run must end, and whatever it does not look at: the
// run returns within the time that its caller gives, the device is unclean, and
// it stays so while anything is still at work on it.
func TestNothingOutlastsTheTimeToStop(t *testing.T) {
	waits := func(release chan struct{}) func(context.Context, runtime.Job) runtime.Result {
		return func(ctx context.Context, _ runtime.Job) runtime.Result {
			if release != nil {
				<-release
			} else {
				<-ctx.Done()
			}
			return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: "stopped"}
		}
	}
	for name, c := range map[string]struct {
		bench  func(release chan struct{}) *bench
		plugin bool // it is what hangs
	}{
		"a plugin":           {func(chan struct{}) *bench { return &bench{} }, true},
		"a close":            {func(r chan struct{}) *bench { return &bench{stuck: r, deaf: true} }, false},
		"an open":            {func(r chan struct{}) *bench { return &bench{openStuck: r} }, false},
		"a plugin and close": {func(r chan struct{}) *bench { return &bench{stuck: r, deaf: true} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			release := make(chan struct{})
			b := c.bench(release)
			var hangs chan struct{}
			if c.plugin {
				hangs = release
			}
			rt, err := runtime.New(runtime.Config{
				Drivers: []runtime.Driver{b}, Plugins: []runtime.Plugin{plugin{"test.work", "1.0.0", waits(hangs)}}, CloseTimeout: time.Hour,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			req := request(t)
			req.StopWithin = func() time.Duration { return 200 * time.Millisecond }
			began := time.Now()
			res, err := rt.Run(ctx, req)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if err != nil || res.DeviceClean || res.Outcome == runtime.OutcomeSucceeded {
				t.Errorf("%+v, %v", res, err)
			}
			if err := rt.Clean(t.Context(), "bench-0"); !errors.Is(err, runtime.ErrUnclean) {
				t.Errorf("clean while something is at work: %v", err)
			}
			if _, err := rt.Run(t.Context(), request(t)); !errors.Is(err, runtime.ErrUnclean) {
				t.Errorf("a run meanwhile: %v", err)
			}
			close(release)
			deadline := time.Now().Add(20 * time.Second)
			for err = rt.Clean(t.Context(), "bench-0"); err != nil && time.Now().Before(deadline); err = rt.Clean(t.Context(), "bench-0") {
				<-time.After(5 * time.Millisecond)
			}
			if err != nil {
				t.Errorf("clean after it ended: %v", err)
			}
			if err := rt.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A plugin that looks at its context has the first half of the time; its device
// is not closed under it before.
func TestAPluginHasTimeToStopByItself(t *testing.T) {
	b := &bench{}
	closedBefore := -1
	rt := compose(t, b, nil, func(ctx context.Context, _ runtime.Job) runtime.Result {
		<-ctx.Done()
		<-time.After(50 * time.Millisecond)
		closedBefore = b.closed
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: "stopped"}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req := request(t)
	req.StopWithin = func() time.Duration { return time.Hour }
	if res, err := rt.Run(ctx, req); err != nil || !res.DeviceClean || res.Outcome != runtime.OutcomeCancelled || closedBefore != 0 {
		t.Errorf("%+v, %v, closed %d times before", res, err, closedBefore)
	}
}

// What no caller could take is mended here, so that the attempt ends at all.
func TestABrokenResultIsTheRunsFailure(t *testing.T) {
	for name, broken := range map[string]runtime.Result{
		"nothing":       {},
		"no outcome":    {Outcome: "fine"},
		"no JSON":       {Outcome: runtime.OutcomeSucceeded, JSON: redact.NewBytes([]byte(`{"a":`))},
		"no object":     {Outcome: runtime.OutcomeSucceeded, JSON: redact.NewBytes([]byte(`[1]`))},
		"two documents": {Outcome: runtime.OutcomeSucceeded, JSON: redact.NewBytes([]byte(`{} {}`))},
	} {
		rt := compose(t, &bench{}, nil, func(context.Context, runtime.Job) runtime.Result { return broken })
		if res := must(t, rt, request(t)); res.Outcome != runtime.OutcomeFailed || res.Reason != runtime.CodeBadResult || !res.JSON.IsZero() {
			t.Errorf("%s: %+v", name, res)
		}
	}
	rt := compose(t, &bench{}, nil, func(context.Context, runtime.Job) runtime.Result {
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: "No Code!"}
	})
	if res := must(t, rt, request(t)); res.Outcome != runtime.OutcomeFailed || res.Reason != runtime.CodeInternal {
		t.Errorf("%+v", res)
	}
}

// A survey tells what it can in its time, whatever a driver does.
func TestASurveyDoesNotWaitForWhatHangs(t *testing.T) {
	b := &bench{probeStuck: make(chan struct{})}
	rt := compose(t, b, nil, func(context.Context, runtime.Job) runtime.Result { return succeeded })
	for range 2 { // the second finds the first's probe still at work
		began := time.Now()
		s := rt.Survey(t.Context(), 200*time.Millisecond)
		if len(s.Devices) != 1 || s.Devices[0].Health != runtime.HealthSuspect || s.Devices[0].HealthMessage == "" || len(s.Failed) != 0 {
			t.Errorf("%+v", s)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	}
	close(b.probeStuck)
	deadline := time.Now().Add(20 * time.Second)
	for rt.Survey(t.Context(), 10*time.Second).Devices[0].Health != runtime.HealthGood {
		if time.Now().After(deadline) {
			t.Fatal("it stays suspect")
		}
	}
}
