package agentapi_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// TestStrangersHaveARate: what needs no token is limited by the caller's network,
// what a host does is not.
func TestStrangersHaveARate(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("a")
		anon := &agent{w: w}
		for _, path := range []string{protocol.PathEnrol, protocol.PathToken} {
			limited := false
			for range 200 {
				if res := anon.call("POST", path, map[string]any{}); res.status == 429 {
					limited = res.problem.Code == "rate_limited" || res.problem.Code == "too_many_requests"
					break
				}
			}
			if !limited {
				t.Errorf("%s answers whatever comes", path)
			}
		}
		a.sync(1)
	}, func(c *agentapi.Config) { c.AddressRate = 10 })
}

func TestEnrolmentLetsOneHostInOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		anon := &agent{w: w}
		key, _, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		other, _, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		token := w.enrolmentToken("lab-*")
		enrol := func(token, name string, key []byte) answer {
			return anon.call("POST", protocol.PathEnrol, protocol.EnrolRequest{Token: token, Name: name, PublicKey: key})
		}
		if res := enrol(token, "office-1", key); res.status != 422 || res.problem.Code != "invalid" {
			t.Errorf("name off the pattern: %d %s", res.status, res.body)
		}
		first := enrol(token, "lab-1", key)
		again := enrol(token, "lab-1", key)
		if first.status != 200 || !bytes.Equal(first.body, again.body) {
			t.Errorf("first %d %s, again %d %s", first.status, first.body, again.status, again.body)
		}
		for name, tc := range map[string]struct {
			token, name string
			key         []byte
			status      int
			code        string
		}{
			"another key":   {token, "lab-1", other, 410, "enrolment_token_used"},
			"unknown token": {"berth-enrol-" + strings.Repeat("A", 43), "lab-2", other, 404, "not_found"},
			"no token":      {"", "lab-2", other, 422, "invalid"},
			"long token":    {strings.Repeat("x", 257), "lab-2", other, 422, "invalid"},
			"bad name":      {token, "Lab 2", other, 422, "invalid"},
			"short key":     {token, "lab-2", other[:31], 422, "invalid"},
			"empty key":     {token, "lab-2", make([]byte, 32), 422, "invalid"},
			"taken name":    {w.enrolmentToken("*"), "lab-1", other, 409, "exists"},
		} {
			if res := enrol(tc.token, tc.name, tc.key); res.status != tc.status || res.problem.Code != tc.code {
				t.Errorf("%s: %d %s", name, res.status, res.body)
			}
		}
	})
}

func TestTokensAreForHostsWithTheirKey(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		_, stranger, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		forged, err := identity.NewAssertion(stranger, a.host, w.ident.TokenAudience(), time.Now())
		must(t, err)
		anon := &agent{w: w}
		if res := anon.call("POST", protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: forged.Reveal()}); res.status != 401 {
			t.Errorf("another key: %d %s", res.status, res.body)
		}
		if res := anon.call("POST", protocol.PathToken, protocol.TokenRequest{GrantType: "password", Assertion: "x"}); res.status != 422 {
			t.Errorf("another grant: %d %s", res.status, res.body)
		}
	})
}

func TestPeopleAndNobodiesAreNoHosts(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		_, err := w.ident.BootstrapAdmin(t.Context(), "admin", redact.NewString("correct horse battery"))
		must(t, err)
		tokens, err := w.ident.Login(t.Context(), identity.Credentials{Name: "admin", Password: redact.NewString("correct horse battery")})
		must(t, err)
		person := &agent{w: w, token: tokens.Access.Reveal(), epoch: 1}
		nobody := &agent{w: w, epoch: 1}
		id := uuid.NewString()
		for _, route := range [][2]string{
			{"POST", protocol.PathSync},
			{"POST", protocol.PathHeartbeat},
			{"POST", protocol.PathClaims},
			{"POST", protocol.PathStart},
			{"POST", protocol.PathRenew},
			{"POST", protocol.PathComplete},
			{"POST", protocol.PathRelease},
			{"PUT", "/agent/v1/attempts/" + id + "/log/0"},
			{"PUT", "/agent/v1/attempts/" + id + "/artifacts/a.txt"},
			{"POST", "/agent/v1/devices/" + id + "/clean"},
		} {
			if res := person.call(route[0], route[1], struct{}{}); res.status != 403 {
				t.Errorf("a person on %s: %d %s", route[1], res.status, res.body)
			}
			if res := nobody.call(route[0], route[1], struct{}{}); res.status != 401 {
				t.Errorf("nobody on %s: %d %s", route[1], res.status, res.body)
			}
		}
		if res := nobody.call("GET", "/agent/v1/nothing", nil); res.status != 404 {
			t.Errorf("no route: %d", res.status)
		}
	})
}

