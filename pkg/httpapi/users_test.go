package httpapi_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/store"
)

func TestAdministratorsManageUsers(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		root := s.As("root", berth.RoleAdmin)
		mia, err := root.CreateUser(t.Context(), bclient.UserSpec{Name: "mia", Roles: []bclient.Role{"operator", "submitter"}, Password: apitest.Password})
		if err != nil || mia.Name != "mia" || mia.Disabled || !mia.HasPassword || fmt.Sprint(mia.Roles) != "[submitter operator]" {
			t.Fatalf("create: %+v, %v", mia, err)
		}
		_, err = root.CreateUser(t.Context(), bclient.UserSpec{Name: "mia", Roles: []bclient.Role{"viewer"}})
		says(t, "a taken name", err, "exists", "A user named mia exists already")
		_, err = root.CreateUser(t.Context(), bclient.UserSpec{Name: "max", Roles: []bclient.Role{"viewer"}, Password: "short"})
		says(t, "a short password", err, "invalid", "password: the password is too short", "at least 8 characters")
		for body, fault := range map[string]string{
			`{"name":"x","roles":[]}`:                                "roles: must have at least 1 item",
			`{"name":"x","roles":["host"]}`:                          "roles[0]: must be one of viewer, submitter, operator, admin",
			`{"name":"x","roles":["viewer"],"disabled":false}`:       "disabled: is not a field here",
			`{"name":"x","roles":["viewer"],"id":"` + nowhere + `"}`: "id: is not a field here",
		} {
			a := send(t, s, "POST", "/api/v1/users", s.Token("root"), body)
			if a.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(strings.Join(a.problem(t).faults(), "\n"), fault) {
				t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
			}
		}
		robot, err := root.CreateUser(t.Context(), bclient.UserSpec{Name: "robot", Roles: []bclient.Role{"submitter"}})
		if err != nil || robot.HasPassword {
			t.Errorf("a service: %+v, %v", robot, err)
		}
		list, err := root.ListUsers(t.Context(), bclient.ListUsersParams{PageSize: 2})
		if err != nil || len(list.Users) != 2 || list.Users[0].Name != "mia" || list.NextPageToken == "" {
			t.Errorf("list: %+v, %v", list, err)
		}
		list, err = root.ListUsers(t.Context(), bclient.ListUsersParams{PageSize: 2, PageToken: list.NextPageToken})
		if err != nil || len(list.Users) != 1 || list.NextPageToken != "" {
			t.Errorf("the second page: %+v, %v", list, err)
		}
		if list, err = root.ListUsers(t.Context(), bclient.ListUsersParams{Name: "robot"}); err != nil || len(list.Users) != 1 || list.Users[0].ID != robot.ID {
			t.Errorf("by name: %+v, %v", list, err)
		}
		mias := s.Client(s.Token("mia"))
		_, err = mias.ListUsers(t.Context(), bclient.ListUsersParams{})
		says(t, "an operator", err, "forbidden")
	})
}

func TestAUserIsChangedByVersion(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		root := s.As("root", berth.RoleAdmin)
		id := string(s.User("mia", berth.RoleViewer))
		_, etag, err := root.GetUser(t.Context(), id)
		if err != nil || etag != `"1"` {
			t.Fatalf("get: %q, %v", etag, err)
		}
		change := bclient.UserChange{Roles: []bclient.Role{"operator"}}
		for range 2 { // a repeat says the same
			if u, err := root.ChangeUser(t.Context(), id, change, etag); err != nil || fmt.Sprint(u.Roles) != "[operator]" {
				t.Fatalf("change: %+v, %v", u, err)
			}
		}
		yes := true
		_, err = root.ChangeUser(t.Context(), id, bclient.UserChange{Disabled: &yes}, etag)
		says(t, "an old version", err, "wrong_state", "somebody changed it meanwhile")
		_, etag, err = root.GetUser(t.Context(), id)
		if err != nil || etag != `"2"` {
			t.Errorf("get: %q, %v", etag, err)
		}
		for _, wrong := range []string{`2`, `W/"2"`, `"0"`, `"-1"`, `"x"`, `"1", "2"`, `"99999999999"`} {
			_, err = root.ChangeUser(t.Context(), id, bclient.UserChange{Disabled: &yes}, wrong)
			says(t, wrong, err, "invalid", "If-Match")
		}
		a := send(t, s, "PATCH", "/api/v1/users/"+id, s.Token("root"), `{"disabled":true}`, "If-Match", etag)
		if a.StatusCode != http.StatusOK || a.Header.Get("ETag") != `"3"` {
			t.Errorf("disable: %d %q %s", a.StatusCode, a.Header.Get("ETag"), a.body)
		}
		for body, fault := range map[string]string{
			`{}`: "must have at least 1 field", `{"version":7}`: "version: is not a field here", `{"password_hash":"x"}`: "password_hash: is not a field here",
		} {
			a := send(t, s, "PATCH", "/api/v1/users/"+id, s.Token("root"), body)
			if a.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(strings.Join(a.problem(t).faults(), "\n"), fault) {
				t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
			}
		}
		me, err := root.Me(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = root.ChangeUser(t.Context(), me.ID, bclient.UserChange{Disabled: &yes}, "")
		says(t, "the last administrator", err, "wrong_state", "the last administrator who can log in", "make another user")
		_, err = root.ChangeUser(t.Context(), nowhere, bclient.UserChange{Disabled: &yes}, "")
		says(t, "nobody", err, "not_found")
		_, _, err = root.GetUser(t.Context(), nowhere)
		says(t, "nobody", err, "not_found")
	})
}

