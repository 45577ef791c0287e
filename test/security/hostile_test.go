package security

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/berth-dev/berth/api"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// injections are what no parameter and no member may be hurt by: each is refused
// with a 4xx, or taken as the text that it is.
func injections() []string {
	return []string{
		"' OR '1'='1", "'; DROP TABLE tasks; --", `") UNION SELECT * FROM users --`, "1; SELECT pg_sleep(90) --", `\'; --`, "$1 ?1 :x @x %s %d %n", "%' ESCAPE '\\",
		"\x00", "a\x00b", "\xff\xfe", "\xed\xa0\x80", "\u202egnp.exe\u2066", "\x1b[31m\r\nSet-Cookie: a=b\r\n\r\nX", "\u2024\u2024/\uff0e\uff0e/",
		"../../../../etc/passwd", `..\..\windows\win.ini`, "%2e%2e%2f%00", "CON", "C:\\x", "/etc/passwd", "{{7*7}}${7*7}<script>alert(1)</script>",
		strings.Repeat("A", 3000), strings.Repeat("é", 200), "-9223372036854775809", "1e309", "null",
	}
}

// attacker sends requests of all kinds to one cluster and judges the answers.
type attacker struct {
	*harness.Cluster
	t     *testing.T
	token string
	http  *http.Client
	// sent counts requests by the class of their answer.
	sent map[int]int
}

// send must get an answer below 500, and a problem document where it is refused.
func (a *attacker) send(what, method, rawURL string, header http.Header, body []byte) int {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), harness.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, a.APIs[0].URL()+rawURL, bytes.NewReader(body))
	if err != nil {
		return 0 // the URL cannot be sent by any client
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Authorization", "Bearer "+a.token)
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.http.Do(req)
	if err != nil {
		if strings.Contains(err.Error(), "invalid header field") {
			return 0
		}
		a.t.Errorf("%s: %v", what, err)
		return 0
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil {
		a.t.Errorf("%s: %v", what, err)
	}
	a.sent[res.StatusCode/100]++
	var p protocol.Problem
	switch {
	case res.StatusCode >= 500:
		a.t.Errorf("%s: %d %.300s", what, res.StatusCode, b)
	case res.StatusCode >= 400 && (json.Unmarshal(b, &p) != nil || p.Code == "" || p.RequestID == ""):
		a.t.Errorf("%s: %d without a problem document: %.300s", what, res.StatusCode, b)
	case res.Header.Get("Set-Cookie") != "" || res.Header.Get("X-Content-Type-Options") != "nosniff":
		a.t.Errorf("%s: headers are %v", what, res.Header)
	}
	return res.StatusCode
}

// TestHostileInput walks every string parameter and every member of every body
// of the API's document, and every member of the agents' calls, so that new ones
// are covered: SQL, NUL, broken UTF-8, control and bidi characters, paths, far
// too long ones. None of them is a 500, hangs, or hurts the data.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			a := newAttacker(t, engine)
			a.document()
			params := a.sent[4]
			a.agents()
			if a.sent[2] < 200 || params < 1000 || a.sent[4] < params+300 {
				t.Errorf("the attack reached too little: %v", a.sent)
			}
			t.Logf("answers by class: %v", a.sent)
			a.unhurt()
		})
	}
}

func newAttacker(t *testing.T, engine harness.Engine) *attacker {
	t.Helper()
	c := harness.NewCluster(t, harness.Options{Engine: engine, Env: map[string]string{"BERTH_PRINCIPAL_RATE": "0", "BERTH_ADDRESS_RATE": "0"}})
	a := &attacker{Cluster: c, t: t, token: c.Tokens.AccessToken, http: &http.Client{Transport: &http.Transport{}}, sent: map[int]int{}}
	t.Cleanup(a.http.CloseIdleConnections)
	return a
}