// withoutRequestID is a problem as an oracle would read it.
func withoutRequestID(a answer) string {
	a.problem.RequestID = ""
	return fmt.Sprintf("%d %+v", a.status, a.problem)
}

func TestAnotherHostsThingsLookLikeNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		owner, thief := w.newAgent("lab-1"), w.newAgent("lab-2")
		owner.sync(1)
		_, as := owner.running(`{}`)
		thief.sync(0)
		nothing := as
		nothing.Attempt = berth.AttemptID(uuid.NewString())

		both := func(what string, try func(as protocol.Assignment) string) {
			t.Helper()
			theirs, none := try(as), try(nothing)
			if theirs = strings.ReplaceAll(theirs, string(as.Attempt), "ID"); theirs != strings.ReplaceAll(none, string(nothing.Attempt), "ID") {
				t.Errorf("%s: theirs %s, nothing %s", what, theirs, none)
			}
		}
		list := func(path string, body func(h protocol.Holder) any) func(protocol.Assignment) string {
			return func(as protocol.Assignment) string {
				res := thief.call("POST", path, body(holder(as)))
				if !strings.Contains(string(res.body), `"gone"`) {
					t.Errorf("%s: %d %s", path, res.status, res.body)
				}
				return string(res.body)
			}
		}
		both("start", list(protocol.PathStart, func(h protocol.Holder) any { return protocol.StartRequest{Items: []protocol.Holder{h}} }))
		both("renew", list(protocol.PathRenew, func(h protocol.Holder) any {
			return protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: h}}}
		}))
		both("release", list(protocol.PathRelease, func(h protocol.Holder) any { return protocol.ReleaseRequest{Items: []protocol.Holder{h}} }))
		both("complete", list(protocol.PathComplete, func(h protocol.Holder) any {
			return protocol.CompleteRequest{Items: []protocol.CompleteItem{{Holder: h, Outcome: berth.OutcomeFailed}}}
		}))
		both("log", func(as protocol.Assignment) string { return withoutRequestID(thief.putLog(as, 0, []byte("x"))) })
		both("artifact", func(as protocol.Assignment) string {
			return withoutRequestID(thief.putArtifact(as, "a.txt", berth.ClassFile, "text/plain", []byte("x")))
		})
		for _, id := range []string{string(as.Device), uuid.NewString(), "no-id", ".."} {
			res := thief.call("POST", strings.Replace(protocol.PathClean, "{id}", id, 1), protocol.CleanRequest{Fence: as.Fence})
			if res.status != 404 {
				t.Errorf("clean %s: %d %s", id, res.status, res.body)
			}
		}
		if n := w.blobCount(); n != 0 {
			t.Errorf("%d blobs of a thief", n)
		}
		if got := thief.claim(); len(got) != 0 {
			t.Errorf("claimed %+v", got)
		}
		var res protocol.LeaseResponse // and the owner goes on
		owner.ok(&res, "POST", protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder(as)}}})
		if res.Items[0].Status != "granted" {
			t.Errorf("owner: %+v", res)
		}
	})
}

