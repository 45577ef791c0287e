package httpapi_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/identity/issuertest"
)

// TestMeIsWhatAnIssuersTokenSays: the roles of this token, not those that a user
// of an issuer has in the database, which are none, nor those of the token before.
func TestMeIsWhatAnIssuersTokenSays(t *testing.T) {
	issuer := issuertest.New(t)
	kid := issuer.AddKey(t, "ES256")
	file := filepath.Join(t.TempDir(), "issuers.json")
	text := fmt.Sprintf(`{"issuers": [{"issuer": %q, "audience": "berth", "roles_claim": ["groups"], "roles": {"ops": "operator", "users": "submitter"}}]}`, issuer.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	issuers, err := identity.LoadIssuers(file)
	if err != nil {
		t.Fatal(err)
	}
	s := apitest.OnSQLiteTrusting(t, issuers...)
	token := func(groups ...string) string {
		return issuer.Token(t, kid, issuer.Claims("berth", "subject-1", map[string]any{"groups": groups, "preferred_username": "ann"}), nil)
	}
	var first bclient.Me
	for _, tc := range []struct {
		groups []string
		roles  string
	}{
		{[]string{"ops"}, "[operator]"},
		{[]string{"users", "others"}, "[submitter]"},
		{[]string{"users", "ops"}, "[submitter operator]"},
	} {
		me, err := s.Client(token(tc.groups...)).Me(t.Context())
		if err != nil || me.Name != "ann.127.0.0.1" || me.Via != "issuer" || fmt.Sprint(me.Roles) != tc.roles {
			t.Errorf("%v: %+v, %v", tc.groups, me, err)
		}
		if first.ID == "" {
			first = me
		}
		if me.ID != first.ID {
			t.Errorf("%v: another user", tc.groups)
		}
	}
	_, err = s.Client(token("others")).Me(t.Context())
	says(t, "no role", err, "forbidden")
	if u, err := s.Store.UserByID(t.Context(), berth.UserID(first.ID)); err != nil || fmt.Sprint(u.Roles) != "[submitter operator]" {
		t.Errorf("kept: %+v, %v", u.Roles, err)
	}
	if a := send(t, s, "GET", "/api/v1/auth/me", token("ops"), ""); a.StatusCode != http.StatusOK {
		t.Errorf("plainly: %d %s", a.StatusCode, a.body)
	}
}
