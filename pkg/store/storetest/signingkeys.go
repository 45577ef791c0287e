package storetest

import (
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func signingKeyChecks() []check {
	return []check{
		in("processes agree on one signing key", signingKeys),
		in("signing keys at once through two handles are one", signingKeysAtOnce),
		in("rotation adds a key, once under a key of idempotency", rotateSigningKey),
		in("keys are removed when their successor is old enough", removeSigningKeys),
	}
}

func (w *world) key(id string) store.SigningKey {
	return store.SigningKey{ID: id, Algorithm: "EdDSA", Public: []byte("public " + id), Private: redact.NewBytes([]byte("private " + marker + id))}
}

func signingKeys(w *world) {
	if keys, err := w.Store.SigningKeys(bg()); err != nil || len(keys) != 0 {
		w.t.Fatalf("keys %+v, %v", keys, err)
	}
	first, err := w.Store.AddSigningKey(bg(), w.key("k1"), time.Hour)
	want := w.key("k1")
	want.CreatedAt = w.Clock.Now()
	if err != nil || diff(want, first) != "" {
		w.t.Fatalf("first key: %v\n%s", err, diff(want, first))
	}
	w.Clock.Advance(time.Hour - time.Second)
	again, err := w.Store.AddSigningKey(bg(), w.key("k2"), time.Hour)
	first.Age = time.Hour - time.Second
	if err != nil || diff(first, again) != "" {
		w.t.Errorf("another process's key within the hour: %s, %v", again.ID, err)
	}
	w.Clock.Advance(2 * time.Second)
	next, err := w.Store.AddSigningKey(bg(), w.key("k3"), time.Hour)
	if err != nil || next.ID != "k3" {
		w.t.Errorf("after the hour: %s, %v", next.ID, err)
	}
	w.Clock.Advance(1500 * time.Microsecond)
	keys, err := w.Store.SigningKeys(bg())
	first.Age = time.Hour + time.Second + 1500*time.Microsecond
	if err != nil || len(keys) != 2 || keys[0].Age != 1500*time.Microsecond || keys[0].ID != "k3" || diff(keys[1], first) != "" {
		w.t.Errorf("keys %+v, %v", keys, err)
	}
	if row := w.lastOf(berth.AuditKeyCreated, "signing_key", "k3"); row.Before != "" || row.After != w.key("k3").Facts() {
		w.t.Errorf("audit row %+v", row)
	}
	for id, want := range map[string]int{"k1": 1, "k2": 0, "k3": 1} {
		if n := w.acted(berth.AuditKeyCreated, "signing_key", id); n != want {
			w.t.Errorf("%d audit rows of key %s", n, id)
		}
	}
}

func signingKeysAtOnce(w *world) {
	other := w.second()
	for i := range 5 {
		id := string(rune('a' + i))
		got := both(
			func() (store.SigningKey, error) { return w.Store.AddSigningKey(bg(), w.key(id+"1"), time.Hour) },
			func() (store.SigningKey, error) { return other.AddSigningKey(bg(), w.key(id+"2"), time.Hour) },
		)
		w.must("add", got[0].err)
		w.must("add", got[1].err)
		if got[0].value.ID != got[1].value.ID {
			w.t.Fatalf("keys %s and %s", got[0].value.ID, got[1].value.ID)
		}
		w.Clock.Advance(2 * time.Hour)
	}
	if keys, err := w.Store.SigningKeys(bg()); err != nil || len(keys) != 5 {
		w.t.Errorf("%d keys, %v", len(keys), err)
	}
}

func (w *world) rotateKey(s store.Store, id, key, digest string) error {
	k := w.key(id)
	return s.RotateSigningKey(bg(), store.RotateKeyParams{Actor: w.operator, Key: k, Once: onceOf(key, digest)})
}

func onceOf(key, digest string) store.Once { return store.Once{Key: key, BodyDigest: hashOf(digest)} }

func rotateSigningKey(w *world) {
	other := w.second()
	ids := []string{newID[string](w.Env), newID[string](w.Env), newID[string](w.Env)}
	w.must("add", err2(w.Store.AddSigningKey(bg(), w.key(ids[0]), time.Hour)))
	got := both(
		func() (int, error) { return 0, w.rotateKey(w.Store, ids[1], "k", "rotate") },
		func() (int, error) { return 0, w.rotateKey(other, ids[2], "k", "rotate") },
	)
	w.must("rotate", got[0].err)
	w.must("rotate at the same instant under the same key", got[1].err)
	keys, err := w.Store.SigningKeys(bg())
	if err != nil || len(keys) != 2 {
		w.t.Fatalf("%d keys, %v", len(keys), err)
	}
	w.fails("another body", w.rotateKey(w.Store, newID[string](w.Env), "k", "another"), berth.ErrIdempotencyMismatch)
	for len(keys) < store.MaxSigningKeys {
		id := newID[string](w.Env)
		w.must("rotate", w.rotateKey(other, id, "", ""))
		if n := w.acted(berth.AuditKeyCreated, "signing_key", id); n != 1 {
			w.t.Fatalf("%d audit rows", n)
		}
		if keys, err = w.Store.SigningKeys(bg()); err != nil {
			w.t.Fatalf("keys: %v", err)
		}
	}
	w.fails("one more", w.rotateKey(w.Store, newID[string](w.Env), "", ""), berth.ErrWrongState)
}

func removeSigningKeys(w *world) {
	remove := func() []string {
		ids, err := w.Store.RemoveSigningKeys(bg(), w.keeper, 2*time.Hour)
		w.must("remove", err)
		return ids
	}
	if ids := remove(); len(ids) != 0 {
		w.t.Errorf("without any: %v", ids)
	}
	for _, id := range []string{"k1", "k2", "k3"} {
		w.must("add", err2(w.Store.AddSigningKey(bg(), w.key(id), 0)))
		w.Clock.Advance(time.Hour)
	}
	w.Clock.Advance(-time.Microsecond)
	if ids := remove(); len(ids) != 0 {
		w.t.Errorf("too early: %v", ids)
	}
	w.Clock.Advance(time.Microsecond)
	if ids := remove(); len(ids) != 1 || ids[0] != "k1" {
		w.t.Errorf("removed %v", ids)
	}
	w.Clock.Advance(100 * time.Hour)
	if ids := remove(); len(ids) != 1 || ids[0] != "k2" {
		w.t.Errorf("removed %v", ids)
	}
	if keys, err := w.Store.SigningKeys(bg()); err != nil || len(keys) != 1 || keys[0].ID != "k3" {
		w.t.Errorf("left %+v, %v", keys, err)
	}
	if row := w.lastOf(berth.AuditKeyRemoved, "signing_key", "k2"); row.Before != w.key("k2").Facts() || row.After != "" {
		w.t.Errorf("audit row %+v", row)
	}
	for id, want := range map[string]int{"k1": 1, "k2": 1, "k3": 0} {
		if n := w.acted(berth.AuditKeyRemoved, "signing_key", id); n != want {
			w.t.Errorf("%d audit rows of key %s", n, id)
		}
	}
}