func TestOnlyTheNewestAgentOfAHostIsHeard(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		old := *a
		a.sync(1)
		if a.epoch != old.epoch+1 {
			t.Errorf("epochs %d, %d", old.epoch, a.epoch)
		}
		ahead := *a
		ahead.epoch += 5
		id := uuid.NewString()
		item := []protocol.Holder{{Attempt: berth.AttemptID(id), Fence: 1}}
		for path, body := range map[string]any{
			protocol.PathHeartbeat: protocol.HeartbeatRequest{},
			protocol.PathClaims:    protocol.ClaimRequest{ClaimID: id, Max: 1},
			protocol.PathStart:     protocol.StartRequest{Items: item},
			protocol.PathRenew:     protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: item[0]}}},
			protocol.PathRelease:   protocol.ReleaseRequest{Items: item},
			protocol.PathComplete:  protocol.CompleteRequest{Items: []protocol.CompleteItem{{Holder: item[0], Outcome: berth.OutcomeFailed}}},
			strings.Replace(protocol.PathClean, "{id}", string(a.devices[0]), 1): protocol.CleanRequest{Fence: 1},
		} {
			if res := old.call("POST", path, body); res.status != 412 || res.problem.Code != "stale_epoch" {
				t.Errorf("old on %s: %d %s", path, res.status, res.body)
			}
			if res := ahead.call("POST", path, body); res.status != 412 || res.problem.Code != "epoch_ahead" {
				t.Errorf("ahead on %s: %d %s", path, res.status, res.body)
			}
			for _, header := range []string{"", "0", "-1", "01", "1.0", "x", " 1 1", "99999999999999999999"} {
				res := a.call("POST", path, body, map[string]string{protocol.HeaderEpoch: header})
				if res.status != 422 || res.problem.Errors[0].Path != protocol.HeaderEpoch {
					t.Errorf("epoch %q on %s: %d %s", header, path, res.status, res.body)
				}
			}
		}
		// An older process that syncs again is refused for ever.
		req := syncRequest(1)
		req.Epoch = old.epoch
		if res := a.call("POST", protocol.PathSync, req); res.status != 412 || res.problem.Code != "stale_epoch" {
			t.Errorf("old sync: %d %s", res.status, res.body)
		}
	})
}

func TestTheHighestCountersLeaveRoomAboveThem(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		req := syncRequest(1)
		req.JournalEpoch, req.Devices[0].HighestFence = 1<<52, 1<<52
		for range 3 { // each as a new process
			var res protocol.SyncResponse
			a.ok(&res, "POST", protocol.PathSync, req)
			a.epoch, a.devices = res.Epoch, []berth.DeviceID{res.Devices[0].ID}
			a.ok(nil, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{})
		}
		_, as := a.running(`{"command":["true"]}`) // started: its fence is taken
		a.complete(protocol.CompleteItem{Holder: holder(as), Outcome: berth.OutcomeSucceeded, DeviceClean: true})
		req.Epoch = 1 << 52 // no process has that; the next one goes on
		if res := a.call("POST", protocol.PathSync, req); res.status != 200 && res.problem.Code != "stale_epoch" {
			t.Errorf("an epoch that nobody gave: %d %s", res.status, res.body)
		}
		a.sync(1)
		a.ok(nil, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{})
	})
}

// faulty is a call that must be refused, with the path of the fault ("" for
// one of the whole body).
type faulty struct{ name, path, body, at string }