func TestPasswordsChange(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		root, mia := s.As("root", berth.RoleAdmin), s.As("mia", berth.RoleViewer)
		other := s.Client(s.Token("mia"))
		const next = "m4rk-of-the-next-passw0rd"
		err := mia.ChangePassword(t.Context(), "wrong"+apitest.Password, next)
		says(t, "a wrong one", err, "invalid", "current_password: it is not your password")
		if err := mia.ChangePassword(t.Context(), apitest.Password, next); err != nil {
			t.Fatal(err)
		}
		if _, err := mia.Me(t.Context()); err != nil {
			t.Errorf("the login that changed it: %v", err)
		}
		_, err = other.Me(t.Context())
		says(t, "the other login", err, "unauthenticated")
		_, err = s.Client("").Login(t.Context(), "mia", apitest.Password)
		says(t, "the old password", err, "unauthenticated")
		me, err := mia.Me(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := root.SetUserPassword(t.Context(), me.ID, apitest.Password); err != nil {
			t.Fatal(err)
		}
		_, err = mia.Me(t.Context())
		says(t, "after a reset", err, "unauthenticated")
		s.Token("mia")
		says(t, "nobody's", root.SetUserPassword(t.Context(), nowhere, next), "not_found")
		s.AssertSilentAbout(next, apitest.Password)
	})
}

func TestAPIKeysSpeakForTheirUser(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		root, mia := s.As("root", berth.RoleAdmin), s.As("mia", berth.RoleSubmitter)
		made, err := mia.CreateAPIKey(t.Context(), bclient.APIKeySpec{Name: "nightly", Roles: []bclient.Role{"submitter"}})
		if err != nil || !regexp.MustCompile(`^berth_[a-z2-7]{8}_[A-Za-z0-9_-]{43}$`).MatchString(made.Key) || !strings.HasPrefix(made.Key, made.Prefix+"_") ||
			made.UserName != "mia" || made.ExpiresAt.Sub(made.CreatedAt).Hours() != 365*24 {
			t.Fatalf("create: %s %+v, %v", made.Prefix, made.UserName, err)
		}
		key := s.Client(made.Key)
		me, err := key.Me(t.Context())
		if err != nil || me.Name != "mia" || me.Via != "api_key" || fmt.Sprint(me.Roles) != "[submitter]" {
			t.Errorf("me: %+v, %v", me, err)
		}
		// A task belongs to the user; the trail names the key.
		task := submit(t, key, work("x"))
		if got, err := mia.GetTask(t.Context(), task.ID, 0); err != nil || got.ID != task.ID {
			t.Errorf("the user's view: %v", err)
		}
		rows, err := s.Store.ListAudit(t.Context(), "task", task.ID, 0, 10)
		if err != nil || len(rows) != 1 || rows[0].Actor.Credential != berth.KeyCredential(berth.APIKeyID(made.ID)) || rows[0].Actor.ID != me.ID {
			t.Errorf("rows: %+v, %v", rows, err)
		}
		list, err := mia.ListAPIKeys(t.Context(), bclient.ListAPIKeysParams{})
		if err != nil || len(list.APIKeys) != 1 || list.APIKeys[0].Key != "" || list.APIKeys[0].LastUsedAt.IsZero() {
			t.Errorf("list: %d, %v", len(list.APIKeys), err)
		}
		_, err = mia.ListAPIKeys(t.Context(), bclient.ListAPIKeysParams{User: "all"})
		says(t, "all as a submitter", err, "forbidden")
		if list, err = root.ListAPIKeys(t.Context(), bclient.ListAPIKeysParams{User: "all"}); err != nil || len(list.APIKeys) != 1 {
			t.Errorf("all: %+v, %v", list, err)
		}
		if list, err = root.ListAPIKeys(t.Context(), bclient.ListAPIKeysParams{}); err != nil || len(list.APIKeys) != 0 {
			t.Errorf("root's own: %+v, %v", list, err)
		}
		if list, err = root.ListAPIKeys(t.Context(), bclient.ListAPIKeysParams{User: me.ID}); err != nil || len(list.APIKeys) != 1 {
			t.Errorf("mia's: %+v, %v", list, err)
		}

		// The user loses the role, is disabled, the key is revoked: at once.
		change := func(roles []bclient.Role, disabled bool) {
			if _, err := root.ChangeUser(t.Context(), me.ID, bclient.UserChange{Roles: roles, Disabled: &disabled}, ""); err != nil {
				t.Fatal(err)
			}
		}
		change([]bclient.Role{"viewer"}, false)
		_, err = key.Me(t.Context())
		says(t, "beyond its user", err, "forbidden")
		change([]bclient.Role{"operator"}, false)
		_, err = key.PausePool(t.Context(), "default")
		says(t, "a submitter's key of an operator", err, "forbidden")
		change([]bclient.Role{"submitter"}, true)
		_, err = key.Me(t.Context())
		says(t, "a disabled user's", err, "unauthenticated")
		change([]bclient.Role{"submitter"}, false)
		if _, err = key.Me(t.Context()); err != nil {
			t.Errorf("enabled again: %v", err)
		}
		stranger := s.As("zoe", berth.RoleOperator)
		says(t, "another's key", stranger.RevokeAPIKey(t.Context(), made.ID), "not_found")
		for range 2 {
			if err := root.RevokeAPIKey(t.Context(), made.ID); err != nil {
				t.Fatal(err)
			}
		}
		_, err = key.Me(t.Context())
		says(t, "revoked", err, "unauthenticated")
		s.AssertSilentAbout(made.Key, made.Key[15:])
	})
}

