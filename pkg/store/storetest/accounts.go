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
		in("refresh tokens rotate", refreshRotates),
		in("the immediate predecessor is answered within the grace", refreshGrace),
		in("reuse revokes the family", refreshReuse),
		in("refresh at once through two handles", refreshAtOnce),
		in("an old, unknown, revoked or disabled one is refused", refreshRefused),
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
}

func users(w *world) {
	u := berth.User{ID: newID[berth.UserID](w.Env), Name: "ann", Roles: []berth.Role{berth.RoleOperator, berth.RoleViewer}}
	w.must("create", w.Store.CreateUser(bg(), w.operator, u, redact.NewString("hash "+marker)))
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
	w.must("login", w.Store.RecordLogin(bg(), w.operator, "ann", true))
	w.must("refused login", w.Store.RecordLogin(bg(), w.operator, "a "+marker+" in the wrong field", false))
	if n := w.acted(berth.AuditLogin, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d rows of the login", n)
	}
	if n := w.acted(berth.AuditLoginFailed, "user", store.UnknownUser); n != 1 {
		w.t.Errorf("%d rows of the refused login", n)
	}
	got := map[berth.AuditAction]int{}
	for _, row := range w.audit("", "") {
		got[row.Action]++
	}
	if got[berth.AuditLogin] != 1 || got[berth.AuditLoginFailed] != 1 {
		w.t.Errorf("audit rows %v", got)
	}
}

// person is a user with a first refresh token named token.
func (w *world) person(name, token string, disabled bool) berth.User {
	w.t.Helper()
	u := berth.User{ID: newID[berth.UserID](w.Env), Name: name, Roles: []berth.Role{berth.RoleViewer}, Disabled: disabled}
	w.must("create user", w.Store.CreateUser(bg(), w.operator, u, redact.NewString("hash")))
	w.must("add token", w.Store.AddRefreshToken(bg(), store.RefreshToken{Hash: hashOf(token), Family: newID[string](w.Env), User: u.ID, TTL: time.Hour}))
	return u
}

func (w *world) rotate(old, next string) error {
	_, err := w.Store.RotateRefreshToken(bg(), hashOf(old), hashOf(next), time.Hour)
	return err
}

func refreshRotates(w *world) {
	u := w.person("ann", "t0", false)
	for i, next := range []string{"t1", "t2", "t3"} {
		w.Clock.Advance(40 * time.Minute) // each successor has a time of its own
		got, err := w.Store.RotateRefreshToken(bg(), hashOf([]string{"t0", "t1", "t2"}[i]), hashOf(next), time.Hour)
		if err != nil || diff(u, got) != "" {
			w.t.Fatalf("rotation to %s: %+v, %v", next, got, err)
		}
	}
}

func refreshGrace(w *world) {
	w.person("ann", "t0", false)
	w.must("rotate", w.rotate("t0", "t1"))
	w.Clock.Advance(store.RefreshGrace)
	w.must("the predecessor within the grace", w.rotate("t0", "t1b"))
	w.must("the first successor", w.rotate("t1", "t2"))
	w.Clock.Advance(store.RefreshGrace + time.Microsecond)
	w.fails("the predecessor after the grace", w.rotate("t1", "t2b"), berth.ErrUsed)
	w.fails("its family", w.rotate("t2", "t3"), berth.ErrExpired)
}

func refreshReuse(w *world) {
	w.person("ann", "t0", false)
	w.person("bob", "b0", false)
	w.must("rotate", w.rotate("t0", "t1"))
	w.must("rotate", w.rotate("t1", "t2"))
	w.fails("a predecessor that is not the immediate one", w.rotate("t0", "x"), berth.ErrUsed)
	w.fails("the family's newest", w.rotate("t2", "t3"), berth.ErrExpired)
	w.fails("the refused successor", w.rotate("x", "y"), berth.ErrNotFound)
	w.must("another family", w.rotate("b0", "b1"))
}

func refreshAtOnce(w *world) {
	other := w.second()
	w.person("ann", "t0", false)
	got := both(
		func() (berth.User, error) {
			return w.Store.RotateRefreshToken(bg(), hashOf("t0"), hashOf("t1"), time.Hour)
		},
		func() (berth.User, error) {
			return other.RotateRefreshToken(bg(), hashOf("t0"), hashOf("t1b"), time.Hour)
		},
	)
	w.must("rotate", got[0].err)
	w.must("rotate", got[1].err)
	w.must("a successor", w.rotate("t1", "t2"))
}

func refreshRefused(w *world) {
	w.person("ann", "a0", false)
	w.person("bob", "b0", true)
	w.person("cat", "c0", false)
	w.fails("unknown", w.rotate("nobody's", "x"), berth.ErrNotFound)
	w.fails("disabled user", w.rotate("b0", "b1"), berth.ErrNotFound)
	w.must("logout", w.Store.RevokeRefreshFamily(bg(), hashOf("a0")))
	w.must("logout again", w.Store.RevokeRefreshFamily(bg(), hashOf("a0")))
	w.must("logout of an unknown token", w.Store.RevokeRefreshFamily(bg(), hashOf("nobody's")))
	w.fails("after logout", w.rotate("a0", "a1"), berth.ErrExpired)
	w.Clock.Advance(time.Hour + time.Microsecond)
	w.fails("after its time", w.rotate("c0", "c1"), berth.ErrExpired)
}