func TestFaultsAreNamedAndChangeNothing(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		id := uuid.NewString()
		item := func(more string) string { return `{"items":[{"attempt":"` + id + `","fence":1` + more + `}]}` }
		many := `{"items":[` + strings.TrimSuffix(strings.Repeat(`{"attempt":"x","fence":1},`, 101), ",") + `]}`
		sync := func(change func(r *protocol.SyncRequest)) string {
			r := syncRequest(1)
			change(&r)
			b, err := json.Marshal(r)
			must(t, err)
			return string(b)
		}
		cases := []faulty{
			{"no body", protocol.PathStart, ``, ""},
			{"no JSON", protocol.PathStart, `{"items":`, ""},
			{"two values", protocol.PathStart, item("") + item(""), ""},
			{"a list", protocol.PathStart, `[]`, ""},
			{"items of another type", protocol.PathStart, `{"items":{}}`, "items"},
			{"no items", protocol.PathStart, `{"items":[]}`, "items"},
			{"items null", protocol.PathRenew, `{"items":null}`, "items"},
			{"too many items", protocol.PathComplete, many, "items"},
			{"no id", protocol.PathStart, `{"items":[{"attempt":"x","fence":1}]}`, "items[0].attempt"},
			{"id in capitals", protocol.PathStart, `{"items":[{"attempt":"` + strings.ToUpper(uuid.NewString()[:35]) + `A","fence":1}]}`, "items[0].attempt"},
			{"fence 0", protocol.PathRelease, `{"items":[{"attempt":"` + id + `","fence":0}]}`, "items[0].fence"},
			{"fence too high", protocol.PathRelease, `{"items":[{"attempt":"` + id + `","fence":9007199254740993}]}`, "items[0].fence"},
			{"twice", protocol.PathStart, `{"items":[{"attempt":"` + id + `","fence":1},{"attempt":"` + id + `","fence":2}]}`, "items[1].attempt"},
			{"progress over 1", protocol.PathRenew, item(`,"progress":1.5`), "items[0].progress"},
			{"progress below 0", protocol.PathRenew, item(`,"progress":-1`), "items[0].progress"},
			{"long note", protocol.PathRenew, item(`,"note":"` + strings.Repeat("x", 1001) + `"`), "items[0].note"},
			{"reason with words", protocol.PathRelease, `{"items":[{"attempt":"` + id + `","fence":1}],"reason":"not a code"}`, "reason"},
			{"outcome lost", protocol.PathComplete, item(`,"outcome":"lost"`), "items[0].outcome"},
			{"outcome released", protocol.PathComplete, item(`,"outcome":"released"`), "items[0].outcome"},
			{"no outcome", protocol.PathComplete, item(``), "items[0].outcome"},
			{"reason", protocol.PathComplete, item(`,"outcome":"failed","reason":"A"`), "items[0].reason"},
			{"long message", protocol.PathComplete, item(`,"outcome":"failed","message":"` + strings.Repeat("x", store.MaxMessageBytes+1) + `"`), "items[0].message"},
			{"long result", protocol.PathComplete, item(`,"outcome":"failed","result":"` + strings.Repeat("x", store.MaxResultBytes) + `"`), "items[0].result"},
			{"negative log", protocol.PathComplete, item(`,"outcome":"failed","log_bytes":-1`), "items[0].log_bytes"},
			{"artifact name", protocol.PathComplete, item(`,"outcome":"failed","artifacts":{"../x":"` + digest(nil) + `"}`), "items[0].artifacts"},
			{"artifact digest", protocol.PathComplete, item(`,"outcome":"failed","artifacts":{"x":"abc"}`), "items[0].artifacts.x"},
			{"claim id", protocol.PathClaims, `{"claim_id":"x","max":1}`, "claim_id"},
			{"claim wait", protocol.PathClaims, `{"claim_id":"` + id + `","max":1,"wait_ms":25001}`, "wait_ms"},
			{"claim max 0", protocol.PathClaims, `{"claim_id":"` + id + `"}`, "max"},
			{"claim max 101", protocol.PathClaims, `{"claim_id":"` + id + `","max":101}`, "max"},
			{"health key", protocol.PathHeartbeat, `{"health":{"x":"good"}}`, "health"},
			{"health", protocol.PathHeartbeat, `{"health":{"` + id + `":"fine"}}`, "health." + id},
			{"clean fence", strings.Replace(protocol.PathClean, "{id}", id, 1), `{"fence":-1}`, "fence"},
			{"instance", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Instance = "x" }), "instance"},
			{"epoch", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Epoch = -1 }), "epoch"},
			{"journal at the end of numbers", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.JournalEpoch = 1<<63 - 1 }), "journal_epoch"},
			{"version", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.AgentVersion = "a\nb" }), "agent_version"},
			{"plugin name", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Plugins[0].Name = "A B" }), "plugins[0].name"},
			{"plugin version", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Plugins[0].Version = "1.0" }), "plugins[0].version"},
			{"plugin schema", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Plugins[0].Schema = json.RawMessage(`[1]`) }), "plugins[0].schema"},
			{"plugin twice", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Plugins = append(r.Plugins, r.Plugins[0]) }), "plugins[1]"},
			{"driver", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].Driver = "" }), "devices[0].driver"},
			{"hardware id", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].HardwareID = "a\x00b" }), "devices[0].hardware_id"},
			{"device twice", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices = append(r.Devices, r.Devices[0]) }), "devices[1].hardware_id"},
			{"device name", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].Name = strings.Repeat("x", 201) }), "devices[0].name"},
			{"device health", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].Health = "fine" }), "devices[0].health"},
			{"device fence", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].HighestFence = -1 }), "devices[0].highest_fence"},
			{"label name", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].Labels = map[string]string{"a b": "c"} }), "devices[0].labels"},
			{"label value", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices[0].Labels = map[string]string{"a": "b c"} }), "devices[0].labels.a"},
			{"too many devices", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.Devices = make([]protocol.Device, 513) }), "devices"},
			{"held twice", protocol.PathSync, sync(func(r *protocol.SyncRequest) {
				h := protocol.HeldAttempt{Attempt: berth.AttemptID(id), Fence: 1}
				r.Held = []protocol.HeldAttempt{h, h}
			}), "held[1].attempt"},
		}
		for _, tc := range cases {
			t.Run(tc.name, func(t *testing.T) {
				res := a.call("POST", tc.path, tc.body)
				if res.status != 422 || res.problem.Code != "invalid" || len(res.problem.Errors) == 0 {
					t.Fatalf("%d %.300s", res.status, res.body)
				}
				found := false
				for _, f := range res.problem.Errors {
					found = found || f.Path == tc.at
				}
				if !found {
					t.Errorf("no fault at %q: %+v", tc.at, res.problem.Errors)
				}
			})
		}
		if res := a.call("POST", protocol.PathSync, sync(func(r *protocol.SyncRequest) { r.ProtocolVersions = []int{0, 99} })); res.status != 422 || res.problem.Code != "protocol_unsupported" {
			t.Errorf("version: %d %s", res.status, res.body)
		}
		if res := a.call("POST", protocol.PathStart, item(""), map[string]string{"Content-Type": "text/plain"}); res.status != 415 {
			t.Errorf("media type: %d %s", res.status, res.body)
		}
		if res := a.call("POST", protocol.PathStart, io.MultiReader(strings.NewReader(item("")), strings.NewReader(strings.Repeat(" ", 9<<20))),
			map[string]string{"Content-Type": "application/json"}); res.status != 413 {
			t.Errorf("9 MiB: %d %s", res.status, res.body)
		}
		// After all of it the agent is as it was.
		var beat protocol.HeartbeatResponse
		a.ok(&beat, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{})
	})
}

