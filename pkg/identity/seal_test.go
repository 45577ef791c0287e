package identity_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

func TestMasterKeysAreReadInEachSpelling(t *testing.T) {
	secret := []byte("0123456789abcdef0123456789abcde\xff")
	for _, text := range []string{
		hex.EncodeToString(secret), strings.ToUpper(hex.EncodeToString(secret)), base64.StdEncoding.EncodeToString(secret),
		base64.RawURLEncoding.EncodeToString(secret), " " + hex.EncodeToString(secret) + "\n",
	} {
		if _, err := identity.ParseMasterKey(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "short", hex.EncodeToString(secret[:31]), string(secret)} {
		key, err := identity.ParseMasterKey(text)
		if err == nil || (text != "" && strings.Contains(err.Error(), text)) || !key.IsZero() {
			t.Errorf("%q: %v", text, err)
		}
	}
	key, err := identity.ParseMasterKey(hex.EncodeToString(secret))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%v %+v %#v", key, key, key); strings.Contains(got, "0123") || strings.Contains(got, "30313233") {
		t.Errorf("printed %s", got)
	}
}

func TestALocalMasterKeyIsMadeOnceForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "master.key")
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if _, err := identity.LoadOrCreateMasterKey(path); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadOrCreateMasterKey(path); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(path); err != nil || string(again) != string(first) {
		t.Errorf("made anew: %v", err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.LoadOrCreateMasterKey(path); err == nil || strings.Contains(err.Error(), "broken") {
		t.Errorf("a damaged file: %v", err)
	}
}

func TestASecretIsOpenedUnderItsNameAndVersionAlone(t *testing.T) {
	w := newWorld(t)
	sealed, err := w.SealSecret("mail", 3, redact.NewString("hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	value := store.SealedValue{Kind: store.SealedSecret, ID: "mail", Version: 3, Value: sealed}
	if got, err := w.OpenSecret(value); err != nil || got.Reveal() != "hunter2" {
		t.Fatalf("opened: %v %v", got.Reveal() == "hunter2", err)
	}
	flipped := bytes.Clone(sealed.Reveal())
	flipped[len(flipped)-1] ^= 1
	for name, change := range map[string]func(*store.SealedValue){
		"another name":    func(v *store.SealedValue) { v.ID = "mai" },
		"another version": func(v *store.SealedValue) { v.Version = 2 },
		"another kind":    func(v *store.SealedValue) { v.Kind = store.SealedSigningKey },
		"damaged":         func(v *store.SealedValue) { v.Value = redact.NewBytes(flipped) },
		"cut off":         func(v *store.SealedValue) { v.Value = redact.NewBytes(sealed.Reveal()[:5]) },
		"empty":           func(v *store.SealedValue) { v.Value = redact.Bytes{} },
	} {
		moved := value
		change(&moved)
		if got, err := w.OpenSecret(moved); err == nil || !got.IsZero() || errors.Is(err, identity.ErrMasterKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	next := masterKey(t)
	rolled, err := identity.New(w.store, w.store, identity.Config{MasterKey: next, OldMasterKeys: []identity.MasterKey{masterKey(t), w.master}})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := rolled.OpenSecret(value); err != nil || got.Reveal() != "hunter2" {
		t.Errorf("under an old master key: %v", err)
	}
	if value.Value, err = rolled.SealSecret("mail", 3, redact.NewString("hunter2")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.OpenSecret(value); !errors.Is(err, identity.ErrMasterKey) {
		t.Errorf("under a master key that is not configured: %v", err)
	}
}