// unhurt: the data is there, and no error that nobody expected is in the logs.
func (a *attacker) unhurt() {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), harness.Patience)
	defer cancel()
	if _, err := a.Client.ListTasks(ctx, client.ListTasksParams{PageSize: 1}); err != nil {
		a.t.Errorf("tasks: %v", err)
	}
	if me, err := a.Client.ListPools(ctx, client.ListPoolsParams{}); err != nil || len(me.Pools) == 0 {
		a.t.Errorf("pools: %v", err)
	}
	for _, d := range a.Daemons() {
		b, err := os.ReadFile(d.LogPath)
		if err != nil {
			a.t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			if strings.Contains(line, `"request failed"`) || strings.Contains(line, "panicked") {
				a.t.Errorf("%s: %.600s", d.Name, line)
			}
		}
	}
}

// document attacks all that the API's document names.
func (a *attacker) document() {
	a.t.Helper()
	parsed, err := libopenapi.NewDocument(api.Document)
	if err != nil {
		a.t.Fatal(err)
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		a.t.Fatal(err)
	}
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		if path == "/auth/logout" {
			continue // ends nobody's session; its token is attacked by /auth/refresh
		}
		for method, op := range item.GetOperations().FromOldest() {
			a.operation(strings.ToUpper(method), path, slices.Concat(item.Parameters, op.Parameters), op)
		}
	}
}

func (a *attacker) operation(method, path string, parameters []*v3.Parameter, op *v3.Operation) {
	values := map[string]string{}
	for _, p := range parameters {
		if p.In == "path" {
			values[p.Name] = fmt.Sprint(sample(a.t, p.Schema, 0))
		}
	}
	at := func(name, raw string) string {
		out := httpapi.BaseURL + path
		for n, v := range values {
			v = url.PathEscape(v)
			if n == name {
				v = raw
			}
			out = strings.ReplaceAll(out, "{"+n+"}", v)
		}
		return out
	}
	var body []byte
	var whole any
	if op.RequestBody != nil {
		if media := op.RequestBody.Content.GetOrZero("application/json"); media != nil {
			whole = sample(a.t, media.Schema, 0)
			body, _ = json.Marshal(whole)
		}
	}
	for _, p := range parameters {
		for _, text := range injections() {
			what := fmt.Sprintf("%s %s, %s %s = %.40q", method, path, p.In, p.Name, text)
			switch p.In {
			case "path":
				a.send(what, method, at(p.Name, url.PathEscape(text)), nil, body)
			case "query":
				a.send(what, method, at("", "")+"?"+p.Name+"="+url.QueryEscape(text), nil, body)
			case "header":
				a.send(what, method, at("", ""), http.Header{p.Name: {text}}, body)
			}
		}
		if p.In == "path" {
			for _, raw := range []string{"..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%2fb", "%00", "%5c..%5c", "%c0%ae%c0%ae", "%25%32%65", ".", "%20", "%0d%0aX-A:b"} {
				a.send(fmt.Sprintf("%s %s, %s = %s", method, path, p.Name, raw), method, at(p.Name, raw), nil, body)
			}
		}
	}
	if whole != nil {
		a.members(method+" "+path, whole, func(what string, body []byte) int { return a.send(what, method, at("", ""), nil, body) })
		a.strangers(method+" "+path, whole, func(what string, body []byte) int { return a.send(what, method, at("", ""), nil, body) })
	}
}

// members puts each injection into each text of a body, one at a time.
func (a *attacker) members(where string, whole any, send func(what string, body []byte) int) {
	for _, place := range texts(whole, nil) {
		for _, text := range injections() {
			// The bytes as they are: broken UTF-8 is no JSON text that Go would write.
			const hole = "\u00a7hole\u00a7"
			b, err := json.Marshal(replaced(whole, place, hole))
			if err != nil {
				a.t.Fatal(err)
			}
			quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `\u0000`, "\r", `\r`, "\n", `\n`, "\x1b", `\u001b`).Replace(text)
			send(fmt.Sprintf("%s, %v = %.40q", where, place, text), bytes.ReplaceAll(b, []byte(hole), []byte(quoted)))
		}
	}
}