func TestUnknownMembersAreIgnored(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		a.ok(nil, "POST", protocol.PathHeartbeat, `{"draining":false,"of_a_later_version":{"x":[1,2]}}`)
	})
}

func TestUploadsAreHeldAgainstWhatTheyPromise(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		_, as := a.running(`{}`)
		line := []byte("line\n")
		head := func(change map[string]string) map[string]string {
			h := uploadHeader(as, line)
			h[protocol.HeaderArtifactClass], h["Content-Type"] = "file", "text/plain"
			for k, v := range change {
				h[k] = v
			}
			return h
		}
		big := make([]byte, store.MaxLogChunk+1)
		other := as
		other.Fence++
		for name, tc := range map[string]struct {
			path   string
			body   any
			header map[string]string
			status int
			code   string
		}{
			"no fence":                 {logPath(as, 0), line, head(map[string]string{protocol.HeaderFence: ""}), 422, "invalid"},
			"no digest":                {logPath(as, 0), line, head(map[string]string{protocol.HeaderDigest: ""}), 422, "invalid"},
			"digest of another":        {logPath(as, 0), []byte("else\n"), head(nil), 422, "invalid"},
			"digest in base64":         {logPath(as, 0), line, head(map[string]string{protocol.HeaderDigest: "sha-256=AAAA"}), 422, "invalid"},
			"another fence":            {logPath(as, 0), line, uploadHeader(other, line), 410, "lease_lost"},
			"gap":                      {logPath(as, 9), line, head(nil), 416, "log_gap"},
			"negative offset":          {logPath(as, -1), line, head(nil), 422, "invalid"},
			"offset no number":         {"/agent/v1/attempts/" + string(as.Attempt) + "/log/0x1", line, head(nil), 422, "invalid"},
			"empty chunk":              {logPath(as, 0), []byte{}, uploadHeader(as, nil), 422, "invalid"},
			"too large":                {logPath(as, 0), big, uploadHeader(as, big), 413, "too_large"},
			"too large, length unsaid": {logPath(as, 0), io.MultiReader(bytes.NewReader(big)), uploadHeader(as, big), 413, "too_large"},
			"attempt no id":            {"/agent/v1/attempts/x/log/0", line, head(nil), 404, "not_found"},
			"hidden name":              {artifactPath(as, ".bashrc"), line, head(nil), 422, "invalid"},
			"name with a slash":        {artifactPath(as, "..%2fx"), line, head(nil), 422, "invalid"},
			"no class":                 {artifactPath(as, "a"), line, head(map[string]string{protocol.HeaderArtifactClass: ""}), 422, "invalid"},
			"HTML as screenshot":       {artifactPath(as, "a"), line, head(map[string]string{protocol.HeaderArtifactClass: "screenshot", "Content-Type": "text/html"}), 422, "invalid"},
			"SVG as screenshot":        {artifactPath(as, "a"), line, head(map[string]string{protocol.HeaderArtifactClass: "screenshot", "Content-Type": "image/svg+xml"}), 422, "invalid"},
			"text as UI tree":          {artifactPath(as, "a"), line, head(map[string]string{protocol.HeaderArtifactClass: "ui_tree"}), 422, "invalid"},
			"artifact's digest":        {artifactPath(as, "a"), []byte("else\n"), head(nil), 422, "invalid"},
		} {
			res := a.call("PUT", tc.path, tc.body, tc.header)
			if res.status != tc.status || res.problem.Code != tc.code {
				t.Errorf("%s: %d %s", name, res.status, res.body)
			}
			if tc.code == "log_gap" && (res.problem.NextOffset == nil || *res.problem.NextOffset != 0) {
				t.Errorf("gap: %s", res.body)
			}
		}
		if n := w.blobCount(); n != 0 {
			t.Errorf("%d blobs of refused uploads", n)
		}
		// A chunk of exactly the limit is fine, also without a length.
		if res := a.call("PUT", logPath(as, 0), io.MultiReader(bytes.NewReader(big[1:])), uploadHeader(as, big[1:])); res.status != 200 {
			t.Errorf("at the limit: %d %s", res.status, res.body)
		}
	})
}

