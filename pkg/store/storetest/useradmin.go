package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func userAdminChecks() []check {
	return []check{
		in("users are listed by name", listUsers),
		in("a user is added once", addUser),
		in("roles and disabled change, on record", changeUser),
		in("the last administrator with a password stays", lastAdmin),
		in("of two administrators who disable each other one stays", lastAdminAtOnce),
		in("a new password ends the other sessions", setPassword),
		in("users of an issuer are made once", provision),
	}
}

func listUsers(w *world) {
	var want []string
	for _, n := range []string{"cat", "ann", "bob", "dan", "eve"} {
		w.account(n, berth.RoleViewer)
		want = append(want, n)
	}
	slices.Sort(want)
	var got []string
	for after := ""; ; {
		users, next, err := w.Store.ListUsers(bg(), "", store.Page{Size: 2, After: after})
		w.must("list", err)
		for _, u := range users {
			got = append(got, u.Name)
		}
		if after = next; after == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("listed %v", got)
	}
	one, next, err := w.Store.ListUsers(bg(), "cat", store.Page{Size: 2})
	if err != nil || len(one) != 1 || one[0].Name != "cat" || next != "" {
		w.t.Errorf("by name: %+v, %q, %v", one, next, err)
	}
	if none, _, err := w.Store.ListUsers(bg(), "nobody' OR 1=1 --", store.Page{}); err != nil || len(none) != 0 {
		w.t.Errorf("nobody: %+v, %v", none, err)
	}
}

func addUser(w *world) {
	other := w.second()
	once := store.Once{Key: "k1", BodyDigest: hashOf("body")}
	add := func(s store.Store, name string, o store.Once) (berth.User, error) {
		return s.AddUser(bg(), store.AddUserParams{
			Actor: w.operator, User: berth.User{ID: newID[berth.UserID](w.Env), Name: name, Roles: []berth.Role{berth.RoleSubmitter}}, Once: o,
		})
	}
	got := both(func() (berth.User, error) { return add(w.Store, "ci", once) }, func() (berth.User, error) { return add(other, "ci", once) })
	w.must("add", got[0].err)
	w.must("add at once", got[1].err)
	u := got[0].value
	if diff(u, got[1].value) != "" || u.Name != "ci" || u.HasPassword || u.Version != 1 || !u.CreatedAt.Equal(w.Clock.Now()) {
		w.t.Errorf("%+v and %+v", u, got[1].value)
	}
	_, err := add(w.Store, "ci", store.Once{Key: "k2", BodyDigest: hashOf("body")})
	w.fails("a taken name", err, berth.ErrExists)
	_, err = add(w.Store, "cd", store.Once{Key: "k1", BodyDigest: hashOf("another")})
	w.fails("another body", err, berth.ErrIdempotencyMismatch)
	_, err = add(w.Store, "cd", store.Once{Key: "k2", BodyDigest: hashOf("body")})
	w.must("a key that a failed call left free", err)
	if n := w.acted(berth.AuditUserCreated, "user", string(u.ID)); n != 1 {
		w.t.Errorf("%d rows", n)
	}
	if row := w.lastOf(berth.AuditUserCreated, "user", string(u.ID)); row.After != `{"disabled":"false","roles":"submitter"}` || row.Before != "" {
		w.t.Errorf("row %+v", row)
	}
}

func changeUser(w *world) {
	u := w.account("ann", berth.RoleViewer)
	change := func(roles []berth.Role, disabled *bool, version int) (berth.User, error) {
		return w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: u.ID, Roles: roles, Disabled: disabled, Version: version})
	}
	got, err := change([]berth.Role{berth.RoleOperator, berth.RoleViewer, berth.RoleOperator}, nil, 1)
	want := u
	want.Roles, want.Version = []berth.Role{berth.RoleViewer, berth.RoleOperator}, 2
	if err != nil || diff(want, got) != "" {
		w.t.Fatalf("roles: %v %s", err, diff(want, got))
	}
	if row := w.lastOf(berth.AuditUserChanged, "user", string(u.ID)); row.Before != `{"disabled":"false","roles":"viewer"}` ||
		row.After != `{"disabled":"false","roles":"viewer,operator"}` || row.Actor.ID != w.operator.ID {
		w.t.Errorf("row %+v", row)
	}
	got, err = change([]berth.Role{berth.RoleOperator, berth.RoleViewer}, nil, 1)
	if err != nil || diff(want, got) != "" {
		w.t.Errorf("a repeat: %v %s", err, diff(want, got))
	}
	yes := true
	_, err = change(nil, &yes, 1)
	w.fails("another version", err, berth.ErrWrongState)
	got, err = change(nil, &yes, 2)
	if err != nil || !got.Disabled || got.Version != 3 {
		w.t.Errorf("disable: %+v, %v", got, err)
	}
	if n := w.acted(berth.AuditUserChanged, "user", string(u.ID)); n != 2 {
		w.t.Errorf("%d rows", n)
	}
	_, err = w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: newID[berth.UserID](w.Env), Disabled: &yes})
	w.fails("nobody", err, berth.ErrNotFound)
}

