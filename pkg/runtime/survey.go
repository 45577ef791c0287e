package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Survey is what all drivers say of their devices at one moment.
type Survey struct {
	// Devices are ordered by driver as configured and then by id, each with the
	// health that a probe of it saw.
	Devices []Device
	// Failed says of each driver that could not list its devices why; they are
	// not among Devices, and that says nothing about them.
	Failed map[string]error
}

// errNoAnswer: a driver, or a probe, is at work and does not answer.
var errNoAnswer = errors.New("the driver does not answer")

// Survey lists and probes all devices, all drivers at the same time. It returns
// after within, whatever the drivers do: one that does not list its devices by
// then has failed, a device whose probe does not answer is HealthSuspect. What
// does not answer is not asked again while it is at work.
func (r *Runtime) Survey(ctx context.Context, within time.Duration) Survey {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	answers := make([]func() ([]Device, error), len(r.drivers))
	for i, d := range r.drivers {
		answers[i] = ask(ctx, r, "driver "+d.Name(), nil, func(ctx context.Context) ([]Device, error) { return r.probed(ctx, d) })
	}
	s := Survey{Failed: map[string]error{}}
	for i, d := range r.drivers {
		ds, err := answers[i]()
		if err != nil {
			s.Failed[d.Name()] = err
			continue
		}
		s.Devices = append(s.Devices, ds...)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range s.Devices {
		r.annotate(&s.Devices[i])
	}
	return s
}

// probed lists a driver's devices with the health that probes see.
func (r *Runtime) probed(ctx context.Context, d Driver) ([]Device, error) {
	ds, err := d.Discover(ctx)
	if err != nil {
		return nil, err
	}
	// The list must be told even when a probe uses up the time.
	limit := surveyProbe
	if at, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(at)/2)
	}
	probeCtx, stop := context.WithTimeout(ctx, limit)
	defer stop()
	answers := make([]func() (Device, error), len(ds))
	for i, dev := range ds {
		if dev.Health == HealthUnavailable {
			continue
		}
		answers[i] = ask(probeCtx, r, "device "+string(dev.ID), dev, func(ctx context.Context) (Device, error) { return d.Probe(ctx, dev.ID) })
	}
	gone := map[DeviceID]bool{}
	for i, answer := range answers {
		if answer == nil {
			continue
		}
		switch dev, err := answer(); {
		case err == nil:
			ds[i] = dev
		case errors.Is(err, ErrUnknownDevice):
			gone[ds[i].ID] = true // since it was listed
		default:
			ds[i].Health, ds[i].HealthMessage = HealthSuspect, MessageOf(err, "a probe of the device failed or did not answer")
		}
	}
	return slices.DeleteFunc(ds, func(dev Device) bool { return gone[dev.ID] }), nil
}

// surveyProbe bounds the probe of one device in a survey.
const surveyProbe = 5 * time.Second

// ask calls f in the background and returns how to wait for its answer, until
// ctx ends. While an earlier call of the same name is at work it is not called.
func ask[T any](ctx context.Context, r *Runtime, name string, none T, f func(context.Context) (T, error)) func() (T, error) {
	type answer struct {
		v   T
		err error
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking[name] {
		return func() (T, error) { return none, fmt.Errorf("%s: %w", name, errNoAnswer) }
	}
	r.asking[name] = true
	done := make(chan answer, 1)
	go func() {
		v, err := f(ctx)
		r.mu.Lock()
		delete(r.asking, name)
		r.mu.Unlock()
		done <- answer{v, err}
	}()
	return func() (T, error) {
		select {
		case a := <-done:
			return a.v, a.err
		case <-ctx.Done():
		}
		select { // it may have been just in time
		case a := <-done:
			return a.v, a.err
		default:
			return none, fmt.Errorf("%s: %w", name, errNoAnswer)
		}
	}
}
