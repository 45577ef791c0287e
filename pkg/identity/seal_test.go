package identity_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/pkg/identity"
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
