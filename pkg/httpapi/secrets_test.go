package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/runtime/manifest"
)

func TestSecretsAreKeptAndNeverShown(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.User("admin", berth.RoleAdmin)
		ann := s.User("ann", berth.RoleSubmitter)
		s.User("ops", berth.RoleOperator)
		admin, sub, ops := s.Token("admin"), s.Token("ann"), s.Token("ops")
		const path = "/api/v1/secrets/db-password"
		value := "v4lue-" + mark
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		want := func(a answer, status int, fault string) {
			t.Helper()
			if a.StatusCode != status || strings.Contains(a.body, mark) {
				t.Errorf("%s %s: %d %s, want %d", a.Request.Method, a.Request.URL.Path, a.StatusCode, a.body, status)
			} else if fault != "" && !strings.Contains(strings.Join(a.problem(t).faults(), "\n"), fault) {
				t.Errorf("faults %q, want %q", a.problem(t).faults(), fault)
			}
		}
		// What is refused does not repeat the value.
		for body, fault := range map[string]string{
			`{"value":["` + mark + `"]}`:                                        "value: ",
			`{"value":"` + strings.Repeat(mark, 2000) + `"}`:                    "value: ",
			`{"value":"` + strings.Repeat("ä", 9000) + mark + `"}`:              "value: it is too long",
			`{"value":"x` + `\u0000` + mark + `"}`:                              "value: it is no text without NUL",
			`{"value":"ab"}`:                                                    "value: ",
			`{"value":"` + mark + `","grants":[{"role":"host"}]}`:               "grants[0].role: ",
			`{"value":"` + mark + `","grants":[{}]}`:                            "grants[0]: ",
			`{"value":"` + mark + `","nonsense":"` + mark + `"}`:                "nonsense: ",
			`{"value":"` + mark + `","value":"` + mark + `"}`:                   "value: the key stands there twice",
			`{"description":"x"}`:                                               "value: a new secret needs a value",
			`{}`:                                                                "",
			`{"value":"` + mark + `","grants":[{"user":"` + s.Admin.ID + `"}]}`: "grants[0].user: ",
			`{"value":"` + mark + `","grants":[{"user":"01976f3c-5f4e-7c1a-9b55-0d6b1f6f2f10"}]}`: "grants[0].user: there is no such user",
		} {
			a := send(t, s, http.MethodPut, path, admin, body)
			want(a, http.StatusUnprocessableEntity, fault)
		}
		want(send(t, s, http.MethodPut, path, ops, `{"value":`+string(quoted)+`}`), http.StatusForbidden, "")
		want(send(t, s, http.MethodGet, path, admin, ""), http.StatusNotFound, "")
		want(send(t, s, http.MethodPut, path, admin, `{"value":`+string(quoted)+`,"description":"of the shop","grants":[{"user":"`+string(ann)+`"}]}`), http.StatusOK, "")
		want(send(t, s, http.MethodPut, "/api/v1/secrets/other", admin, `{"value":`+string(quoted)+`}`), http.StatusOK, "")

		read := func(token, path string) (out struct {
			Name    string
			Version int
			Grants  []struct{ User, Role string }
			Secrets []struct {
				Name   string
				Grants []struct{ User, Role string }
			}
		},
		) {
			t.Helper()
			a := send(t, s, http.MethodGet, path, token, "")
			want(a, http.StatusOK, "")
			if err := json.Unmarshal([]byte(a.body), &out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		if got := read(admin, path); got.Version != 1 || len(got.Grants) != 1 || got.Grants[0].User != string(ann) {
			t.Errorf("read %+v", got)
		}
		if got := read(admin, "/api/v1/secrets").Secrets; len(got) != 2 || len(got[0].Grants) != 1 {
			t.Errorf("an administrator's list %+v", got)
		}
		if got := read(sub, "/api/v1/secrets").Secrets; len(got) != 1 || got[0].Name != "db-password" || len(got[0].Grants) != 0 {
			t.Errorf("a submitter's list %+v", got)
		}
		if got := read(ops, "/api/v1/secrets").Secrets; len(got) != 0 {
			t.Errorf("an operator's list %+v", got)
		}
		want(send(t, s, http.MethodGet, path, sub, ""), http.StatusForbidden, "")

		// Tasks name what is granted to their submitter.
		submit := func(token, secrets string) answer {
			return send(t, s, http.MethodPost, "/api/v1/tasks", token, `{"plugin":"work","payload":{"do":"x"},"secrets":`+secrets+`}`)
		}
		const refused = ": no such secret, or it is not granted to you"
		want(submit(sub, `["none"]`), http.StatusUnprocessableEntity, "secrets[0]"+refused)
		want(submit(sub, `["db-password","other"]`), http.StatusUnprocessableEntity, "secrets[1]"+refused)
		want(submit(ops, `["db-password"]`), http.StatusUnprocessableEntity, "secrets[0]"+refused)
		want(submit(sub, `["db-password","db-password"]`), http.StatusUnprocessableEntity, "secrets: ")
		a := submit(sub, `["db-password"]`)
		want(a, http.StatusCreated, "")
		if !strings.Contains(a.body, `"secrets":["db-password"]`) {
			t.Errorf("the task %s", a.body)
		}
		want(send(t, s, http.MethodDelete, path, admin, ""), http.StatusNoContent, "")
		want(send(t, s, http.MethodDelete, path, admin, ""), http.StatusNotFound, "")
		s.AssertSilentAbout(mark)
	})
}

func TestAPayloadNamesSecretsOfItsTask(t *testing.T) {
	s := apitest.OnSQLite(t)
	for _, m := range manifest.Builtins() {
		err := s.Store.RegisterPlugins(t.Context(), s.Admin, []berth.Plugin{{
			PluginVersion: berth.PluginVersion{Name: m.Name, Version: m.Version}, Enabled: true, Schema: m.Schema,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	s.User("ann", berth.RoleSubmitter)
	s.User("admin", berth.RoleAdmin)
	token, admin := s.Token("ann"), s.Token("admin")
	for _, name := range []string{"pin", "key"} {
		if a := send(t, s, http.MethodPut, "/api/v1/secrets/"+name, admin, `{"value":"12345","grants":[{"role":"submitter"}]}`); a.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	const none = ": names none of the task's secrets"
	for body, want := range map[string]string{
		`{"plugin":"process.run","payload":{"command":["true"],"secret_env":{"A":"key"}},"secrets":["key"]}`:                       "",
		`{"plugin":"process.run","payload":{"command":["true"],"secret_env":{"N4me":"` + mark + `","B":"pin"}},"secrets":["pin"]}`: "payload.secret_env.*" + none,
		`{"plugin":"browser.script","payload":{"steps":[{"type":{"selector":"#a","secret":"pin"}}]},"secrets":["pin"]}`:            "",
		`{"plugin":"browser.script","payload":{"steps":[{"goto":{"url":"http://a"}},{"type":{"selector":"#a","secret":"pin"}}]}}`:  "payload.steps[1].type.secret" + none,
	} {
		a := send(t, s, http.MethodPost, "/api/v1/tasks", token, body)
		switch {
		case want == "" && a.StatusCode != http.StatusCreated:
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		case want != "" && (a.StatusCode != http.StatusUnprocessableEntity || strings.Join(a.problem(t).faults(), "\n") != want || strings.Contains(a.body, mark)):
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
}
