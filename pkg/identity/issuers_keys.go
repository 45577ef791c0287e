package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"go.uber.org/zap"
	"golang.org/x/sync/singleflight"

	"github.com/berth-dev/berth/pkg/berth"
)

const (
	// issuerRetry is the least time between two fetches of an issuer's keys, after
	// a failure and for key ids that are not known.
	issuerRetry = 5 * time.Second
	// issuerRefresh is the age from which keys are fetched again, beside their use:
	// so a key that the issuer took back is known to be.
	issuerRefresh = 10 * time.Minute
	// issuerStale is the age from which keys are not believed any more.
	issuerStale = 24 * time.Hour
	// issuerWithin bounds a fetch, issuerBody each document, issuerKeys the keys.
	issuerWithin    = 5 * time.Second
	issuerBody      = 512 << 10
	issuerMaxKeys   = 100
	issuerRedirects = 3
	leastRSABits    = 2048
)

// issuerKeys are the keys of one issuer, fetched when they are needed.
type issuerKeys struct {
	issuer Issuer
	http   *http.Client
	now    func() time.Time
	log    *zap.Logger
	flight singleflight.Group

	mu      sync.Mutex
	keys    map[string][]any // public keys by kid
	fetched time.Time        // the last fetch that succeeded
	tried   time.Time        // the last one, which may go on
	busy    bool             // one goes on
	failing bool
}

func newIssuerKeys(i Issuer, now func() time.Time, log *zap.Logger) *issuerKeys {
	k := &issuerKeys{issuer: i, now: now, log: log.With(zap.String("issuer", i.URL))}
	u, _ := url.Parse(i.URL)
	k.http = issuerClient(u != nil && loopback(u))
	return k
}

// find returns the issuer's key of that id that fits the algorithm. The error is
// ErrUnauthenticated, or ErrUnavailable when the keys could not be had. Callers
// whose key is known never wait for the issuer.
func (k *issuerKeys) find(ctx context.Context, kid string, alg jwa.SignatureAlgorithm) (any, error) {
	key, age, due := k.known(kid, alg)
	if key != nil && age < issuerStale {
		if age >= issuerRefresh && due {
			k.flight.DoChan("fetch", k.fetch) // nobody waits
		}
		return key, nil
	}
	if due {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-k.flight.DoChan("fetch", k.fetch):
		}
		key, age, _ = k.known(kid, alg)
	}
	switch {
	case age >= issuerStale:
		return nil, fmt.Errorf("the issuer's keys cannot be had: %w", berth.ErrUnavailable)
	case key == nil:
		return nil, bad("unknown key")
	}
	return key, nil
}

// known is a key that is there, the age of all of them, and whether a fetch is
// allowed.
func (k *issuerKeys) known(kid string, alg jwa.SignatureAlgorithm) (key any, age time.Duration, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	due = k.busy || k.tried.IsZero() || now.Sub(k.tried) >= issuerRetry
	if k.fetched.IsZero() {
		return nil, issuerStale, due
	}
	for _, candidate := range k.keys[kid] {
		if fits(candidate, alg) {
			key = candidate
		}
	}
	return key, now.Sub(k.fetched), due
}

// fetch reads the keys anew. What fails, and a set without any key that could
// verify, leaves the ones that were there.
func (k *issuerKeys) fetch() (any, error) {
	began := k.now()
	k.mu.Lock()
	// The flight that this caller wanted to join may have landed just now.
	if !k.tried.IsZero() && began.Sub(k.tried) < issuerRetry {
		k.mu.Unlock()
		return nil, nil
	}
	k.tried, k.busy = began, true
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), issuerWithin)
	defer cancel()
	keys, err := k.read(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.busy = false
	if err != nil {
		if !k.failing {
			k.log.Warn("an issuer's keys cannot be had; local logins are not touched", zap.Error(err))
		}
		k.failing = true
		return nil, err
	}
	if k.failing {
		k.log.Info("an issuer's keys can be had again")
	}
	k.keys, k.fetched, k.failing = keys, began, false
	return nil, nil
}

