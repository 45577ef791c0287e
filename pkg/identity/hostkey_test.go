package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"testing"
)

func TestKeysThatAnybodyCanSignForAreUnsound(t *testing.T) {
	for _, encoded := range smallOrder() {
		key, err := hex.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		negative := bytes.Clone(key)
		negative[31] |= 0x80
		if SoundHostKey(key) || SoundHostKey(negative) {
			t.Errorf("%s is taken", encoded)
		}
	}
	// Why: the neutral point R with S = 0 is a signature of everything.
	neutral := make([]byte, 32)
	neutral[0] = 1
	if !ed25519.Verify(neutral, []byte("any message"), append(bytes.Clone(neutral), make([]byte, 32)...)) {
		t.Error("the forgery that this keeps out is none")
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if !SoundHostKey(public) || SoundHostKey(public[1:]) || SoundHostKey(nil) {
		t.Error("a real key is refused, or a short one taken")
	}
}
