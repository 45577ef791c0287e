package identity_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
)

// forge is a signing key of the database in the test's hands, with the header
// and the claims of a good token.
type forge struct {
	kid     string
	private ed25519.PrivateKey
	header  map[string]any
	claims  map[string]any
}

func newForge(t *testing.T, w *world) forge {
	t.Helper()
	kid, private := w.addKey(t)
	user, session := w.person(t, "viewer", berth.RoleViewer)
	now := w.clock.Now().Unix()
	return forge{
		kid: kid, private: private,
		header: map[string]any{"alg": "EdDSA", "kid": kid, "typ": "at+jwt"},
		claims: map[string]any{
			"iss": "berth", "aud": "berth", "sub": string(user), "sid": session, "roles": []string{"viewer"},
			"iat": now, "nbf": now, "exp": now + 600, "jti": uuid.NewString(),
		},
	}
}

func TestAnIssuedTokenNamesItsUser(t *testing.T) {
	w := newWorld(t)
	tokens := w.login(t)
	caller, err := w.Verify(t.Context(), tokens.Access)
	if err != nil {
		t.Fatal(err)
	}
	if caller.Kind != berth.ActorUser || caller.ID != string(tokens.User.ID) || !caller.Can(berth.RoleAdmin) || caller.Can(berth.RoleHost) {
		t.Errorf("got %+v", caller)
	}
	if tokens.ExpiresIn != 10*time.Minute {
		t.Errorf("lives %v", tokens.ExpiresIn)
	}
	w.clock.add(10*time.Minute - time.Second)
	if _, err := w.Verify(t.Context(), tokens.Access); err != nil {
		t.Errorf("a second before its end: %v", err)
	}
	w.clock.add(time.Second)
	if _, err := w.Verify(t.Context(), tokens.Access); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("at its end: %v", err)
	}
}