func lastAdmin(w *world) {
	a := w.account("ann", berth.RoleAdmin)
	yes := true
	disable := store.ChangeUserParams{Actor: w.operator, User: a.ID, Disabled: &yes}
	demote := store.ChangeUserParams{Actor: w.operator, User: a.ID, Roles: []berth.Role{berth.RoleOperator}}
	// None of these could log in instead.
	w.disable(w.account("bob", berth.RoleAdmin), true)
	w.account("cat", berth.RoleOperator)
	_, err := w.Store.AddUser(bg(), store.AddUserParams{
		Actor: w.operator, User: berth.User{ID: newID[berth.UserID](w.Env), Name: "robot", Roles: []berth.Role{berth.RoleAdmin}},
	})
	w.must("a service", err)
	for _, p := range []store.ChangeUserParams{disable, demote} {
		_, err := w.Store.ChangeUser(bg(), p)
		w.fails("the last administrator", err, berth.ErrWrongState)
	}
	_, err = w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: a.ID, Roles: []berth.Role{berth.RoleViewer, berth.RoleAdmin}})
	w.must("another change of it", err)
	w.account("dan", berth.RoleAdmin)
	_, err = w.Store.ChangeUser(bg(), demote)
	w.must("with another one", err)
}

func lastAdminAtOnce(w *world) {
	other := w.second()
	for i := range 10 {
		// Those of the round before are out of the way.
		pair := []berth.User{w.account(fmt.Sprintf("a%d", i), berth.RoleAdmin), w.account(fmt.Sprintf("b%d", i), berth.RoleAdmin)}
		users, _, err := w.Store.ListUsers(bg(), "", store.Page{Size: 100})
		w.must("list", err)
		for _, u := range users {
			if !u.Disabled && u.ID != pair[0].ID && u.ID != pair[1].ID {
				w.disable(u, true)
			}
		}
		yes := true
		got := both(
			func() (berth.User, error) {
				return w.Store.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: pair[i%2].ID, Disabled: &yes})
			},
			func() (berth.User, error) {
				return other.ChangeUser(bg(), store.ChangeUserParams{Actor: w.operator, User: pair[1-i%2].ID, Roles: []berth.Role{berth.RoleViewer}})
			},
		)
		if (got[0].err == nil) == (got[1].err == nil) || !errors.Is(errors.Join(got[0].err, got[1].err), berth.ErrWrongState) {
			w.t.Fatalf("two at once: %v and %v", got[0].err, got[1].err)
		}
	}
}

