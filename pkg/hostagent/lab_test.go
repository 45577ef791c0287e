package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// lab is a driver whose devices are the files of a directory, so that a test can
// pull one out, and that hangs or fails where a test wants it to: the real
// drivers cannot be made to at a wanted moment. Its plugin works until it may
// end, whatever it is told.
type lab struct {
	t       *testing.T
	dir     string
	blind   atomic.Bool                   // Discover fails
	probing atomic.Pointer[chan struct{}] // a probe waits for it, unless nil
	working chan struct{}                 // gets one for each run that works
	mayEnd  chan struct{}                 // ends the work
	obeys   bool                          // the work also ends with its context
	closing chan struct{}                 // closing a device waits for it, unless nil
}

func newLab(t *testing.T, devices ...string) *lab {
	l := &lab{t: t, dir: t.TempDir(), working: make(chan struct{}, 10), mayEnd: make(chan struct{})}
	for _, d := range devices {
		l.plug(d)
	}
	return l
}

func (l *lab) plug(name string) { must(l.t, os.WriteFile(filepath.Join(l.dir, name), nil, 0o600)) }
func (l *lab) pull(name string) { must(l.t, os.Remove(filepath.Join(l.dir, name))) }

// runtime is a Runtime of this driver and its plugin.
func (l *lab) runtime(w *world) *runtime.Runtime {
	rt, err := runtime.New(runtime.Config{Drivers: []runtime.Driver{l}, Plugins: []runtime.Plugin{labWork{l}}, Logger: w.log})
	must(l.t, err)
	return rt
}

func (l *lab) Name() string { return "lab" }

func (l *lab) Discover(context.Context) ([]runtime.Device, error) {
	if l.blind.Load() {
		return nil, errors.New("the hub does not answer")
	}
	files, err := os.ReadDir(l.dir)
	var out []runtime.Device
	for _, f := range files {
		out = append(out, runtime.Device{
			ID: runtime.DeviceID("lab-" + f.Name()), Driver: "lab", HardwareID: f.Name(), Name: f.Name(),
			Labels: map[string]string{"driver": "lab"}, Health: runtime.HealthGood,
		})
	}
	return out, err
}

func (l *lab) Probe(ctx context.Context, id runtime.DeviceID) (runtime.Device, error) {
	if wait := l.probing.Load(); wait != nil {
		<-*wait
	}
	ds, err := l.Discover(ctx)
	for _, d := range ds {
		if d.ID == id {
			return d, err
		}
	}
	return runtime.Device{}, errors.Join(err, runtime.ErrUnknownDevice)
}

func (l *lab) Open(_ context.Context, id runtime.DeviceID, _ runtime.OpenOptions) (runtime.Session, error) {
	return labSession{l, id}, nil
}
func (l *lab) Clean(context.Context, runtime.DeviceID) error { return nil }
func (l *lab) Close() error                                  { return nil }

type labSession struct {
	l  *lab
	id runtime.DeviceID
}

func (s labSession) Device() runtime.Device { return runtime.Device{ID: s.id} }
func (s labSession) Lost() <-chan struct{}  { return nil }
func (s labSession) Close(context.Context) error {
	if s.l.closing != nil {
		<-s.l.closing
	}
	return nil
}

type labWork struct{ l *lab }

func (p labWork) Manifest() manifest.Manifest {
	return manifest.Manifest{Name: "lab.work", Version: "1.0.0", Schema: json.RawMessage(`{"type":"object"}`)}
}

func (p labWork) Run(ctx context.Context, _ runtime.Job) runtime.Result {
	p.l.working <- struct{}{}
	var told <-chan struct{}
	if p.l.obeys {
		told = ctx.Done()
	}
	select {
	case <-p.l.mayEnd:
		return runtime.Result{Outcome: runtime.OutcomeSucceeded}
	case <-told:
		return runtime.Result{Outcome: runtime.OutcomeFailed, Reason: "told"}
	}
}

// enableLab registers the lab's plugin.
func (w *world) enableLab() {
	m := labWork{}.Manifest()
	must(w.t, w.store.RegisterPlugins(w.t.Context(), berth.Daemon(berth.ActorSystem, "test"), []berth.Plugin{{
		PluginVersion: berth.PluginVersion{Name: m.Name, Version: m.Version}, Enabled: true, Schema: m.Schema,
	}}))
}

// submitLab queues a task of the lab's plugin.
func (w *world) submitLab(change ...func(*berth.NewTask)) berth.TaskID {
	return w.submit("", append([]func(*berth.NewTask){func(n *berth.NewTask) {
		n.Requirement = berth.Requirement{Plugin: "lab.work"}
		n.Payload = redact.NewBytes([]byte("{}"))
	}}, change...)...)
}

// device finds the host's device of a hardware id.
func (w *world) device(hardware string) berth.Device {
	w.t.Helper()
	w.last.mu.Lock()
	d := w.last.byKey["lab/"+hardware]
	w.last.mu.Unlock()
	if d == nil {
		w.t.Fatalf("the agent knows no device %s", hardware)
	}
	dev, err := w.store.GetDevice(w.t.Context(), d.id)
	must(w.t, err)
	return dev
}

// host is this agent's host as the server sees it.
func (w *world) host() berth.Host {
	w.t.Helper()
	h, err := w.store.GetHost(w.t.Context(), w.last.id.HostID)
	must(w.t, err)
	return h
}

// said counts the lines of the log that have this message.
func (w *world) said(message string) int { return w.logs.FilterMessageSnippet(message).Len() }
