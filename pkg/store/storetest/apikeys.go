package storetest

import (
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func apiKeyChecks() []check {
	return []check{
		in("a key is made once and used", createAPIKey),
		in("keys are listed", listAPIKeys),
		in("a key that is revoked, expired or a disabled user's is refused", refusedAPIKeys),
	}
}

func (w *world) apiKey(u berth.User, secret string) store.CreateAPIKeyParams {
	return store.CreateAPIKeyParams{Actor: w.operator, Hash: hashOf(secret), TTL: time.Hour, Key: berth.APIKey{
		ID: newID[berth.APIKeyID](w.Env), User: u.ID, Name: "nightly", Prefix: "berth_abcdefgh", Roles: []berth.Role{berth.RoleOperator, berth.RoleViewer},
	}}
}

func createAPIKey(w *world) {
	other := w.second()
	u := w.account("ci", berth.RoleOperator)
	p, q := w.apiKey(u, "secret "+marker), w.apiKey(u, "secret "+marker)
	p.Once = store.Once{Key: "k1", BodyDigest: hashOf("body")}
	q.Once = p.Once
	got := both(func() (berth.APIKey, error) { return w.Store.CreateAPIKey(bg(), p) }, func() (berth.APIKey, error) { return other.CreateAPIKey(bg(), q) })
	w.must("create", got[0].err)
	w.must("create at once", got[1].err)
	k := got[0].value
	want := berth.APIKey{
		ID: k.ID, User: u.ID, UserName: "ci", Name: "nightly", Prefix: "berth_abcdefgh", Roles: []berth.Role{berth.RoleViewer, berth.RoleOperator},
		CreatedAt: w.Clock.Now(), ExpiresAt: w.Clock.Now().Add(time.Hour),
	}
	if diff(want, k) != "" || diff(k, got[1].value) != "" {
		w.t.Fatalf("key: %s\n%s", diff(want, k), diff(k, got[1].value))
	}
	q.Hash = hashOf("of another master key")
	_, err := w.Store.CreateAPIKey(bg(), q)
	w.fails("a repeat that cannot give the key", err, berth.ErrExists)
	if n := w.acted(berth.AuditAPIKeyCreated, "api_key", string(k.ID)); n != 1 {
		w.t.Errorf("%d rows", n)
	}
	row := w.lastOf(berth.AuditAPIKeyCreated, "api_key", string(k.ID))
	if row.After != k.Facts() || row.Before != "" {
		w.t.Errorf("row %+v", row)
	}

	for at, step := range []time.Duration{0, berth.APIKeyUseStep - time.Microsecond, time.Microsecond} {
		w.Clock.Advance(step)
		used, user, err := w.Store.UseAPIKey(bg(), hashOf("secret "+marker))
		if err != nil || used.ID != k.ID || used.User != u.ID || used.UserName != "ci" || diff(u, user) != "" || diff(k.Roles, used.Roles) != "" {
			w.t.Fatalf("use: %+v, %v %s", used, err, diff(u, user))
		}
		keys, _, err := w.Store.ListAPIKeys(bg(), u.ID, store.Page{})
		noted := k.CreatedAt
		if at == 2 {
			noted = w.Clock.Now()
		}
		if err != nil || len(keys) != 1 || !keys[0].LastUsedAt.Equal(noted) {
			w.t.Errorf("use %d: noted %v, want %v, %v", at, keys, noted, err)
		}
	}
	endless := w.apiKey(u, "endless")
	endless.TTL = 0
	k, err = w.Store.CreateAPIKey(bg(), endless)
	if err != nil || !k.ExpiresAt.IsZero() {
		w.t.Errorf("without an end: %+v, %v", k, err)
	}
	w.Clock.Advance(10 * 365 * 24 * time.Hour)
	_, _, err = w.Store.UseAPIKey(bg(), hashOf("endless"))
	w.must("years later", err)
}

func listAPIKeys(w *world) {
	ann, bob := w.account("ann", berth.RoleViewer), w.account("bob", berth.RoleViewer)
	for _, p := range []store.CreateAPIKeyParams{w.apiKey(ann, "1"), w.apiKey(bob, "2"), w.apiKey(ann, "3"), w.apiKey(ann, "4")} {
		_, err := w.Store.CreateAPIKey(bg(), p)
		w.must("create", err)
	}
	count := func(user berth.UserID) (n int) {
		for after := ""; ; {
			keys, next, err := w.Store.ListAPIKeys(bg(), user, store.Page{Size: 2, After: after})
			w.must("list", err)
			for _, k := range keys {
				if user != "" && k.User != user {
					w.t.Errorf("another's key %+v", k)
				}
			}
			n += len(keys)
			if after = next; after == "" {
				return n
			}
		}
	}
	if a, b, all := count(ann.ID), count(bob.ID), count(""); a != 3 || b != 1 || all != 4 {
		w.t.Errorf("%d of ann, %d of bob, %d of all", a, b, all)
	}
	if n := count("'; --"); n != 0 {
		w.t.Errorf("%d of nobody", n)
	}
}

func refusedAPIKeys(w *world) {
	ann, bob := w.account("ann", berth.RoleViewer), w.account("bob", berth.RoleViewer)
	first, err := w.Store.CreateAPIKey(bg(), w.apiKey(ann, "1"))
	w.must("create", err)
	_, err = w.Store.CreateAPIKey(bg(), w.apiKey(ann, "2"))
	w.must("create", err)
	use := func(secret string) error {
		_, _, err := w.Store.UseAPIKey(bg(), hashOf(secret))
		return err
	}
	w.fails("unknown", use("3"), berth.ErrNotFound)
	w.fails("another's", w.Store.RevokeAPIKey(bg(), w.operator, bob.ID, first.ID), berth.ErrNotFound)
	w.fails("an unknown one", w.Store.RevokeAPIKey(bg(), w.operator, "", newID[berth.APIKeyID](w.Env)), berth.ErrNotFound)
	w.must("use", use("1"))
	for range 2 {
		w.must("revoke", w.Store.RevokeAPIKey(bg(), w.operator, ann.ID, first.ID))
	}
	w.fails("revoked", use("1"), berth.ErrNotFound)
	if n := w.acted(berth.AuditAPIKeyRevoked, "api_key", string(first.ID)); n != 1 {
		w.t.Errorf("%d rows", n)
	}
	w.must("the other one", use("2"))
	w.disable(ann, true)
	w.fails("a disabled user's", use("2"), berth.ErrNotFound)
	_, err = w.Store.CreateAPIKey(bg(), w.apiKey(ann, "4"))
	w.fails("for a disabled user", err, berth.ErrNotFound)
	_, err = w.Store.CreateAPIKey(bg(), w.apiKey(berth.User{ID: newID[berth.UserID](w.Env)}, "4"))
	w.fails("for nobody", err, berth.ErrNotFound)
	w.disable(ann, false)
	w.must("enabled again", use("2"))
	w.Clock.Advance(time.Hour)
	w.fails("expired", use("2"), berth.ErrNotFound)
	ext, err := w.Store.ProvisionUser(bg(), w.provision("i", "s", "ext"))
	w.must("provision", err)
	_, err = w.Store.CreateAPIKey(bg(), w.apiKey(ext, "5"))
	w.fails("for a user of an issuer", err, berth.ErrWrongState)
}