func setPassword(w *world) {
	u := w.account("ann", berth.RoleViewer)
	mine, others := w.begin(u, "t0"), w.begin(u, "u0")
	bob := w.account("bob", berth.RoleViewer)
	bobs := w.begin(bob, "b0")
	set := func(user berth.UserID, hash, was, keep string) (berth.User, error) {
		return w.Store.SetPassword(bg(), store.SetPasswordParams{
			Actor: w.operator, User: user, Hash: redact.NewString(hash), Was: redact.NewString(was), KeepSession: keep,
		})
	}
	got, err := set(u.ID, "second "+marker, "hash", mine)
	if err != nil || diff(u, got) != "" {
		w.t.Fatalf("set: %v %s", err, diff(u, got))
	}
	w.alive("the one that goes on", mine, u, true)
	w.must("which refreshes", w.rotate("t0", "t1"))
	w.alive("the other one", others, u, false)
	w.alive("somebody else's", bobs, bob, true)
	if _, hash, err := w.Store.UserByName(bg(), "ann"); err != nil || hash.Reveal() != "second "+marker {
		w.t.Errorf("the hash was not replaced: %v", err)
	}
	_, err = set(u.ID, "third", "hash", mine)
	w.fails("checked against another hash", err, berth.ErrWrongState)
	_, err = set(u.ID, "third", "", "")
	w.must("by an administrator", err)
	w.alive("all of them", mine, u, false)
	if n := w.acted(berth.AuditPasswordChanged, "user", string(u.ID)); n != 2 {
		w.t.Errorf("%d rows", n)
	}
	_, err = set(newID[berth.UserID](w.Env), "x", "", "")
	w.fails("nobody", err, berth.ErrNotFound)
	ext, err := w.Store.ProvisionUser(bg(), w.provision("i", "s", "ext"))
	w.must("provision", err)
	_, err = set(ext.ID, "x", "", "")
	w.fails("a user of an issuer", err, berth.ErrWrongState)
}

func (w *world) provision(issuer, subject string, names ...string) store.ProvisionParams {
	return store.ProvisionParams{ID: newID[berth.UserID](w.Env), Issuer: issuer, Subject: subject, Names: names, Actor: w.operator}
}

func provision(w *world) {
	other := w.second()
	w.account("ann", berth.RoleAdmin)
	for i := range 5 {
		subject := fmt.Sprintf("s%d", i)
		p, q := w.provision("https://issuer", subject, "ann", subject), w.provision("https://issuer", subject, "ann", subject, subject+"-2")
		got := both(func() (berth.User, error) { return w.Store.ProvisionUser(bg(), p) }, func() (berth.User, error) { return other.ProvisionUser(bg(), q) })
		w.must("provision", got[0].err)
		w.must("provision at once", got[1].err)
		u := got[0].value
		if diff(u, got[1].value) != "" || u.Name != subject || u.Issuer != "https://issuer" || u.Subject != subject || u.HasPassword || len(u.Roles) != 0 {
			w.t.Fatalf("%+v and %+v", u, got[1].value)
		}
		if n := w.acted(berth.AuditUserProvisioned, "user", string(u.ID)); n != 1 {
			w.t.Errorf("%d rows", n)
		}
	}
	u, err := w.Store.ProvisionUser(bg(), w.provision("https://another", "s0", "s0", "s0-2"))
	if err != nil || u.Name != "s0-2" {
		w.t.Errorf("the same subject of another issuer: %+v, %v", u, err)
	}
	_, err = w.Store.ProvisionUser(bg(), w.provision("https://another", "s1", "ann", "s0"))
	w.fails("no free name", err, berth.ErrExists)
	w.Clock.Advance(time.Hour)
	w.disable(u, true)
	if again, err := w.Store.ProvisionUser(bg(), w.provision("https://another", "s0")); err != nil || again.ID != u.ID || !again.Disabled {
		w.t.Errorf("one who was disabled: %+v, %v", again, err)
	}

	// The roles are those of the newest token.
	as := func(want []berth.Role, rows int, roles ...berth.Role) {
		w.t.Helper()
		p := w.provision("https://issuer", "s0")
		p.Roles = roles
		got := both(func() (berth.User, error) { return w.Store.ProvisionUser(bg(), p) }, func() (berth.User, error) { return other.ProvisionUser(bg(), p) })
		for _, g := range got {
			if g.err != nil || diff(want, g.value.Roles) != "" {
				w.t.Errorf("seen as %v: %+v, %v", roles, g.value, g.err)
			}
		}
		if n := w.acted(berth.AuditUserChanged, "user", string(got[0].value.ID)); n != rows {
			w.t.Errorf("seen as %v: %d rows", roles, n)
		}
	}
	as([]berth.Role{berth.RoleSubmitter, berth.RoleAdmin}, 1, berth.RoleAdmin, berth.RoleSubmitter)
	as([]berth.Role{berth.RoleSubmitter, berth.RoleAdmin}, 1)
	as([]berth.Role{berth.RoleSubmitter}, 2, berth.RoleSubmitter)
}
