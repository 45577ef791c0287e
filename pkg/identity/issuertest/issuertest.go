// Package issuertest is a small OIDC issuer for tests: a real HTTP server with
// discovery, a set of keys and signed tokens. It signs with the standard library
// alone, so that it shares no code with what verifies.
package issuertest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// The documents' paths.
const (
	Discovery = "/.well-known/openid-configuration"
	Keys      = "/keys"
)

// Issuer is a running issuer.
type Issuer struct {
	// URL is its name.
	URL string

	server *httptest.Server
	mu     sync.Mutex
	keys   []key
	made   int
	asked  map[string]int
	serve  map[string]http.HandlerFunc
}

type key struct {
	kid, alg string
	private  crypto.Signer
}

// New starts an issuer without keys. It ends with the test.
func New(tb testing.TB) *Issuer {
	tb.Helper()
	i := &Issuer{asked: map[string]int{}, serve: map[string]http.HandlerFunc{}}
	i.server = httptest.NewServer(i)
	tb.Cleanup(i.server.Close)
	i.URL = i.server.URL
	return i
}

// ServeHTTP answers as an issuer does, or as Serve was told.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	i.asked[r.URL.Path]++
	instead := i.serve[r.URL.Path]
	i.mu.Unlock()
	switch {
	case instead != nil:
		instead(w, r)
	case r.URL.Path == Discovery:
		WriteJSON(w, map[string]string{"issuer": i.URL, "jwks_uri": i.URL + Keys})
	case r.URL.Path == Keys:
		WriteJSON(w, map[string]any{"keys": i.set()})
	default:
		http.NotFound(w, r)
	}
}

// Serve answers a path otherwise from now on; nil: as an issuer does.
func (i *Issuer) Serve(path string, h http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serve[path] = h
}

// Asked is how often a path was asked for.
func (i *Issuer) Asked(path string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked[path]
}

// Down takes the issuer off the network for as long as the test runs.
func (i *Issuer) Down() { i.server.Close() }

// WriteJSON writes a JSON document.
func WriteJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// AddKey makes a key for RS256, ES256 or EdDSA and returns its kid.
func (i *Issuer) AddKey(tb testing.TB, alg string) (kid string) {
	tb.Helper()
	var private crypto.Signer
	var err error
	switch alg {
	case "RS256":
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	case "ES256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "EdDSA":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		tb.Fatalf("no algorithm %s", alg)
	}
	if err != nil {
		tb.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made++
	kid = fmt.Sprint("key-", i.made)
	i.keys = append(i.keys, key{kid, alg, private})
	return kid
}

// Forget takes a key out of the set; Token signs with it still.
func (i *Issuer) Forget(kid string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range i.keys {
		if i.keys[n].kid == kid {
			i.keys[n].kid = "gone " + kid
		}
	}
}

func (i *Issuer) set() []map[string]string {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := []map[string]string{}
	for _, k := range i.keys {
		if len(k.kid) < 5 || k.kid[:5] != "gone " {
			out = append(out, k.jwk())
		}
	}
	return out
}

func (k key) jwk() map[string]string {
	m := map[string]string{"kid": k.kid, "alg": k.alg, "use": "sig"}
	switch p := k.private.Public().(type) {
	case *rsa.PublicKey:
		m["kty"], m["n"], m["e"] = "RSA", enc(p.N.Bytes()), enc(big.NewInt(int64(p.E)).Bytes())
	case *ecdsa.PublicKey:
		point, err := p.Bytes()
		if err != nil {
			panic(err)
		}
		m["kty"], m["crv"], m["x"], m["y"] = "EC", "P-256", enc(point[1:33]), enc(point[33:])
	case ed25519.PublicKey:
		m["kty"], m["crv"], m["x"] = "OKP", "Ed25519", enc(p)
	}
	return m
}

// Claims are those of a good token for an audience, with changes; nil removes one.
func (i *Issuer) Claims(audience, subject string, changes map[string]any) map[string]any {
	now := time.Now().Unix()
	c := map[string]any{"iss": i.URL, "aud": audience, "sub": subject, "iat": now, "exp": now + 600}
	for name, value := range changes {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

// Token signs claims with a key; changes are to its header.
func (i *Issuer) Token(tb testing.TB, kid string, claims, changes map[string]any) string {
	tb.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.keys {
		if k.kid != kid && k.kid != "gone "+kid {
			continue
		}
		header := map[string]any{"alg": k.alg, "kid": kid, "typ": "JWT"}
		for name, value := range changes {
			if header[name] = value; value == nil {
				delete(header, name)
			}
		}
		h, err := json.Marshal(header)
		if err != nil {
			tb.Fatal(err)
		}
		c, err := json.Marshal(claims)
		if err != nil {
			tb.Fatal(err)
		}
		signed := enc(h) + "." + enc(c)
		return signed + "." + enc(k.sign(tb, []byte(signed)))
	}
	tb.Fatalf("no key %s", kid)
	return ""
}

func (k key) sign(tb testing.TB, message []byte) []byte {
	tb.Helper()
	sum := sha256.Sum256(message)
	var sig []byte
	var err error
	switch p := k.private.(type) {
	case *rsa.PrivateKey:
		sig, err = rsa.SignPKCS1v15(rand.Reader, p, crypto.SHA256, sum[:])
	case *ecdsa.PrivateKey:
		r, s, signErr := ecdsa.Sign(rand.Reader, p, sum[:])
		if err = signErr; err == nil {
			sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		}
	case ed25519.PrivateKey:
		sig = ed25519.Sign(p, message)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return sig
}

func enc(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