// A viewer sees everybody's tasks and a submitter its own: a submitter's key must
// not be a viewer, whether it is asked for or left over from better days.
func TestAKeySeesNoMoreThanItsUser(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		root, mia, zoe := s.As("root", berth.RoleAdmin), s.As("mia", berth.RoleSubmitter), s.As("zoe", berth.RoleOperator)
		task := submit(t, root, work("private"))
		_, err := mia.CreateAPIKey(t.Context(), bclient.APIKeySpec{Name: "all", Roles: []bclient.Role{"viewer"}})
		says(t, "a submitter's viewer", err, "invalid", "viewer, which sees everybody's tasks")
		made, err := zoe.CreateAPIKey(t.Context(), bclient.APIKeySpec{Name: "all", Roles: []bclient.Role{"viewer"}})
		if err != nil {
			t.Fatal(err)
		}
		key := s.Client(made.Key)
		if _, err := key.GetTask(t.Context(), task.ID, 0); err != nil {
			t.Errorf("an operator's viewer: %v", err)
		}
		me, err := zoe.Me(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, roles := range [][]bclient.Role{{"submitter"}, {"viewer", "submitter"}} {
			if _, err := root.ChangeUser(t.Context(), me.ID, bclient.UserChange{Roles: roles}, ""); err != nil {
				t.Fatal(err)
			}
			_, err := key.GetTask(t.Context(), task.ID, 0)
			if len(roles) == 1 {
				says(t, "left over from an operator", err, "forbidden")
			} else if err != nil {
				t.Errorf("of a viewer and submitter: %v", err)
			}
		}
	})
}

func TestAPIKeysHandOutNothing(t *testing.T) {
	s := apitest.OnSQLite(t)
	root := s.As("root", berth.RoleAdmin)
	made, err := root.CreateAPIKey(t.Context(), bclient.APIKeySpec{Name: "terraform", Roles: []bclient.Role{"admin"}, TTLSeconds: 3600})
	if err != nil {
		t.Fatal(err)
	}
	me, err := root.Me(t.Context())
	if err != nil || me.Via != "password" {
		t.Fatalf("%+v, %v", me, err)
	}
	key := s.Client(made.Key)
	yes := true
	for what, err := range map[string]error{
		"a key":      second(key.CreateAPIKey(t.Context(), bclient.APIKeySpec{Name: "x", Roles: []bclient.Role{"viewer"}})),
		"a user":     second(key.CreateUser(t.Context(), bclient.UserSpec{Name: "x", Roles: []bclient.Role{"viewer"}})),
		"roles":      second(key.ChangeUser(t.Context(), me.ID, bclient.UserChange{Disabled: &yes}, "")),
		"a password": key.SetUserPassword(t.Context(), me.ID, "another password"),
		"one's own":  key.ChangePassword(t.Context(), apitest.Password, "another password"),
	} {
		says(t, what, err, "forbidden", "An API key hands out no credentials", "Log in with a name and a password")
	}
	// The rest of its role it has, and it may end itself.
	if _, err := key.ListUsers(t.Context(), bclient.ListUsersParams{}); err != nil {
		t.Error(err)
	}
	if _, err := key.CreatePool(t.Context(), bclient.PoolSpec{Name: "phones"}); err != nil {
		t.Error(err)
	}
	if err := key.RevokeAPIKey(t.Context(), made.ID); err != nil {
		t.Error(err)
	}
	_, err = key.Me(t.Context())
	says(t, "after its end", err, "unauthenticated")
}