func TestWhatBrowsersCouldRunBecomesPlainBytes(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		task, as := a.running(`{}`)
		for name, tc := range map[string]struct {
			class       berth.ArtifactClass
			sent, saved string
		}{
			"a": {berth.ClassFile, "text/html", "application/octet-stream"},
			"b": {berth.ClassReport, "image/svg+xml", "application/octet-stream"},
			"c": {berth.ClassFile, "", "application/octet-stream"},
			"d": {berth.ClassFile, "text/plain; charset=utf-16", "text/plain; charset=utf-8"},
			"e": {berth.ClassReport, "Application/JSON", "application/json"},
			"f": {berth.ClassFile, "application/zip; x=y", "application/zip"},
			"g": {berth.ClassUITree, "application/json", "application/json"},
			"h": {berth.ClassVideo, "video/webm", "video/webm"},
			"i": {berth.ClassFile, "text/html\x00", "application/octet-stream"},
		} {
			if strings.ContainsRune(tc.sent, 0) {
				tc.sent = "text/html;;;="
			}
			if res := a.putArtifact(as, name, tc.class, tc.sent, []byte(name)); res.status != 201 {
				t.Errorf("%s: %d %s", name, res.status, res.body)
			}
			f, err := w.store.GetArtifact(t.Context(), everything, task.ID, 1, name)
			must(t, err)
			if f.ContentType != tc.saved {
				t.Errorf("%q was saved as %q", tc.sent, f.ContentType)
			}
		}
	})
}

