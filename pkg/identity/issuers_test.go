package identity_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/identity/issuertest"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// outside is a world with an external issuer. Its clock is near the real one,
// which the issuer has.
type outside struct {
	*world
	issuer *issuertest.Issuer
}

func issuersFile(t *testing.T, url string) []identity.Issuer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "issuers.json")
	text := fmt.Sprintf(`{"issuers": [{"issuer": %q, "audience": "farm", "roles_claim": ["realm_access", "roles"],
		"roles": {"farm-operators": "operator", "farm-users": "submitter"}, "clock_skew_seconds": 30, "max_life_seconds": 3600}]}`, url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := identity.LoadIssuers(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{world: newWorld(t), issuer: issuertest.New(t)}
	s, err := identity.New(o.store, o.store, identity.Config{
		MasterKey: o.master, Now: o.clock.Now, Logger: o.logger, Issuers: issuersFile(t, o.issuer.URL),
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Service = s
	if err := o.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return o
}

// claims of a good token of an operator, with changes.
func (o *outside) claims(changes map[string]any) map[string]any {
	now := o.clock.Now().Unix()
	all := map[string]any{
		"iat": now, "exp": now + 600, "preferred_username": "Ann",
		"realm_access": map[string]any{"roles": []string{"other", "farm-operators", "farm-operators"}},
	}
	for k, v := range changes {
		all[k] = v
	}
	return o.issuer.Claims("farm", "subject-1", all)
}

func (o *outside) verify(t *testing.T, token string) (identity.Caller, error) {
	t.Helper()
	return o.Verify(t.Context(), redact.NewString(token))
}

func (o *outside) good(t *testing.T, kid string) string {
	t.Helper()
	return o.issuer.Token(t, kid, o.claims(nil), nil)
}

func TestAnExternalIssuersTokenIsTakenForWhatItMapsTo(t *testing.T) {
	o := newOutside(t)
	var first identity.Caller
	for _, alg := range []string{"RS256", "ES256", "EdDSA"} {
		kid := o.issuer.AddKey(t, alg)
		o.clock.add(5 * time.Second) // what is not known may be asked for again
		caller, err := o.verify(t, o.good(t, kid))
		if err != nil {
			t.Fatalf("%s: %v", alg, err)
		}
		if len(caller.Roles) != 1 || caller.Roles[0] != berth.RoleOperator || caller.Credential != berth.Credential("issuer:"+o.issuer.URL) || caller.User() == "" {
			t.Errorf("%s: %+v", alg, caller)
		}
		if first.ID == "" {
			first = caller
		}
		if caller.ID != first.ID {
			t.Errorf("%s: another user", alg)
		}
	}
	user, err := o.store.UserByID(t.Context(), first.User())
	if err != nil || user.Name != "ann.127.0.0.1" || user.Issuer != o.issuer.URL || user.Subject != "subject-1" || user.HasPassword {
		t.Errorf("provisioned %+v, %v", user, err)
	}
	kid := o.issuer.AddKey(t, "ES256")
	o.clock.add(5 * time.Second)
	several := o.issuer.Token(t, kid, o.claims(map[string]any{"aud": []string{"x", "farm"}}), map[string]any{"typ": nil, "x5t": "hint"})
	if _, err := o.verify(t, several); err != nil {
		t.Errorf("several audiences, no typ, a hint at a certificate: %v", err)
	}
	// An issuer's admin is none here, and stands in no local user's way.
	boss := o.issuer.Token(t, kid, o.claims(map[string]any{"sub": "subject-2", "preferred_username": "admin"}), nil)
	caller, err := o.verify(t, boss)
	if err != nil || caller.Can(berth.RoleAdmin) {
		t.Errorf("%+v, %v", caller, err)
	}
	disabled := true
	if _, err := o.store.ChangeUser(t.Context(), store.ChangeUserParams{Actor: admin, User: caller.User(), Disabled: &disabled}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.verify(t, boss); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("disabled: %v", err)
	}
}

func TestBadExternalTokensAreRefused(t *testing.T) {
	o := newOutside(t)
	rsa, ec, ed := o.issuer.AddKey(t, "RS256"), o.issuer.AddKey(t, "ES256"), o.issuer.AddKey(t, "EdDSA")
	if _, err := o.verify(t, o.good(t, rsa)); err != nil {
		t.Fatal(err)
	}
	now := o.clock.Now().Unix()
	c := func(changes map[string]any) string { return o.issuer.Token(t, rsa, o.claims(changes), nil) }
	h := func(kid string, changes map[string]any) string { return o.issuer.Token(t, kid, o.claims(nil), changes) }
	parts := strings.Split(o.good(t, ec), ".")
	for name, token := range map[string]string{
		"alg none":            h(rsa, map[string]any{"alg": "none"}),
		"alg HS256":           h(rsa, map[string]any{"alg": "HS256"}),
		"alg RS512":           h(rsa, map[string]any{"alg": "RS512"}),
		"alg PS256":           h(rsa, map[string]any{"alg": "PS256"}),
		"ES256 with the RSA":  h(rsa, map[string]any{"alg": "ES256"}),
		"ES256 with EdDSA":    h(ed, map[string]any{"alg": "ES256"}),
		"EdDSA with the EC":   h(ec, map[string]any{"alg": "EdDSA"}),
		"another's kid":       h(ec, map[string]any{"kid": rsa}),
		"no kid":              h(rsa, map[string]any{"kid": nil}),
		"unknown kid":         h(rsa, map[string]any{"kid": "made up"}),
		"jku":                 h(rsa, map[string]any{"jku": o.issuer.URL + issuertest.Keys}),
		"jwk":                 h(rsa, map[string]any{"jwk": map[string]any{"kty": "oct", "k": "AA"}}),
		"x5u":                 h(rsa, map[string]any{"x5u": o.issuer.URL}),
		"crit":                h(rsa, map[string]any{"crit": []string{"x"}, "x": 1}),
		"another typ":         h(rsa, map[string]any{"typ": "logout+jwt"}),
		"tampered":            parts[0] + "." + b64([]byte(asJSON(t, o.claims(map[string]any{"sub": "other"}), nil))) + "." + parts[2],
		"DER signature":       parts[0] + "." + parts[1] + "." + b64(append([]byte{0x30, 0x44, 2, 32}, unb64(t, parts[2])...)),
		"flattened":           fmt.Sprintf(`{"protected":%q,"payload":%q,"signature":%q}`, parts[0], parts[1], parts[2]),
		"another issuer":      c(map[string]any{"iss": "https://id.example.com"}),
		"issuer with a slash": c(map[string]any{"iss": o.issuer.URL + "/"}),
		"another audience":    c(map[string]any{"aud": "other"}),
		"no audience":         c(map[string]any{"aud": nil}),
		"audience in a map":   c(map[string]any{"aud": map[string]string{"farm": "farm"}}),
		"no sub":              c(map[string]any{"sub": nil}),
		"no exp":              c(map[string]any{"exp": nil}),
		"over":                c(map[string]any{"iat": now - 700, "exp": now - 30}),
		"lives too long":      c(map[string]any{"exp": now + 3601}),
		"year 9999":           c(map[string]any{"exp": 253370764800}),
		"no iat":              c(map[string]any{"iat": nil}),
		"issued ahead":        c(map[string]any{"iat": now + 31, "exp": now + 600}),
		"valid later":         c(map[string]any{"nbf": now + 31}),
		"too long":            c(map[string]any{"x": strings.Repeat("x", 20_000)}),
		"HS256 by a public key": func() string {
			return hmacToken(t, o.issuer.URL, o.claims(nil))
		}(),
	} {
		if _, err := o.verify(t, token); !errors.Is(err, berth.ErrUnauthenticated) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, roles := range map[string]any{
		"none": nil, "others": map[string]any{"roles": []string{"x"}}, "no list": map[string]any{"roles": 1}, "a text": "farm-operators",
		"Berth's own names": map[string]any{"roles": []string{"admin", "operator", "host"}},
	} {
		if _, err := o.verify(t, c(map[string]any{"realm_access": roles})); !errors.Is(err, berth.ErrForbidden) {
			t.Errorf("roles %s: %v", name, err)
		}
	}
	if _, err := o.verify(t, c(map[string]any{"iat": now + 29, "exp": now + 600})); err != nil {
		t.Errorf("a clock that is a little ahead: %v", err)
	}
}

func TestAnIssuersKeysAreFollowed(t *testing.T) {
	o := newOutside(t)
	old := o.issuer.AddKey(t, "ES256")
	const burst = 50
	var wg sync.WaitGroup
	for range burst { // all at once, before the first fetch
		wg.Go(func() {
			if _, err := o.verify(t, o.good(t, old)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := o.issuer.Asked(issuertest.Keys); n != 1 {
		t.Errorf("%d at once cost %d fetches", burst, n)
	}
	// A new key, just after a fetch: found after the least interval.
	next := o.issuer.AddKey(t, "RS256")
	if _, err := o.verify(t, o.good(t, next)); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("just after a fetch: %v", err)
	}
	o.clock.add(5 * time.Second)
	if _, err := o.verify(t, o.good(t, next)); err != nil {
		t.Errorf("after the interval: %v", err)
	}
	// Made-up ids cost one fetch an interval.
	o.clock.add(5 * time.Second)
	before := o.issuer.Asked(issuertest.Keys)
	for i := range 100 {
		_, _ = o.verify(t, o.issuer.Token(t, next, o.claims(nil), map[string]any{"kid": fmt.Sprint("made up ", i)}))
	}
	if n := o.issuer.Asked(issuertest.Keys) - before; n != 1 {
		t.Errorf("a hundred made-up ids cost %d fetches", n)
	}
	// An empty set, one without usable keys, and nonsense replace nothing.
	for name, body := range map[string]string{
		"empty": `{"keys":[]}`, "missing": `{}`, "symmetric": `{"keys":[{"kty":"oct","kid":"key-1","k":"AAAA"}]}`, "nonsense": "<html>", "null": "null",
		"huge": `{"keys":[],"x":"` + strings.Repeat("x", 600<<10) + `"}`, "encryption": `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA","kid":"key-1","use":"enc"}]}`,
	} {
		o.clock.add(6 * time.Second)
		o.issuer.Serve(issuertest.Keys, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) })
		_, _ = o.verify(t, o.issuer.Token(t, next, o.claims(nil), map[string]any{"kid": "made up"}))
		if _, err := o.verify(t, o.good(t, old)); err != nil {
			t.Errorf("%s: the good key is gone: %v", name, err)
		}
	}
	o.issuer.Serve(issuertest.Keys, nil)
	// A key that the issuer took back goes, too, with the next fetch.
	o.issuer.Forget(old)
	o.clock.add(6 * time.Second)
	_, _ = o.verify(t, o.issuer.Token(t, next, o.claims(nil), map[string]any{"kid": "made up"}))
	if _, err := o.verify(t, o.good(t, old)); !errors.Is(err, berth.ErrUnauthenticated) {
		t.Errorf("a key that was taken back: %v", err)
	}
	// With the issuer down, the known key goes on for a day.
	o.issuer.Down()
	o.clock.add(23 * time.Hour)
	if _, err := o.verify(t, o.good(t, next)); err != nil {
		t.Errorf("with the issuer down: %v", err)
	}
	o.clock.add(2 * time.Hour)
	if _, err := o.verify(t, o.good(t, next)); !errors.Is(err, berth.ErrUnavailable) {
		t.Errorf("with the issuer down for more than a day: %v", err)
	}
	o.login(t) // local logins are not touched
}

func TestAFirstFetchThatFailsIsTriedAgain(t *testing.T) {
	o := newOutside(t)
	kid := o.issuer.AddKey(t, "ES256")
	o.issuer.Serve(issuertest.Discovery, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	for range 10 {
		if _, err := o.verify(t, o.good(t, kid)); !errors.Is(err, berth.ErrUnavailable) {
			t.Fatalf("down at first: %v", err)
		}
	}
	if n := o.issuer.Asked(issuertest.Discovery); n != 1 {
		t.Errorf("asked %d times at once", n)
	}
	o.login(t)
	o.issuer.Serve(issuertest.Discovery, nil)
	o.clock.add(5 * time.Second)
	if _, err := o.verify(t, o.good(t, kid)); err != nil {
		t.Errorf("up again: %v", err)
	}
}

func TestHostileDiscoveryIsRefused(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		issuertest.WriteJSON(w, map[string]any{"keys": []any{}})
	}))
	defer elsewhere.Close()
	asked := make(chan string, 100)
	spy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	defer spy.Close()
	o := newOutside(t)
	kid := o.issuer.AddKey(t, "ES256")
	document := func(issuer, keys string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			issuertest.WriteJSON(w, map[string]string{"issuer": issuer, "jwks_uri": keys})
		}
	}
	redirect := func(to string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	}
	own := o.issuer.URL + issuertest.Keys
	for name, h := range map[string]http.HandlerFunc{
		"another issuer":               document("https://id.example.com", own),
		"a slash more":                 document(o.issuer.URL+"/", own),
		"no issuer":                    document("", own),
		"keys over http":               document(o.issuer.URL, "http://id.example.com/keys"),
		"keys in a file":               document(o.issuer.URL, "file:///etc/passwd"),
		"keys at the metadata address": document(o.issuer.URL, "https://169.254.169.254/latest/meta-data"),
		"keys at one in IPv6":          document(o.issuer.URL, "https://[fd00:ec2::254]/latest/meta-data"),
		"keys with a password":         document(o.issuer.URL, strings.Replace(own, "http://", "http://user:password@", 1)),
		"keys nowhere":                 document(o.issuer.URL, ""),
		"redirect to metadata":         redirect("http://169.254.169.254/latest/meta-data"),
		"redirect to another host":     redirect(spy.URL + "/stolen"),
		"redirect in a circle":         redirect(o.issuer.URL + issuertest.Discovery),
		"huge": func(w http.ResponseWriter, _ *http.Request) {
			for range 64 << 10 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		},
		"nonsense": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[[[[")) },
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("{"))
		},
	} {
		o.issuer.Serve(issuertest.Discovery, h)
		o.clock.add(6 * time.Second)
		if _, err := o.verify(t, o.good(t, kid)); !errors.Is(err, berth.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("another host was asked for %s", <-asked)
	}
	o.issuer.Serve(issuertest.Discovery, nil)
	o.clock.add(6 * time.Second)
	if _, err := o.verify(t, o.good(t, kid)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// An issuer that hangs costs who brings a token of it the bound of a fetch at
// most, and who is known, or logs in here, nothing.
func TestASlowIssuerHoldsNobodyElseUp(t *testing.T) {
	o := newOutside(t)
	kid := o.issuer.AddKey(t, "ES256")
	if _, err := o.verify(t, o.good(t, kid)); err != nil {
		t.Fatal(err)
	}
	hanging, release := make(chan struct{}), make(chan struct{})
	o.issuer.Serve(issuertest.Keys, func(http.ResponseWriter, *http.Request) {
		close(hanging)
		<-release
	})
	o.clock.add(11 * time.Minute) // due for a refresh, which nobody waits for
	if _, err := o.verify(t, o.good(t, kid)); err != nil {
		t.Errorf("a known key: %v", err)
	}
	<-hanging
	for range 3 {
		if _, err := o.verify(t, o.good(t, kid)); err != nil {
			t.Errorf("a known key while the issuer hangs: %v", err)
		}
	}
	o.login(t)
	close(release)
}

func TestFaultsOfTheIssuersFileAreNamed(t *testing.T) {
	_, err := identity.ParseIssuers([]byte(`{"issuers": [
		{"issuer": "http://id.example.com", "audience": "", "roles_claim": 3, "roles": {"x": "root", "y": "host"}, "algorithms": ["HS256", "none"], "clock_skew_seconds": 3600, "max_life_seconds": 1},
		{"issuer": "https://id.example.com?x=1", "audience": "a", "roles_claim": ["a", ""]},
		{"issuer": "https://id.example.com", "audience": "a", "roles_claim": "groups", "roles": {"a": "viewer"}},
		{"issuer": "https://id.example.com", "audience": "a", "roles_claim": "groups", "roles": {"a": "viewer"}}]}`))
	var invalid *berth.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range invalid.Fields {
		got[f.Path]++
		if f.Remedy == "" {
			t.Errorf("%s has no remedy", f.Path)
		}
	}
	for path, n := range map[string]int{
		"issuers[0].issuer": 1, "issuers[0].audience": 1, "issuers[0].roles_claim": 1, "issuers[0].roles.x": 1, "issuers[0].roles.y": 1,
		"issuers[0].algorithms": 2, "issuers[0].clock_skew_seconds": 1, "issuers[0].max_life_seconds": 1,
		"issuers[1].issuer": 1, "issuers[1].roles_claim": 1, "issuers[1].roles": 1, "issuers[3].issuer": 1,
	} {
		if got[path] != n {
			t.Errorf("%s: %d faults, want %d", path, got[path], n)
		}
	}
	for _, text := range []string{
		"", "null", "{}", `{"issuers": []}`, `{"issuers": [], "x": 1}`, `{"issuer": []}`, `{"issuers": []} {}`, `{"issuers": [{"issuer": "https://a", "issuer": "https://b"}]}`,
	} {
		if _, err := identity.ParseIssuers([]byte(text)); !errors.Is(err, berth.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := identity.LoadIssuers("/does/not/exist"); !errors.Is(err, berth.ErrInvalid) || !strings.Contains(err.Error(), "BERTH_ISSUERS_FILE") {
		t.Errorf("no file: %v", err)
	}
	list, err := identity.ParseIssuers([]byte(`{"issuers": [{"issuer": "https://id.example.com", "audience": "a", "roles_claim": "https://example.com/groups", "roles": {"a": "viewer"}}]}`))
	if err != nil || len(list[0].RolesClaim) != 1 || len(list[0].Algorithms) != 3 || list[0].MaxLife != time.Hour || list[0].NameClaim != "preferred_username" {
		t.Errorf("%+v, %v", list, err)
	}
}

// hmacToken is signed by HMAC with the public key that the issuer publishes.
func hmacToken(t *testing.T, issuer string, claims map[string]any) string {
	t.Helper()
	res, err := http.Get(issuer + issuertest.Keys)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var set struct{ Keys []map[string]string }
	if err := json.NewDecoder(res.Body).Decode(&set); err != nil {
		t.Fatal(err)
	}
	return hs256(t, unb64(t, set.Keys[0]["n"]), map[string]any{"alg": "HS256", "kid": set.Keys[0]["kid"], "typ": "JWT"}, claims)
}
