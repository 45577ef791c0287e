package e2e

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// canaries are marked texts: each must reach where it belongs, and be seen
// nowhere else.
type canaries map[string]string

func newCanaries() canaries {
	all := canaries{}
	for _, kind := range []string{
		"payload", "env", "stdin", "log", "stderr", "file", "url", "typed", "page", "awaited", "wrong_password", "wrong_token", "invalid",
		"wrong_enrolment", "wrong_refresh", "message", "note", "result", "chunk", "secret", "other_secret", "wrong_key", "wrong_new_password",
	} {
		all[kind] = "canary0" + kind + "0" + fmt.Sprintf("%x", len(all)+0xabc0)
	}
	return all
}

// places are where canaries are looked for: name to content.
type places struct {
	mu  sync.Mutex
	all map[string][]byte
}

func (p *places) add(name string, content []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string][]byte{}
	}
	p.all[name] = append(p.all[name], content...)
}

// spellings of a secret: as it is, percent-encoded, and inside base64 at each
// of the three alignments.
func spellings(secret string) []string {
	out := []string{secret, url.QueryEscape(secret)}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			s := enc.EncodeToString(append(make([]byte, shift), secret...))
			begin := []int{0, 2, 3}[shift]
			if end := len(s) - 1; end-begin > 10 {
				out = append(out, s[begin:end])
			}
		}
	}
	return out
}

func (p *places) mustNotHold(t *testing.T, secrets map[string]string, except func(place, kind string) bool) {
	t.Helper()
	for kind, secret := range secrets {
		if len(secret) < 8 {
			t.Fatalf("%s is too short to look for", kind)
		}
		for place, content := range p.all {
			if except != nil && except(place, kind) {
				continue
			}
			for _, s := range spellings(secret) {
				if i := bytes.Index(content, []byte(s)); i >= 0 {
					t.Errorf("%s is in %s: ...%s...", kind, place, content[max(0, i-100):min(len(content), i+len(s)+20)])
					break
				}
			}
		}
	}
}

// commandLines adds those of every process that belongs to the test's folder,
// with their titles and environments.
func (p *places) commandLines(folder string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		env, _ := os.ReadFile(d + "/environ")
		line, err := os.ReadFile(d + "/cmdline")
		if err != nil || (!bytes.Contains(env, []byte(folder)) && !bytes.Contains(line, []byte(folder))) {
			continue
		}
		program, _, _ := bytes.Cut(line, []byte{0})
		name := filepath.Base(string(program))
		p.add("command line of "+name, append(bytes.ReplaceAll(line, []byte{0}, []byte{' '}), '\n'))
		p.add("environment of "+name, append(bytes.ReplaceAll(env, []byte{0}, []byte{'\n'}), '\n'))
		if title, err := os.ReadFile(d + "/comm"); err == nil {
			p.add("title of "+name, title)
		}
	}
}

