package agentapi_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/protocol"
)

// old is an agent of an earlier version: it sends the documents that lie in
// testdata as they are, and reads the answers as they were.
type old struct {
	*agent
	dir    string
	values map[string]string
}

// document is a call of that version.
func (o *old) document(name string) (request string, was any) {
	o.w.t.Helper()
	b, err := os.ReadFile(filepath.Join(o.dir, name+".json"))
	must(o.w.t, err)
	text := string(b)
	for k, v := range o.values {
		text = strings.ReplaceAll(text, "{{"+k+"}}", v)
	}
	var doc struct {
		Request json.RawMessage
		Answer  any
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		o.w.t.Fatalf("%s: %v", name, err)
	}
	return string(doc.Request), doc.Answer
}

// do makes a call; the answer must have all that it had, of the same kinds.
func (o *old) do(name, method, path string) map[string]any {
	o.w.t.Helper()
	request, was := o.document(name)
	return o.sameAs(name, was, o.call(method, path, request))
}

func (o *old) sameAs(name string, was any, res answer) map[string]any {
	o.w.t.Helper()
	if res.status != 200 {
		o.w.t.Fatalf("%s: %d %s", name, res.status, res.body)
	}
	var is map[string]any
	must(o.w.t, json.Unmarshal(res.body, &is))
	for _, fault := range lacks(name, was, is) {
		o.w.t.Error(fault)
	}
	return is
}

// lacks lists what is missing in a document, or of another kind, of what it was.
func lacks(path string, was, is any) (faults []string) {
	switch w := was.(type) {
	case map[string]any:
		have, ok := is.(map[string]any)
		if !ok {
			return []string{path + " is no object any more"}
		}
		for k, v := range w {
			if _, there := have[k]; !there {
				faults = append(faults, path+"."+k+" is gone")
				continue
			}
			faults = append(faults, lacks(path+"."+k, v, have[k])...)
		}
	case []any:
		have, ok := is.([]any)
		if !ok || len(have) < len(w) {
			return []string{path + " is no list any more, or shorter"}
		}
		for i := range w {
			faults = append(faults, lacks(path+"["+strconv.Itoa(i)+"]", w[i], have[i])...)
		}
	default:
		if fmt.Sprintf("%T", was) != fmt.Sprintf("%T", is) {
			faults = append(faults, fmt.Sprintf("%s was %T and is %T", path, was, is))
		}
	}
	return faults
}

// first is the only item of a list in an answer.
func first(t *testing.T, answer map[string]any, list string) map[string]any {
	t.Helper()
	items, _ := answer[list].([]any)
	if len(items) != 1 {
		t.Fatalf("%s has %d items", list, len(items))
	}
	return items[0].(map[string]any)
}

// An agent of version 1 does a task from its enrolment to the end, with exactly
// the documents of that version.
func TestAnAgentOfVersion1(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		o := &old{agent: &agent{w: w, key: private}, dir: "testdata/v1", values: map[string]string{
			"token": w.enrolmentToken("*"), "public_key": base64.StdEncoding.EncodeToString(public), "claim": uuid.NewString(),
		}}
		enrolled := o.do("enrol", "POST", protocol.PathEnrol)
		o.host = berth.HostID(enrolled["host_id"].(string))
		assertion, err := identity.NewAssertion(private, o.host, enrolled["token_audience"].(string), time.Now())
		must(t, err)
		o.values["assertion"] = assertion.Reveal()
		o.agent.token = o.do("token", "POST", protocol.PathToken)["access_token"].(string)

		synced := o.do("sync", "POST", protocol.PathSync)
		o.epoch = berth.Epoch(synced["epoch"].(float64))
		device := first(t, synced, "devices")["id"].(string)
		o.values["device"] = device
		if synced["protocol_version"].(float64) != 1 {
			t.Errorf("version %v", synced["protocol_version"])
		}
		host, err := w.store.GetHost(t.Context(), o.host)
		must(t, err)
		dev, err := w.store.GetDevice(t.Context(), berth.DeviceID(device))
		must(t, err)
		if host.Protocol != 1 || dev.Labels[berth.LabelProtocol] != "1" {
			t.Errorf("the host's version is %d, its device's label %q", host.Protocol, dev.Labels[berth.LabelProtocol])
		}
		o.do("heartbeat", "POST", protocol.PathHeartbeat)

		claim := func() protocol.Assignment {
			t.Helper()
			w.submit(1, `{"command":["true"]}`)
			if n := w.place(w.store); n != 1 {
				t.Fatalf("placed %d", n)
			}
			o.values["claim"] = uuid.NewString()
			got := first(t, o.do("claims", "POST", protocol.PathClaims), "attempts")
			as := protocol.Assignment{Attempt: berth.AttemptID(got["attempt"].(string)), Fence: berth.Fence(got["fence"].(float64))}
			o.values["attempt"], o.values["fence"] = string(as.Attempt), strconv.FormatInt(int64(as.Fence), 10)
			return as
		}
		as := claim()
		if s := first(t, o.do("start", "POST", protocol.PathStart), "items")["status"]; s != "granted" {
			t.Errorf("start: %v", s)
		}
		o.do("renew", "POST", protocol.PathRenew)
		_, was := o.document("log")
		o.sameAs("log", was, o.putLog(as, 0, []byte("a log\n")))
		if res := o.putArtifact(as, "out.txt", berth.ClassFile, "text/plain", []byte("content")); res.status != 201 {
			t.Errorf("artifact: %d %s", res.status, res.body)
		}
		o.values["digest"] = digest([]byte("content"))
		for range 2 { // and repeated
			if s := first(t, o.do("complete", "POST", protocol.PathComplete), "items")["status"]; s != "stored" {
				t.Errorf("complete: %v", s)
			}
		}
		claim()
		if s := first(t, o.do("release", "POST", protocol.PathRelease), "items")["status"]; s != "released" {
			t.Errorf("release: %v", s)
		}
		o.do("clean", "POST", strings.Replace(protocol.PathClean, "{id}", device, 1))
	})
}

