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
	if err != nil || diff(first, again) != "" {
		w.t.Errorf("another process's key within the hour: %s, %v", again.ID, err)
	}
	w.Clock.Advance(2 * time.Second)
	next, err := w.Store.AddSigningKey(bg(), w.key("k3"), time.Hour)
	if err != nil || next.ID != "k3" {
		w.t.Errorf("after the hour: %s, %v", next.ID, err)
	}
	keys, err := w.Store.SigningKeys(bg())
	if err != nil || len(keys) != 2 || keys[0].ID != "k3" || diff(keys[1], first) != "" {
		w.t.Errorf("keys %+v, %v", keys, err)
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
