package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
	"github.com/berth-dev/berth/test/harness"
)

// lostOperatorCases are the acts of operators, and the upload of inputs.
func lostOperatorCases() map[string]lostCase {
	return map[string]lostCase{
		"POST /api/v1/devices/:id/cordon":             lostOnDevice("cordon", client.DeviceNote{Note: "lost"}),
		"POST /api/v1/devices/:id/maintenance":        lostOnDevice("maintenance", nil),
		"POST /api/v1/devices/:id/activate":           lostActivate,
		"POST /api/v1/devices/:id/retire":             lostOnDevice("retire", nil),
		"POST /api/v1/devices/:id/trust":              lostTrust,
		"POST /api/v1/devices/:id/clean":              lostOperatorsClean,
		"POST /api/v1/devices/:id/force-release":      lostForceRelease,
		"POST /api/v1/devices/:id/move":               lostMove,
		"PUT /api/v1/devices/:id/labels":              lostLabels,
		"POST /api/v1/hosts/:id/drain":                lostOnHost("drain"),
		"POST /api/v1/hosts/:id/undrain":              lostUndrain,
		"POST /api/v1/hosts/:id/revoke":               lostOnHost("revoke"),
		"POST /api/v1/hosts/:id/rotate-key":           lostOnHost("rotate-key"),
		"POST /api/v1/pools/:name/pause":              lostPause,
		"POST /api/v1/pools/:name/resume":             lostResume,
		"POST /api/v1/plugins/:name/:version/disable": lostDisable,
		"POST /api/v1/plugins/:name/:version/enable":  lostEnable,
		"PATCH /api/v1/tasks/:id":                     lostPriority,
		"POST /api/v1/inputs":                         lostBeginInput,
		"PATCH /api/v1/inputs/:digest":                lostAppendInput,
		"PUT /api/v1/secrets/:name":                   lostPutSecret,
		"DELETE /api/v1/secrets/:name":                lostDeleteSecret,
	}
}

// acts counts the audit rows about a target: each act writes one.
func acts(target string) string {
	return "SELECT count(*) FROM audit_events WHERE target_id = '" + target + "'"
}

// onDevice is an act on a device of a host.
func (w *lostWorld) onDevice(id berth.DeviceID, act string, in any) lostCall {
	w.t.Helper()
	c := w.admin(http.MethodPost, "/api/v1/devices/"+string(id)+"/"+act, in)
	c.effect = acts(string(id))
	return c
}

func lostOnDevice(act string, in any) lostCase {
	return func(w *lostWorld) lostCall {
		host, _ := w.host()
		return w.onDevice(host.Devices[0], act, in)
	}
}

func (w *lostWorld) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func lostActivate(w *lostWorld) lostCall {
	host, _ := w.host()
	w.must(w.Client.CordonDevice(w.t.Context(), string(host.Devices[0]), ""))
	return w.onDevice(host.Devices[0], "activate", nil)
}

// sync reports one device, changed.
func (w *lostWorld) sync(host *harness.Wire, change func(*protocol.Device)) berth.DeviceID {
	w.t.Helper()
	req := harness.SyncRequest(map[string]string{"slot": w.next("lost")})
	change(&req.Devices[0])
	var res protocol.SyncResponse
	host.Must(w.t, http.MethodPost, protocol.PathSync, req, &res)
	host.Epoch = res.Epoch
	return res.Devices[0].ID
}

func lostTrust(w *lostWorld) lostCall {
	host := w.Enrol(w.t, w.next("lost"))
	id := w.sync(host, func(d *protocol.Device) { d.Health = berth.HealthQuarantined })
	return w.onDevice(id, "trust", nil)
}

// held is a host whose device runs an attempt.
func (w *lostWorld) held() (berth.DeviceID, berth.AttemptID) {
	w.t.Helper()
	host, slot := w.host()
	w.task(slot)
	a := host.Claim(w.t, 1)[0]
	host.StartAttempt(w.t, a)
	return host.Devices[0], a.Attempt
}

func lostForceRelease(w *lostWorld) lostCall {
	id, attempt := w.held()
	return w.onDevice(id, "force-release", client.ForceRelease{AttemptID: string(attempt)})
}

func lostOperatorsClean(w *lostWorld) lostCall {
	id, attempt := w.held()
	w.must(w.Client.ForceRelease(w.t.Context(), string(id), string(attempt)))
	return w.onDevice(id, "clean", nil)
}

func lostMove(w *lostWorld) lostCall {
	from, to := w.Enrol(w.t, w.next("lost")), w.Enrol(w.t, w.next("lost"))
	serial := w.next("serial")
	id := w.sync(from, func(d *protocol.Device) { d.HardwareID, d.HardwareUnique = serial, true })
	return w.onDevice(id, "move", client.DeviceMove{HostID: string(to.Host)})
}

