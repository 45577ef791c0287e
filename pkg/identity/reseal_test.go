package identity_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// broken is a database on which resealing is broken off after some values.
type broken struct {
	store.Store
	left int
}

var errBrokenOff = errors.New("broken off")

func (b *broken) ReplaceSealed(ctx context.Context, actor berth.Actor, old, anew store.SealedValue) (bool, error) {
	if b.left--; b.left < 0 {
		return false, errBrokenOff
	}
	return b.Store.ReplaceSealed(ctx, actor, old, anew)
}

func TestResealingIsBrokenOffAndRepeatedWhileProcessesSign(t *testing.T) {
	w := newWorld(t)
	for range 3 {
		w.clock.add(time.Second)
		if err := w.RotateSigningKey(t.Context(), admin, store.Once{}); err != nil {
			t.Fatal(err)
		}
	}
	next := masterKey(t)
	keys := identity.MasterKeys{Current: next, Old: []identity.MasterKey{w.master}}
	rolled, err := identity.New(w.store, w.store, identity.Config{MasterKey: next, OldMasterKeys: keys.Old, Now: w.clock.Now, Logger: w.logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := rolled.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	is := func(what string, want identity.SealedCounts) {
		t.Helper()
		if got, err := identity.SealedStatus(t.Context(), w.store, admin, keys); err != nil || got != want {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	signs := func(what string) {
		t.Helper()
		w.clock.add(15 * time.Second)
		tokens, err := rolled.Login(t.Context(), identity.Credentials{Name: adminName, Password: redact.NewString(adminPassword), Client: "192.0.2.1"})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := rolled.Verify(t.Context(), tokens.Access); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	is("before", identity.SealedCounts{Old: 4})
	if _, err := identity.Reseal(t.Context(), &broken{w.store, 2}, admin, keys); !errors.Is(err, errBrokenOff) {
		t.Fatalf("broken off: %v", err)
	}
	is("broken off", identity.SealedCounts{Current: 2, Old: 2})
	signs("broken off")
	if n, err := identity.Reseal(t.Context(), w.store, admin, keys); err != nil || n != (identity.SealedCounts{Current: 2, Resealed: 2}) {
		t.Errorf("repeated: %+v, %v", n, err)
	}
	if n, err := identity.Reseal(t.Context(), w.store, admin, keys); err != nil || n != (identity.SealedCounts{Current: 4}) {
		t.Errorf("once more: %+v, %v", n, err)
	}
	signs("resealed")
	alone, err := identity.New(w.store, w.store, identity.Config{MasterKey: next, Now: w.clock.Now, Logger: w.logger})
	if err != nil {
		t.Fatal(err)
	}
	if err := alone.Open(t.Context()); err != nil {
		t.Errorf("without the old master key: %v", err)
	}
	stranger := identity.MasterKeys{Current: masterKey(t), Old: []identity.MasterKey{w.master}}
	if n, err := identity.Reseal(t.Context(), w.store, admin, stranger); err != nil || n != (identity.SealedCounts{Unknown: 4}) {
		t.Errorf("under a master key that is not configured: %+v, %v", n, err)
	}
	is("afterwards", identity.SealedCounts{Current: 4})
}

func TestAListOfMasterKeysIsRead(t *testing.T) {
	a, b := "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100ffeeddccbbaa99887766554433221100"
	for text, want := range map[string]int{"": 0, "\n": 0, a: 1, a + "," + b: 2, a + "\n" + b + "\n": 2} {
		if keys, err := identity.ParseMasterKeys(text); err != nil || len(keys) != want {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
	if keys, err := identity.ParseMasterKeys(a + ",short"); err == nil || keys != nil {
		t.Errorf("a bad one: %v", err)
	}
}
