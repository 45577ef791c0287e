package agentapi_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/blob"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/inputs"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// target is what a call of one host names: another host's things, or made-up ones.
type target struct {
	attempt berth.AttemptID
	fence   berth.Fence
	device  berth.DeviceID
	digest  string // of an input
	host    berth.HostID
	claim   string
}

// isolated is a route's row: what a host sends to reach a target. A route without a
// row fails the test.
type isolated struct {
	// status that is right for what is not the caller's.
	status int
	send   func(thief *agent, x target) answer
}

func (x target) holder() protocol.Holder { return protocol.Holder{Attempt: x.attempt, Fence: x.fence} }

func (x target) as() protocol.Assignment {
	return protocol.Assignment{Attempt: x.attempt, Fence: x.fence, Device: x.device}
}

func postTo(path string, body func(thief *agent, x target) any) func(*agent, target) answer {
	return func(thief *agent, x target) answer { return thief.call(http.MethodPost, path, body(thief, x)) }
}

func isolation() map[string]isolated {
	holders := func(x target) []protocol.Holder { return []protocol.Holder{x.holder()} }
	content := []byte("stolen")
	return map[string]isolated{
		// A token names its pool, and no host: under whose name it is used is judged alike.
		"POST /agent/v1/enrol": {404, func(thief *agent, x target) answer {
			return (&agent{w: thief.w}).call("POST", protocol.PathEnrol, protocol.EnrolRequest{
				Token: string(x.host), Name: "lab-9", PublicKey: thief.key.Public().(ed25519.PublicKey),
			})
		}},
		"POST /agent/v1/token": {401, func(thief *agent, x target) answer {
			assertion, err := identity.NewAssertion(thief.key, x.host, thief.w.ident.TokenAudience(), time.Now())
			must(thief.w.t, err)
			return (&agent{w: thief.w}).call("POST", protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: assertion.Reveal()})
		}},
		"POST /agent/v1/sync": {200, postTo(protocol.PathSync, func(thief *agent, x target) any {
			req := syncRequest(0)
			req.Instance, req.Epoch = "instance-of-"+string(thief.host), thief.epoch
			req.Held = []protocol.HeldAttempt{{Attempt: x.attempt, Fence: x.fence}}
			return req
		})},
		"POST /agent/v1/heartbeat": {200, postTo(protocol.PathHeartbeat, func(_ *agent, x target) any {
			return protocol.HeartbeatRequest{Health: map[berth.DeviceID]berth.Health{x.device: berth.HealthQuarantined}}
		})},
		"POST /agent/v1/keys": {401, postTo(protocol.PathKeys, func(thief *agent, x target) any {
			_, next, err := ed25519.GenerateKey(rand.Reader)
			must(thief.w.t, err)
			o, err := identity.NewKeyOffer(thief.key, next, x.host, thief.w.ident.TokenAudience(), time.Now())
			must(thief.w.t, err)
			return protocol.KeyRequest{PublicKey: o.Key, Consent: o.Consent.Reveal(), Proof: o.Proof.Reveal()}
		})},
		"POST /agent/v1/claims": {200, postTo(protocol.PathClaims, func(_ *agent, x target) any {
			return protocol.ClaimRequest{ClaimID: x.claim, Max: 100}
		})},
		"POST /agent/v1/attempts/start": {200, postTo(protocol.PathStart, func(_ *agent, x target) any {
			return protocol.StartRequest{Items: holders(x)}
		})},
		"POST /agent/v1/attempts/renew": {200, postTo(protocol.PathRenew, func(_ *agent, x target) any {
			return protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: x.holder(), Note: "stolen"}}}
		})},
		"POST /agent/v1/attempts/complete": {200, postTo(protocol.PathComplete, func(_ *agent, x target) any {
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{{Holder: x.holder(), Outcome: berth.OutcomeSucceeded, DeviceClean: true}}}
		})},
		"POST /agent/v1/attempts/release": {200, postTo(protocol.PathRelease, func(_ *agent, x target) any {
			return protocol.ReleaseRequest{Items: holders(x)}
		})},
		"POST /agent/v1/devices/:id/clean": {404, func(thief *agent, x target) answer {
			return thief.call("POST", strings.Replace(protocol.PathClean, "{id}", string(x.device), 1), protocol.CleanRequest{Fence: x.fence})
		}},
		"PUT /agent/v1/attempts/:id/log/:offset": {404, func(thief *agent, x target) answer { return thief.putLog(x.as(), 0, content) }},
		"PUT /agent/v1/attempts/:id/artifacts/:name": {404, func(thief *agent, x target) answer {
			return thief.putArtifact(x.as(), "a.txt", berth.ClassFile, "text/plain", content)
		}},
		"GET /agent/v1/inputs/:digest": {404, func(thief *agent, x target) answer {
			return thief.call("GET", strings.Replace(protocol.PathInput, "{digest}", x.digest, 1), nil)
		}},
	}
}