func (k *issuerKeys) read(ctx context.Context) (map[string][]any, error) {
	var discovery struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if err := k.get(ctx, strings.TrimSuffix(k.issuer.URL, "/")+"/.well-known/openid-configuration", &discovery); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	if discovery.Issuer != k.issuer.URL {
		return nil, errors.New("discovery: the document is another issuer's")
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := k.get(ctx, discovery.JWKS, &set); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if len(set.Keys) > issuerMaxKeys {
		return nil, fmt.Errorf("keys: there are more than %d", issuerMaxKeys)
	}
	keys := map[string][]any{}
	for _, raw := range set.Keys {
		if kid, key, ok := publicKey(raw); ok {
			keys[kid] = append(keys[kid], key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("keys: there is none that could verify a token")
	}
	return keys, nil
}

// get reads a JSON document. Its errors hold no part of a body.
func (k *issuerKeys) get(ctx context.Context, from string, into any) error {
	u, err := url.Parse(from)
	if err != nil || u.Host == "" || u.User != nil {
		return errors.New("the address is no URL")
	}
	if err := secure(u); err != nil {
		return fmt.Errorf("the address %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return errors.New("the address is no URL")
	}
	req.Header.Set("Accept", "application/json")
	res, err := k.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the address
		}
		return fmt.Errorf("no answer: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answered with status %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, issuerBody+1))
	switch {
	case err != nil:
		return errors.New("the answer broke off")
	case len(body) > issuerBody:
		return fmt.Errorf("the answer has more than %d bytes", issuerBody)
	case json.Unmarshal(body, into) != nil:
		return errors.New("the answer is not the JSON that it should be")
	}
	return nil
}

// publicKey reads a JWK that may verify signatures; ok is false for all others,
// which an issuer may well have beside.
func publicKey(raw json.RawMessage) (kid string, key any, ok bool) {
	parsed, err := jwk.ParseKey(raw)
	if err != nil || parsed.KeyID() == "" || len(parsed.KeyID()) > 512 || parsed.KeyUsage() != "" && parsed.KeyUsage() != "sig" {
		return "", nil, false
	}
	if err := parsed.Raw(&key); err != nil {
		return "", nil, false
	}
	var alg jwa.SignatureAlgorithm
	switch key.(type) { // private and symmetric ones are none of these
	case *rsa.PublicKey:
		alg = jwa.RS256
	case *ecdsa.PublicKey:
		alg = jwa.ES256
	case ed25519.PublicKey:
		alg = jwa.EdDSA
	default:
		return "", nil, false
	}
	if named := parsed.Algorithm().String(); named != "" && named != alg.String() || !fits(key, alg) {
		return "", nil, false
	}
	return parsed.KeyID(), key, true
}

// fits reports whether a key is one for the algorithm, and strong enough.
func fits(key any, alg jwa.SignatureAlgorithm) bool {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return alg == jwa.RS256 && k.N.BitLen() >= leastRSABits && k.E >= 3
	case *ecdsa.PublicKey:
		return alg == jwa.ES256 && k.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return alg == jwa.EdDSA && SoundHostKey(k)
	}
	return false
}

// issuerClient goes nowhere but where an issuer could be: no proxy, no redirect
// to another host, and never to link-local addresses, where clouds keep their
// metadata; to loopback only for an issuer on loopback.
func issuerClient(local bool) *http.Client {
	dialer := &net.Dialer{Timeout: issuerWithin, Control: func(_, address string, _ syscall.RawConn) error {
		return allowedAddress(address, local)
	}}
	return &http.Client{
		Timeout: issuerWithin,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: issuerWithin,
			ResponseHeaderTimeout: issuerWithin, MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			first := via[0].URL
			if len(via) > issuerRedirects || req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
				return errors.New("it redirects to another host")
			}
			return nil
		},
	}
}

// metadataAddresses are where clouds keep what is secret, outside of the
// link-local networks.
func metadataAddresses() []netip.Addr {
	return []netip.Addr{
		netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
		netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
	}
}

func allowedAddress(address string, local bool) error {
	host, err := netip.ParseAddrPort(address)
	if err != nil {
		return errors.New("no address")
	}
	a := host.Addr().Unmap()
	if a.IsLoopback() && local {
		return nil
	}
	for _, m := range metadataAddresses() {
		if a == m {
			return errors.New("no issuer is at a metadata address")
		}
	}
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() {
		return errors.New("no issuer is at such an address")
	}
	return nil
}