// Server and agent settle the newest version that both speak; without one the
// agent is told what to do, and nothing changes.
func TestVersionsAreNegotiated(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		for _, c := range []struct {
			offered []int
			chosen  int // 0: refused
		}{
			{[]int{protocol.Version, protocol.Version - 1}, protocol.Version},
			{[]int{protocol.Version - 1, protocol.Version}, protocol.Version},
			{[]int{protocol.Version + 1, protocol.Version}, protocol.Version},
			{[]int{protocol.Version - 1}, protocol.Version - 1},
			{[]int{protocol.Version + 1}, 0},
			{[]int{protocol.Version + 1, protocol.Version + 2}, 0},
			{[]int{protocol.Version - 2}, 0},
			{nil, 0},
		} {
			before, err := w.store.GetHost(t.Context(), a.host)
			must(t, err)
			req := syncRequest(1)
			req.ProtocolVersions = c.offered
			if c.chosen > 0 {
				var res protocol.SyncResponse
				a.ok(&res, "POST", protocol.PathSync, req)
				if res.ProtocolVersion != c.chosen {
					t.Errorf("%v: chose %d", c.offered, res.ProtocolVersion)
				}
				continue
			}
			res := a.call("POST", protocol.PathSync, req)
			if res.status != 422 || res.problem.Code != protocol.CodeUnsupported || res.problem.Remedy == "" || !strings.Contains(res.problem.Detail, "this server speaks 2 and 1") {
				t.Errorf("%v: %d %+v", c.offered, res.status, res.problem)
			}
			if after, err := w.store.GetHost(t.Context(), a.host); err != nil || after.Epoch != before.Epoch || after.Protocol != before.Protocol {
				t.Errorf("%v: a refused sync changed the host: %+v, %v", c.offered, after, err)
			}
		}
	})
}

// The answer to a heartbeat carries the operator's drain, and nothing of the
// agent's own.
func TestAHeartbeatTellsTheOperatorsDrain(t *testing.T) {
	onSQLite(t, func(t *testing.T, w *world) {
		a := w.newAgent("lab-1")
		a.sync(1)
		beat := func(draining bool) (res protocol.HeartbeatResponse) {
			a.ok(&res, "POST", protocol.PathHeartbeat, protocol.HeartbeatRequest{Draining: draining})
			return res
		}
		if beat(false).Drain || beat(true).Drain {
			t.Error("an agent that drains by itself is told to drain")
		}
		for _, on := range []bool{true, false} {
			_, _, err := w.store.DrainHost(t.Context(), berth.Daemon(berth.ActorSystem, "test"), a.host, on)
			must(t, err)
			for _, said := range []bool{false, true} {
				if got := beat(said).Drain; got != on {
					t.Errorf("asked for %v, the agent says %v: told %v", on, said, got)
				}
			}
		}
	})
}