func TestForgedTokensAreRefused(t *testing.T) {
	w := newWorld(t)
	f := newForge(t, w)
	other, othersSession := w.person(t, "root", berth.RoleAdmin)
	verify := w.fresh(t)
	good := craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, nil))
	if err := verify(good); err != nil {
		t.Fatalf("the good token: %v", err)
	}
	parts := strings.Split(good, ".")
	now := w.clock.Now().Unix()
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}

	header := func(change map[string]any) string {
		return craft(f.private, asJSON(t, f.header, change), asJSON(t, f.claims, nil))
	}
	claims := func(change map[string]any) string {
		return craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, change))
	}
	raw := func(payload string) string { return craft(f.private, asJSON(t, f.header, nil), payload) }
	plain := asJSON(t, f.claims, nil)
	hs := func() string {
		signed := b64([]byte(asJSON(t, f.header, map[string]any{"alg": "HS256"}))) + "." + parts[1]
		mac := hmac.New(sha256.New, f.private.Public().(ed25519.PublicKey))
		mac.Write([]byte(signed))
		return signed + "." + b64(mac.Sum(nil))
	}
	outer := asJSON(t, f.claims, map[string]any{"sub": uuid.NewString(), "roles": []string{"admin"}})

	for name, token := range map[string]string{
		"empty":                "",
		"no token":             "x",
		"two parts":            parts[0] + "." + parts[1],
		"four parts":           good + ".x",
		"no signature":         parts[0] + "." + parts[1] + ".",
		"alg none":             b64([]byte(asJSON(t, f.header, map[string]any{"alg": "none"}))) + "." + parts[1] + ".",
		"alg none, signed":     header(map[string]any{"alg": "none"}),
		"alg missing":          header(map[string]any{"alg": nil}),
		"alg in lower case":    header(map[string]any{"alg": "eddsa"}),
		"HS256 by public key":  hs(),
		"alg RS256":            header(map[string]any{"alg": "RS256"}),
		"another's key":        craft(stranger, asJSON(t, f.header, nil), plain),
		"unknown kid":          header(map[string]any{"kid": uuid.NewString()}),
		"no kid":               header(map[string]any{"kid": nil}),
		"kid is a number":      header(map[string]any{"kid": 1}),
		"typ JWT":              header(map[string]any{"typ": "JWT"}),
		"no typ":               header(map[string]any{"typ": nil}),
		"unknown crit":         header(map[string]any{"crit": []string{"x"}, "x": 1}),
		"crit b64":             header(map[string]any{"crit": []string{"b64"}, "b64": false}),
		"own key in jwk":       header(map[string]any{"jwk": map[string]any{"kty": "OKP"}}),
		"jku":                  header(map[string]any{"jku": "https://example.com/keys"}),
		"nested":               header(map[string]any{"cty": "JWT"}),
		"doubled alg":          craft(f.private, `{"alg":"none","alg":"EdDSA","kid":"`+f.kid+`","typ":"at+jwt"}`, plain),
		"padded":               parts[0] + "." + parts[1] + "=." + parts[2],
		"signature changed":    parts[0] + "." + parts[1] + "." + b64(make([]byte, 64)),
		"payload changed":      parts[0] + "." + b64([]byte(outer)) + "." + parts[2],
		"spaces around":        " " + good + "\n",
		"flattened JSON":       fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, parts[0], parts[1], parts[2]),
		"flattened, outer":     strings.TrimSuffix(outer, "}") + fmt.Sprintf(`,"protected":%q,"payload":%q,"signature":%q}`, parts[0], parts[1], parts[2]),
		"general JSON":         fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q}]}`, parts[1], parts[0], parts[2]),
		"JWS in a JWS":         raw(good),
		"JWS as a text":        raw(`"` + good + `"`),
		"payload null":         raw("null"),
		"payload a list":       raw("[]"),
		"two payloads":         raw(plain + plain),
		"no exp":               claims(map[string]any{"exp": nil}),
		"exp null":             raw(strings.Replace(plain, fmt.Sprintf(`"exp":%d`, now+600), `"exp":null`, 1)),
		"exp a text":           claims(map[string]any{"exp": fmt.Sprint(now + 600)}),
		"exp a fraction":       claims(map[string]any{"exp": float64(now) + 10.5}),
		"exp over":             claims(map[string]any{"exp": now}),
		"exp far ahead":        claims(map[string]any{"exp": now + 86400}),
		"exp in year 9999":     claims(map[string]any{"exp": 253370764800}),
		"exp too large":        raw(strings.Replace(plain, fmt.Sprintf(`"exp":%d`, now+600), `"exp":1e300`, 1)),
		"issued ahead":         claims(map[string]any{"iat": now + 300, "nbf": now + 300, "exp": now + 600}),
		"valid later":          claims(map[string]any{"nbf": now + 300}),
		"no iat":               claims(map[string]any{"iat": nil}),
		"made for a long time": claims(map[string]any{"iat": now - 86400, "nbf": now - 86400}),
		"EXP for exp":          claims(map[string]any{"exp": nil, "EXP": now + 600}),
		"doubled exp":          raw(strings.TrimSuffix(plain, "}") + fmt.Sprintf(`,"exp":%d}`, now+500)),
		"doubled sub":          raw(strings.TrimSuffix(plain, "}") + fmt.Sprintf(`,"sub":%q}`, uuid.NewString())),
		"doubled inside":       raw(strings.TrimSuffix(plain, "}") + `,"x":{"a":1,"a":2}}`),
		"another issuer":       claims(map[string]any{"iss": "elsewhere"}),
		"no issuer":            claims(map[string]any{"iss": nil}),
		"another audience":     claims(map[string]any{"aud": "elsewhere"}),
		"both audiences":       claims(map[string]any{"aud": []string{"berth", "berth-agent"}}),
		"no sub":               claims(map[string]any{"sub": nil}),
		"sub no id":            claims(map[string]any{"sub": "admin"}),
		"no roles":             claims(map[string]any{"roles": nil}),
		"empty roles":          claims(map[string]any{"roles": []string{}}),
		"roles a text":         claims(map[string]any{"roles": "admin"}),
		"unknown role":         claims(map[string]any{"roles": []string{"root"}}),
		"host role for people": claims(map[string]any{"roles": []string{"host"}}),
		"role for host":        claims(map[string]any{"aud": "berth-agent", "roles": []string{"admin"}}),
		"host and admin":       claims(map[string]any{"aud": "berth-agent", "roles": []string{"host", "admin"}}),
		"no session":           claims(map[string]any{"sid": nil}),
		"a made-up session":    claims(map[string]any{"sid": uuid.NewString()}),
		"session no id":        claims(map[string]any{"sid": "' OR true --"}),
		"another's session":    claims(map[string]any{"sub": string(other), "roles": []string{"admin"}}),
		"another's sub":        claims(map[string]any{"sid": othersSession}),
		"more roles":           claims(map[string]any{"roles": []string{"viewer", "admin"}}),
		"too long":             claims(map[string]any{"x": strings.Repeat("x", 5000)}),
		"too deep":             raw(strings.TrimSuffix(plain, "}") + `,"x":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + "}"),
	} {
		t.Run(name, func(t *testing.T) {
			err := verify(token)
			if !errors.Is(err, berth.ErrUnauthenticated) {
				t.Fatalf("got %v", err)
			}
			for _, part := range parts {
				if strings.Contains(err.Error(), part) {
					t.Errorf("the error holds a part of the token: %v", err)
				}
			}
		})
	}
}

