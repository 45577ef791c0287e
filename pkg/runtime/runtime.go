package runtime

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Masterminds/semver/v3"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

// Limits bounds what a run may leave. Zero values mean the defaults.
type Limits struct {
	// LogBytes bounds a run's log; default 16 MiB. What exceeds it is dropped
	// and replaced by one closing line.
	LogBytes int64
	// ArtifactBytes bounds one artifact; default 256 MiB.
	ArtifactBytes int64
	// Artifacts bounds the number of artifacts of a run; default 100.
	Artifacts int
}

func (l Limits) withDefaults() Limits {
	if l.LogBytes <= 0 {
		l.LogBytes = 16 << 20
	}
	if l.ArtifactBytes <= 0 {
		l.ArtifactBytes = 256 << 20
	}
	if l.Artifacts <= 0 {
		l.Artifacts = 100
	}
	return l
}

// Config says what a Runtime is made of.
type Config struct {
	// Drivers and Plugins; names (for plugins name and version) must be unique.
	// The Runtime owns the drivers from then on: Close closes them.
	Drivers []Driver
	Plugins []Plugin
	Limits  Limits
	// CloseTimeout bounds giving a device back after a run, default 20 s. A device
	// that takes longer is unclean. RunRequest.StopWithin may ask for less.
	CloseTimeout time.Duration
	// TempDir is where direct sessions get their directories; default os.TempDir().
	TempDir string
	// Logger may be nil. It gets ids and codes, never content.
	Logger *zap.Logger
}

// Runtime runs plugins on devices. All methods may be called at the same time.
type Runtime struct {
	limits       Limits
	closeTimeout time.Duration
	tempDir      string
	log          *zap.Logger
	drivers      []Driver
	plugins      []compiled

	mu     sync.Mutex
	closed bool
	holds  map[DeviceID]*hold
	asking map[string]bool // what a survey waits for
	active sync.WaitGroup
}

// hold is what the Runtime knows of a device that is or was used.
type hold struct {
	busy    bool
	unclean bool
	left    int   // plugins and drivers that did not stop and may still work on it
	runID   RunID // of the run that goes on, else empty
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the present use ended
	// direct is the session kept open between direct actions, or nil.
	direct    Session
	directDir string
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// New composes a Runtime. It reports every fault of the configuration at once
// and starts nothing.
func New(cfg Config) (*Runtime, error) {
	r := &Runtime{
		limits:       cfg.Limits.withDefaults(),
		closeTimeout: cfg.CloseTimeout,
		tempDir:      cfg.TempDir,
		log:          cfg.Logger,
		drivers:      slices.Clone(cfg.Drivers),
		holds:        map[DeviceID]*hold{},
		asking:       map[string]bool{},
	}
	if r.closeTimeout <= 0 {
		r.closeTimeout = 20 * time.Second
	}
	if r.log == nil {
		r.log = zap.NewNop()
	}
	var faults []error
	seen := map[string]bool{}
	for _, d := range r.drivers {
		if seen[d.Name()] {
			faults = append(faults, fmt.Errorf("driver %q is configured twice", d.Name()))
		}
		seen[d.Name()] = true
	}
	for _, p := range cfg.Plugins {
		c, err := compile(p)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if slices.ContainsFunc(r.plugins, func(o compiled) bool { return o.is(c) }) {
			faults = append(faults, fmt.Errorf("plugin %s %s is configured twice", c.manifest.Name, c.version))
		}
		r.plugins = append(r.plugins, c)
	}
	slices.SortFunc(r.plugins, func(a, b compiled) int {
		if c := strings.Compare(a.manifest.Name, b.manifest.Name); c != 0 {
			return c
		}
		return b.version.Compare(a.version)
	})
	return r, errors.Join(faults...)
}

// Plugins returns the manifests, ordered by name, newest version first.
func (r *Runtime) Plugins() []manifest.Manifest {
	ms := make([]manifest.Manifest, 0, len(r.plugins))
	for _, p := range r.plugins {
		ms = append(ms, p.manifest)
	}
	return ms
}

// Devices lists the devices of all drivers, ordered by driver as configured and
// then by id. A driver that fails is left out and its error returned beside the
// others' devices.
func (r *Runtime) Devices(ctx context.Context) ([]Device, error) {
	var all []Device
	var faults []error
	for _, d := range r.drivers {
		ds, err := d.Discover(ctx)
		if err != nil {
			faults = append(faults, fmt.Errorf("driver %s: %w", d.Name(), err))
		}
		all = append(all, ds...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range all {
		r.annotate(&all[i])
	}
	return all, errors.Join(faults...)
}

// Probe touches one device and returns its fresh state. ErrUnknownDevice when
// there is none of that id.
func (r *Runtime) Probe(ctx context.Context, id DeviceID) (Device, error) {
	d, err := r.driverOf(ctx, id)
	if err != nil {
		return Device{}, err
	}
	dev, err := d.Probe(ctx, id)
	if err != nil {
		return Device{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.annotate(&dev)
	return dev, nil
}

// Device describes one device without touching it. ErrUnknownDevice when there
// is none of that id.
func (r *Runtime) Device(ctx context.Context, id DeviceID) (Device, error) {
	ds, err := r.Devices(ctx)
	for _, d := range ds {
		if d.ID == id {
			return d, nil
		}
	}
	if err != nil {
		return Device{}, err
	}
	return Device{}, fmt.Errorf("%w: %q", ErrUnknownDevice, id)
}

// annotate adds what the Runtime alone knows; r.mu is held.
func (r *Runtime) annotate(d *Device) {
	if h := r.holds[d.ID]; h != nil {
		d.Busy, d.Unclean = h.busy, h.unclean
	}
}

// driverOf finds the driver that owns a device.
func (r *Runtime) driverOf(ctx context.Context, id DeviceID) (Driver, error) {
	var faults []error
	for _, d := range r.drivers {
		ds, err := d.Discover(ctx)
		if err != nil {
			faults = append(faults, fmt.Errorf("driver %s: %w", d.Name(), err))
		}
		if slices.ContainsFunc(ds, func(dev Device) bool { return dev.ID == id }) {
			return d, nil
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownDevice, id)
}

// plugin finds the newest plugin of the name within the range.
func (r *Runtime) plugin(name, version string) (compiled, error) {
	constraint := strings.TrimSpace(version)
	if constraint == "" {
		constraint = ">=0.0.0-0"
	}
	c, err := semver.NewConstraint(constraint)
	if err != nil {
		return compiled{}, fmt.Errorf("%w: version %q is neither a version nor a range", ErrInvalidRequest, version)
	}
	for _, p := range r.plugins {
		if p.manifest.Name == name && c.Check(p.version) {
			return p, nil
		}
	}
	return compiled{}, fmt.Errorf("%w: %s %s", ErrUnknownPlugin, name, version)
}
