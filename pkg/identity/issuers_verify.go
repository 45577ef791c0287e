package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

const (
	// maxExternalLen bounds an external token: it may list many groups.
	maxExternalLen = 16 << 10
	// maxExternalRoles bounds what its roles claim lists.
	maxExternalRoles = 1000
)

// issuers are the external issuers, by URL.
type issuers map[string]*issuer

type issuer struct {
	Issuer
	keys *issuerKeys
}

func newIssuers(list []Issuer, now func() time.Time, log *zap.Logger) issuers {
	out := issuers{}
	for _, i := range list {
		out[i.URL] = &issuer{i, newIssuerKeys(i, now, log)}
	}
	return out
}

// of is the external issuer that a token says it is from, nil when it is none of
// them. Nothing of the token is believed yet.
func (all issuers) of(token string) *issuer {
	if len(all) == 0 || len(token) > maxExternalLen || strings.Count(token, ".") != 2 {
		return nil
	}
	payload, err := base64.RawURLEncoding.Strict().DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		return nil
	}
	c, err := object(payload)
	if err != nil {
		return nil
	}
	iss, err := c.text("iss")
	if err != nil {
		return nil
	}
	return all[iss]
}

// verifyExternal reads an external issuer's token. Every fault is
// berth.ErrUnauthenticated; keys that cannot be had are berth.ErrUnavailable. A
// token that holds, of somebody whom no role is mapped to, is berth.ErrForbidden:
// another login would not help, and the remedy is a role.
func (s *Service) verifyExternal(ctx context.Context, i *issuer, token string) (Caller, error) {
	c, err := i.verify(ctx, token)
	if err != nil {
		return Caller{}, err
	}
	subject, err := i.judge(c, s.cfg.Now())
	if err != nil {
		return Caller{}, err
	}
	roles := i.roles(c)
	if len(roles) == 0 {
		return Caller{}, fmt.Errorf("the issuer's token maps to no role: %w", berth.ErrForbidden)
	}
	caller := Caller{Roles: roles, Credential: berth.Credential("issuer:" + i.URL)}
	user, err := s.accounts.ProvisionUser(ctx, store.ProvisionParams{
		ID: berth.UserID(uuid.Must(uuid.NewV7()).String()), Issuer: i.URL, Subject: subject, Names: i.names(c, subject), Roles: roles,
		Actor: berth.Actor{Principal: berth.System().Principal, Credential: caller.Credential},
	})
	switch {
	case err != nil:
		return Caller{}, err
	case user.Disabled:
		return Caller{}, bad("of a disabled user")
	}
	caller.Principal = berth.Principal{Kind: berth.ActorUser, ID: string(user.ID)}
	return caller, nil
}

// verify checks header and signature.
func (i *issuer) verify(ctx context.Context, token string) (claims, error) {
	h, err := splitFor(token, maxExternalLen, i.Algorithms, ignoredHeaders())
	if err != nil {
		return nil, err
	}
	if h.kid == "" || h.typ != "" && !strings.EqualFold(h.typ, "JWT") && !strings.EqualFold(h.typ, typeAccess) {
		return nil, bad("has no kid, or another type")
	}
	key, err := i.keys.find(ctx, h.kid, h.alg)
	if err != nil {
		return nil, err
	}
	return verifyUnder(token, h.alg, key)
}

// ignoredHeaders are members that issuers set and that change nothing: hints at
// certificates that are never looked at.
func ignoredHeaders() []string { return []string{"x5t", "x5t#S256"} }

// judge checks the claims that every token has, and returns the subject.
func (i *issuer) judge(c claims, now time.Time) (subject string, err error) {
	if iss, err := c.text("iss"); err != nil || iss != i.URL {
		return "", bad("another issuer's")
	}
	if !slices.Contains(c.strings("aud"), i.Audience) {
		return "", bad("for another audience")
	}
	if _, err := c.inTime(now, i.MaxLife, i.Skew, i.Skew); err != nil {
		return "", err
	}
	subject, err = c.text("sub")
	if err != nil || len(subject) > 255 {
		return "", bad("sub is missing or too long")
	}
	return subject, nil
}

// roles are what the claim maps to, without repeats.
func (i *issuer) roles(c claims) (roles []berth.Role) {
	at := c
	for _, name := range i.RolesClaim[:len(i.RolesClaim)-1] {
		next := claims{}
		if json.Unmarshal(at[name], &next) != nil {
			return nil
		}
		at = next
	}
	for _, value := range at.strings(i.RolesClaim[len(i.RolesClaim)-1]) {
		if role, ok := i.Roles[value]; ok && !slices.Contains(roles, role) {
			roles = append(roles, role)
		}
	}
	return roles
}

// strings is a member that is a text or a list of texts; nil for all others.
func (c claims) strings(name string) []string {
	raw := c[name]
	if len(raw) == 0 {
		return nil
	}
	var one string
	if raw[0] == '"' && json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var many []string
	if raw[0] != '[' || json.Unmarshal(raw, &many) != nil || len(many) > maxExternalRoles {
		return nil
	}
	return many
}

// names are what a user of the issuer may be called here, the best first; the
// last is its own. Each tells that the user is the issuer's: who is called admin
// there is no admin here, and stands in the way of none.
func (i *issuer) names(c claims, subject string) []string {
	sum := sha256.Sum256([]byte(i.URL + "\n" + subject))
	own := hex.EncodeToString(sum[:])
	host := "issuer"
	if u, err := url.Parse(i.URL); err == nil && u.Hostname() != "" {
		host = u.Hostname()
	}
	var out []string
	if name, err := c.text(i.NameClaim); err == nil {
		for _, candidate := range []string{name + "." + host, name + "." + own[:8]} {
			if n := nameFrom(candidate); berth.ValidName(n) {
				out = append(out, n)
			}
		}
	}
	return append(out, "user-"+own[:32])
}

// nameFrom makes a name of what an issuer calls somebody.
func nameFrom(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			b.WriteRune(r)
		default:
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-._")
}
