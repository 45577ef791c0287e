// Package chromium is the driver of web browsers: it runs one real headless
// Chromium, and each isolated browser context of it is a device. Contexts share
// neither cookies, storage nor cache, but they do share the process: when the
// browser crashes, all of its devices are lost at once and come back together
// when the next one is opened.
package chromium

import (
	"context"
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// DriverName is the name and the label value of this driver.
const DriverName = "chromium"

// Config configures the driver. Zero values mean the defaults.
type Config struct {
	// Procs records what is started; required.
	Procs *procs.Table
	// Contexts is the number of devices; default 1.
	Contexts int
	// Path is the browser; empty means the first one that Find finds.
	Path string
	// Flags are added to the browser's command line.
	Flags []string
	// Policy says which addresses may be opened.
	Policy Policy
	// Labels are added to every device.
	Labels map[string]string
}

// Driver gives the contexts.
type Driver struct {
	cfg Config

	launchMu sync.Mutex // held while a browser starts

	mu      sync.Mutex
	closed  bool
	browser *browser
	path    string
	major   string
	open    map[runtime.DeviceID]*session
}

// New returns the driver. A missing browser is no error here: the devices are
// then listed as unavailable, with the remedy.
func New(cfg Config) (*Driver, error) {
	if cfg.Procs == nil {
		return nil, fmt.Errorf("chromium driver: no process table")
	}
	if cfg.Contexts < 0 {
		return nil, fmt.Errorf("chromium driver: %d contexts", cfg.Contexts)
	}
	if cfg.Contexts == 0 {
		cfg.Contexts = 1
	}
	if err := cfg.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("chromium driver: %w", err)
	}
	return &Driver{cfg: cfg, open: map[runtime.DeviceID]*session{}}, nil
}

// Name implements runtime.Driver.
func (d *Driver) Name() string { return DriverName }

// Discover implements runtime.Driver. The first call runs the browser with
// --version; it does not start it.
func (d *Driver) Discover(ctx context.Context) ([]runtime.Device, error) {
	_, major, err := d.locate(ctx)
	health, message := runtime.HealthGood, ""
	if err != nil {
		health, message = runtime.HealthUnavailable, runtime.MessageOf(err, "the browser cannot be used")
	}
	devices := make([]runtime.Device, 0, d.cfg.Contexts)
	for i := range d.cfg.Contexts {
		dev := d.device(i, major)
		dev.Health, dev.HealthMessage = health, message
		devices = append(devices, dev)
	}
	return devices, nil
}

func (d *Driver) device(i int, major string) runtime.Device {
	labels := maps.Clone(d.cfg.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["driver"], labels["browser"], labels["os"], labels["arch"] = DriverName, "chromium", goruntime.GOOS, goruntime.GOARCH
	if major != "" {
		labels["browser_version"] = major
	}
	id := DriverName + "-" + strconv.Itoa(i)
	return runtime.Device{
		ID: runtime.DeviceID(id), Driver: DriverName, HardwareID: id,
		Name: "Chromium context " + strconv.Itoa(i), Labels: labels,
	}
}

// locate finds the browser and its version, once; a failure is tried again.
func (d *Driver) locate(ctx context.Context) (path, major string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.path != "" {
		// The binary can be removed or upgraded under a running host.
		if _, err := Find(d.path); err == nil {
			return d.path, d.major, nil
		}
		d.path, d.major = "", ""
	}
	if path, err = Find(d.cfg.Path); err != nil {
		return "", "", err
	}
	if major, err = majorVersion(ctx, path); err != nil {
		return "", "", err
	}
	d.path, d.major = path, major
	return path, major, nil
}

// Probe implements runtime.Driver. It asks a running browser whether it answers.
func (d *Driver) Probe(ctx context.Context, id runtime.DeviceID) (runtime.Device, error) {
	devices, err := d.Discover(ctx)
	if err != nil {
		return runtime.Device{}, err
	}
	i := slices.IndexFunc(devices, func(dev runtime.Device) bool { return dev.ID == id })
	if i < 0 {
		return runtime.Device{}, fmt.Errorf("%w: %q", runtime.ErrUnknownDevice, id)
	}
	dev := devices[i]
	d.mu.Lock()
	b := d.browser
	d.mu.Unlock()
	if b != nil && !b.isDead() {
		ctx, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		if err := b.conn.call(ctx, "", "Browser.getVersion", nil, nil); err != nil {
			dev.Health, dev.HealthMessage = runtime.HealthSuspect, "the running browser does not answer"
		}
	}
	return dev, nil
}

// running returns the browser, starting it when there is none.
func (d *Driver) running(ctx context.Context) (*browser, error) {
	d.launchMu.Lock()
	defer d.launchMu.Unlock()
	d.mu.Lock()
	b, closed := d.browser, d.closed
	d.mu.Unlock()
	if closed {
		return nil, runtime.ErrClosed
	}
	if b != nil && !b.isDead() {
		return b, nil
	}
	if b != nil { // two browsers must not overlap
		if err := b.closeWithin(ctx); err != nil {
			return nil, err
		}
	}
	path, _, err := d.locate(ctx)
	if err != nil {
		return nil, err
	}
	if b, err = launch(ctx, d.cfg.Procs, path, d.cfg); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.browser = b
	d.mu.Unlock()
	return b, nil
}

// Open implements runtime.Driver.
func (d *Driver) Open(ctx context.Context, id runtime.DeviceID, opts runtime.OpenOptions) (runtime.Session, error) {
	devices, err := d.Discover(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(devices, func(dev runtime.Device) bool { return dev.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("%w: %q", runtime.ErrUnknownDevice, id)
	}
	d.mu.Lock()
	busy := d.open[id] != nil
	d.mu.Unlock()
	if busy {
		return nil, fmt.Errorf("%w: %q", runtime.ErrBusy, id)
	}
	b, err := d.running(ctx)
	if err != nil {
		return nil, err
	}
	s, err := openSession(ctx, d, b, devices[i])
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.open[id] = s
	d.mu.Unlock()
	return s, nil
}

// Clean implements runtime.Driver. A context that does not close takes the
// browser with it, and so the other devices' work: that is the only way left.
func (d *Driver) Clean(ctx context.Context, id runtime.DeviceID) error {
	d.mu.Lock()
	s, b := d.open[id], d.browser
	d.mu.Unlock()
	switch {
	case s != nil:
		return s.Close(ctx)
	case b != nil && b.isDead():
		return b.closeWithin(ctx) // the last use may have been in it
	}
	return nil // each use gets a context of its own, so there is nothing to clean
}

// Close implements runtime.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.launchMu.Lock() // a start under way ends first
	defer d.launchMu.Unlock()
	d.mu.Lock()
	b := d.browser
	d.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.close()
}