// TestEventsAreLoggedAndContentIsNot: the six named events carry every
// identifier, at debug level nothing else of a task is to be seen.
func TestEventsAreLoggedAndContentIsNot(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		marks, where := newCanaries(), &places{}
		c := harness.NewCluster(t, harness.Options{Engine: engine, Env: map[string]string{"BERTH_RENEW_EVERY": "500ms", "BERTH_REQUEST_TIMEOUT": "4s"}})
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			where.commandLines(c.Folder) // the browser is at work just now
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<title>%[1]s</title><h1>%[1]s</h1><input id="in" aria-label="name"><input id="secret" aria-label="secret">`, marks["page"])
		}))
		defer page.Close()
		agent := c.AddAgent(t, harness.AgentOptions{Name: "real", Processes: 1, Browsers: 1, Loopback: true, Labels: []string{"agent=real"}})
		putSecrets(t, c, marks)
		tasks := runMarkedTasks(t, c, marks, page.URL)
		seen := looks(t, c, tasks)
		wire := runMarkedWire(t, c, marks, tasks)
		faults(t, c, marks, where)
		collect(t, c, where)

		checkEvents(t, c, tasks)
		checkAgentLines(t, agent)
		marks["admin password"], marks["master key"] = c.Password, c.MasterKey
		marks["access token"], marks["refresh token"] = c.Tokens.AccessToken, c.Tokens.RefreshToken
		marks["enrolment token"], marks["the wire's enrolment token"], marks["host token"] = agent.Token, wire.Token, wire.Access
		if u, err := url.Parse(c.DatabaseURL); err == nil && u.User != nil {
			marks["database password"], _ = u.User.Password()
		}
		where.mustNotHold(t, marks, func(place, kind string) bool {
			switch kind {
			case "payload", "log", "stderr", "file":
				return place == "command line of sh" // a command that runs is itself a command line
			case "env", "secret":
				return place == "environment of sh" || place == "environment of sleep" // where the task wants them
			case "database password", "admin password", "master key":
				return strings.HasPrefix(place, "environment of ") // these daemons are told so
			}
			return false
		})
		where.mustNotHold(t, seen, nil)
		if len(where.all["command line of chromium"]) == 0 && len(where.all) < 10 {
			t.Errorf("looked at too little: %d places", len(where.all))
		}
	})
}

// runMarkedTasks runs tasks that succeed, that are renewed, retried and
// dead-lettered, full of marks; each id comes with its correlation id.
func runMarkedTasks(t *testing.T, c *harness.Cluster, marks canaries, page string) map[string]string {
	t.Helper()
	ids := map[string]string{}
	submit := func(name string, spec client.TaskSpec, state client.TaskState) {
		spec.Name, spec.Selector = name, spec.Selector+",agent=real"
		task := harness.Submit(t, c.Client, spec, client.SubmitOptions{CorrelationID: "corr-" + name})
		ids[task.ID] = "corr-" + name
		if got := harness.Finished(t, c.Client, task.ID, 2*harness.Patience); got.State != state {
			t.Fatalf("%s is %s (%s): %+v", name, got.State, got.Reason, harness.Attempts(t, c.Client, task.ID))
		}
	}
	command := func(script string) client.TaskSpec {
		return client.TaskSpec{Plugin: "process.run", Selector: "driver=process", Payload: harness.Payload(t, map[string]any{
			"command": []string{"sh", "-c", script, marks["payload"]}, "env": map[string]string{"MARK": marks["env"]},
			"stdin": marks["stdin"], "files": []string{"out.txt"},
		})}
	}
	// Renewed: it lives for more than two renewals. The secret that it echoes is
	// masked wherever it goes.
	lives := command(fmt.Sprintf("echo %s $TOLD; echo %s > out.txt; sleep 2", marks["log"], marks["file"]))
	lives.Payload = withMember(t, lives.Payload, "secret_env", map[string]string{"TOLD": "told"})
	lives.Secrets = []string{"told"}
	submit("succeeds", lives, client.TaskStateSucceeded)
	fails := command(fmt.Sprintf("echo %s >&2; cat >&2; exit 1", marks["stderr"]))
	fails.Retry = &client.RetrySpec{MaxAttempts: ptr(2), BackoffInitialSeconds: ptr(0.0)}
	submit("fails", fails, client.TaskStateDeadLetter)
	browse := func(last map[string]any) client.TaskSpec {
		return client.TaskSpec{Plugin: "browser.script", Selector: "driver=chromium", Payload: harness.Payload(t, map[string]any{"steps": []map[string]any{
			{"goto": map[string]any{"url": page + "/?q=" + marks["url"]}},
			{"type": map[string]any{"selector": "#in", "text": marks["typed"]}},
			{"read": map[string]any{"name": "heading", "selector": "h1"}},
			{"type": map[string]any{"selector": "#secret", "secret": "typed"}},
			{"screenshot": map[string]any{"name": "shot.png"}},
			{"ui_tree": map[string]any{"name": "tree.json"}},
			last,
		}}), Secrets: []string{"typed"}}
	}
	submit("browses", browse(map[string]any{"read": map[string]any{"name": "typed", "selector": "#in", "what": "value"}}), client.TaskStateSucceeded)
	stuck := browse(map[string]any{"wait": map[string]any{"text": marks["awaited"]}, "timeout_ms": 300})
	stuck.Retry = &client.RetrySpec{MaxAttempts: ptr(1)}
	submit("browses-in-vain", stuck, client.TaskStateDeadLetter)
	for id, name := range ids {
		checkArrived(t, c, id, name, marks)
	}
	return ids
}

// putSecrets stores two marked secrets that every submitter may name.
func putSecrets(t *testing.T, c *harness.Cluster, marks canaries) {
	t.Helper()
	for name, mark := range map[string]string{"told": "secret", "typed": "other_secret"} {
		body := fmt.Sprintf(`{"value":%q,"grants":[{"role":"submitter"}]}`, marks[mark])
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, c.APIs[0].URL()+"/api/v1/secrets/"+name, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if status, answer, err := do(c, req, ""); err != nil || status != http.StatusOK || strings.Contains(string(answer), marks[mark]) {
			t.Fatalf("put a secret: %d %s %v", status, answer, err)
		}
	}
}

func withMember(t *testing.T, payload json.RawMessage, name string, value any) json.RawMessage {
	t.Helper()
	var members map[string]any
	if err := json.Unmarshal(payload, &members); err != nil {
		t.Fatal(err)
	}
	members[name] = value
	return harness.Payload(t, members)
}

// looks are pieces of the screenshots and UI trees that the tasks left, to be
// looked for where they do not belong.
func looks(t *testing.T, c *harness.Cluster, tasks map[string]string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for id, name := range tasks {
		if !strings.HasPrefix(name, "corr-browses") {
			continue
		}
		for _, artifact := range []string{"shot.png", "tree.json"} {
			content := harness.Artifact(t, c.Client, id, 1, artifact)
			if len(content) < 200 {
				t.Fatalf("%s of %s has %d bytes", artifact, name, len(content))
			}
			middle := len(content) / 2
			out[artifact+" of "+name] = string(content[middle : middle+48])
		}
	}
	if len(out) != 4 {
		t.Fatalf("only %d screenshots and trees", len(out))
	}
	return out
}

// checkArrived: the marks are where they belong, or else nothing is proved.
func checkArrived(t *testing.T, c *harness.Cluster, id, name string, marks canaries) {
	t.Helper()
	task := harness.Task(t, c.Client, id)
	got := string(task.Payload) + string(task.Result)
	if piece, err := c.Client.ReadLog(t.Context(), id, 1, 0, false); err == nil {
		got += string(piece.Bytes)
	}
	want := []string{marks["payload"], marks["env"], marks["stdin"]}
	switch name {
	case "corr-succeeds":
		got += string(harness.Artifact(t, c.Client, id, 1, "out.txt"))
		want = append(want, marks["log"], marks["file"])
	case "corr-browses":
		got += string(harness.Artifact(t, c.Client, id, 1, "tree.json"))
		want = []string{marks["typed"], marks["page"], marks["url"]}
	case "corr-browses-in-vain":
		want = []string{marks["awaited"]}
	}
	for _, secret := range []string{marks["secret"], marks["other_secret"]} {
		for _, s := range spellings(secret) {
			if strings.Contains(got, s) {
				t.Errorf("%s: a secret is shown to those who may see the task", name)
			}
		}
	}
	if name == "corr-succeeds" && !strings.Contains(got, "[redacted]") {
		t.Errorf("%s: the secret did not reach the work: %s", name, got)
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s: %q did not arrive where it belongs", name, w)
		}
	}
}

// runMarkedWire completes an attempt with marks in each field that is content.
func runMarkedWire(t *testing.T, c *harness.Cluster, marks canaries, tasks map[string]string) *harness.Wire {
	t.Helper()
	w := c.Enrol(t, "wire")
	w.Sync(t, map[string]string{"agent": "wire"})
	spec := harness.Shell(t, marks["payload"])
	spec.Selector = "agent=wire"
	task := harness.Submit(t, c.Client, spec, client.SubmitOptions{CorrelationID: "corr-wire"})
	tasks[task.ID] = "corr-wire"
	a := w.Claim(t, 1)[0]
	w.StartAttempt(t, a)
	w.Must(t, http.MethodPost, protocol.PathRenew, protocol.RenewRequest{Items: []protocol.RenewItem{{Holder: harness.Holder(a), Progress: ptr(0.5), Note: marks["note"]}}}, nil)
	status, body, err := w.Upload(t.Context(), strings.NewReplacer("{id}", string(a.Attempt), "{offset}", "0").Replace(protocol.PathLog), a.Fence, []byte(marks["chunk"]))
	if err != nil || status/100 != 2 {
		t.Fatalf("log chunk: %d %s %v", status, body, err)
	}
	done := harness.Completion(a, berth.OutcomeSucceeded)
	done.Items[0].Message, done.Items[0].Result = marks["message"], harness.Payload(t, map[string]string{"value": marks["result"]})
	done.Items[0].LogBytes = int64(len(marks["chunk"]))
	w.Must(t, http.MethodPost, protocol.PathComplete, done, nil)
	if got := harness.Finished(t, c.Client, task.ID, harness.Patience); !strings.Contains(string(got.Result), marks["result"]) {
		t.Errorf("the wire's result did not arrive: %s", got.Result)
	}
	return w
}

// faults provokes errors about secrets; their bodies are looked at, too.
func faults(t *testing.T, c *harness.Cluster, marks canaries, where *places) {
	t.Helper()
	post := func(path, token, body string, want int) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.APIs[0].URL()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s answers %d, want %d: %s", path, res.StatusCode, want, b)
		}
		where.add("error body of "+path, b)
	}
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	token := c.Tokens.AccessToken
	post("/api/v1/tasks", token, `{"plugin":"process.run","payload":{"command":"`+marks["invalid"]+`"}}`, 422)
	post("/api/v1/tasks", token, `{"plugin":"process.run","payload":{"command":["sh"],"env":{"A":["`+marks["invalid"]+`"]}}}`, 422)
	post("/api/v1/tasks", token, `{"plugin":"process.run","payload":{"command":["`+marks["invalid"]+`"]`, 422)
	post("/api/v1/tasks", marks["wrong_token"], `{"plugin":"process.run"}`, 401)
	post("/api/v1/tasks", token+marks["wrong_token"], `{"plugin":"process.run"}`, 401)
	post("/api/v1/auth/login", "", `{"name":"admin","password":"`+marks["wrong_password"]+`"}`, 401)
	post("/api/v1/auth/refresh", "", `{"refresh_token":"`+marks["wrong_refresh"]+`"}`, 401)
	post("/agent/v1/enrol", "", `{"token":"`+marks["wrong_enrolment"]+`","name":"x","public_key":"`+base64.StdEncoding.EncodeToString(key)+`"}`, 404)
	post("/agent/v1/token", "", `{"grant_type":"`+protocol.GrantJWTBearer+`","assertion":"`+marks["wrong_token"]+`"}`, 401)
	post("/agent/v1/claims", marks["wrong_token"], `{}`, 401)
	post("/api/v1/tasks", "berth_abcdefgh_"+marks["wrong_key"], `{"plugin":"process.run"}`, 401)
	post("/api/v1/auth/password", token, `{"current_password":"`+marks["wrong_password"]+`","new_password":"`+marks["wrong_new_password"]+`"}`, 422)
	post("/api/v1/users", token, `{"name":"x","roles":["viewer"],"password":"`+marks["wrong_new_password"][:5]+`","passwort":"`+marks["wrong_new_password"]+`"}`, 422)
}

// collect reads logs, metrics, audit rows, the journal and the command lines.
func collect(t *testing.T, c *harness.Cluster, where *places) {
	t.Helper()
	read := func(name, path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		where.add(name, b)
	}
	for _, path := range c.Logs(t) {
		read("log "+filepath.Base(path), path)
	}
	daemons := c.Daemons()
	for _, a := range c.Agents {
		daemons = append(daemons, a.Daemon)
		read("journal of "+a.Name, filepath.Join(a.StateDir, "journal.jsonl"))
	}
	for _, d := range daemons {
		status, body := harness.Get(d.Admin() + "/metrics")
		if status != http.StatusOK {
			t.Errorf("metrics of %s: %d", d.Name, status)
		}
		where.add("metrics of "+d.Name, []byte(body))
	}
	for _, row := range c.Query(t, "SELECT * FROM audit_events") {
		where.add("audit rows", []byte(strings.Join(row, "|")+"\n"))
	}
	where.commandLines(c.Folder)
}

// checkEvents: all six are there, with all identifiers.
func checkEvents(t *testing.T, c *harness.Cluster, correlations map[string]string) {
	t.Helper()
	seen := map[string]int{}
	for _, l := range c.ControlLines(t) {
		event := l.Text("message")
		switch berth.Event(event) {
		case berth.EventAssigned, berth.EventClaimed, berth.EventRenewed, berth.EventCompleted, berth.EventRetried, berth.EventFailed:
		default:
			continue
		}
		seen[event]++
		for _, field := range []string{"task_id", "host_id", "device_id", "attempt_id", "lease_id", "correlation_id"} {
			if l.Text(field) == "" {
				t.Errorf("%s has no %s: %v", event, field, l)
			}
		}
		if want := correlations[l.Text("task_id")]; want == "" || l.Text("correlation_id") != want || l.Text("lease_id") != l.Text("attempt_id") {
			t.Errorf("%s of task %s has correlation id %q, want %q: %v", event, l.Text("task_id"), l.Text("correlation_id"), want, l)
		}
		if level := l.Text("level"); (level == "debug") != (event == string(berth.EventRenewed)) {
			t.Errorf("%s is logged at %s", event, level)
		}
	}
	for _, e := range []berth.Event{berth.EventAssigned, berth.EventClaimed, berth.EventRenewed, berth.EventCompleted, berth.EventRetried, berth.EventFailed} {
		if seen[string(e)] == 0 {
			t.Errorf("no daemon logged %s; seen: %v", e, seen)
		}
	}
}

// checkAgentLines: what the agent says of an attempt carries the identifiers.
func checkAgentLines(t *testing.T, a *harness.Agent) {
	t.Helper()
	count := 0
	for _, l := range a.Lines(t) {
		if m := l.Text("message"); m != "claimed" && m != "started" && m != "completed" {
			continue
		}
		count++
		for _, field := range []string{"task_id", "host_id", "device_id", "attempt_id", "lease_id", "correlation_id"} {
			if l.Text(field) == "" {
				t.Errorf("the agent's %s has no %s", l.Text("message"), field)
			}
		}
	}
	if count == 0 {
		t.Error("the agent said nothing of its attempts")
	}
}
