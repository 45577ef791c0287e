package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// agent is a Host Agent as the store sees it.
type agent struct {
	w        *world
	actor    berth.Actor
	id       berth.HostID
	name     string
	epoch    berth.Epoch
	instance string
	protocol int // that it speaks from its next sync on; 0: the first
	devices  []store.ReportedDevice
	ids      []berth.DeviceID
	plugins  []berth.Plugin
	store    store.Store
}

func hashOf(s string) [32]byte { return sha256.Sum256([]byte(s)) }

func hexOf(s string) string { h := hashOf(s); return hex.EncodeToString(h[:]) }

func keyOf(s string) []byte { h := hashOf("key " + s); return h[:] }

// token makes an enrolment token for hosts whose name fits pattern.
func (w *world) token(secret, pattern string, pool berth.PoolID) berth.EnrolmentToken {
	w.t.Helper()
	tok, err := w.Store.CreateEnrolment(bg(), store.CreateEnrolmentParams{
		Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: pool, Pattern: pattern,
		TokenHash: hashOf(secret), TTL: time.Hour,
	})
	w.must("create enrolment", err)
	return tok
}

// enrolled is a host that never synced, of pool, with n devices to report.
func (w *world) enrolled(name string, pool berth.PoolID, n int) *agent {
	w.t.Helper()
	w.token("token "+name, name, pool)
	h, err := w.Store.Enrol(bg(), store.EnrolParams{
		Actor:     berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "enrol"}},
		TokenHash: hashOf("token " + name), Host: newID[berth.HostID](w.Env), Name: name, PublicKey: keyOf(name),
	})
	w.must("enrol", err)
	a := &agent{
		w: w, id: h.ID, name: name, instance: "instance-" + name + "-1", store: w.Store,
		actor:   berth.Actor{Principal: berth.Principal{Kind: berth.ActorHost, ID: string(h.ID)}, RequestID: "req-" + name},
		plugins: []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: pluginName, Version: pluginVersion}}},
	}
	for i := range n {
		a.devices = append(a.devices, a.reported(fmt.Sprintf("slot-%d", i)))
	}
	return a
}

func (a *agent) reported(hardware string) store.ReportedDevice {
	return store.ReportedDevice{
		ID: newID[berth.DeviceID](a.w.Env), Driver: driverName, HardwareID: hardware, Name: a.name + "/" + hardware,
		Labels: map[string]string{"os": "linux", "slot": hardware}, Health: berth.HealthGood, Clean: true,
	}
}

// host is an enrolled and synced host of the world's pool with n free devices.
func (w *world) host(name string, n int) *agent {
	w.t.Helper()
	a := w.enrolled(name+w.suffix, w.pool.ID, n)
	a.sync()
	return a
}

func (a *agent) call() store.AgentCall {
	return store.AgentCall{Actor: a.actor, Host: a.id, Epoch: a.epoch}
}

func (a *agent) syncParams(mods ...func(*store.SyncParams)) store.SyncParams {
	p := store.SyncParams{
		AgentCall: a.call(), Instance: a.instance, AgentVersion: "0.1.0", Protocol: a.protocol, Plugins: a.plugins,
		Devices: append([]store.ReportedDevice(nil), a.devices...), JournalEpoch: a.epoch,
	}
	for _, mod := range mods {
		mod(&p)
	}
	return p
}

// sync syncs, which must work, and takes over the epoch.
func (a *agent) sync(mods ...func(*store.SyncParams)) store.SyncResult {
	a.w.t.Helper()
	res, err := a.store.SyncHost(bg(), a.syncParams(mods...))
	a.w.must("sync", err)
	a.epoch, a.ids = res.Epoch, res.Devices
	return res
}

// restart syncs as a new process whose journal knows the epoch before.
func (a *agent) restart(mods ...func(*store.SyncParams)) store.SyncResult {
	a.w.t.Helper()
	before := a.epoch
	a.instance += "+"
	a.epoch = 0
	return a.sync(append([]func(*store.SyncParams){func(p *store.SyncParams) { p.JournalEpoch = before }}, mods...)...)
}

// holding reports attempts as held at a sync.
func holding(as ...store.Assignment) func(*store.SyncParams) {
	return func(p *store.SyncParams) {
		for _, x := range as {
			p.Held = append(p.Held, store.HeldAttempt{Attempt: x.Attempt, Fence: x.Fence})
		}
	}
}

// beat is a heartbeat, and the sync that it may ask for, which changes nothing but
// that the host is seen.
func (a *agent) beat() {
	a.w.t.Helper()
	res, err := a.store.Heartbeat(bg(), store.HeartbeatParams{AgentCall: a.call()})
	a.w.must("heartbeat", err)
	if res.Resync {
		a.sync(a.still)
	}
}

// still reports at a sync that nothing has changed.
func (a *agent) still(p *store.SyncParams) {
	notClean(p)
	for i := range p.Devices {
		p.Devices[i].Health = ""
	}
	for _, d := range a.w.allDevices() {
		if d.Host == a.id && d.Attempt != "" {
			p.Held = append(p.Held, store.HeldAttempt{Attempt: d.Attempt, Fence: d.Fence})
		}
	}
}

func (a *agent) claimWith(claim string, limit int) []store.Assignment {
	a.w.t.Helper()
	as, _, err := a.store.ClaimAttempts(bg(), store.ClaimParams{AgentCall: a.call(), ClaimID: claim, Max: limit})
	a.w.must("claim", err)
	return as
}

