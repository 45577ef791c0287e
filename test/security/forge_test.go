package security

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/harness"
)

// forge signs tokens as somebody could who has the database and the master key.
type forge struct {
	kid string
	key ed25519.PrivateKey
}

// newForge opens the newest signing key of a cluster.
func newForge(t *testing.T, c *harness.Cluster) forge {
	t.Helper()
	// As hex, and so alike on both engines.
	form := map[harness.Engine]string{
		harness.Postgres: `encode(%, 'hex')`, harness.SQLite: `lower(hex(%))`,
	}[c.Engine]
	hexed := func(column string) string { return strings.ReplaceAll(form, "%", column) }
	rows := c.Query(t, `SELECT CAST(id AS text), `+hexed("public_key")+`, `+hexed("private_key")+` FROM signing_keys ORDER BY created_at DESC, id DESC LIMIT 1`)
	if len(rows) != 1 {
		t.Fatalf("%d signing keys", len(rows))
	}
	id, public, sealed := rows[0][0], unhex(t, rows[0][1]), unhex(t, rows[0][2])
	block, err := aes.NewCipher(unhex(t, c.MasterKey))
	if err != nil {
		t.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	const lead = 1 + 8 // version, mark of the master key
	nonce := sealed[lead : lead+aead.NonceSize()]
	seed, err := aead.Open(nil, nonce, sealed[lead+aead.NonceSize():], append([]byte("berth signing key "+id+" "), public...))
	if err != nil {
		t.Fatal(err)
	}
	return forge{kid: id, key: ed25519.NewKeyFromSeed(seed)}
}

func unhex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sign makes a compact token.
func (f forge) sign(t *testing.T, header, claims map[string]any) string {
	t.Helper()
	input := part(t, header) + "." + part(t, claims)
	return input + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(f.key, []byte(input)))
}

func part(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// again signs the claims of a token anew, with changes.
func (f forge) again(t *testing.T, token string, changes map[string]any) string {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	claims := map[string]any{}
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	maps.Copy(claims, changes)
	return f.sign(t, map[string]any{"alg": "EdDSA", "kid": f.kid, "typ": "at+jwt"}, claims)
}

// stranger signs under the same kid with a key of its own.
func (f forge) stranger(t *testing.T) forge {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return forge{kid: f.kid, key: key}
}

// over are claims of a token whose time is over.
func over() map[string]any {
	now := time.Now().Unix()
	return map[string]any{"iat": now - 700, "nbf": now - 700, "exp": now - 100}
}
