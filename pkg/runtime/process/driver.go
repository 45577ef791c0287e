// Package process is the driver whose devices are slots: each runs one allowed
// command at a time, in a directory of its own, with limits.
package process

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
const DriverName = "process"

// DefaultAllow is the allow-list when none is configured: what is useful for
// shell work. It is no sandbox: whoever may run sh may run anything that the
// host's user may. Configure a narrower list, and a user of its own for the
// host, where tasks are not trusted.
func DefaultAllow() []string {
	return []string{
		"sh", "bash", "true", "false", "sleep", "echo", "printf", "env", "cat", "head", "tail", "sort", "uniq", "wc",
		"cut", "tr", "grep", "sed", "awk", "find", "ls", "mkdir", "cp", "mv", "rm", "touch", "date", "uname", "hostname",
		"id", "pwd", "seq", "test", "expr", "timeout", "tar", "gzip", "gunzip", "sha256sum", "diff", "basename", "dirname",
	}
}

// Limits are optional resource limits of a command and its descendants; zero
// means none.
type Limits struct {
	// CPU is processor time, rounded up to seconds, for each process.
	CPU time.Duration
	// MemoryBytes bounds the address space of each process.
	MemoryBytes int64
	// FileBytes bounds the size of a file it writes.
	FileBytes int64
	// OpenFiles bounds its file descriptors.
	OpenFiles int
}

// Config configures the driver. Zero values mean the defaults.
type Config struct {
	// Procs records what is started; required.
	Procs *procs.Table
	// Slots is the number of devices; default 1.
	Slots int
	// Allow lists what may run: absolute paths, or base names, which stand for
	// the program of that name in the standard directories. Nil means
	// DefaultAllow, an empty list nothing.
	Allow []string
	// OutputBytes bounds a command's output; what exceeds it kills the command.
	// Default 64 MiB.
	OutputBytes int64
	// Grace is the time between SIGTERM and SIGKILL; default 2 s.
	Grace time.Duration
	// MaxDuration bounds each command; zero means no bound.
	MaxDuration time.Duration
	Limits      Limits
	// Labels are added to every device.
	Labels map[string]string
}

// Driver gives the slots.
type Driver struct {
	cfg Config

	mu     sync.Mutex
	closed bool
	open   map[runtime.DeviceID]*session
}

// New returns the driver, or an error that names what is wrong with cfg.
func New(cfg Config) (*Driver, error) {
	if cfg.Procs == nil {
		return nil, fmt.Errorf("process driver: no process table")
	}
	if cfg.Slots < 0 {
		return nil, fmt.Errorf("process driver: %d slots", cfg.Slots)
	}
	if cfg.Slots == 0 {
		cfg.Slots = 1
	}
	if cfg.Allow == nil {
		cfg.Allow = DefaultAllow()
	}
	if cfg.OutputBytes <= 0 {
		cfg.OutputBytes = 64 << 20
	}
	if cfg.Grace <= 0 {
		cfg.Grace = 2 * time.Second
	}
	return &Driver{cfg: cfg, open: map[runtime.DeviceID]*session{}}, nil
}

// Name implements runtime.Driver.
func (d *Driver) Name() string { return DriverName }

// Discover implements runtime.Driver.
func (d *Driver) Discover(context.Context) ([]runtime.Device, error) {
	devices := make([]runtime.Device, 0, d.cfg.Slots)
	for i := range d.cfg.Slots {
		devices = append(devices, d.device(i))
	}
	return devices, nil
}

func (d *Driver) device(slot int) runtime.Device {
	labels := maps.Clone(d.cfg.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels["driver"], labels["os"], labels["arch"] = DriverName, goruntime.GOOS, goruntime.GOARCH
	id := DriverName + "-" + strconv.Itoa(slot)
	return runtime.Device{
		ID: runtime.DeviceID(id), Driver: DriverName, HardwareID: id,
		Name: "process slot " + strconv.Itoa(slot), Labels: labels, Health: runtime.HealthGood,
	}
}

// Probe implements runtime.Driver.
func (d *Driver) Probe(ctx context.Context, id runtime.DeviceID) (runtime.Device, error) {
	devices, err := d.Discover(ctx)
	if err != nil {
		return runtime.Device{}, err
	}
	i := slices.IndexFunc(devices, func(dev runtime.Device) bool { return dev.ID == id })
	if i < 0 {
		return runtime.Device{}, fmt.Errorf("%w: %q", runtime.ErrUnknownDevice, id)
	}
	return devices[i], nil
}

// Open implements runtime.Driver.
func (d *Driver) Open(ctx context.Context, id runtime.DeviceID, opts runtime.OpenOptions) (runtime.Session, error) {
	dev, err := d.Probe(ctx, id)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, runtime.ErrClosed
	}
	if d.open[id] != nil {
		return nil, fmt.Errorf("%w: %q", runtime.ErrBusy, id)
	}
	life, stop := context.WithCancel(context.Background())
	s := &session{driver: d, device: dev, opts: opts, life: life, stop: stop}
	d.open[id] = s
	return s, nil
}

// Clean implements runtime.Driver.
func (d *Driver) Clean(ctx context.Context, id runtime.DeviceID) error {
	if _, err := d.Probe(ctx, id); err != nil {
		return err
	}
	d.mu.Lock()
	s := d.open[id]
	d.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close(ctx)
}

// Close implements runtime.Driver.
func (d *Driver) Close() error {
	d.mu.Lock()
	d.closed = true
	open := slices.Collect(maps.Values(d.open))
	d.mu.Unlock()
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	for _, s := range open {
		if err := s.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}
