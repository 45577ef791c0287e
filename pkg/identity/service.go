package identity

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// MaxAccessTTL bounds the life of an access token, whoever made it.
const MaxAccessTTL = 10 * time.Minute

// Audiences of access tokens.
const (
	AudiencePeople = "berth"
	AudienceHosts  = "berth-agent"
)

// typeAccess is the typ header of access tokens (RFC 9068).
const typeAccess = "at+jwt"

// Config of New. Zero values work, but for MasterKey.
type Config struct {
	// MasterKey seals what is secret in the database.
	MasterKey MasterKey
	// OldMasterKeys open what is still sealed under them.
	OldMasterKeys []MasterKey
	// Issuer of access tokens; "": berth. One installation, one issuer.
	Issuer string
	// AccessTTL of access tokens, at most MaxAccessTTL; 0: MaxAccessTTL.
	AccessTTL time.Duration
	// RefreshTTL of refresh tokens; 0: 30 days.
	RefreshTTL time.Duration
	// SigningKeyMaxAge is the age from which a new signing key is made; 0: 90 days.
	// An older key goes on to verify until its last token has ended.
	SigningKeyMaxAge time.Duration
	// TokenAudience is the aud that hosts' assertions must carry; "":
	// berth-agent-token.
	TokenAudience string
	// Issuers whose tokens are taken beside our own.
	Issuers []Issuer
	// Now tells the time; nil: time.Now.
	Now func() time.Time
	// Logger may be nil.
	Logger *zap.Logger
}

