package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"slices"
)

// SoundHostKey reports whether a host may enrol with the key: 32 bytes that are
// no point of small order. Under such a point signatures can be made without
// any private key, so that anybody could speak for the host.
func SoundHostKey(key []byte) bool {
	if len(key) != ed25519.PublicKeySize {
		return false
	}
	y := bytes.Clone(key)
	y[len(y)-1] &= 0x7f // the sign of x does not change a point's order
	return !slices.Contains(smallOrder(), hex.EncodeToString(y))
}

// smallOrder lists the y coordinates of edwards25519's points whose order
// divides 8, as encoded: 0, 1, -1, the two of order 8, and 0 and 1 once more
// with the field's prime added.
func smallOrder() []string {
	return []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	}
}
