package security

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/pb33f/libopenapi"

	"github.com/berth-dev/berth/api"
	"github.com/berth-dev/berth/pkg/agentapi"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// route is one of both APIs, with what its table says about it.
type route struct {
	method, path string // as echo writes it
	// role is public, or the least that may call it.
	role string
	// foreign are the roles that reach what is another's; nil: it is on what
	// belongs to nobody.
	foreign []berth.Role
	owned   bool
	// login: not with an API key.
	login bool
	// media type of its body; "": it takes none.
	media string
}

func (r route) String() string { return r.method + " " + r.path }

// routes reads the table: the OpenAPI document, and the routes of the agents,
// which are all the host's but for two.
func routes(t *testing.T) []route {
	t.Helper()
	parsed, err := libopenapi.NewDocument(api.Document)
	if err != nil {
		t.Fatal(err)
	}
	model, err := parsed.BuildV3Model()
	if err != nil {
		t.Fatal(err)
	}
	var out []route
	for path, item := range model.Model.Paths.PathItems.FromOldest() {
		for method, op := range item.GetOperations().FromOldest() {
			r := route{
				method: strings.ToUpper(method), path: httpapi.BaseURL + strings.NewReplacer("{", ":", "}", "").Replace(path),
				role: op.Extensions.GetOrZero("x-berth-role").Value,
			}
			if node := op.Extensions.GetOrZero("x-berth-foreign"); node != nil {
				r.owned = true
				for _, role := range node.Content {
					r.foreign = append(r.foreign, berth.Role(role.Value))
				}
			}
			if node := op.Extensions.GetOrZero("x-berth-login"); node != nil {
				r.login = node.Value == "true"
			}
			if op.RequestBody != nil {
				r.media = op.RequestBody.Content.First().Key()
			}
			out = append(out, r)
		}
	}
	for r := range (&agentapi.API{}).Kinds() {
		a := route{method: r.Method, path: r.Path, role: string(berth.RoleHost)}
		if strings.HasSuffix(r.Path, protocol.PathEnrol) || strings.HasSuffix(r.Path, protocol.PathToken) {
			a.role = "public"
		}
		if r.Method != http.MethodGet {
			a.media = "application/json"
		}
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b route) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	return out
}

// credential is what a caller shows, and who it is by that.
type credential struct {
	name  string
	token string
	// role that it proves; "" proves nothing.
	role berth.Role
	// owner of the world's task, input and API key.
	owner bool
	// key: it is an API key.
	key bool
}

// matrix is a control plane with somebody of each role, and things of one
// submitter's.
type matrix struct {
	*harness.Cluster
	task, digest, key string
	credentials       []credential
}

// TestMatrix holds every route against every credential, and what belongs to
// somebody also against its owner and others: each cell answers as the table of
// routes says. A route without a role does not start (identity.Routes.Check); one
// on what belongs to somebody must say who reaches another's.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			m := newMatrix(t, engine)
			all := routes(t)
			if len(all) < 80 {
				t.Fatalf("only %d routes were found", len(all))
			}
			for _, r := range all {
				if strings.Contains(r.path, "/tasks/:id") && !r.owned && r.role != string(berth.RoleOperator) && r.role != string(berth.RoleAdmin) {
					t.Errorf("%s is on a task and does not say who reaches another's (x-berth-foreign)", r)
				}
				// Those who are refused come first: what they could have changed is there still.
				for _, allowed := range []bool{false, true} {
					for _, c := range m.credentials {
						if want := expect(r, c); want.allowed == allowed {
							t.Run(fmt.Sprintf("%s/%s", strings.ReplaceAll(r.String(), "/", " "), c.name), func(t *testing.T) { m.cell(t, r, c, want) })
						}
					}
				}
			}
		})
	}
}

// verdict of a cell: let in, or the status that refuses.
type verdict struct {
	allowed bool
	status  int
}

