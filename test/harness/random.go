package harness

import (
	"crypto/rand"
	"encoding/hex"
)

func random() string { return rand.Text() }

func hexKey() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