// claim takes all that is assigned, under a new claim id.
func (a *agent) claim() []store.Assignment {
	a.w.t.Helper()
	return a.claimWith(newID[string](a.w.Env), 100)
}

func holder(as store.Assignment) store.Holder {
	return store.Holder{Attempt: as.Attempt, Fence: as.Fence}
}

func holders(as []store.Assignment) []store.Holder {
	var out []store.Holder
	for _, x := range as {
		out = append(out, holder(x))
	}
	return out
}

func (a *agent) startAnswers(as ...store.Assignment) ([]store.LeaseAnswer, []berth.Transition) {
	a.w.t.Helper()
	answers, trs, err := a.store.StartAttempts(bg(), store.StartParams{AgentCall: a.call(), Items: holders(as)})
	a.w.must("start", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d starts", len(answers), len(as))
	}
	for i := range as {
		if answers[i].Attempt != as[i].Attempt {
			a.w.t.Fatalf("answer %d is of attempt %s, asked for %s", i, answers[i].Attempt, as[i].Attempt)
		}
	}
	return answers, trs
}

func (a *agent) start(as ...store.Assignment) {
	a.w.t.Helper()
	answers, _ := a.startAnswers(as...)
	for _, x := range answers {
		if x.Status != store.LeaseGranted {
			a.w.t.Fatalf("start answered %s", x.Status)
		}
	}
}

func (a *agent) renew(as ...store.Assignment) []store.LeaseAnswer {
	a.w.t.Helper()
	answers, _ := a.renewWith(as...)
	return answers
}

func (a *agent) renewWith(as ...store.Assignment) ([]store.LeaseAnswer, []berth.Transition) {
	a.w.t.Helper()
	var items []store.RenewItem
	for _, x := range as {
		items = append(items, store.RenewItem{Holder: holder(x), Progress: -1})
	}
	answers, trs, err := a.store.RenewAttempts(bg(), store.RenewParams{AgentCall: a.call(), Items: items})
	a.w.must("renew", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d renewals", len(answers), len(as))
	}
	return answers, trs
}

// item is how an attempt is completed with a clean device and nothing uploaded.
func item(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) store.CompleteItem {
	it := store.CompleteItem{
		Holder: holder(as), Outcome: outcome, Message: redact.NewString("message " + marker),
		Result: redact.NewBytes([]byte(`{"result": "` + marker + `"}`)), DeviceClean: true,
	}
	for _, mod := range mods {
		mod(&it)
	}
	it.Digest = hashOf(fmt.Sprint(it.Attempt, it.Fence, it.Outcome, it.Reason, it.LogBytes, it.Artifacts, it.DeviceClean))
	return it
}

func unclean(it *store.CompleteItem) { it.DeviceClean = false }

func (a *agent) completeItems(items ...store.CompleteItem) ([]store.CompleteAnswer, []berth.Transition) {
	a.w.t.Helper()
	answers, trs, err := a.store.CompleteAttempts(bg(), store.CompleteParams{AgentCall: a.call(), Items: items})
	a.w.must("complete", err)
	if len(answers) != len(items) {
		a.w.t.Fatalf("%d answers for %d completes", len(answers), len(items))
	}
	return answers, trs
}

// complete completes one attempt and returns the answer.
func (a *agent) complete(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) store.CompleteAnswer {
	a.w.t.Helper()
	answers, _ := a.completeItems(item(as, outcome, mods...))
	return answers[0]
}

// completed completes one attempt, which must be stored.
func (a *agent) completed(as store.Assignment, outcome berth.Outcome, mods ...func(*store.CompleteItem)) berth.TaskState {
	a.w.t.Helper()
	ans := a.complete(as, outcome, mods...)
	if ans.Status != store.CompleteStored || ans.Outcome != outcome {
		a.w.t.Fatalf("complete answered %s, outcome %q", ans.Status, ans.Outcome)
	}
	return ans.TaskState
}

func (a *agent) release(draining bool, as ...store.Assignment) []store.LeaseAnswer {
	a.w.t.Helper()
	answers, _, err := a.store.ReleaseAttempts(bg(), store.ReleaseParams{AgentCall: a.call(), Items: holders(as), Draining: draining})
	a.w.must("release", err)
	if len(answers) != len(as) {
		a.w.t.Fatalf("%d answers for %d releases", len(answers), len(as))
	}
	return answers
}

// one claims and asserts that exactly task id came.
func (a *agent) one(id berth.TaskID) store.Assignment {
	a.w.t.Helper()
	as := a.claim()
	if len(as) != 1 || as[0].Task != id {
		a.w.t.Fatalf("claimed %d attempts, wanted the one of task %s", len(as), id)
	}
	return as[0]
}

// claimed brings a new task to claimed.
func (a *agent) claimed(mods ...func(*berth.NewTask)) store.Assignment {
	a.w.t.Helper()
	task := a.w.submit(mods...)
	a.w.placed(task.ID)
	return a.one(task.ID)
}

// running brings a new task to running.
func (a *agent) running(mods ...func(*berth.NewTask)) store.Assignment {
	a.w.t.Helper()
	as := a.claimed(mods...)
	a.start(as)
	return as
}

// again promotes, places, claims and starts the next try of a task that waits.
func (a *agent) again(id berth.TaskID) store.Assignment {
	a.w.t.Helper()
	if task := a.w.task(id); task.State == berth.StateFailed {
		a.w.Clock.Set(task.DueAt)
		a.beat()
		a.w.promote()
	}
	a.w.placed(id)
	as := a.one(id)
	a.start(as)
	return as
}