// strangers adds members that are the server's to set. Each is refused.
func (a *attacker) strangers(where string, whole any, send func(what string, body []byte) int) {
	object, ok := whole.(map[string]any)
	if !ok {
		return
	}
	for _, name := range []string{
		"state", "final_state", "owner", "owner_id", "submitter", "fence", "epoch", "attempt_id", "lease_id", "rank", "tries", "created_at", "is_admin", "admin_state", "__proto__", "password_hash", "user_id",
	} {
		if _, known := object[name]; known {
			continue
		}
		more := maps.Clone(object)
		more[name] = "admin"
		b, err := json.Marshal(more)
		if err != nil {
			a.t.Fatal(err)
		}
		if status := send(where+" with "+name, b); status != 0 && status/100 == 2 {
			a.t.Errorf("%s takes %s: %d", where, name, status)
		}
	}
}

// texts lists the places of all texts in a JSON value.
func texts(v any, at []any) [][]any {
	var out [][]any
	switch v := v.(type) {
	case string:
		out = append(out, slices.Clone(at))
	case []any:
		for i, e := range v {
			out = append(out, texts(e, append(slices.Clone(at), i))...)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = append(out, texts(v[k], append(slices.Clone(at), k))...)
		}
	}
	return out
}

// replaced is a copy of v with a text at a place.
func replaced(v any, place []any, text string) any {
	if len(place) == 0 {
		return text
	}
	switch v := v.(type) {
	case []any:
		v = slices.Clone(v)
		v[place[0].(int)] = replaced(v[place[0].(int)], place[1:], text)
		return v
	case map[string]any:
		v = maps.Clone(v)
		v[place[0].(string)] = replaced(v[place[0].(string)], place[1:], text)
		return v
	}
	return v
}

// sample is a value that a schema takes, as far as it says which.
func sample(t *testing.T, proxy *base.SchemaProxy, depth int) any {
	t.Helper()
	if proxy == nil || depth > 6 {
		return nil
	}
	s, err := proxy.BuildSchema()
	if err != nil {
		t.Fatal(err)
	}
	for _, alternatives := range [][]*base.SchemaProxy{s.AllOf, s.OneOf, s.AnyOf} {
		if len(alternatives) > 0 {
			return sample(t, alternatives[0], depth+1)
		}
	}
	switch {
	case s.Example != nil:
		var v any
		if s.Example.Decode(&v) == nil {
			return plainJSON(v)
		}
	case len(s.Enum) > 0:
		return s.Enum[0].Value
	case len(s.Examples) > 0:
		var v any
		if s.Examples[0].Decode(&v) == nil {
			return plainJSON(v)
		}
	}
	switch {
	case slices.Contains(s.Type, "object"):
		out := map[string]any{}
		if s.Properties != nil {
			for name, property := range s.Properties.FromOldest() {
				if v := sample(t, property, depth+1); v != nil {
					out[name] = v
				}
			}
		}
		return out
	case slices.Contains(s.Type, "array"):
		if s.Items == nil || s.Items.A == nil {
			return []any{}
		}
		return []any{sample(t, s.Items.A, depth+1)}
	case slices.Contains(s.Type, "integer"), slices.Contains(s.Type, "number"):
		if s.Minimum != nil && *s.Minimum > 1 {
			return *s.Minimum
		}
		return 1
	case slices.Contains(s.Type, "boolean"):
		return true
	case s.Format == "uuid" || strings.Contains(s.Pattern, "[0-9a-f]{8}-"):
		return uuid.NewString()
	case strings.Contains(s.Pattern, "{64}"):
		return strings.Repeat("ab", 32)
	case s.Format == "date-time":
		return "2030-01-02T03:04:05Z"
	case s.Format == "byte" || s.Format == "base64":
		return "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	case s.MinLength != nil && *s.MinLength > 1:
		return strings.Repeat("x", int(*s.MinLength))
	}
	return "x"
}

// plainJSON is a value of YAML as JSON would have it.
func plainJSON(v any) any {
	b, err := json.Marshal(v)
	if err != nil {
		return "x"
	}
	var out any
	_ = json.Unmarshal(b, &out)
	return out
}