func expect(r route, c credential) verdict {
	role := berth.Role(r.role)
	switch {
	case r.role == "public":
		return verdict{allowed: true}
	case c.role == "":
		return verdict{status: http.StatusUnauthorized}
	case !c.role.Includes(role):
		return verdict{status: http.StatusForbidden}
	case r.login && c.key:
		return verdict{status: http.StatusForbidden}
	case r.owned && !c.owner && !slices.Contains(r.foreign, c.role):
		return verdict{status: http.StatusNotFound}
	}
	return verdict{allowed: true}
}

func (m *matrix) cell(t *testing.T, r route, c credential, want verdict) {
	t.Helper()
	status, body := m.send(t, r, c.token)
	switch {
	case !want.allowed && status != want.status:
		t.Errorf("%s with %s answers %d, want %d: %s", r, c.name, status, want.status, body)
	case !want.allowed:
		var p struct {
			Code      string `json:"code"`
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal(body, &p); err != nil || p.Code == "" || p.RequestID == "" {
			t.Errorf("%s with %s: refused without a problem document: %s", r, c.name, body)
		}
		for _, secret := range []string{m.task, m.digest, m.key} {
			if strings.Contains(string(body), secret) && !strings.Contains(r.path, ":") {
				t.Errorf("%s with %s: the refusal names what the caller may not know: %s", r, c.name, body)
			}
		}
	case status == http.StatusUnauthorized && r.role != "public", status == http.StatusForbidden, status >= 500:
		t.Errorf("%s with %s answers %d, and the table lets it in: %s", r, c.name, status, body)
	case r.owned && status == http.StatusNotFound:
		t.Errorf("%s with %s answers 404 on what is there: %s", r, c.name, body)
	}
}

// send calls a route: on the world's things where they belong to somebody, else
// on what exists nowhere, with a body that is refused and changes nothing.
func (m *matrix) send(t *testing.T, r route, token string) (int, []byte) {
	t.Helper()
	id := uuid.NewString()
	switch {
	case strings.Contains(r.path, "/tasks/:id"):
		id = m.task
	case strings.Contains(r.path, "/api-keys/:id"):
		id = m.key
	}
	path := strings.NewReplacer(
		":id", id, ":digest", m.digest, ":number", "1", ":name", "out.txt", ":version", "1.0.0", ":offset", "0",
	).Replace(r.path)
	var body io.Reader
	switch {
	case r.media == "":
	case r.owned:
		body = strings.NewReader("{}") // nothing but who calls is wrong
	default:
		body = strings.NewReader(`{"no such field":1}`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, m.APIs[0].URL()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if r.media != "" {
		req.Header.Set("Content-Type", r.media)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

// plain keeps no connection, so that no goroutine is left over.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func newMatrix(t *testing.T, engine harness.Engine) *matrix {
	t.Helper()
	m := &matrix{Cluster: harness.NewCluster(t, harness.Options{Engine: engine})}
	owner, other := m.user(t, "owner", berth.RoleSubmitter), m.user(t, "other", berth.RoleSubmitter)
	viewer, operator := m.user(t, "viewer", berth.RoleViewer), m.user(t, "operator", berth.RoleOperator)
	gone := m.user(t, "gone", berth.RoleAdmin)
	m.disable(t, "gone")
	host := m.finishedTask(t, owner)
	m.digest = m.input(t, owner)
	spare := m.apiKey(t, owner, "spare")
	m.key = spare.ID
	key := m.apiKey(t, owner, "used").Key
	var admin client.APIKey
	m.call(t, m.Tokens.AccessToken, http.MethodPost, "/api-keys", client.APIKeySpec{Name: "admins", Roles: []client.Role{client.Role(berth.RoleAdmin)}}, &admin)
	f := newForge(t, m.Cluster)
	admins := m.Tokens.AccessToken
	m.call(t, f.again(t, admins, nil), http.MethodGet, "/auth/me", nil, nil) // the forge is good: what is refused is what it changes
	m.credentials = []credential{
		{name: "nothing"},
		{name: "garbage", token: "garbage"},
		{name: "an expired token", token: f.again(t, admins, over())},
		{name: "a forged token", token: f.stranger(t).again(t, admins, nil)},
		{name: "a token for another audience", token: f.again(t, admins, map[string]any{"aud": "somebody-else"})},
		{name: "a refresh token", token: m.Tokens.RefreshToken},
		{name: "a disabled administrator", token: gone.AccessToken},
		{name: "a made-up API key", token: key[:len(key)-4] + "AAAA"},
		{name: "viewer", token: viewer.AccessToken, role: berth.RoleViewer},
		{name: "another submitter", token: other.AccessToken, role: berth.RoleSubmitter},
		{name: "the owner", token: owner.AccessToken, role: berth.RoleSubmitter, owner: true},
		{name: "the owner's API key", token: key, role: berth.RoleSubmitter, owner: true, key: true},
		{name: "operator", token: operator.AccessToken, role: berth.RoleOperator},
		{name: "admin", token: m.Tokens.AccessToken, role: berth.RoleAdmin},
		{name: "an administrator's API key", token: admin.Key, role: berth.RoleAdmin, key: true},
		{name: "host", token: host.Access, role: berth.RoleHost},
	}
	return m
}

const password = "a password of the matrix"

// user makes a user and logs it in.
func (m *matrix) user(t *testing.T, name string, role berth.Role) client.Tokens {
	t.Helper()
	m.call(t, m.Tokens.AccessToken, http.MethodPost, "/users", client.UserSpec{Name: name, Password: password, Roles: []client.Role{client.Role(role)}}, nil)
	_, tokens := harness.Login(t, m.APIs[0].URL(), name, password, plain)
	return tokens
}

func (m *matrix) disable(t *testing.T, name string) {
	t.Helper()
	var found client.UserList
	m.call(t, m.Tokens.AccessToken, http.MethodGet, "/users?name="+name, nil, &found)
	yes := true
	m.call(t, m.Tokens.AccessToken, http.MethodPatch, "/users/"+found.Users[0].ID, client.UserChange{Disabled: &yes}, nil)
}

func (m *matrix) apiKey(t *testing.T, who client.Tokens, name string) client.APIKey {
	t.Helper()
	var key client.APIKey
	m.call(t, who.AccessToken, http.MethodPost, "/api-keys", client.APIKeySpec{Name: name, Roles: []client.Role{client.Role(berth.RoleSubmitter)}}, &key)
	return key
}

// finishedTask has a task of who's end with a log and an artifact, and returns
// the host that did it.
func (m *matrix) finishedTask(t *testing.T, who client.Tokens) *harness.Wire {
	t.Helper()
	w := m.Enrol(t, "lab")
	w.Sync(t, map[string]string{"lab": "yes"})
	var task client.Task
	m.call(t, who.AccessToken, http.MethodPost, "/tasks", harness.Shell(t, "true"), &task)
	m.task = task.ID
	a := w.Claim(t, 1)[0]
	w.StartAttempt(t, a)
	for path, content := range map[string]string{protocol.PathLog: "done\n", protocol.PathArtifact: "content"} {
		path = strings.NewReplacer("{id}", string(a.Attempt), "{offset}", "0", "{name}", "out.txt").Replace(path)
		if status, body, err := w.Upload(t.Context(), path, a.Fence, []byte(content)); err != nil || status/100 != 2 {
			t.Fatalf("%s: %d %s %v", path, status, body, err)
		}
	}
	done := harness.Completion(a, berth.OutcomeFailed)
	w.Must(t, http.MethodPost, protocol.PathComplete, done, nil)
	return w
}

// input stores a file of who's.
func (m *matrix) input(t *testing.T, who client.Tokens) string {
	t.Helper()
	content := []byte("an input")
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	m.call(t, who.AccessToken, http.MethodPost, "/inputs", client.InputSpec{Digest: digest, Size: int64(len(content))}, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, m.APIs[0].URL()+httpapi.BaseURL+"/inputs/"+digest, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	m.do(t, req, who.AccessToken, nil)
	return digest
}

// call is one that must succeed.
func (m *matrix) call(t *testing.T, token, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, m.APIs[0].URL()+httpapi.BaseURL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	m.do(t, req, token, out)
}

func (m *matrix) do(t *testing.T, req *http.Request, token string, out any) {
	t.Helper()
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := plain.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %d %s", req.Method, req.URL.Path, res.StatusCode, b)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		t.Fatal(err)
	}
}
