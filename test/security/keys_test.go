package security

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/identity/issuertest"
	"github.com/berth-dev/berth/test/harness"
)

// TestKeysFollowEachOther replaces signing keys and the master key under two
// running API processes, and lets an external issuer's people in meanwhile.
func TestKeysFollowEachOther(t *testing.T) {
	issuer := issuertest.New(t)
	outsider := issuer.AddKey(t, "RS256")
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	issuers := file("issuers.json", `{"issuers": [{"issuer": "`+issuer.URL+`", "audience": "farm", "roles_claim": "groups", "roles": {"ops": "operator"}}]}`)
	c := harness.NewCluster(t, harness.Options{
		Engine: harness.Postgres, APIs: 2, Schedulers: -1, Leasekeepers: -1, Env: map[string]string{"BERTH_ISSUERS_FILE": issuers},
	})
	at := func(n int, path string) visitor {
		return visitor{t: t, url: c.APIs[n].URL(), door: door{method: http.MethodGet, path: httpapi.BaseURL + path, good: "a.b.c"}}
	}
	both := func(what, path, token string, want int) {
		t.Helper()
		for n := range c.APIs {
			if status, body := at(n, path).send(bearer(token)); status != want {
				t.Errorf("%s at process %d: %d %s", what, n, status, body)
			}
		}
	}
	outside := func(groups ...string) string {
		return issuer.Token(t, outsider, issuer.Claims("farm", "subject", map[string]any{"groups": groups, "preferred_username": "Ann"}), nil)
	}
	both("an operator of the issuer", "/tasks", outside("ops"), http.StatusOK)
	both("who is no administrator", "/users", outside("ops"), http.StatusForbidden)
	both("who has no role", "/tasks", outside("others"), http.StatusForbidden)

	// Signing keys.
	old := kidOf(t, c.Tokens.AccessToken)
	keys, err := c.Client.RotateSigningKey(t.Context())
	if err != nil || len(keys.SigningKeys) != 2 || keys.SigningKeys[1].ID != old || !keys.SigningKeys[1].Signs {
		t.Fatalf("rotated: %+v, %v", keys, err)
	}
	next := keys.SigningKeys[0].ID
	var tokens client.Tokens
	harness.Eventually(t, harness.Patience, "the new key signs", func() bool {
		_, tokens = harness.Login(t, c.APIs[1].URL(), harness.Admin, c.Password, http.DefaultClient)
		both("each token on its way", "/auth/me", tokens.AccessToken, http.StatusOK)
		return kidOf(t, tokens.AccessToken) == next
	})
	both("the old key's token", "/auth/me", c.Tokens.AccessToken, http.StatusOK)
	for n := range c.APIs {
		if _, body := at(n, "/auth/jwks").send(nil); !strings.Contains(body, old) || !strings.Contains(body, next) {
			t.Errorf("published by process %d: %s", n, body)
		}
	}

	// The master key, by the steps that docs/operations.md says.
	fresh := strings.Repeat("5a", 32)
	roll := func(current, other string) {
		for _, d := range c.APIs {
			d.Env["BERTH_MASTER_KEY_FILE"] = file("master", current+"\n")
			if delete(d.Env, "BERTH_MASTER_KEY_OLD_FILE"); other != "" {
				d.Env["BERTH_MASTER_KEY_OLD_FILE"] = file("old", other+"\n")
			}
			d.Stop(t)
			d.Start(t)
			d.AwaitReady(t)
		}
	}
	reseal := func(verb string, code int) string {
		p := harness.Run(t, c.Folder, harness.Command{Name: "berth", Path: harness.Program(t, "berth"), Args: []string{"master-key", verb}, Env: map[string]string{
			"BERTH_DATABASE_URL": c.DatabaseURL, "BERTH_MASTER_KEY": fresh, "BERTH_MASTER_KEY_OLD": c.MasterKey,
		}})
		p.MustExit(t, harness.Patience, code)
		out, errs := p.Output(t)
		return out + errs
	}
	roll(c.MasterKey, fresh)
	roll(fresh, c.MasterKey)
	both("under both master keys", "/auth/me", tokens.AccessToken, http.StatusOK)
	if out := reseal("status", 1); !strings.Contains(out, "2 values") {
		t.Errorf("status said %s", out)
	}
	reseal("reseal", 0)
	reseal("reseal", 0)
	reseal("status", 0)
	roll(fresh, "")
	both("under the new one alone", "/auth/me", tokens.AccessToken, http.StatusOK)
	_, again := harness.Login(t, c.APIs[0].URL(), harness.Admin, c.Password, http.DefaultClient)
	both("a login afterwards", "/auth/me", again.AccessToken, http.StatusOK)

	// The issuer goes away: its known key holds, a start does not wait for it, and
	// logins here go on.
	known := outside("ops")
	both("before the issuer goes", "/tasks", known, http.StatusOK)
	issuer.Down()
	both("after it went", "/tasks", known, http.StatusOK)
	c.APIs[1].Stop(t)
	c.APIs[1].Start(t)
	c.APIs[1].AwaitReady(t)
	if status, body := at(1, "/tasks").send(bearer(known)); status != http.StatusServiceUnavailable {
		t.Errorf("started without the issuer: %d %s", status, body)
	}
	harness.Login(t, c.APIs[1].URL(), harness.Admin, c.Password, http.DefaultClient)
}

func kidOf(t *testing.T, token string) string {
	t.Helper()
	head, _, _ := strings.Cut(token, ".")
	h := claimsOf(t, "."+head)
	kid, _ := h["kid"].(string)
	return kid
}
