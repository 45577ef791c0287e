package hostagent

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime"
)

// Bounds of surveys. The first may take longer: a browser is asked for its
// version, and nothing waits for it yet.
const (
	firstSurvey  = 30 * time.Second
	surveyWithin = 5 * time.Second
	cleanWithin  = 10 * time.Second
)

// inventory is what the last survey saw of this host's devices.
type inventory struct {
	// devices are those that can be used, as the server is told; locals are their
	// names in the Runtime.
	devices []protocol.Device
	locals  []runtime.DeviceID
	// present are all that are there, also those that cannot be used just now.
	present map[string]bool
	// unclean are idle and were not given back.
	unclean []runtime.DeviceID
}

// survey asks the drivers for their devices and probes them, within a bound
// whatever the drivers do. It is no part of a heartbeat or a renewal: they tell
// what the last survey saw. What ran on a device that is not there any more is
// ended.
func (a *Agent) survey(ctx context.Context, within time.Duration) inventory {
	a.surveying.Lock()
	defer a.surveying.Unlock()
	before := a.inventory()
	s := a.cfg.Runtime.Survey(ctx, within)
	now := inventory{present: map[string]bool{}}
	for _, d := range s.Devices {
		key := d.Driver + "/" + d.HardwareID
		now.present[key] = true
		if d.Unclean && !d.Busy {
			now.unclean = append(now.unclean, d.ID)
		}
		if d.Health == runtime.HealthUnavailable {
			continue // nothing shall be placed on it
		}
		now.devices = append(now.devices, protocol.Device{
			Driver: d.Driver, HardwareID: d.HardwareID, HardwareUnique: d.HardwareIDUnique, Name: d.Name, Labels: d.Labels,
			Health: berth.Health(d.Health), HighestFence: a.journal.Fence(key), Clean: !d.Busy && !d.Unclean,
		})
		now.locals = append(now.locals, d.ID)
	}
	for _, driver := range slices.Sorted(maps.Keys(s.Failed)) {
		a.log.Warn("a driver cannot list its devices", zap.String("driver", driver), zap.Error(s.Failed[driver]))
		now.keep(before, driver)
	}
	a.mu.Lock()
	a.seen = now
	a.mu.Unlock()
	for _, h := range a.held() {
		if !now.present[h.dev.key] && h.getStage() == StageStarted && h.cause() == nil {
			a.log.Error("the device of a running attempt is gone", a.fields(h, zap.String("device", h.dev.key))...)
			h.end(errUnplugged)
		}
	}
	return now
}

// keep takes over what an earlier survey saw of a driver that fails now: that
// says nothing about its devices but that they cannot be trusted.
func (v *inventory) keep(before inventory, driver string) {
	for i, d := range before.devices {
		if d.Driver == driver {
			d.Health = berth.HealthSuspect
			v.devices, v.locals = append(v.devices, d), append(v.locals, before.locals[i])
		}
	}
	for key := range before.present {
		if len(key) > len(driver) && key[:len(driver)+1] == driver+"/" {
			v.present[key] = true
		}
	}
}

// inventory is what the last survey saw.
func (a *Agent) inventory() inventory {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// surveyLoop keeps the inventory fresh, has a sync tell what changed, and cleans
// what could not be given back.
func (a *Agent) surveyLoop(ctx context.Context) {
	for sleep(ctx, jitter(a.conf().HeartbeatEvery.Duration(), 0.1)) {
		now := a.survey(ctx, surveyWithin)
		a.mu.Lock()
		changed := signature(now.devices) != a.reported
		a.mu.Unlock()
		if changed {
			a.askSync()
		}
		for _, id := range now.unclean {
			go a.tend(ctx, id) // it is busy meanwhile, so that the next survey leaves it alone
		}
	}
}

// clean cleans a device, and waits no longer than ctx even for a driver that
// does not look at it.
func (a *Agent) clean(ctx context.Context, id runtime.DeviceID) error {
	done := make(chan error, 1)
	go func() { done <- a.cfg.Runtime.Clean(ctx, id) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tend cleans an idle device; the sync that follows says that it is.
func (a *Agent) tend(ctx context.Context, id runtime.DeviceID) {
	ctx, stop := context.WithTimeout(ctx, cleanWithin)
	defer stop()
	log := a.log.With(zap.String("device", string(id)))
	if err := a.clean(ctx, id); err != nil {
		log.Error("a device cannot be cleaned; it gets no work until it is", zap.String("reason", runtime.MessageOf(err, string(runtime.CodeOf(err)))))
		return
	}
	log.Info("a device is clean again")
	a.askSync()
}

// healths are what a heartbeat tells: since protocol 2 of every device, so that
// the server can count good probes, before that what it was not told.
func (a *Agent) healths() map[berth.DeviceID]berth.Health {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[berth.DeviceID]berth.Health{}
	for _, d := range a.seen.devices {
		if dev := a.byKey[d.Driver+"/"+d.HardwareID]; dev != nil && (a.version >= 2 || dev.health != d.Health) {
			out[dev.id] = d.Health
		}
	}
	return out
}

func (a *Agent) healthsTold(told map[berth.DeviceID]berth.Health) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, health := range told {
		if dev := a.devices[id]; dev != nil {
			dev.health = health
		}
	}
}