// seen is an answer as a spy reads it: all but the request's id, the time, and the
// ids that it had asked with.
func seen(a answer, x target) string {
	h := a.header.Clone()
	h.Del("X-Request-Id")
	h.Del("Date")
	s := fmt.Sprintf("%d %v %s", a.status, h, strings.ReplaceAll(string(a.body), a.problem.RequestID, ""))
	if a.problem.RequestID == "" {
		s = fmt.Sprintf("%d %v %s", a.status, h, a.body)
	}
	for _, id := range []string{string(x.attempt), string(x.device), x.digest, string(x.host), x.claim} {
		s = strings.ReplaceAll(s, id, "ID")
	}
	return s
}

// Whatever a host asks about another's things, the answer is the one for things that
// do not exist: status, headers and body, and, roughly, the time that it takes.
func TestNoHostReachesAnothersThings(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		owner, thief := w.newAgent("lab-1"), w.newAgent("lab-2")
		owner.sync(1)
		var mine protocol.SyncResponse
		req := syncRequest(0)
		req.Instance = "instance-of-" + string(thief.host)
		thief.ok(&mine, "POST", protocol.PathSync, req)
		thief.epoch = mine.Epoch
		task, digest := w.submitWithInput(t, "the owner's input")
		if n := w.place(w.store); n != 1 {
			t.Fatalf("placed %d", n)
		}
		claim := uuid.NewString()
		var claimed protocol.ClaimResponse
		owner.ok(&claimed, "POST", protocol.PathClaims, protocol.ClaimRequest{ClaimID: claim, Max: 1})
		as := claimed.Attempts[0]
		owner.start(as)
		if res := owner.call("GET", strings.Replace(protocol.PathInput, "{digest}", digest, 1), nil); string(res.body) != "the owner's input" {
			t.Fatalf("the owner's own: %d %s", res.status, res.body)
		}
		theirs := target{attempt: as.Attempt, fence: as.Fence, device: as.Device, digest: digest, host: owner.host, claim: claim}
		before := w.everything(t, owner, task.ID)
		rows := isolation()
		if want := w.api.RouteNames(); !slices.Equal(want, slices.Sorted(maps.Keys(rows))) {
			t.Fatalf("routes %q, rows %q", want, slices.Sorted(maps.Keys(rows)))
		}
		for name, row := range rows {
			// The least of many says most on a busy machine; where it is very busy, of
			// more.
			const rounds, most, apart = 8, 64, 30 * time.Millisecond
			var took [2]time.Duration
			for i := 0; i < rounds || i < most && (took[0]-took[1]).Abs() > apart; i++ {
				nothing := target{
					attempt: berth.AttemptID(uuid.Must(uuid.NewV7()).String()), fence: as.Fence, device: berth.DeviceID(uuid.Must(uuid.NewV7()).String()),
					digest: strings.Repeat("ab", 32), host: berth.HostID(uuid.Must(uuid.NewV7()).String()), claim: uuid.NewString(),
				}
				var got [2]string
				for j, x := range []target{theirs, nothing} {
					began := time.Now()
					a := row.send(thief, x)
					d := time.Since(began)
					if took[j] == 0 || d < took[j] {
						took[j] = d
					}
					if a.status != row.status {
						t.Fatalf("%s: %d %s", name, a.status, a.body)
					}
					got[j] = seen(a, x)
				}
				if i == 0 && got[0] != got[1] {
					t.Errorf("%s tells theirs from nothing:\n%s\n%s", name, got[0], got[1])
				}
			}
			if d := (took[0] - took[1]).Abs(); d > apart {
				t.Errorf("%s takes %v for theirs and %v for nothing", name, took[0], took[1])
			}
		}
		if after := w.everything(t, owner, task.ID); after != before {
			t.Errorf("something of the owner's changed:\n%s\n%s", before, after)
		}
		var renewed protocol.LeaseResponse
		owner.ok(&renewed, "POST", protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder(as)}}})
		if renewed.Items[0].Status != "granted" {
			t.Errorf("the owner's lease: %+v", renewed)
		}
	})
}

