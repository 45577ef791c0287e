package e2e

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// TestSeveralAPIsStartOnAnEmptyDatabase: four API processes that start at the
// same instant make one administrator and one signing key, and each takes the
// other's tokens. Then, over all of them: what ends a session or a key at one
// process ends it at the others with the next request.
func TestSeveralAPIsStartOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	c := harness.NewCluster(t, harness.Options{APIs: 4, Schedulers: -1, Leasekeepers: -1})
	if rows := c.Query(t, `SELECT name, roles::text, (SELECT count(*) FROM audit_events WHERE action = 'user.created'), (SELECT count(*) FROM signing_keys) FROM users`); len(rows) != 1 ||
		rows[0][0] != harness.Admin || rows[0][1] != "{admin}" || rows[0][2] != "1" || rows[0][3] != "1" {
		t.Fatalf("users %v", rows)
	}
	f := &farm{t: t, c: c}
	for i := range c.APIs {
		f.takes("a token of another process", i, c.Tokens.AccessToken)
	}
	t.Run("refresh", f.refreshes)
	t.Run("logout", f.logsOut)
	t.Run("disabled", f.disables)
	t.Run("password", f.changesPassword)
}

// farm is several API processes and one administrator.
type farm struct {
	t *testing.T
	c *harness.Cluster
}

func (f *farm) at(i int, token string) *client.Client {
	var auth client.TokenSource
	if token != "" {
		auth = client.StaticToken(token)
	}
	c, err := client.New(f.c.APIs[i%len(f.c.APIs)].URL(), auth, client.WithHTTP(http.DefaultClient), client.WithRetryFor(0))
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *farm) takes(what string, i int, token string) {
	f.t.Helper()
	if _, err := f.at(i, token).Me(f.t.Context()); err != nil {
		f.t.Errorf("%s: %v", what, err)
	}
}

// refuses asserts that no process takes a token.
func (f *farm) refuses(what, token string) {
	f.t.Helper()
	for i := range f.c.APIs {
		if _, err := f.at(i, token).Me(f.t.Context()); !client.HasCode(err, "unauthenticated") {
			f.t.Errorf("%s, at process %d: %v", what, i, err)
		}
	}
}

const farmPassword = "Pw-canary-of-the-farm"

// person makes a user and logs in at some process.
func (f *farm) person(t *testing.T, name string, i int) (client.User, client.Tokens) {
	t.Helper()
	f.t = t
	u, err := f.c.Client.CreateUser(t.Context(), client.UserSpec{Name: name, Roles: []client.Role{"submitter"}, Password: farmPassword})
	if err != nil {
		t.Fatal(err)
	}
	return u, f.login(name, i)
}

func (f *farm) login(name string, i int) client.Tokens {
	f.t.Helper()
	tokens, err := f.at(i, "").Login(f.t.Context(), name, farmPassword)
	if err != nil {
		f.t.Fatal(err)
	}
	return tokens
}

// refreshes: 50 refreshes of one token at once, at four processes, leave the
// client logged in with each of the answers; a token that was stolen before ends
// them all.
func (f *farm) refreshes(t *testing.T) {
	_, stolen := f.person(t, "ann", 0)
	first, err := f.at(1, "").Refresh(t.Context(), stolen.RefreshToken)
	if err != nil {
		t.Fatal(err)
	}
	answers, errs := make([]client.Tokens, 50), make([]error, 50)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i], errs[i] = f.at(i, "").Refresh(t.Context(), first.RefreshToken) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range answers {
		f.takes("an answer's access token", i+1, answers[i].AccessToken)
		if answers[i], err = f.at(i+1, "").Refresh(t.Context(), answers[i].RefreshToken); err != nil {
			t.Fatalf("the next refresh of answer %d: %v", i, err)
		}
	}
	if _, err := f.at(2, "").Refresh(t.Context(), stolen.RefreshToken); !client.HasCode(err, "unauthenticated") {
		t.Errorf("the stolen token: %v", err)
	}
	for i := range answers {
		if _, err := f.at(i, "").Refresh(t.Context(), answers[i].RefreshToken); !client.HasCode(err, "unauthenticated") {
			t.Errorf("line %d after the theft: %v", i, err)
		}
	}
	f.refuses("an access token after the theft", answers[7].AccessToken)
	f.login("ann", 3)
}

func (f *farm) logsOut(t *testing.T) {
	_, tokens := f.person(t, "bob", 0)
	other := f.login("bob", 1)
	if err := f.at(2, "").Logout(t.Context(), tokens.RefreshToken); err != nil {
		t.Fatal(err)
	}
	f.refuses("after a logout", tokens.AccessToken)
	f.takes("another login", 3, other.AccessToken)
}

func (f *farm) disables(t *testing.T) {
	u, tokens := f.person(t, "cat", 0)
	key, err := f.at(1, tokens.AccessToken).CreateAPIKey(t.Context(), client.APIKeySpec{Name: "k", Roles: []client.Role{"submitter"}})
	if err != nil {
		t.Fatal(err)
	}
	f.takes("the key", 2, key.Key)
	yes, no := true, false
	if _, err := f.c.Client.ChangeUser(t.Context(), u.ID, client.UserChange{Disabled: &yes}, ""); err != nil {
		t.Fatal(err)
	}
	f.refuses("a disabled user's token", tokens.AccessToken)
	f.refuses("a disabled user's key", key.Key)
	if _, err := f.c.Client.ChangeUser(t.Context(), u.ID, client.UserChange{Disabled: &no}, ""); err != nil {
		t.Fatal(err)
	}
	f.takes("the key of a user who is back", 3, key.Key)
	f.refuses("a session from before", tokens.AccessToken)
	if err := f.c.Client.RevokeAPIKey(t.Context(), key.ID); err != nil {
		t.Fatal(err)
	}
	f.refuses("a revoked key", key.Key)
}

func (f *farm) changesPassword(t *testing.T) {
	_, tokens := f.person(t, "dan", 0)
	other := f.login("dan", 1)
	if err := f.at(2, tokens.AccessToken).ChangePassword(t.Context(), farmPassword, farmPassword+"-2"); err != nil {
		t.Fatal(err)
	}
	f.takes("the login that changed it", 3, tokens.AccessToken)
	f.refuses("another login", other.AccessToken)
	if _, err := f.at(3, "").Login(t.Context(), "dan", farmPassword); !client.HasCode(err, "unauthenticated") {
		t.Errorf("the old password: %v", err)
	}
}
