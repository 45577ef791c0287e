package identity

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// maxTokenLen bounds a token before anything of it is decoded.
const maxTokenLen = 4096

// leeway is how far two clocks may differ.
const leeway = 30 * time.Second

// header is a token's protected header: these members and no others, so that
// nothing (crit, b64, jwk, x5c, cty) can change what is verified.
type header struct {
	kid, typ string
	alg      jwa.SignatureAlgorithm
}

// claims are a token's members under their exact names.
type claims map[string]json.RawMessage

// bad is a token's fault. The reason never holds a part of the token.
func bad(reason string) error { return fmt.Errorf("token: %s: %w", reason, berth.ErrUnauthenticated) }

// split takes a compact token of our own making apart without believing any of
// it. Other serialisations (flattened and general JSON, detached) are refused
// here.
func split(token string) (header, error) {
	return splitFor(token, maxTokenLen, []jwa.SignatureAlgorithm{jwa.EdDSA}, nil)
}

// splitFor is split for a token of at most most bytes under one of the
// algorithms, whose header may have the ignored members, too.
func splitFor(token string, most int, algorithms []jwa.SignatureAlgorithm, ignored []string) (header, error) {
	if token == "" || len(token) > most || strings.Count(token, ".") != 2 {
		return header{}, bad("empty, too long or not in compact form")
	}
	var protected []byte
	for i, part := range strings.Split(token, ".") {
		decoded, err := base64.RawURLEncoding.Strict().DecodeString(part)
		if err != nil || len(decoded) == 0 || strings.ContainsAny(part, "\r\n") {
			return header{}, bad("not in compact form")
		}
		if i == 0 {
			protected = decoded
		}
	}
	members, err := object(protected)
	if err != nil {
		return header{}, bad("header is no object of distinct members")
	}
	var h header
	alg, err := members.text("alg")
	h.alg = jwa.SignatureAlgorithm(alg)
	if err != nil || !slices.Contains(algorithms, h.alg) {
		return header{}, bad("algorithm is not one of those allowed")
	}
	for name := range members {
		switch {
		case name == "alg" || slices.Contains(ignored, name):
		case name == "kid":
			h.kid, err = members.text(name)
		case name == "typ":
			h.typ, err = members.text(name)
		default:
			err = bad("header has a member that is not understood")
		}
		if err != nil {
			return header{}, err
		}
	}
	return h, nil
}

// verify checks the signature of a token that split accepted and returns its
// claims.
func verify(token string, key ed25519.PublicKey) (claims, error) {
	return verifyUnder(token, jwa.EdDSA, key)
}

// verifyUnder is verify for a token that splitFor accepted.
func verifyUnder(token string, alg jwa.SignatureAlgorithm, key any) (claims, error) {
	payload, err := jws.Verify([]byte(token), jws.WithCompact(), jws.WithKey(alg, key))
	if err != nil {
		return nil, bad("signature does not hold") // jwx's text may quote the token
	}
	c, err := object(payload)
	if err != nil {
		return nil, bad("payload is no object of distinct members")
	}
	return c, nil
}

// sign makes a compact token.
func sign(key ed25519.PrivateKey, kid, typ string, content any) (redact.String, error) {
	payload, err := json.Marshal(content)
	if err != nil {
		return redact.String{}, fmt.Errorf("encode claims: %w", err)
	}
	h := jws.NewHeaders()
	for name, value := range map[string]string{jws.KeyIDKey: kid, jws.TypeKey: typ} {
		if value == "" {
			continue
		}
		if err := h.Set(name, value); err != nil {
			return redact.String{}, fmt.Errorf("set token header %s: %w", name, err)
		}
	}
	token, err := jws.Sign(payload, jws.WithKey(jwa.EdDSA, key, jws.WithProtectedHeaders(h)))
	if err != nil {
		return redact.String{}, errors.New("sign token") // the cause may hold key material
	}
	return redact.NewString(string(token)), nil
}

// object decodes one JSON object whose members, on every level, have distinct
// names. encoding/json alone would take the last of two, and take "EXP" for
// "exp".
func object(data []byte) (claims, error) {
	if err := distinct(data); err != nil {
		return nil, err
	}
	var c claims
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, errors.New("null")
	}
	return c, nil
}

func distinct(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	type level struct {
		object, wantValue bool
		seen              map[string]bool
	}
	var stack []*level
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			stack = stack[:len(stack)-1]
			continue
		}
		if n := len(stack); n > 0 && stack[n-1].object {
			top := stack[n-1]
			if !top.wantValue {
				name, _ := tok.(string)
				if top.seen[name] {
					return errors.New("doubled member")
				}
				top.seen[name], top.wantValue = true, true
				continue
			}
			top.wantValue = false
		}
		if d, ok := tok.(json.Delim); ok {
			if len(stack) == 8 {
				return errors.New("too deep")
			}
			stack = append(stack, &level{object: d == '{', seen: map[string]bool{}})
		}
	}
}

// text returns a member that must be a non-empty text.
func (c claims) text(name string) (string, error) {
	var s string
	raw, ok := c[name]
	if !ok || len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil || s == "" || len(s) > 512 {
		return "", bad(name + " is missing or no text")
	}
	return s, nil
}

// texts returns a member that must be a list of texts.
func (c claims) texts(name string) ([]string, error) {
	var s []string
	raw, ok := c[name]
	if !ok || len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &s) != nil || len(s) == 0 || len(s) > 16 {
		return nil, bad(name + " is missing or no list of texts")
	}
	return s, nil
}

// instant returns a member that must be a whole number of seconds since 1970,
// before the year 3000.
func (c claims) instant(name string) (time.Time, error) {
	var n int64
	raw, ok := c[name]
	if !ok || json.Unmarshal(raw, &n) != nil || n <= 0 || n > 32503680000 || string(raw) == "null" {
		return time.Time{}, bad(name + " is missing or no time")
	}
	return time.Unix(n, 0), nil
}

// within judges iat, nbf (when there) and exp against now: issued and valid
// already, not over yet, and not made for longer than life. past is how far the
// end may be passed; a beginning may lie leeway ahead.
func (c claims) within(now time.Time, life, past time.Duration) (exp time.Time, err error) {
	return c.inTime(now, life, leeway, past)
}

// inTime is within, for a clock that may be ahead by more.
func (c claims) inTime(now time.Time, life, ahead, past time.Duration) (exp time.Time, err error) {
	iat, err := c.instant("iat")
	if err != nil {
		return exp, err
	}
	if exp, err = c.instant("exp"); err != nil {
		return exp, err
	}
	nbf := iat
	if _, ok := c["nbf"]; ok {
		if nbf, err = c.instant("nbf"); err != nil {
			return exp, err
		}
	}
	switch {
	case iat.After(now.Add(ahead)), nbf.After(now.Add(ahead)):
		return exp, bad("not valid yet")
	case !now.Before(exp.Add(past)):
		return exp, bad("expired")
	case exp.Sub(iat) > life, exp.After(now.Add(life + ahead)):
		return exp, bad("made for too long a time")
	}
	return exp, nil
}

// payloadOf decodes the payload of a token that split accepted, unverified.
func payloadOf(token string) ([]byte, error) {
	parts := strings.Split(token, ".")
	payload, err := base64.RawURLEncoding.Strict().DecodeString(parts[1])
	if err != nil {
		return nil, bad("not in compact form")
	}
	return payload, nil
}
