package e2e

import (
	"net/http"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// lostAccountCases are the calls on users, passwords and API keys.
func lostAccountCases() map[string]lostCase {
	return map[string]lostCase{
		"POST /api/v1/auth/password":     lostChangePassword,
		"POST /api/v1/users":             lostCreateUser,
		"PATCH /api/v1/users/:id":        lostChangeUser,
		"PUT /api/v1/users/:id/password": lostSetPassword,
		"POST /api/v1/api-keys":          lostCreateKey,
		"DELETE /api/v1/api-keys/:id":    lostRevokeKey,
	}
}

const lostPassword = "Pw-canary-of-a-user"

func (w *lostWorld) user() client.User {
	w.t.Helper()
	u, err := w.Client.CreateUser(w.t.Context(), client.UserSpec{Name: w.next("user"), Roles: []client.Role{"viewer"}, Password: lostPassword})
	if err != nil {
		w.t.Fatal(err)
	}
	return u
}

// lostChangePassword: the repeat comes with the password of before, which is
// wrong by now, and names the one that counts.
func lostChangePassword(w *lostWorld) lostCall {
	u := w.user()
	_, tokens := harness.Login(w.t, w.APIs[0].URL(), u.Name, lostPassword, http.DefaultClient)
	return lostCall{
		method: http.MethodPost, path: "/api/v1/auth/password", header: map[string]string{"Authorization": "Bearer " + tokens.AccessToken},
		body:   harness.Payload(w.t, client.PasswordChange{CurrentPassword: lostPassword, NewPassword: lostPassword + "-2"}),
		effect: "SELECT password_hash, (" + audited(string(berth.AuditPasswordChanged), u.ID) + ") FROM users WHERE id = '" + u.ID + "'",
	}
}

func lostCreateUser(w *lostWorld) lostCall {
	name := w.next("user")
	c := w.admin(http.MethodPost, "/api/v1/users", client.UserSpec{Name: name, Roles: []client.Role{"viewer"}, Password: lostPassword}).keyed()
	c.effect = "SELECT count(*) FROM users WHERE name = '" + name + "'"
	return c
}

// lostChangeUser: the ETag is no longer the user's, and the user is as asked.
func lostChangeUser(w *lostWorld) lostCall {
	u := w.user()
	c := w.admin(http.MethodPatch, "/api/v1/users/"+u.ID, client.UserChange{Roles: []client.Role{"operator"}})
	c.header["If-Match"] = `"1"`
	c.effect = "SELECT version, (" + audited(string(berth.AuditUserChanged), u.ID) + ") FROM users WHERE id = '" + u.ID + "'"
	return c
}

func lostSetPassword(w *lostWorld) lostCall {
	u := w.user()
	c := w.admin(http.MethodPut, "/api/v1/users/"+u.ID+"/password", client.NewPassword{Password: lostPassword + "-2"})
	c.effect = "SELECT password_hash, (" + audited(string(berth.AuditPasswordChanged), u.ID) + ") FROM users WHERE id = '" + u.ID + "'"
	return c
}

func lostCreateKey(w *lostWorld) lostCall {
	name := w.next("key")
	c := w.admin(http.MethodPost, "/api/v1/api-keys", client.APIKeySpec{Name: name, Roles: []client.Role{"viewer"}}).keyed()
	c.effect = "SELECT count(*) FROM api_keys WHERE name = '" + name + "'"
	return c // the same key, too
}

func lostRevokeKey(w *lostWorld) lostCall {
	k, err := w.Client.CreateAPIKey(w.t.Context(), client.APIKeySpec{Name: w.next("key"), Roles: []client.Role{"viewer"}})
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.admin(http.MethodDelete, "/api/v1/api-keys/"+k.ID, nil)
	c.effect = audited(string(berth.AuditAPIKeyRevoked), k.ID)
	return c
}
