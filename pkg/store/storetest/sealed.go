package storetest

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func sealedChecks() []check {
	return []check{
		in("sealed values are listed once each, by kind and id", sealedValues),
		in("a sealed value is replaced if it is still the old one", replaceSealed),
	}
}

// sealedSecret puts a secret's row beside the engine.
func (w *world) sealedSecret(name, value string, version int) {
	w.t.Helper()
	statement := "INSERT INTO secrets (name, sealed, version, created_at, updated_at) VALUES ('%s', convert_to('%s', 'UTF8'), %d, now(), now())"
	if w.Serial {
		statement = "INSERT INTO secrets (name, sealed, version, created_at, updated_at) VALUES ('%s', CAST('%s' AS BLOB), %d, 0, 0)"
	}
	w.must("put a secret", w.database.Exec(fmt.Sprintf(statement, name, value, version)))
}

func (w *world) allSealed(limit int) (all []store.SealedValue) {
	w.t.Helper()
	for after := ""; ; {
		values, next, err := w.Store.SealedValues(bg(), after, limit)
		w.must("list", err)
		all = append(all, values...)
		if after = next; after == "" {
			return all
		}
	}
}

func sealedValues(w *world) {
	if all := w.allSealed(2); len(all) != 0 {
		w.t.Errorf("%d values", len(all))
	}
	w.sealedSecret("mail", "sealed mail", 3)
	w.sealedSecret("Z", "sealed z", 1)
	w.must("add", err2(w.Store.AddSigningKey(bg(), w.key("k2"), 0)))
	w.must("add", err2(w.Store.AddSigningKey(bg(), w.key("k1"), 0)))
	want := []store.SealedValue{
		{Kind: store.SealedSecret, ID: "Z", Version: 1, Value: redact.NewBytes([]byte("sealed z"))},
		{Kind: store.SealedSecret, ID: "mail", Version: 3, Value: redact.NewBytes([]byte("sealed mail"))},
		{Kind: store.SealedSigningKey, ID: "k1", Public: w.key("k1").Public, Value: w.key("k1").Private},
		{Kind: store.SealedSigningKey, ID: "k2", Public: w.key("k2").Public, Value: w.key("k2").Private},
	}
	for _, limit := range []int{1, 2, 3, 100} {
		if d := diff(want, w.allSealed(limit)); d != "" {
			w.t.Errorf("by %d:\n%s", limit, d)
		}
	}
}

func replaceSealed(w *world) {
	other := w.second()
	w.sealedSecret("mail", "sealed mail", 3)
	w.must("add", err2(w.Store.AddSigningKey(bg(), w.key("k1"), time.Hour)))
	for _, old := range w.allSealed(100) {
		anew := old
		anew.Value = redact.NewBytes([]byte("anew " + old.ID))
		old.Under, anew.Under = "m1", "m2"
		got := both(
			func() (bool, error) { return w.Store.ReplaceSealed(bg(), w.operator, old, anew) },
			func() (bool, error) { return other.ReplaceSealed(bg(), w.operator, old, anew) },
		)
		w.must("replace", got[0].err)
		w.must("replace", got[1].err)
		if got[0].value == got[1].value {
			w.t.Errorf("%s at once: %v and %v", old.ID, got[0].value, got[1].value)
		}
		if n := w.acted(berth.AuditResealed, old.Kind, old.ID); n != 1 {
			w.t.Errorf("%d audit rows of %s", n, old.ID)
		}
		if row := w.lastOf(berth.AuditResealed, old.Kind, old.ID); row.Before != `{"master_key":"m1"}` || row.After != `{"master_key":"m2"}` {
			w.t.Errorf("audit row %+v", row)
		}
		another := anew
		another.Version, another.ID = old.Version+1, old.ID+"x"
		if replaced, err := w.Store.ReplaceSealed(bg(), w.operator, another, old); err != nil || replaced {
			w.t.Errorf("another one: %v %v", replaced, err)
		}
	}
	all := w.allSealed(100)
	if len(all) != 2 || string(all[0].Value.Reveal()) != "anew mail" || string(all[1].Value.Reveal()) != "anew k1" || all[0].Version != 3 {
		w.t.Errorf("stored: %d values", len(all))
	}
}

// guardOperations are those on signing keys, sealed values and guesses.
func guardOperations() []operation {
	key := func(w *world) store.SigningKey { return w.key(newID[string](w.Env)) }
	return []operation{
		{name: "RotateSigningKey", about: "with a key", prepare: func(w *world) callFunc {
			p := store.RotateKeyParams{Actor: w.operator, Key: key(w), Once: onceOf("k", "rotate")}
			return func(ctx context.Context, s store.Store) error { return s.RotateSigningKey(ctx, p) }
		}},
		{name: "RemoveSigningKeys", prepare: func(w *world) callFunc {
			w.must("add", err2(w.Store.AddSigningKey(bg(), key(w), 0)))
			w.must("add", err2(w.Store.AddSigningKey(bg(), key(w), 0)))
			w.Clock.Advance(time.Hour)
			return func(ctx context.Context, s store.Store) error {
				return err2(s.RemoveSigningKeys(ctx, w.operator, time.Hour))
			}
		}},
		{name: "ReplaceSealed", prepare: func(w *world) callFunc {
			w.sealedSecret("mail", "sealed mail", 1)
			old := w.allSealed(1)[0]
			anew := old
			anew.Value = redact.NewBytes([]byte("anew"))
			old.Under, anew.Under = "m1", "m2"
			return func(ctx context.Context, s store.Store) error {
				return err2(s.ReplaceSealed(ctx, w.operator, old, anew))
			}
		}},
		{name: "CountLogin", prepare: func(w *world) callFunc {
			return func(ctx context.Context, s store.Store) error { return s.CountLogin(ctx, hashOf("ann"), "c") }
		}},
		{name: "ForgetLogins", prepare: func(w *world) callFunc {
			w.login(w.Store, "ann", "c", false)
			return func(ctx context.Context, s store.Store) error { return s.ForgetLogins(ctx, hashOf("ann"), "c") }
		}},
		{name: "UseAssertion", prepare: func(w *world) callFunc {
			host := newID[berth.HostID](w.Env)
			return func(ctx context.Context, s store.Store) error {
				return s.UseAssertion(ctx, host, "assertion", time.Minute)
			}
		}},
		{name: "SweepGuesses", prepare: func(w *world) callFunc {
			w.login(w.Store, "ann", "c", false)
			w.must("use", w.Store.UseAssertion(bg(), newID[berth.HostID](w.Env), "assertion", time.Minute))
			w.Clock.Advance(time.Hour)
			return func(ctx context.Context, s store.Store) error { return err2(s.SweepGuesses(ctx, 10)) }
		}},
	}
}
