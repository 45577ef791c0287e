package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// Tokens are the answer to a login, a refresh or an assertion.
type Tokens struct {
	Access redact.String
	// ExpiresIn is the access token's life.
	ExpiresIn time.Duration
	// Refresh is empty for hosts.
	Refresh redact.String
	// RefreshExpiresIn is the refresh token's life.
	RefreshExpiresIn time.Duration
	// User is zero for hosts.
	User berth.User
}

// Credentials of a login.
type Credentials struct {
	Name     string
	Password redact.String
	// Client is the caller's address; failures are counted by (name, client).
	Client string
	// RequestID goes to the audit row.
	RequestID string
}

// Login checks a password and starts a session. Unknown and disabled users,
// services and wrong passwords are all berth.ErrUnauthenticated after the same
// work; too many failures are a berth.TooManyError.
func (s *Service) Login(ctx context.Context, c Credentials) (Tokens, error) {
	if !berth.ValidName(c.Name) {
		return Tokens{}, berth.ErrUnauthenticated // no user has such a name
	}
	user, hash, err := s.accounts.UserByName(ctx, c.Name)
	if err != nil && !errors.Is(err, berth.ErrNotFound) {
		return Tokens{}, err
	}
	known := err == nil
	from := berth.Actor{RequestID: c.RequestID, Client: c.Client}
	ok, err := s.guess(ctx, guess{name: c.Name, client: c.Client, hash: hash}, c.Password)
	if err != nil {
		return Tokens{}, err
	}
	if !ok || !known || user.Disabled {
		if err := s.refuse(ctx, from, user, c.Name); err != nil {
			return Tokens{}, err
		}
		return Tokens{}, berth.ErrUnauthenticated
	}
	t, err := s.startSession(ctx, from, user, hash)
	if errors.Is(err, berth.ErrNotFound) {
		err = berth.ErrUnauthenticated // the user was disabled, or the password changed, meanwhile
	}
	return t, err
}

// refuse notes a login that failed. The name of nobody is not written down:
// people type passwords into the wrong field.
func (s *Service) refuse(ctx context.Context, from berth.Actor, user berth.User, name string) error {
	if user.ID == "" {
		name = ""
	}
	from.Principal = berth.Principal{Kind: berth.ActorUser, ID: string(user.ID)}
	return s.accounts.RefuseLogin(ctx, from, name)
}

// guess is a password hash that somebody at client tries to match.
type guess struct {
	name, client string
	hash         redact.String
}

// guess reports whether password is the one, and slows those down who try many:
// a *berth.TooManyError.
func (s *Service) guess(ctx context.Context, g guess, password redact.String) (bool, error) {
	key := throttleKey{name: g.name, client: g.client}
	if err := s.throttle.begin(ctx, key); err != nil {
		return false, err
	}
	ok, err := s.passwords.match(ctx, password, g.hash)
	if ok && err == nil {
		err = s.throttle.succeeded(ctx, key)
	}
	return ok && err == nil, err
}

// startSession gives the first tokens to a user whose password was checked
// against hash.
func (s *Service) startSession(ctx context.Context, from berth.Actor, user berth.User, hash redact.String) (Tokens, error) {
	token, sum, err := newRefreshToken()
	if err != nil {
		return Tokens{}, err
	}
	session := uuid.Must(uuid.NewV7()).String()
	err = s.accounts.AddRefreshToken(ctx, store.RefreshToken{
		Hash: sum, Family: session, User: user.ID, TTL: s.cfg.RefreshTTL, PasswordHash: hash, Actor: from,
	})
	if err != nil {
		return Tokens{}, err
	}
	return s.answer(user, session, token)
}

// Refresh replaces a refresh token and gives a fresh access token; from says
// where the call comes from. A token that was used before ends its session, but
// for the immediate predecessor within berth.RefreshGrace. Every fault is
// berth.ErrUnauthenticated.
func (s *Service) Refresh(ctx context.Context, from berth.Actor, token redact.String) (Tokens, error) {
	old, ok := hashOf(token)
	if !ok {
		return Tokens{}, berth.ErrUnauthenticated
	}
	next, hash, err := newRefreshToken()
	if err != nil {
		return Tokens{}, err
	}
	user, session, err := s.accounts.RotateRefreshToken(ctx, store.RotateParams{Actor: from, Old: old, Next: hash, TTL: s.cfg.RefreshTTL})
	switch {
	case errors.Is(err, berth.ErrUsed):
		s.cfg.Logger.Warn("a refresh token was used twice; its session is over")
		return Tokens{}, berth.ErrUnauthenticated
	case errors.Is(err, berth.ErrNotFound), errors.Is(err, berth.ErrExpired):
		return Tokens{}, berth.ErrUnauthenticated
	case err != nil:
		return Tokens{}, err
	}
	return s.answer(user, session, next)
}

// Logout ends the session of a refresh token, with its access tokens; an unknown
// token is no error. from says where the call comes from.
func (s *Service) Logout(ctx context.Context, from berth.Actor, token redact.String) error {
	hash, ok := hashOf(token)
	if !ok {
		return nil
	}
	return s.accounts.RevokeRefreshFamily(ctx, from, hash)
}

func (s *Service) answer(user berth.User, session string, refresh redact.String) (Tokens, error) {
	access, err := s.issueIn(session, AudiencePeople, string(user.ID), user.Roles)
	if err != nil {
		return Tokens{}, err
	}
	return Tokens{
		Access: access, ExpiresIn: s.cfg.AccessTTL, Refresh: refresh, RefreshExpiresIn: s.cfg.RefreshTTL, User: user,
	}, nil
}

// inSession lets a person's token hold only while its session lives and the
// roles in it are the user's: otherwise the client refreshes, and gets a token
// with the roles of now, or none.
func (s *Service) inSession(ctx context.Context, caller Caller, c claims) (Caller, error) {
	session, err := c.text("sid")
	if err != nil || !berth.ValidID(session) {
		return Caller{}, bad("of no session")
	}
	user, err := s.accounts.SessionUser(ctx, session, caller.User())
	switch {
	case errors.Is(err, berth.ErrNotFound):
		return Caller{}, bad("its session is over")
	case err != nil:
		return Caller{}, err
	case !berth.SameRoles(user.Roles, caller.Roles):
		return Caller{}, bad("the user's roles are others now")
	}
	caller.Credential = berth.SessionCredential(session)
	return caller, nil
}

func newRefreshToken() (token redact.String, hash [32]byte, err error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return redact.String{}, hash, fmt.Errorf("make a refresh token: %w", err)
	}
	text := base64.RawURLEncoding.EncodeToString(secret)
	return redact.NewString(text), sha256.Sum256([]byte(text)), nil
}

// hashOf is the hash under which a well-formed refresh token is stored.
func hashOf(token redact.String) ([32]byte, bool) {
	text := token.Reveal()
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != 32 || len(text) != 43 {
		return [32]byte{}, false
	}
	return sha256.Sum256([]byte(text)), true
}