// everything is what a thief could have changed.
func (w *world) everything(t *testing.T, owner *agent, id berth.TaskID) string {
	t.Helper()
	task, err := w.store.GetTask(t.Context(), berth.Scope{All: true}, id)
	must(t, err)
	attempts, err := w.store.ListAttempts(t.Context(), berth.Scope{All: true}, id)
	must(t, err)
	device, err := w.store.GetDevice(t.Context(), owner.devices[0])
	must(t, err)
	keys, err := w.store.HostKeys(t.Context(), owner.host)
	must(t, err)
	device.UpdatedAt = time.Time{}
	return fmt.Sprintf("%+v %+v %+v %x blobs %d", task, attempts, device, keys, w.blobCount())
}

// submitWithInput submits a task that brings an input with this content.
func (w *world) submitWithInput(t *testing.T, content string) (berth.Task, string) {
	t.Helper()
	actor := berth.Actor{Principal: berth.Principal{Kind: berth.ActorUser, ID: uuid.NewString()}}
	blobs, err := blob.OpenDirectory(w.blobs)
	must(t, err)
	service := inputs.New(w.store, blobs, nil)
	sum := digest([]byte(content))
	_, err = service.Begin(t.Context(), actor, sum, int64(len(content)))
	must(t, err)
	_, err = service.Append(t.Context(), actor, sum, 0, strings.NewReader(content))
	must(t, err)
	requirement, err := eligibility.Canonical("", berth.Requirement{Plugin: "process.run"})
	must(t, err)
	task := berth.NewTask{
		ID: berth.TaskID(uuid.Must(uuid.NewV7()).String()), Pool: w.pool, Name: "with an input", Requirement: requirement,
		Payload: redact.NewBytes([]byte("{}")), Retry: berth.DefaultRetryPolicy(), Inputs: []berth.InputRef{{Name: "in", Digest: sum}},
	}
	var f berth.Faults
	task.Normalise("", time.Now(), &f)
	must(t, f.Err())
	res, err := w.store.SubmitTasks(t.Context(), store.SubmitParams{Actor: actor, Scope: berth.Scope{All: true}, CorrelationID: "corr-1", Tasks: []berth.NewTask{task}})
	must(t, err)
	return res.Tasks[0], sum
}

// A host that floods the claims gets 429s; another host's claim waits as ever.
func TestAHostsClaimsAreBounded(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		flood, other := w.newAgent("lab-1"), w.newAgent("lab-2")
		flood.sync(0)
		other.sync(1)
		ask := protocol.ClaimRequest{ClaimID: uuid.NewString(), Wait: 20_000, Max: 1}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var waiting sync.WaitGroup
		const open = 4
		for range open {
			waiting.Go(func() {
				for ctx.Err() == nil { // refused where a short one was faster
					_, _ = w.send(ctx, "POST", protocol.PathClaims, ask, flood.header(nil))
				}
			})
		}
		deadline := time.Now().Add(within)
		for refused := 0; refused < 20; { // until the four are all there, one more may be let in
			short := ask
			short.Wait = 0
			res := flood.call("POST", protocol.PathClaims, short)
			switch {
			case res.status == http.StatusTooManyRequests && res.header.Get("Retry-After") != "":
				refused++
			case res.status != http.StatusOK || refused > 0 || time.Now().After(deadline):
				t.Fatalf("after %d refusals: %d %s", refused, res.status, res.body)
			}
		}
		// What is no claim goes on for the flooder, and all for the other.
		flood.ok(nil, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{})
		w.submit(1, `{}`)
		if n := w.place(w.store); n != 1 || len(other.claim()) != 1 {
			t.Error("the other host got nothing")
		}
		end()
		waiting.Wait()
		for deadline := time.Now().Add(within); ; {
			short := ask
			short.Wait = 0
			if res := flood.call("POST", protocol.PathClaims, short); res.status == http.StatusOK {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("claims that are over count still")
			}
		}
	})
}

