package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"

	"github.com/berth-dev/berth/api"
	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// TestALostAnswerIsGivenAgain: for every call of both APIs that changes
// something, the server commits, nobody hears of it, and the caller sends the
// same again: it gets the same answer, and the effect is there once. Which calls
// there are is read from the OpenAPI document and from the agents' routes, so
// that a new one without a case fails here.
func TestALostAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	cases := map[string]lostCase{}
	maps.Copy(cases, lostPublicCases())
	maps.Copy(cases, lostOperatorCases())
	maps.Copy(cases, lostAccountCases())
	maps.Copy(cases, lostAgentCases())
	maps.Copy(cases, lostBulkCases())
	maps.Copy(cases, lostScheduleCases())
	routes := mutatingRoutes(t)
	for _, r := range routes {
		if _, ok := cases[r]; !ok {
			t.Errorf("%s changes something and has no case: what does its repeat answer when the first answer is lost?", r)
		}
	}
	for r := range cases {
		if !slices.Contains(routes, r) {
			t.Errorf("there is a case for %s, and no such route", r)
		}
	}
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c := harness.NewCluster(t, harness.Options{Engine: engine, Env: map[string]string{"BERTH_LOOP_BULK_JOBS_DISABLED": "true"}})
		w := &lostWorld{Cluster: c, proxy: c.Lossy(t, c.APIs[0].URL)}
		for _, r := range routes {
			if cases[r] == nil {
				continue
			}
			t.Run(strings.ReplaceAll(r, "/", " "), func(t *testing.T) {
				w.t = t
				w.loseAndRepeat(cases[r](w))
			})
		}
		w.t = t
		checkHistory(t, c)
	})
}

// mutatingRoutes lists the calls that change something, as "POST /api/v1/tasks".
func mutatingRoutes(t *testing.T) []string {
	t.Helper()
	parsed, err := libopenapi.NewDocument(api.Document)
	if err != nil {
		t.Fatal(err)
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		for method := range item.GetOperations().FromOldest() {
			out = append(out, strings.ToUpper(method)+" "+strings.NewReplacer("{", ":", "}", "").Replace(httpapi.BaseURL+path))
		}
	}
	for r := range (&agentapi.API{}).Kinds() {
		out = append(out, r.Method+" "+r.Path)
	}
	out = slices.DeleteFunc(out, func(r string) bool { return strings.HasPrefix(r, "GET ") || strings.HasPrefix(r, "HEAD ") })
	slices.Sort(out)
	if len(out) < 20 {
		t.Fatalf("only %d calls were found: %v", len(out), out)
	}
	return out
}

// lostCase prepares what a call needs and says what is to be seen of it.
type lostCase func(w *lostWorld) lostCall

// lostCall is a call whose answer is lost.
type lostCall struct {
	method, path string
	header       map[string]string
	body         []byte
	// again makes the repeat where it is not the same request: what the
	// documents say must be fresh.
	again func(*lostCall)
	// effect is SQL for the rows that the call makes or changes: others after it
	// than before, and the same after the repeat.
	effect string
	// differs are members of the answer that may be another: lease time left,
	// tokens. status is that of the repeat where it is another.
	differs []string
	status  int
	// nothingStored: the call keeps nothing, so there is nothing to see.
	nothingStored bool
}

// lostWorld is a cluster with a proxy that loses answers.
type lostWorld struct {
	*harness.Cluster
	t     *testing.T
	proxy *harness.Lossy
	n     int
}

// loseAndRepeat is the test of one call.
func (w *lostWorld) loseAndRepeat(c lostCall) {
	w.t.Helper()
	before := w.Query(w.t, c.effect)
	known := len(w.proxy.Lost())
	w.proxy.LoseNext()
	if got, err := w.send(c); err == nil {
		w.t.Fatalf("the answer %d came through: %s", got.Status, got.Body)
	}
	all := w.proxy.Lost()
	if len(all) != known+1 {
		w.t.Fatalf("%d answers were lost, not one", len(all)-known)
	}
	lost := all[known]
	if lost.Status/100 != 2 {
		w.t.Fatalf("what was lost is no success: %d %s", lost.Status, lost.Body)
	}
	w.audited(c, lost)
	after := w.Query(w.t, c.effect)
	if reflect.DeepEqual(before, after) != c.nothingStored {
		w.t.Fatalf("before the call %v, after it %v", before, after)
	}
	if c.again != nil {
		c.again(&c)
	}
	repeat, err := w.send(c)
	if err != nil {
		w.t.Fatalf("the repeat: %v", err)
	}
	want := lost.Status
	if c.status != 0 {
		want = c.status
	}
	if repeat.Status != want {
		w.t.Errorf("the repeat is answered %d, want %d; lost %d: %s", repeat.Status, want, lost.Status, repeat.Body)
	}
	if a, b := comparable(w.t, lost.Body, c.differs), comparable(w.t, repeat.Body, c.differs); want/100 == 2 && !reflect.DeepEqual(a, b) {
		w.t.Errorf("the repeat is answered otherwise:\nlost   %s\nrepeat %s", lost.Body, repeat.Body)
	}
	if again := w.Query(w.t, c.effect); !reflect.DeepEqual(after, again) {
		w.t.Errorf("the repeat had an effect of its own:\nafter the first  %v\nafter the repeat %v", after, again)
	}
}