func (c *Config) normalise() error {
	var f berth.Faults
	if c.MasterKey.IsZero() {
		f.Add("master_key", "there is no master key", "configure 32 bytes in hex or base64; make them with: openssl rand -hex 32")
	}
	if c.AccessTTL < 0 || c.AccessTTL > MaxAccessTTL {
		f.Add("access_ttl", "out of range", fmt.Sprintf("use at most %v", MaxAccessTTL))
	}
	if c.RefreshTTL < 0 || c.SigningKeyMaxAge < 0 {
		f.Add("refresh_ttl", "negative", "use a positive duration")
	}
	if c.Issuer == "" {
		c.Issuer = "berth"
	}
	if c.AccessTTL == 0 {
		c.AccessTTL = MaxAccessTTL
	}
	if c.RefreshTTL == 0 {
		c.RefreshTTL = 30 * 24 * time.Hour
	}
	if c.SigningKeyMaxAge == 0 {
		c.SigningKeyMaxAge = 90 * 24 * time.Hour
	}
	if c.TokenAudience == "" {
		c.TokenAudience = "berth-agent-token"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return f.Err()
}

// Hosts is what the service asks about hosts.
type Hosts interface {
	// HostKeys and PromoteHostKey as in store.HostKeyring.
	HostKeys(ctx context.Context, id berth.HostID) (store.HostKeys, error)
	PromoteHostKey(ctx context.Context, actor berth.Actor, id berth.HostID, key []byte) error
}

// Service logs people in and knows who calls. Its methods may be called by
// several goroutines. It runs nothing in the background.
type Service struct {
	cfg       Config
	accounts  Accounts
	hosts     Hosts
	vault     vault
	keys      *keyring
	passwords *passwords
	throttle  *throttle
	issuers   issuers
}

// Accounts is what the service asks about people, keys and guesses.
type Accounts interface {
	store.Accounts
	store.Guesses
}

// New makes a service. Call Open before use.
func New(accounts Accounts, hosts Hosts, cfg Config) (*Service, error) {
	if err := cfg.normalise(); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	p, err := newPasswords()
	if err != nil {
		return nil, err
	}
	v := vault{current: cfg.MasterKey, old: cfg.OldMasterKeys}
	return &Service{
		cfg: cfg, accounts: accounts, hosts: hosts, vault: v, passwords: p,
		issuers:  newIssuers(cfg.Issuers, cfg.Now, cfg.Logger),
		throttle: &throttle{guesses: accounts, master: cfg.MasterKey},
		keys:     &keyring{store: accounts, vault: v, maxAge: cfg.SigningKeyMaxAge, now: cfg.Now, log: cfg.Logger},
	}, nil
}

// Open agrees with the other API processes on the key to sign with. Another
// master key than the database's is ErrMasterKey; a database that does not
// answer is berth.ErrUnavailable, and Open may be called again.
func (s *Service) Open(ctx context.Context) error { return s.keys.open(ctx) }

// JWKS is the set of public keys as a JSON document, newest first.
func (s *Service) JWKS() ([]byte, error) { return s.keys.jwks() }

// TokenAudience is the aud that assertions of hosts must carry.
func (s *Service) TokenAudience() string { return s.cfg.TokenAudience }

// BootstrapAdmin makes the first administrator if there is no user of that
// name, and reports whether it did. Idempotent; an existing user keeps its
// password. A bad password is a berth.InvalidError.
func (s *Service) BootstrapAdmin(ctx context.Context, name string, password redact.String) (created bool, err error) {
	if !berth.ValidName(name) {
		return false, berth.Invalid("admin_name", "it is no name", "use lower-case letters, digits, dots, hyphens and underscores")
	}
	hash, err := HashPassword("admin_password", password)
	if err != nil {
		return false, err
	}
	return s.accounts.BootstrapAdmin(ctx, berth.UserID(uuid.Must(uuid.NewV7()).String()), name, hash)
}

// accessClaims are the payload of an access token.
type accessClaims struct {
	Issuer    string       `json:"iss"`
	Audience  string       `json:"aud"`
	Subject   string       `json:"sub"`
	Session   string       `json:"sid,omitempty"` // of people
	Roles     []berth.Role `json:"roles"`
	IssuedAt  int64        `json:"iat"`
	NotBefore int64        `json:"nbf"`
	Expires   int64        `json:"exp"`
	ID        string       `json:"jti"`
}

// issue makes a token without a session: a host's.
func (s *Service) issue(audience, subject string, roles []berth.Role) (redact.String, error) {
	return s.issueIn("", audience, subject, roles)
}

func (s *Service) issueIn(session, audience, subject string, roles []berth.Role) (redact.String, error) {
	kid, key := s.keys.signing()
	if key == nil {
		return redact.String{}, fmt.Errorf("there is no signing key yet: %w", berth.ErrUnavailable)
	}
	now := s.cfg.Now()
	return sign(key, kid, typeAccess, accessClaims{
		Issuer: s.cfg.Issuer, Audience: audience, Subject: subject, Session: session, Roles: roles,
		IssuedAt: now.Unix(), NotBefore: now.Unix(), Expires: now.Add(s.cfg.AccessTTL).Unix(), ID: uuid.NewString(),
	})
}

// Verify reads an access token or an API key. Every fault is
// berth.ErrUnauthenticated; a database that could not be asked is
// berth.ErrUnavailable.
//
// What it costs: a person's token or key is one indexed read of the database a
// request (of a key, once a minute, also a write), so that a logout, a new
// password, a disabled user, other roles and a revoked key count at once and in
// all processes. A host's token costs none: each operation of a host checks its
// epoch and that it is not revoked.
func (s *Service) Verify(ctx context.Context, token redact.String) (Caller, error) {
	if looksLikeAPIKey(token) {
		return s.verifyAPIKey(ctx, token)
	}
	if i := s.issuers.of(token.Reveal()); i != nil {
		return s.verifyExternal(ctx, i, token.Reveal())
	}
	h, err := split(token.Reveal())
	if err != nil {
		return Caller{}, err
	}
	if h.typ != typeAccess || h.kid == "" {
		return Caller{}, bad("not an access token")
	}
	key, err := s.keys.find(ctx, h.kid)
	if err != nil {
		return Caller{}, err
	}
	c, err := verify(token.Reveal(), key)
	if err != nil {
		return Caller{}, err
	}
	if _, err := c.within(s.cfg.Now(), MaxAccessTTL, 0); err != nil {
		return Caller{}, err
	}
	caller, err := s.caller(c)
	if err != nil || caller.Kind == berth.ActorHost {
		return caller, err
	}
	return s.inSession(ctx, caller, c)
}

func (s *Service) caller(c claims) (Caller, error) {
	iss, err := c.text("iss")
	if err != nil || iss != s.cfg.Issuer {
		return Caller{}, bad("another issuer's")
	}
	sub, err := c.text("sub")
	if err != nil || !berth.ValidID(sub) {
		return Caller{}, bad("sub is no id")
	}
	aud, err := c.text("aud")
	if err != nil {
		return Caller{}, err
	}
	texts, err := c.texts("roles")
	if err != nil {
		return Caller{}, err
	}
	caller := Caller{Principal: berth.Principal{Kind: berth.ActorUser, ID: sub}}
	if aud == AudienceHosts {
		caller.Kind, caller.Credential = berth.ActorHost, CredentialHostKey
	} else if aud != AudiencePeople {
		return Caller{}, bad("for another audience")
	}
	for _, text := range texts {
		role := berth.Role(text)
		// A host's token holds the host's role alone, a person's never does.
		if (role == berth.RoleHost) != (aud == AudienceHosts) || (role != berth.RoleHost && !role.Includes(berth.RoleViewer)) {
			return Caller{}, bad("roles do not belong to the audience")
		}
		caller.Roles = append(caller.Roles, role)
	}
	return caller, nil
}