// What a host says of itself is refused where it could mislead who reads it, by the
// name of its field.
func TestHostileReportsAreRefusedByField(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		device := func(change func(*protocol.Device)) func(*protocol.SyncRequest) {
			return func(r *protocol.SyncRequest) { change(&r.Devices[0]) }
		}
		plugin := func(change func(*protocol.Plugin)) func(*protocol.SyncRequest) {
			return func(r *protocol.SyncRequest) { change(&r.Plugins[0]) }
		}
		label := func(key, value string) func(*protocol.SyncRequest) {
			return device(func(d *protocol.Device) { d.Labels = map[string]string{key: value} })
		}
		many := map[string]string{}
		for i := range berth.MaxLabels + 1 {
			many[fmt.Sprintf("l%d", i)] = "x"
		}
		type row struct {
			field  string
			change func(*protocol.SyncRequest)
		}
		rows := []row{
			{"plugins[0].name", plugin(func(p *protocol.Plugin) { p.Name = "Process Run" })},
			{"plugins[0].version", plugin(func(p *protocol.Plugin) { p.Version = "latest" })},
			{"plugins[0].version", plugin(func(p *protocol.Plugin) { p.Version = "1.0.0-" + strings.Repeat("a", 100) })},
			{"plugins[0].description", plugin(func(p *protocol.Plugin) { p.Description = "\x1b[2J" })},
			{"plugins[0].description", plugin(func(p *protocol.Plugin) { p.Description = strings.Repeat("x", 1<<20) })},
			{"plugins[0].requires", plugin(func(p *protocol.Plugin) { p.Requires = "a=" + strings.Repeat("x", 1<<20) })},
			{"plugins[0].schema", plugin(func(p *protocol.Plugin) { p.Schema = []byte(`"text"`) })},
			{"plugins", func(r *protocol.SyncRequest) { r.Plugins = make([]protocol.Plugin, berth.MaxPluginsPerHost+1) }},
			{"devices", func(r *protocol.SyncRequest) { r.Devices = make([]protocol.Device, berth.MaxDevicesPerHost+1) }},
			{"devices[0].driver", device(func(d *protocol.Device) { d.Driver = "<b>" })},
			{"devices[0].health", device(func(d *protocol.Device) { d.Health = "fine" })},
			{"devices[0].labels", device(func(d *protocol.Device) { d.Labels = many })},
			{"devices[0].labels", label("berth.dev/device", "x")},
			{"devices[0].labels", label("berth.dev/anything", "x")},
			{"devices[0].labels", label("a b", "x")},
			{"devices[0].labels", label("\u202ea", "x")},
			{"devices[0].labels.a", label("a", "<script>")},
			{"devices[0].labels.a", label("a", strings.Repeat("x", 64))},
		}
		for _, text := range []string{"", "a\x00b", "a\nb", "\u202egpj.exe", "a\u200bb", "<img src=x>", "\u2028", strings.Repeat("x", 1<<20)} {
			rows = append(rows,
				row{"devices[0].name", device(func(d *protocol.Device) { d.Name = text })},
				row{"devices[0].hardware_id", device(func(d *protocol.Device) { d.HardwareID = text })},
				row{"instance", func(r *protocol.SyncRequest) { r.Instance = text }})
			if text != "" {
				rows = append(rows, row{"agent_version", func(r *protocol.SyncRequest) { r.AgentVersion = text }})
			}
		}
		for _, c := range rows {
			req := syncRequest(1)
			c.change(&req)
			res := a.call("POST", protocol.PathSync, req)
			if res.status != 422 || !slices.ContainsFunc(res.problem.Errors, func(e berth.FieldError) bool { return e.Path == c.field }) || len(res.body) > 4<<10 {
				t.Errorf("%s: %d %s", c.field, res.status, berth.Clip(string(res.body), 400))
			}
		}
		a.sync(1)
	})
}
