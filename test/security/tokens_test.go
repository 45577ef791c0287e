package security

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/httpapi"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// door is a route with a token that opens it, and one of the other kind.
type door struct {
	method, path, body string
	good, other        string
}

// attempt is a request's Authorization headers.
type attempt []string

// TestForgedTokens tries every forgery on a route of people and on one of hosts.
// Both must go on to serve the good token.
func TestForgedTokens(t *testing.T) {
	c := harness.NewCluster(t, harness.Options{Engine: harness.Postgres, Schedulers: -1, Leasekeepers: -1})
	host := c.Enrol(t, "host-1")
	f := newForge(t, c)
	people := c.Tokens.AccessToken
	doors := map[string]door{
		"people": {method: http.MethodGet, path: httpapi.BaseURL + "/auth/me", good: people, other: host.Access},
		"hosts":  {method: http.MethodPost, path: protocol.PathSync, body: "{}", good: host.Access, other: people},
	}
	for _, name := range slices.Sorted(maps.Keys(doors)) {
		d := doors[name]
		t.Run(name, func(t *testing.T) {
			v := visitor{t: t, url: c.APIs[0].URL(), door: d}
			v.opens("the good token", bearer(d.good))
			v.opens("signed by the real key", bearer(f.again(t, d.good, nil)))
			tokens := forgeries(t, f, d)
			tokens["refresh as access"] = c.Tokens.RefreshToken
			for _, name := range slices.Sorted(maps.Keys(tokens)) {
				v.refused(name, bearer(tokens[name]))
			}
			// A good token of the other kind is known, and lacks the role.
			if status, _ := v.send(bearer(d.other)); status != http.StatusForbidden {
				t.Errorf("the other audience's token: status %d", status)
			}
			v.refused("no header", nil)
			v.refused("no scheme", attempt{d.good})
			v.refused("basic", attempt{"Basic " + d.good})
			v.refused("two headers", attempt{"Bearer " + d.good, "Bearer " + d.good})
			v.refused("two headers, a bad one", attempt{"Bearer x", "Bearer " + d.good})
			v.refused("two in one", attempt{"Bearer " + d.good + ", Bearer " + d.good})
			v.refused("white space inside", attempt{"Bearer " + strings.Replace(d.good, ".", ". ", 1)})
			v.refused("two spaces", attempt{"Bearer  " + d.good})
			for size := range map[int]bool{100 << 10: true, 900 << 10: true, 4 << 20: true} {
				v.refused(fmt.Sprintf("%d dots", size), bearer(strings.Repeat(".", size)))
			}
			v.refused("half a megabyte behind a good one", bearer(d.good+strings.Repeat("A", 512<<10)))
			v.opens("the good token afterwards", bearer(d.good))
		})
	}
	t.Run("a token as an assertion", func(t *testing.T) {
		for name, assertion := range map[string]string{"people": people, "hosts": host.Access, "refresh": c.Tokens.RefreshToken, "dots": strings.Repeat(".", 1<<20)} {
			body := harness.Payload(t, protocol.TokenRequest{GrantType: protocol.GrantJWTBearer, Assertion: assertion})
			v := visitor{t: t, url: c.APIs[0].URL(), door: door{method: http.MethodPost, path: protocol.PathToken, body: string(body), good: people, other: host.Access}}
			refusals := []int{http.StatusUnauthorized, http.StatusBadRequest, http.StatusUnprocessableEntity}
			if name == "dots" {
				refusals = []int{http.StatusRequestEntityTooLarge}
			}
			if status, _ := v.send(nil); !slices.Contains(refusals, status) {
				t.Errorf("%s: status %d", name, status)
			}
		}
	})
}

func bearer(token string) attempt { return attempt{"Bearer " + token} }