// unaudited are the public calls that change something and leave no audit row,
// and why. Every other must leave at least one that bears its request id.
var unaudited = map[string]string{
	"POST /api/v1/auth/refresh": "it goes on with a session whose login is on record; a token used twice is on record too",
	"POST /api/v1/inputs":       "nothing is there yet; the upload's end is on record",
}

// factless are the acts of public calls that have nothing to compare, and why.
// Transitions have their states.
var factless = map[string]string{
	string(berth.AuditLogin):           "nothing of the user changes",
	string(berth.AuditLogout):          "the credential names the session that ended",
	string(berth.AuditPasswordChanged): "neither password may be told",
}

// audited checks that a call left an audit row that says who, from where, with what
// and what changed.
func (w *lostWorld) audited(c lostCall, lost harness.LostAnswer) {
	w.t.Helper()
	path, _, _ := strings.Cut(c.path, "?")
	if !strings.HasPrefix(path, httpapi.BaseURL) || unaudited[c.method+" "+path] != "" || c.nothingStored {
		return
	}
	id := lost.Header.Get("X-Request-Id")
	rows := w.Query(w.t, "SELECT actor_kind, client, credential, action, before, after FROM audit_events WHERE request_id = '"+id+"'")
	if id == "" || len(rows) == 0 {
		w.t.Errorf("no audit row bears the request id %q of this call", id)
	}
	for _, r := range rows {
		if r[0] == "user" && (r[1] == "" || r[2] == "") && !strings.HasSuffix(path, "/auth/login") {
			w.t.Errorf("an audit row of this call does not say from where or with what: %v", r)
		}
		if r[4] == "" && r[5] == "" && !strings.HasPrefix(r[3], "task.") && factless[r[3]] == "" {
			w.t.Errorf("an audit row of this call says neither what was nor what is: %v", r)
		}
	}
}

// send sends the call once, through the proxy.
func (w *lostWorld) send(c lostCall) (harness.LostAnswer, error) {
	req, err := http.NewRequestWithContext(w.t.Context(), c.method, w.proxy.URL+c.path, bytes.NewReader(c.body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	// A connection of its own: the transport sends again by itself on a used one.
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return harness.LostAnswer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return harness.LostAnswer{Status: res.StatusCode, Header: res.Header, Body: body}, err
}

// comparable is an answer's JSON without the members that may differ, at any
// depth.
func comparable(t *testing.T, body []byte, differs []string) any {
	t.Helper()
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		t.Fatalf("an answer is no JSON: %s", body)
	}
	var strip func(any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, inner := range v {
				if slices.Contains(differs, k) {
					delete(v, k)
					continue
				}
				strip(inner)
			}
		case []any:
			for _, inner := range v {
				strip(inner)
			}
		}
	}
	strip(v)
	return v
}

// next makes a name that no other case has.
func (w *lostWorld) next(prefix string) string {
	w.n++
	return prefix + "-" + strconv.Itoa(w.n)
}

// admin makes a call of the administrator's.
func (w *lostWorld) admin(method, path string, in any) lostCall {
	w.t.Helper()
	c := lostCall{method: method, path: path, header: map[string]string{"Authorization": "Bearer " + w.Tokens.AccessToken}}
	if in != nil {
		c.body = harness.Payload(w.t, in)
	}
	return c
}

// keyed is the same under an idempotency key.
func (c lostCall) keyed() lostCall {
	c.header["Idempotency-Key"] = newUUID()
	return c
}

// wire makes a call of a host's.
func (w *lostWorld) wire(host *harness.Wire, method, path string, in any) lostCall {
	w.t.Helper()
	return lostCall{method: method, path: path, body: harness.Payload(w.t, in), header: map[string]string{
		"Authorization": "Bearer " + host.Access, protocol.HeaderEpoch: strconv.FormatInt(int64(host.Epoch), 10),
	}}
}

// host lets a host in that has a device for the label slot=<name>.
func (w *lostWorld) host() (host *harness.Wire, name string) {
	w.t.Helper()
	name = w.next("lost")
	host = w.Enrol(w.t, name)
	host.Sync(w.t, map[string]string{"slot": name})
	return host, name
}

// task submits a task for the device with that label; "nowhere" is nobody's.
func (w *lostWorld) task(slot string) client.Task {
	w.t.Helper()
	spec := harness.Shell(w.t, "true")
	spec.Selector = "slot=" + slot
	one := 1
	spec.Retry = &client.RetrySpec{MaxAttempts: &one}
	return w.Submit(w.t, spec)
}

// audited counts the rows of an act on a target.
func audited(action, target string) string {
	return "SELECT count(*) FROM audit_events WHERE action = '" + action + "' AND target_id = '" + target + "'"
}
