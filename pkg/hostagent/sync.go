package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime"
)

// sync settles with the server what this host has and holds, repeating until
// it is answered. An error is one that repeating cannot help, or ctx's end.
func (a *Agent) sync(ctx context.Context) error {
	err := retry(ctx, func() error {
		err := a.syncOnce(ctx)
		if isCode(err, protocol.CodeEpochAhead) {
			// The server's database was restored under us; the journal's epoch in
			// the next sync lifts it.
			return fmt.Errorf("sync again: %w", errResync)
		}
		if isCode(err, protocol.CodeStaleEpoch) {
			return errors.Join(berth.ErrStaleEpoch, err)
		}
		if outcast(protocol.PathSync, err) {
			a.expel(err)
		}
		if err != nil {
			a.setReady(false)
			a.log.Warn("sync failed", zap.Error(unwanted(err)))
		}
		return err
	})
	return unwanted(err)
}

// errProtocol: the server chose a protocol version that is not spoken here.
var errProtocol = errors.New("no common protocol version")

func (a *Agent) syncOnce(ctx context.Context) error {
	if a.api.heldEpoch() > 0 { // the first survey has just been made
		a.survey(ctx, surveyWithin)
	}
	seen := a.inventory()
	devices := seen.devices
	a.starts.Lock()
	defer a.starts.Unlock()
	held := a.held()
	req := protocol.SyncRequest{
		ProtocolVersions: protocol.Versions(), Instance: a.instance, Epoch: a.api.heldEpoch(), JournalEpoch: a.journal.Epoch(),
		AgentVersion: a.cfg.Version, Draining: a.draining(), Devices: devices, Plugins: a.plugins(), Held: []protocol.HeldAttempt{},
	}
	resumable := a.finishedBefore()
	for _, h := range held {
		req.Held = append(req.Held, protocol.HeldAttempt{Attempt: h.Attempt, Fence: h.Fence})
	}
	if len(held) == 0 && a.api.heldEpoch() == 0 {
		for _, r := range resumable {
			req.Held = append(req.Held, protocol.HeldAttempt{Attempt: r.Attempt, Fence: r.Fence})
		}
	}
	var res protocol.SyncResponse
	if err := a.api.call(ctx, http.MethodPost, protocol.PathSync, req, &res, callOptions{timeout: 2 * a.conf().RequestTimeout.Duration()}); err != nil {
		return err
	}
	if len(res.Devices) != len(devices) || len(res.Attempts) != len(req.Held) {
		return errors.New("the server's answer to sync does not match the request")
	}
	if !slices.Contains(protocol.Versions(), res.ProtocolVersion) {
		return fmt.Errorf("%w: the server chose version %d: bring agent and server to neighbouring releases", errProtocol, res.ProtocolVersion)
	}
	// The journal knows the epoch before anything is done under it.
	if err := a.record(Record{Epoch: res.Epoch}); err != nil {
		return err
	}
	a.api.setEpoch(res.Epoch)
	a.take(res, devices, seen.locals)
	a.apply(res.Attempts)
	a.setReady(true)
	return nil
}

func (a *Agent) plugins() []protocol.Plugin {
	var out []protocol.Plugin
	for _, m := range a.cfg.Runtime.Plugins() {
		out = append(out, protocol.Plugin{
			PluginVersion: berth.PluginVersion{Name: m.Name, Version: m.Version}, Description: m.Description,
			Schema: m.Schema, ResultSchema: m.ResultSchema, Requires: m.Selector(),
		})
	}
	return out
}

// take keeps the server's settings and its ids of the devices.
func (a *Agent) take(res protocol.SyncResponse, devices []protocol.Device, locals []runtime.DeviceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.settings, a.version, a.beatEvery = res.Settings, res.ProtocolVersion, 0
	for i, d := range res.Devices {
		key := devices[i].Driver + "/" + devices[i].HardwareID
		if d.Conflict {
			a.log.Error("another host has a device with this hardware id; an operator must move it", zap.String("device", key))
			continue
		}
		dev := a.byKey[key]
		if dev == nil {
			dev = &device{id: d.ID, local: locals[i], key: key, use: make(chan struct{}, 1)}
			a.byKey[key] = dev
		}
		dev.id, dev.health = d.ID, devices[i].Health
		a.devices[d.ID] = dev
	}
	a.reported = signature(devices)
	for _, p := range res.DisabledPlugins {
		a.log.Warn("plugin waits for approval", zap.String("plugin", p.Name), zap.String("version", p.Version))
	}
	for _, p := range res.DifferingPlugins {
		a.log.Error("this host's plugin differs from the registered one of the same version and gets no tasks; give a change of its schema or labels a version of its own",
			zap.String("plugin", p.Name), zap.String("version", p.Version))
	}
}

// apply does what the server says about held attempts.
func (a *Agent) apply(verdicts []protocol.SyncedAttempt) {
	for _, v := range verdicts {
		a.mu.Lock()
		h := a.holds[v.Attempt]
		a.mu.Unlock()
		switch {
		case h == nil && v.Verdict == "gone":
			a.forget(v.Attempt)
		case h == nil:
		case v.Verdict == "cancel":
			h.end(errCancelled)
		case v.Verdict == "gone":
			h.end(errGone)
		}
	}
}

// forget closes an attempt of an earlier process that the server has settled.
func (a *Agent) forget(id berth.AttemptID) {
	if err := a.record(Record{Stage: StageDone, Attempt: id, Reason: "gone"}); err != nil {
		a.log.Error("the journal cannot be written", zap.Error(err))
	}
	a.removeRun(id)
}

// signature tells whether the devices changed in a way the server should know.
func signature(ds []protocol.Device) string {
	type seen struct {
		Driver, ID, Name string
		Labels           map[string]string
	}
	list := make([]seen, len(ds))
	for i, d := range ds {
		list[i] = seen{d.Driver, d.HardwareID, d.Name, d.Labels}
	}
	b, err := json.Marshal(list)
	if err != nil {
		return ""
	}
	return string(b)
}

// askSync makes the sync loop sync soon.
func (a *Agent) askSync() {
	select {
	case a.resync <- struct{}{}:
	default:
	}
}

// resyncEvery is how often an agent syncs unasked, ±10 %: so that what a device
// of its own is believed to be (unclean, absent) does not stay wrong when a
// report of it got lost.
const resyncEvery = 5 * time.Minute

// syncLoop syncs when asked to, and now and then. It ends with ctx, or with an
// error when this agent may not go on.
func (a *Agent) syncLoop(ctx context.Context) error {
	for {
		t := time.NewTimer(jitter(resyncEvery, 0.1))
		select {
		case <-ctx.Done():
		case <-a.resync:
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil {
			return nil
		}
		if err := a.sync(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if !sleep(ctx, jitter(resyncPause, 0.2)) {
			return nil
		}
	}
}

// resyncPause keeps syncs apart, whatever asks for them.
const resyncPause = 500 * time.Millisecond
