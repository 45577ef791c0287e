package hostagent

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"time"
)

// signAssertion makes the RFC 7523 assertion that proves who this host is: a
// compact EdDSA JWT that lives for 45 seconds. Signing needs none of a JWT
// library's machinery, and the agent stays free of the server's identity
// package; the server verifies it with jwx.
func signAssertion(id identity) (string, error) {
	now := time.Now()
	header, err := json.Marshal(map[string]string{"alg": "EdDSA", "typ": "JWT"})
	if err != nil {
		return "", err
	}
	claims, err := json.Marshal(map[string]any{
		"iss": id.HostID, "sub": id.HostID, "aud": id.Audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(45 * time.Second).Unix(),
	})
	if err != nil {
		return "", err
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString(header) + "." + enc.EncodeToString(claims)
	return signed + "." + enc.EncodeToString(ed25519.Sign(id.key, []byte(signed))), nil
}
