// Package builtin composes a Runtime of the drivers and plugins that ship with
// Berth. The local Runtime and the Host Agent are both made with it.
package builtin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/runtime"
	"github.com/berth-dev/berth/pkg/runtime/chromium"
	"github.com/berth-dev/berth/pkg/runtime/plugins/browserscript"
	"github.com/berth-dev/berth/pkg/runtime/plugins/external"
	"github.com/berth-dev/berth/pkg/runtime/plugins/processrun"
	"github.com/berth-dev/berth/pkg/runtime/process"
	"github.com/berth-dev/berth/pkg/runtime/procs"
)

// Config says which devices there are. A driver with a count of 0 is left out.
type Config struct {
	// StateDir is where the records of started processes and browser profiles
	// lie; one process at a time uses it. Required.
	StateDir string
	// ProcessSlots and BrowserContexts count the devices of each driver.
	ProcessSlots    int
	BrowserContexts int
	// Process and Chromium configure the drivers; their Procs, Slots and
	// Contexts are filled in here.
	Process  process.Config
	Chromium chromium.Config
	// PluginDir holds plugins that are programs of their own, a folder each; ""
	// for none.
	PluginDir string
	// Labels are added to every device.
	Labels map[string]string
	Limits runtime.Limits
	// CloseTimeout bounds giving a device back after a run; 0: the Runtime's own.
	CloseTimeout time.Duration
	// Logger may be nil.
	Logger *zap.Logger
}

// Runtime is a runtime.Runtime together with the state directory it holds.
type Runtime struct {
	*runtime.Runtime
	// Leftovers is what an earlier process had left behind; it is dead now.
	Leftovers procs.Report

	table *procs.Table
	once  sync.Once
	err   error
}

// New locks the state directory, kills what an earlier process left behind, and
// composes the Runtime. runtime.ErrStateDirInUse when another process holds the
// directory. Nothing is started before the first run.
func New(ctx context.Context, cfg Config) (*Runtime, error) {
	if cfg.StateDir == "" {
		return nil, errors.New("runtime: no state directory is configured")
	}
	table, report, err := procs.Open(ctx, cfg.StateDir)
	if errors.Is(err, procs.ErrInUse) {
		return nil, fmt.Errorf("%w: %s", runtime.ErrStateDirInUse, cfg.StateDir)
	}
	if err != nil {
		return nil, unusable(cfg.StateDir, err)
	}
	rt, err := compose(cfg, table)
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	return &Runtime{Runtime: rt, Leftovers: report, table: table}, nil
}

// unusable says what the system has against a state directory.
func unusable(dir string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("runtime: state directory: %w", err)
	}
	what := fmt.Sprintf("the state directory %s cannot be used (%s)", dir, errno)
	if errno == syscall.ENOSPC || errno == syscall.EDQUOT {
		return &berth.SetupError{What: what, Remedy: "free space there and start again, or name another with --state-dir"}
	}
	return &berth.SetupError{What: what, Remedy: "give it to the user that runs this, or name another with --state-dir"}
}

func compose(cfg Config, table *procs.Table) (*runtime.Runtime, error) {
	var drivers []runtime.Driver
	plugins := []runtime.Plugin{processrun.New(), browserscript.New()}
	if cfg.PluginDir != "" {
		programs, err := external.Load(cfg.PluginDir, table)
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, programs...)
	}
	if cfg.ProcessSlots > 0 {
		pc := cfg.Process
		pc.Procs, pc.Slots, pc.Labels = table, cfg.ProcessSlots, join(cfg.Labels, pc.Labels)
		d, err := process.New(pc)
		if err != nil {
			return nil, err
		}
		drivers = append(drivers, d)
	}
	if cfg.BrowserContexts > 0 {
		cc := cfg.Chromium
		cc.Procs, cc.Contexts, cc.Labels = table, cfg.BrowserContexts, join(cfg.Labels, cc.Labels)
		d, err := chromium.New(cc)
		if err != nil {
			return nil, err
		}
		drivers = append(drivers, d)
	}
	return runtime.New(runtime.Config{Drivers: drivers, Plugins: plugins, Limits: cfg.Limits, CloseTimeout: cfg.CloseTimeout, TempDir: table.TempRoot(), Logger: cfg.Logger})
}

func join(a, b map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range a {
		out[k] = v
	}
	for k, v := range b {
		out[k] = v
	}
	return out
}

// Close kills all runs and the browser, returns when they are dead, and lets go
// of the state directory. It may be called twice.
func (r *Runtime) Close() error {
	r.once.Do(func() { r.err = errors.Join(r.Runtime.Close(), r.table.Close()) })
	return r.err
}