// fresh is Verify of the world's service, which reads the keys anew for it.
func (w *world) fresh(t *testing.T) func(token string) error {
	t.Helper()
	verify := func(token string) error {
		_, err := w.Verify(t.Context(), redact.NewString(token))
		return err
	}
	identity.ForgetKeys(w.Service)
	return verify
}

func TestAHostTokenIsOne(t *testing.T) {
	w := newWorld(t)
	f := newForge(t, w)
	verify := w.fresh(t)
	if err := verify(craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, map[string]any{"aud": "berth-agent", "roles": []string{"host"}}))); err != nil {
		t.Error(err)
	}
}

func TestProcessesShareTheirKeys(t *testing.T) {
	w := newWorld(t)
	other := w.service(t, w.master)
	if err := other.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Verify(t.Context(), w.login(t).Access); err != nil {
		t.Errorf("another process's token: %v", err)
	}
	keys, err := w.store.SigningKeys(t.Context())
	if err != nil || len(keys) != 1 {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	doc, err := other.JWKS()
	if err != nil || json.Unmarshal(doc, &set) != nil || len(set.Keys) != 1 || set.Keys[0]["kid"] != keys[0].ID || set.Keys[0]["d"] != "" {
		t.Errorf("JWKS: %s %v", doc, err)
	}
}

func TestAnotherMasterKeyIsSaid(t *testing.T) {
	w := newWorld(t)
	err := w.service(t, masterKey(t)).Open(t.Context())
	if !errors.Is(err, identity.ErrMasterKey) {
		t.Errorf("got %v", err)
	}
}

func TestANewKeyOfAnotherProcessIsFoundAndMadeUpOnesCostNothing(t *testing.T) {
	w := newWorld(t)
	f := newForge(t, w)
	good := redact.NewString(craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, nil)))
	// Read just now: not again so soon.
	if _, err := w.Verify(t.Context(), good); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Fatalf("got %v", err)
	}
	identity.ForgetKeys(w.Service)
	if _, err := w.Verify(t.Context(), good); err != nil {
		t.Fatalf("after the interval: %v", err)
	}
	// A database that is gone does not take the good keys away.
	_ = w.store.Close()
	identity.ForgetKeys(w.Service)
	made := redact.NewString(craft(f.private, asJSON(t, f.header, map[string]any{"kid": "made up"}), asJSON(t, f.claims, nil)))
	if _, err := w.Verify(t.Context(), made); err == nil {
		t.Error("a made-up key was found")
	}
	// Only of a person's token nobody can tell then whether its session lives.
	if _, err := w.Verify(t.Context(), good); !errors.Is(err, berth.ErrUnavailable) || errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("with the database gone: %v", err)
	}
	host := craft(f.private, asJSON(t, f.header, nil), asJSON(t, f.claims, map[string]any{"aud": "berth-agent", "roles": []string{"host"}}))
	if _, err := w.Verify(t.Context(), redact.NewString(host)); err != nil {
		t.Errorf("a host with the database gone: %v", err)
	}
}