func TestABodyThatBreaksOffLeavesNothing(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		_, as := a.running(`{}`)
		whole := bytes.Repeat([]byte("x"), 300_000)
		h := a.header(uploadHeader(as, whole))
		broken := io.MultiReader(bytes.NewReader(whole[:200_000]), iotest.ErrReader(net.ErrClosed))
		if _, err := w.send(t.Context(), "PUT", logPath(as, 0), broken, h); err == nil {
			t.Fatal("the client's own body did not break")
		}
		// The server has seen the end of it once the upload comes through again.
		if res := a.putLog(as, 0, whole); res.status != 200 {
			t.Errorf("again: %d %s", res.status, res.body)
		}
		must(t, w.stop())
		if n := w.blobCount(); n != 1 {
			t.Errorf("%d blobs", n)
		}
	})
}

func TestOpenAndSecretThingsInTheLog(t *testing.T) {
	onBoth(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		const mark = "MARKOFCONTENT"
		_, as := a.running(`{"text":"` + mark + `"}`)
		content := []byte(mark)
		a.ok(nil, "POST", protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder(as), Note: mark}}})
		a.putLog(as, 0, content)
		a.putLog(as, 0, []byte(mark+mark))
		a.putLog(as, 99, content)
		a.putArtifact(as, "t.json", berth.ClassUITree, "application/json", content)
		a.putArtifact(as, "t.json", berth.ClassUITree, "application/json", []byte(mark+mark))
		a.call("POST", protocol.PathComplete, `{"items":"`+mark+`"}`)
		a.call("POST", protocol.PathComplete, `{"items":[{"attempt":"`+mark+`","outcome":"`+mark+`","reason":"`+mark+`"}]}`)
		a.call("POST", protocol.PathStart, mark)
		a.call("POST", protocol.PathEnrol, protocol.EnrolRequest{Token: mark, Name: "lab-9", PublicKey: bytes.Repeat([]byte{7}, 32)})
		a.call("POST", protocol.PathToken, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: mark + "." + mark + "." + mark})
		a.call("GET", "/agent/v1/"+mark+"?x="+mark, nil)
		a.call("POST", protocol.PathHeartbeat, struct{}{}, map[string]string{"Authorization": "Bearer " + mark, "X-Request-Id": "<" + mark + ">"})
		a.complete(protocol.CompleteItem{
			Holder: holder(as), Outcome: berth.OutcomeSucceeded, Message: mark, Result: json.RawMessage(`"` + mark + `"`), LogBytes: int64(len(content)), DeviceClean: true,
		})
		log := w.log.String()
		for _, secret := range []string{mark, a.token, strings.Split(a.token, ".")[2]} {
			if strings.Contains(log, secret) {
				t.Errorf("%.20s... is in the log", secret)
			}
		}
		w.checkEvents(as)
	})
}

// checkEvents looks for the events that the calls of an agent cause, with every
// identifier.
func (w *world) checkEvents(as protocol.Assignment) {
	seen := map[string]map[string]any{}
	for _, line := range w.lines() {
		if line["message"] == "request failed" {
			w.t.Errorf("failed: %v", line)
		}
		if line["task_id"] == string(as.Task) {
			seen[line["message"].(string)] = line
		}
	}
	for event, to := range map[string]string{"claimed": "claimed", "started": "running", "renewed": "running", "completed": "succeeded"} {
		line := seen[event]
		if line == nil {
			w.t.Errorf("%s was not logged", event)
			continue
		}
		for field, want := range map[string]any{
			"attempt_id": string(as.Attempt), "lease_id": string(as.Attempt), "device_id": string(as.Device),
			"correlation_id": "corr-1", "fence": float64(as.Fence), "number": 1.0, "to": to, "pool_id": string(w.pool), "service": "api",
		} {
			if line[field] != want {
				w.t.Errorf("%s: %s is %v, want %v", event, field, line[field], want)
			}
		}
		if line["host_id"] == "" || line["from"] == "" {
			w.t.Errorf("%s: %v", event, line)
		}
	}
}
