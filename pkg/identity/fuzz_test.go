package identity_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
)

// FuzzVerify: whatever is brought as a token, raw or as a header and a payload
// under a real key's signature, is refused as no credential, unless its claims
// are a host's own. It never panics, and no fault is another kind of error.
func FuzzVerify(f *testing.F) {
	w := newWorld(f)
	now := w.clock.Now().Unix()
	kid, private := w.addKey(f)
	header := `{"alg":"EdDSA","kid":"` + kid + `","typ":"at+jwt"}`
	payload := asJSON(f, map[string]any{
		"iss": "berth", "aud": "berth-agent", "sub": uuid.NewString(), "roles": []string{"host"}, "iat": now, "exp": now + 600, "jti": "x",
	}, nil)
	identity.ForgetKeys(w.Service)
	f.Add(header, payload, false)
	f.Add(header, strings.Replace(payload, "host\"", "admin\"", 1), false)
	f.Add(strings.Replace(header, "EdDSA", "none", 1), payload, false)
	f.Add(strings.Replace(header, "{", `{"crit":["b64"],"b64":false,`, 1), payload, false)
	f.Add(header, strings.Replace(payload, `"exp"`, `"\u0065xp":1,"exp"`, 1), false)
	f.Add(craft(private, header, payload), "", true)
	f.Add(strings.Repeat(".", 5000), "", true)
	f.Add(`{"protected":"e30","payload":"e30","signature":"AA"}`, "", true)
	f.Fuzz(func(t *testing.T, header, payload string, raw bool) {
		token := header
		if !raw {
			token = craft(private, header, payload)
		}
		caller, err := w.Verify(t.Context(), redact.NewString(token))
		switch {
		case err == nil && (caller.Kind != berth.ActorHost || len(caller.Roles) != 1 || !caller.Can(berth.RoleHost) || !berth.ValidID(caller.ID)):
			t.Errorf("let in as %+v", caller)
		case err != nil && !errors.Is(err, berth.ErrUnauthenticated):
			t.Errorf("another kind of error: %v", err)
		case err != nil && len(payload) > 20 && strings.Contains(err.Error(), payload):
			t.Error("the error holds the payload")
		}
	})
}

// FuzzParseIssuers: whatever the file holds, it is read or its faults are said.
func FuzzParseIssuers(f *testing.F) {
	f.Add(`{"issuers": [{"issuer": "https://id.example.com", "audience": "a", "roles_claim": ["a", "b"], "roles": {"a": "viewer"}}]}`)
	f.Add(`{"issuers": [{"issuer": "http://[::1]:1", "roles_claim": [], "clock_skew_seconds": -1e400}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := identity.ParseIssuers([]byte(text))
		if err != nil && !errors.Is(err, berth.ErrInvalid) {
			t.Errorf("another kind of error: %v", err)
		}
		for _, i := range list {
			if len(i.RolesClaim) == 0 || len(i.Algorithms) == 0 || i.MaxLife <= 0 || i.Audience == "" {
				t.Errorf("taken: %+v", i)
			}
		}
	})
}
