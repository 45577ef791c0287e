package storetest

import (
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func accountChecks() []check {
	return []check{
		in("the first admin is made once, also at once", bootstrap),
		in("users are made and found", users),
		in("logins leave audit rows", logins),
	}
}

func bootstrap(w *world) {
	other := w.second()
	ids := []berth.UserID{newID[berth.UserID](w.Env), newID[berth.UserID](w.Env)}
	got := both(
		func() (bool, error) {
			return w.Store.BootstrapAdmin(bg(), ids[0], "admin", redact.NewString("hash "+marker))
		},
		func() (bool, error) {
			return other.BootstrapAdmin(bg(), ids[1], "admin", redact.NewString("hash "+marker))
		},
	)
	w.must("bootstrap", got[0].err)
	w.must("bootstrap", got[1].err)
	if got[0].value == got[1].value {
		w.t.Fatalf("created: %v and %v", got[0].value, got[1].value)
	}
	winner := ids[0]
	if got[1].value {
		winner = ids[1]
	}
	created, err := w.Store.BootstrapAdmin(bg(), newID[berth.UserID](w.Env), "admin", redact.NewString("other"))
	if err != nil || created {
		w.t.Errorf("again: %v, %v", created, err)
	}
	u, hash, err := w.Store.UserByName(bg(), "admin")
	if err != nil || u.ID != winner || hash.Reveal() != "hash "+marker || len(u.Roles) != 1 || u.Roles[0] != berth.RoleAdmin || u.Disabled {
		w.t.Errorf("user %+v, %v", u, err)
	}
	if n := w.acted(berth.AuditUserCreated, "user", string(winner)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
	if d := diff(berth.System(), w.lastOf(berth.AuditUserCreated, "user", string(winner)).Actor); d != "" {
		w.t.Errorf("who made it: %s", d)
	}
}

func users(w *world) {
	u := berth.User{ID: newID[berth.UserID](w.Env), Name: "ann", Roles: []berth.Role{berth.RoleOperator, berth.RoleViewer}}
	w.must("create", w.Store.CreateUser(bg(), w.operator, u, redact.NewString("hash "+marker)))
	u.Roles, u.HasPassword, u.Version, u.CreatedAt = []berth.Role{berth.RoleViewer, berth.RoleOperator}, true, 1, w.Clock.Now()
	got, hash, err := w.Store.UserByName(bg(), "ann")
	if err != nil || diff(u, got) != "" || hash.Reveal() != "hash "+marker {
		w.t.Errorf("by name %+v, %v", got, err)
	}
	got, err = w.Store.UserByID(bg(), u.ID)
	if err != nil || diff(u, got) != "" {
		w.t.Errorf("by id %+v, %v", got, err)
	}
	w.fails("a taken name", w.Store.CreateUser(bg(), w.operator, berth.User{ID: newID[berth.UserID](w.Env), Name: "ann"}, redact.NewString("x")), berth.ErrExists)
	_, _, err = w.Store.UserByName(bg(), "Ann")
	w.fails("another spelling", err, berth.ErrNotFound)
	_, err = w.Store.UserByID(bg(), newID[berth.UserID](w.Env))
	w.fails("an unknown id", err, berth.ErrNotFound)
	if n := w.acted(berth.AuditUserCreated, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
}

func logins(w *world) {
	u := berth.User{ID: newID[berth.UserID](w.Env), Name: "ann", Roles: []berth.Role{berth.RoleViewer}}
	w.must("create", w.Store.CreateUser(bg(), w.operator, u, redact.NewString("hash")))
	session, from := newID[string](w.Env), berth.Actor{RequestID: "r1", Client: "192.0.2.1"}
	login := store.RefreshToken{Hash: hashOf("t0"), Family: session, User: u.ID, TTL: time.Hour, PasswordHash: redact.NewString("hash"), Actor: from}
	w.must("login", w.Store.AddRefreshToken(bg(), login))
	w.must("refused login", w.Store.RefuseLogin(bg(), w.operator, "a "+marker+" in the wrong field"))
	w.must("refused login of a known one", w.Store.RefuseLogin(bg(), w.operator, "ann"))
	if n := w.acted(berth.AuditLogin, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d rows of the login", n)
	}
	if n := w.acted(berth.AuditLoginFailed, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d rows of the refused login of a known one", n)
	}
	row := w.lastOf(berth.AuditLogin, "user", string(u.ID))
	want := berth.Actor{
		Principal: berth.Principal{Kind: berth.ActorUser, ID: string(u.ID)}, RequestID: "r1", Client: "192.0.2.1",
		Credential: berth.SessionCredential(session),
	}
	if d := diff(want, row.Actor); d != "" {
		w.t.Errorf("who logged in: %s", d)
	}
	login.Hash, login.Family, login.PasswordHash = hashOf("t1"), newID[string](w.Env), redact.NewString("the hash before")
	w.fails("a login beside a new password", w.Store.AddRefreshToken(bg(), login), berth.ErrNotFound)
	if n := w.acted(berth.AuditLoginFailed, "user", store.UnknownUser); n != 1 {
		w.t.Errorf("%d rows of the refused login", n)
	}
	got := map[berth.AuditAction]int{}
	for _, row := range w.audit("", "") {
		got[row.Action]++
	}
	if got[berth.AuditLogin] != 1 || got[berth.AuditLoginFailed] != 2 {
		w.t.Errorf("audit rows %v", got)
	}
}