// agents attacks the calls of Host Agents, as a host with a live attempt.
func (a *attacker) agents() {
	t := a.t
	t.Helper()
	w := a.Enrol(t, "lab")
	w.Sync(t, map[string]string{"lab": "yes"})
	a.Submit(t, harness.Shell(t, "true"))
	assignment := w.Claim(t, 1)[0]
	w.StartAttempt(t, assignment)
	id, device := string(assignment.Attempt), string(w.Devices[0])
	a.token = w.Access
	header := http.Header{protocol.HeaderEpoch: {fmt.Sprint(w.Epoch)}}
	half := 0.5
	sync := harness.SyncRequest(map[string]string{"lab": "yes"})
	sync.Plugins[0].Description, sync.Plugins[0].Requires = "Does it.", "driver=process"
	sync.Held = []protocol.HeldAttempt{{Attempt: assignment.Attempt, Fence: assignment.Fence}}
	holder := harness.Holder(assignment)
	completion := harness.Completion(assignment, berth.OutcomeFailed)
	completion.Items[0].Message, completion.Items[0].Result = "it failed", json.RawMessage(`{"a":"b"}`)
	completion.Items[0].Artifacts = map[string]string{"out.txt": strings.Repeat("ab", 32)}
	for path, request := range map[string]any{
		protocol.PathEnrol:     protocol.EnrolRequest{Token: "x", Name: "lab-2", PublicKey: make([]byte, 32)},
		protocol.PathToken:     protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: w.Assertion(t)},
		protocol.PathKeys:      protocol.KeyRequest{PublicKey: make([]byte, 32), Consent: "x", Proof: "x"},
		protocol.PathHeartbeat: protocol.HeartbeatRequest{Health: map[berth.DeviceID]berth.Health{w.Devices[0]: berth.HealthGood}},
		protocol.PathClaims:    protocol.ClaimRequest{ClaimID: uuid.NewString(), Wait: 1, Max: 1},
		protocol.PathStart:     protocol.StartRequest{Items: []protocol.Holder{holder}},
		protocol.PathRenew:     protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: holder, Progress: &half, Note: "half"}}},
		protocol.PathRelease:   protocol.ReleaseRequest{Items: []protocol.Holder{holder}, Reason: "no_reason"},
		strings.ReplaceAll(protocol.PathClean, "{id}", device): protocol.CleanRequest{Fence: assignment.Fence},
	} {
		a.call(path, header, request)
	}
	for _, text := range append(injections(), "a/b", "..", ".hidden", "a b", "CON", "nul.txt", "a:b", "a\u0301", "х.txt", strings.Repeat("a", 121)) {
		for _, path := range []string{protocol.PathArtifact, protocol.PathLog} {
			path = strings.NewReplacer("{id}", id, "{name}", url.PathEscape(text), "{offset}", url.PathEscape(text)).Replace(path)
			h := maps.Clone(header)
			h.Set(protocol.HeaderFence, fmt.Sprint(assignment.Fence))
			h.Set(protocol.HeaderDigest, "sha-256="+strings.Repeat("ab", 32))
			h.Set(protocol.HeaderArtifactClass, string(berth.ClassFile))
			h.Set("Content-Type", "text/html")
			if status := a.send(fmt.Sprintf("PUT %.60s", path), http.MethodPut, path, h, []byte("content")); status/100 == 2 {
				t.Errorf("PUT %.60s is taken: %d", path, status)
			}
		}
		for name := range http.Header(map[string][]string{protocol.HeaderEpoch: nil, protocol.HeaderFence: nil, protocol.HeaderDigest: nil, protocol.HeaderArtifactClass: nil, "X-Request-Id": nil, "Range": nil}) {
			h := maps.Clone(header)
			h[name] = []string{text}
			a.send(fmt.Sprintf("%s = %.40q", name, text), http.MethodPut, strings.NewReplacer("{id}", id, "{name}", "x.txt").Replace(protocol.PathArtifact), h, []byte("content"))
		}
	}
	a.call(protocol.PathComplete, header, completion)
	a.call(protocol.PathSync, nil, sync)
}

func (a *attacker) call(path string, header http.Header, request any) {
	a.t.Helper()
	b, err := json.Marshal(request)
	if err != nil {
		a.t.Fatal(err)
	}
	var whole any
	if err := json.Unmarshal(b, &whole); err != nil {
		a.t.Fatal(err)
	}
	a.members("POST "+path, whole, func(what string, body []byte) int { return a.send(what, http.MethodPost, path, header, body) })
}