func lostLabels(w *lostWorld) lostCall {
	host, _ := w.host()
	id := string(host.Devices[0])
	c := w.admin(http.MethodPut, "/api/v1/devices/"+id+"/labels", client.DeviceLabels{Labels: map[string]string{"rack": "b7"}})
	c.effect = acts(id)
	return c
}

func lostOnHost(act string) lostCase {
	return func(w *lostWorld) lostCall {
		host, _ := w.host()
		c := w.admin(http.MethodPost, "/api/v1/hosts/"+string(host.Host)+"/"+act, nil)
		c.effect = acts(string(host.Host))
		return c
	}
}

func lostUndrain(w *lostWorld) lostCall {
	host, _ := w.host()
	w.must(w.Client.DrainHost(w.t.Context(), string(host.Host)))
	c := w.admin(http.MethodPost, "/api/v1/hosts/"+string(host.Host)+"/undrain", nil)
	c.effect = acts(string(host.Host))
	return c
}

// pool makes a pool that no other case works in.
func (w *lostWorld) pool() client.Pool {
	w.t.Helper()
	p, err := w.Client.CreatePool(w.t.Context(), client.PoolSpec{Name: w.next("pool")})
	w.must(p, err)
	return p
}

func lostPause(w *lostWorld) lostCall {
	p := w.pool()
	c := w.admin(http.MethodPost, "/api/v1/pools/"+p.Name+"/pause", nil)
	c.effect = acts(p.ID)
	return c
}

func lostResume(w *lostWorld) lostCall {
	p := w.pool()
	w.must(w.Client.PausePool(w.t.Context(), p.Name))
	c := w.admin(http.MethodPost, "/api/v1/pools/"+p.Name+"/resume", nil)
	c.effect = acts(p.ID)
	return c
}

// The plugin that no other case runs.
func lostDisable(w *lostWorld) lostCall {
	name, version := manifest.BrowserScriptName, manifest.BrowserScript().Version
	w.must(w.Client.EnablePlugin(w.t.Context(), name, version))
	c := w.admin(http.MethodPost, "/api/v1/plugins/"+name+"/"+version+"/disable", nil)
	c.effect = "SELECT count(*) FROM audit_events WHERE action = '" + string(berth.AuditPluginDisabled) + "'"
	return c
}

func lostEnable(w *lostWorld) lostCall {
	name, version := manifest.BrowserScriptName, manifest.BrowserScript().Version
	w.must(w.Client.DisablePlugin(w.t.Context(), name, version))
	c := w.admin(http.MethodPost, "/api/v1/plugins/"+name+"/"+version+"/enable", nil)
	c.effect = "SELECT count(*) FROM audit_events WHERE action = '" + string(berth.AuditPluginEnabled) + "'"
	return c
}

func lostPriority(w *lostWorld) lostCall {
	task := w.task("nowhere")
	c := w.admin(http.MethodPatch, "/api/v1/tasks/"+task.ID, client.TaskChange{Priority: 7})
	c.effect = acts(task.ID)
	return c
}

// input is a file of its own.
func (w *lostWorld) input() (content []byte, digest string) {
	content = []byte(w.next("the bytes of input"))
	sum := sha256.Sum256(content)
	return content, hex.EncodeToString(sum[:])
}

func lostBeginInput(w *lostWorld) lostCall {
	content, digest := w.input()
	c := w.admin(http.MethodPost, "/api/v1/inputs", client.InputSpec{Digest: digest, Size: int64(len(content))})
	c.effect = "SELECT count(*) FROM input_uploads"
	return c
}

// lostAppendInput: the part that completes the input.
func lostAppendInput(w *lostWorld) lostCall {
	content, digest := w.input()
	w.must(w.Client.BeginInput(w.t.Context(), digest, int64(len(content))))
	c := w.admin(http.MethodPatch, "/api/v1/inputs/"+digest+"?offset=0", nil)
	c.header["Content-Type"], c.body = "application/octet-stream", content
	c.effect = "SELECT count(*) FROM inputs"
	return c
}

func lostPutSecret(w *lostWorld) lostCall {
	c := w.admin(http.MethodPut, "/api/v1/secrets/lost", map[string]any{"value": "a value that got lost", "grants": []map[string]string{{"role": "submitter"}}})
	c.effect = acts("lost")
	return c
}

// lostDeleteSecret: the repeat finds nothing.
func lostDeleteSecret(w *lostWorld) lostCall {
	put := w.admin(http.MethodPut, "/api/v1/secrets/deleted", map[string]any{"value": "a value that goes"})
	if got, err := w.send(put); err != nil || got.Status != http.StatusOK {
		w.t.Fatalf("put: %+v %v", got, err)
	}
	c := w.admin(http.MethodDelete, "/api/v1/secrets/deleted", nil)
	c.effect, c.status = acts("deleted"), http.StatusNotFound
	return c
}