func TestAPIKeysAreAskedForInBounds(t *testing.T) {
	s := apitest.OnSQLite(t)
	root, mia := s.As("root", berth.RoleAdmin), s.As("mia", berth.RoleSubmitter)
	me, err := mia.Me(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	create := func(c *bclient.Client, spec bclient.APIKeySpec) error {
		spec.Name = "k"
		_, err := c.CreateAPIKey(t.Context(), spec)
		return err
	}
	submitter, operator := []bclient.Role{"submitter"}, []bclient.Role{"operator"}
	says(t, "more than the user", create(mia, bclient.APIKeySpec{Roles: operator}), "invalid", "roles: the key's user has not all of them")
	says(t, "for another user", create(mia, bclient.APIKeySpec{Roles: submitter, User: nowhere}), "forbidden")
	says(t, "for nobody", create(root, bclient.APIKeySpec{Roles: submitter, User: nowhere}), "invalid", "user: there is no such user")
	says(t, "more than the other user", create(root, bclient.APIKeySpec{Roles: operator, User: me.ID}), "invalid", "roles")
	says(t, "too long", create(mia, bclient.APIKeySpec{Roles: submitter, TTLSeconds: 400 * 86400}), "invalid", "ttl_seconds: must be at most")
	if err := create(root, bclient.APIKeySpec{Roles: submitter, User: me.ID}); err != nil {
		t.Error(err)
	}
	ext, err := s.Store.ProvisionUser(t.Context(), store.ProvisionParams{ID: nowhere, Issuer: "https://i", Subject: "s", Names: []string{"ext"}, Actor: s.Admin})
	if err != nil {
		t.Fatal(err)
	}
	says(t, "for a user of an issuer", create(root, bclient.APIKeySpec{Roles: submitter, User: string(ext.ID)}), "wrong_state", "an external issuer's")
	says(t, "a password for one", root.SetUserPassword(t.Context(), string(ext.ID), "another password"), "wrong_state", "an external issuer's")
}

// TestFiftyRefreshesAtOnce: a client that refreshes many times at once stays
// logged in, with whichever answer it keeps; a token that was stolen before ends
// all of them, and their access tokens.
func TestFiftyRefreshesAtOnce(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.User("mia", berth.RoleViewer)
		c := s.Client("")
		stolen, err := c.Login(t.Context(), "mia", apitest.Password)
		if err != nil {
			t.Fatal(err)
		}
		first, err := c.Refresh(t.Context(), stolen.RefreshToken)
		if err != nil {
			t.Fatal(err)
		}
		answers := make([]bclient.Tokens, 50)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				var err error
				if answers[i], err = c.Refresh(t.Context(), first.RefreshToken); err != nil {
					t.Errorf("refresh %d: %v", i, err)
				}
			}()
		}
		wg.Wait()
		for i, a := range answers {
			if _, err := s.Client(a.AccessToken).Me(t.Context()); err != nil {
				t.Errorf("access token %d: %v", i, err)
			}
			next, err := c.Refresh(t.Context(), a.RefreshToken)
			if err != nil {
				t.Fatalf("the next refresh of answer %d: %v", i, err)
			}
			answers[i] = next
		}
		_, err = c.Refresh(t.Context(), stolen.RefreshToken)
		says(t, "the stolen one", err, "unauthenticated")
		for i, a := range answers {
			_, err := c.Refresh(t.Context(), a.RefreshToken)
			says(t, fmt.Sprintf("refresh token %d after the theft", i), err, "unauthenticated")
			_, err = s.Client(a.AccessToken).Me(t.Context())
			says(t, fmt.Sprintf("access token %d after the theft", i), err, "unauthenticated")
		}
	})
}