// forgeries are the ways to make a token that must not be taken, by name.
func forgeries(t *testing.T, f forge, d door) map[string]string {
	t.Helper()
	parts := strings.Split(d.good, ".")
	claims, now := claimsOf(t, d.good), time.Now().Unix()
	header := map[string]any{"alg": "EdDSA", "kid": f.kid, "typ": "at+jwt"}
	h := func(changes map[string]any) string { return f.sign(t, with(header, changes), claims) }
	c := func(changes map[string]any) string { return f.sign(t, header, with(claims, changes)) }
	raw := func(header, payload string) string {
		input := b64(header) + "." + b64(payload)
		return input + "." + b64(string(ed25519.Sign(f.key, []byte(input))))
	}
	plain, goodHeader := text(t, claims), text(t, header)
	inside := func(member string) string { return raw(goodHeader, strings.TrimSuffix(plain, "}")+","+member+"}") }
	number := func(name, value string) string {
		return raw(goodHeader, strings.Replace(text(t, with(claims, map[string]any{name: 4242424242})), "4242424242", value, 1))
	}
	outer := strings.TrimSuffix(text(t, with(claims, map[string]any{"sub": uuid.NewString(), "roles": []string{"admin"}})), "}")
	own := map[string]any{"kty": "OKP", "crv": "Ed25519", "x": b64(string(publicOf(f.stranger(t))))}
	stranger := f.stranger(t)
	out := map[string]string{
		"nothing": "", "one dot": ".", "two dots": "..", "no token": "x", "an API key's form": "berth_" + strings.Repeat("A", 43),
		// The algorithm.
		"alg none": b64(text(t, with(header, map[string]any{"alg": "none"}))) + "." + parts[1] + ".", "alg none, signed": h(map[string]any{"alg": "none"}),
		"alg None": h(map[string]any{"alg": "None"}), "alg eddsa": h(map[string]any{"alg": "eddsa"}), "alg ES256": h(map[string]any{"alg": "ES256"}),
		"alg Ed25519": h(map[string]any{"alg": "Ed25519"}), "alg missing": h(map[string]any{"alg": nil}), "alg null": raw(strings.Replace(goodHeader, `"EdDSA"`, "null", 1), plain),
		"alg a list": h(map[string]any{"alg": []string{"EdDSA"}}), "HS256 by the public key": hs256(t, with(header, map[string]any{"alg": "HS256"}), parts[1], publicOf(f)),
		"HS256 by the public key in base64": hs256(t, with(header, map[string]any{"alg": "HS256"}), parts[1], []byte(b64(string(publicOf(f))))),
		// The key.
		"another's key": stranger.sign(t, header, claims), "unknown kid": h(map[string]any{"kid": uuid.NewString()}), "no kid": h(map[string]any{"kid": nil}),
		"kid a path": h(map[string]any{"kid": "../../../../dev/null"}), "kid a file": h(map[string]any{"kid": "file:///proc/self/environ"}),
		"kid SQL": h(map[string]any{"kid": f.kid + "' OR '1'='1"}), "kid a URL": h(map[string]any{"kid": "http://127.0.0.1:1/keys"}),
		"kid a number": h(map[string]any{"kid": 1}), "kid NUL": h(map[string]any{"kid": f.kid + "\x00"}), "kid long": h(map[string]any{"kid": strings.Repeat("k", 2000)}),
		"own key in jwk": stranger.sign(t, with(header, map[string]any{"jwk": own}), claims), "own key in jku": stranger.sign(t, with(header, map[string]any{"jku": "http://127.0.0.1:1/k"}), claims),
		"x5u": h(map[string]any{"x5u": "http://127.0.0.1:1/c"}), "x5c": h(map[string]any{"x5c": []string{"MIIB"}}),
		// The header.
		"typ JWT": h(map[string]any{"typ": "JWT"}), "no typ": h(map[string]any{"typ": nil}), "unknown crit": h(map[string]any{"crit": []string{"x"}, "x": 1}),
		"crit b64": h(map[string]any{"crit": []string{"b64"}, "b64": false}), "b64 false": h(map[string]any{"b64": false}), "cty JWT": h(map[string]any{"cty": "JWT"}), "zip": h(map[string]any{"zip": "DEF"}),
		"alg twice": raw(strings.Replace(goodHeader, "{", `{"alg":"none",`, 1), plain), "header null": raw("null", plain), "header a list": raw("[]", plain),
		// The form.
		"flattened":                   fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, parts[0], parts[1], parts[2]),
		"flattened with outer claims": outer + fmt.Sprintf(`,"protected":%q,"payload":%q,"signature":%q}`, parts[0], parts[1], parts[2]),
		"general":                     fmt.Sprintf(`{"payload":%q,"signatures":[{"protected":%q,"signature":%q}]}`, parts[1], parts[0], parts[2]),
		"detached":                    parts[0] + ".." + parts[2], "two parts": parts[0] + "." + parts[1], "four parts": d.good + ".x", "five parts": d.good + ".x.x", "no signature": parts[0] + "." + parts[1] + ".",
		"tampered": parts[0] + "." + b64(text(t, with(claims, map[string]any{"roles": []string{"admin"}}))) + "." + parts[2], "signature of zeros": parts[0] + "." + parts[1] + "." + b64(string(make([]byte, 64))),
		"signature cut": d.good[:len(d.good)-4], "a bit more": d.good + "A", "trailing dot": d.good + ".", "padded": parts[0] + "." + parts[1] + "." + parts[2] + "==",
		"nested": raw(goodHeader, d.good), "nested as a text": raw(goodHeader, `"`+d.good+`"`), "payload null": raw(goodHeader, "null"), "payload a list": raw(goodHeader, "["+plain+"]"),
		"two payloads": raw(goodHeader, plain+plain), "bytes behind the payload": raw(goodHeader, plain+"\x00"), "deep": inside(`"x":` + strings.Repeat("[", 1200) + strings.Repeat("]", 1200)),
		// The claims.
		"wrong iss": c(map[string]any{"iss": "https://id.example.com"}), "no iss": c(map[string]any{"iss": nil}), "iss a list": c(map[string]any{"iss": []string{"berth"}}), "iss in upper case": c(map[string]any{"iss": "BERTH"}),
		"wrong aud": c(map[string]any{"aud": "other"}), "no aud": c(map[string]any{"aud": nil}), "both audiences": c(map[string]any{"aud": []string{"berth", "berth-agent"}}),
		"no sub": c(map[string]any{"sub": nil}), "sub SQL": c(map[string]any{"sub": "' OR true --"}), "no roles": c(map[string]any{"roles": nil}), "unknown role": c(map[string]any{"roles": []string{"root"}}),
		"both roles": c(map[string]any{"roles": []string{"host", "admin"}}),
		"no exp":     c(map[string]any{"exp": nil}), "exp in year 9999": c(map[string]any{"exp": 253370764800}), "expired": f.again(t, d.good, over()), "exp a text": c(map[string]any{"exp": fmt.Sprint(now + 500)}),
		"exp a fraction": number("exp", fmt.Sprint(now+300, ".5")), "exp 1e10": number("exp", "1e10"), "exp negative": number("exp", "-1"), "exp huge": number("exp", strings.Repeat("9", 400)), "exp null": number("exp", "null"), "exp in a leading zero": number("exp", "0"+fmt.Sprint(now+300)),
		"exp too far": c(map[string]any{"exp": now + 3600}), "not valid yet": c(map[string]any{"nbf": now + 120}), "issued ahead": c(map[string]any{"iat": now + 120, "nbf": now + 120, "exp": now + 600}), "no iat": c(map[string]any{"iat": nil}), "iat a fraction": number("iat", fmt.Sprint(now, ".0")), "iat 0": number("iat", "0"), "iat negative": number("iat", fmt.Sprint(-now)),
		"sub twice": inside(`"sub":"` + uuid.NewString() + `"`), "exp twice": inside(`"exp":` + fmt.Sprint(now+300)), "exp twice, escaped": inside(`"\u0065xp":` + fmt.Sprint(now+300)),
		"EXP": f.sign(t, header, with(claims, map[string]any{"exp": nil, "EXP": now + 300})), "roles twice": inside(`"roles":["admin"]`), "doubled inside": inside(`"x":{"a":1,"a":2}`),
	}
	return out
}

// visitor tries a door.
type visitor struct {
	t    *testing.T
	url  string
	door door
}

func (v visitor) send(a attempt) (status int, body string) {
	v.t.Helper()
	req, err := http.NewRequestWithContext(v.t.Context(), v.door.method, v.url+v.door.path, strings.NewReader(v.door.body))
	if err != nil {
		v.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, value := range a {
		req.Header["Authorization"] = append(req.Header["Authorization"], value)
	}
	client := http.Client{Timeout: harness.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error() // a header that no HTTP allows, or that the server broke off
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(b)
}

// opens fails the test where the caller is not let in; what the route then says
// to the request does not matter.
func (v visitor) opens(what string, a attempt) {
	v.t.Helper()
	if status, body := v.send(a); status == 0 || status == http.StatusUnauthorized || status == http.StatusForbidden || status >= 500 {
		v.t.Errorf("%s: %d %s", what, status, body)
	}
}

// refused: 401, or 431 where the header is too large to be read at all. The
// answer says nothing of the token and does not tell one fault from another.
func (v visitor) refused(what string, a attempt) {
	v.t.Helper()
	status, body := v.send(a)
	if len(strings.Join(a, "")) > 16<<10 && (status == http.StatusRequestHeaderFieldsTooLarge || status == 0) {
		return
	}
	if status != http.StatusUnauthorized {
		v.t.Errorf("%s: status %d %.200s", what, status, body)
		return
	}
	var p struct{ Code string }
	if json.Unmarshal([]byte(body), &p) != nil || p.Code != protocol.CodeUnauthorised {
		v.t.Errorf("%s: %.200s", what, body)
	}
	for _, part := range strings.Split(v.door.good, ".") {
		if strings.Contains(body, part) {
			v.t.Errorf("%s: the answer holds a part of the token", what)
		}
	}
}

func claimsOf(t *testing.T, token string) map[string]any {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(payload)))
	dec.UseNumber()
	claims := map[string]any{}
	if err := dec.Decode(&claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

// with is m with changes; a nil value removes a member.
func with(m, changes map[string]any) map[string]any {
	out := maps.Clone(m)
	for k, v := range changes {
		if out[k] = v; v == nil {
			delete(out, k)
		}
	}
	return out
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func publicOf(f forge) []byte { return f.key.Public().(ed25519.PublicKey) }

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func hs256(t *testing.T, header map[string]any, payload string, secret []byte) string {
	t.Helper()
	input := part(t, header) + "." + payload
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(input))
	return input + "." + b64(string(mac.Sum(nil)))
}
