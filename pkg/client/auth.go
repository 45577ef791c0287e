package client

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"
)

// TokenSource gives access tokens. Its methods may be called by several
// goroutines.
type TokenSource interface {
	// Token returns the token to send.
	Token(ctx context.Context) (string, error)
	// Renew returns a token other than rejected, which the server did not take;
	// a source that has no other returns rejected.
	Renew(ctx context.Context, rejected string) (string, error)
}

// StaticToken is a TokenSource of one token that is never renewed, such as an API
// key.
type StaticToken string

// Token returns the token.
func (t StaticToken) Token(context.Context) (string, error) { return string(t), nil }

// Renew returns the token.
func (t StaticToken) Renew(context.Context, string) (string, error) { return string(t), nil }

// renewBefore is how long before its end an access token is renewed.
const renewBefore = 30 * time.Second

// Grant is what a login gave: the access token, when it ends, and the refresh
// token that gives the next one. A refresh token is used once.
type Grant struct {
	AccessToken  string
	ExpiresAt    time.Time // by the clock of this machine
	RefreshToken string
}

// GrantOf is the grant of an answer that came now.
func GrantOf(t Tokens, now time.Time) Grant {
	return Grant{
		AccessToken:  t.AccessToken,
		ExpiresAt:    now.Add(time.Duration(t.ExpiresInSeconds * float64(time.Second))),
		RefreshToken: t.RefreshToken,
	}
}

// Session is a TokenSource that renews its grant and hands each new one to
// save, before it is used. An access token that the server does not take any
// more, because the user has other roles by now, is renewed, too.
type Session struct {
	mu    sync.Mutex
	grant Grant
	plain *Client // without a token
	save  func(Grant) error
}

// NewSession makes a session on the server at url; save may be nil.
func NewSession(url string, grant Grant, save func(Grant) error) (*Session, error) {
	plain, err := New(url, nil)
	if err != nil {
		return nil, err
	}
	return &Session{grant: grant, plain: plain, save: save}, nil
}

// Token returns the access token, a fresh one when its end is near.
func (s *Session) Token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Until(s.grant.ExpiresAt) > renewBefore {
		return s.grant.AccessToken, nil
	}
	return s.renew(ctx)
}

// Renew asks for a fresh token, unless that has happened since rejected was
// given out.
func (s *Session) Renew(ctx context.Context, rejected string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grant.AccessToken != rejected {
		return s.grant.AccessToken, nil
	}
	return s.renew(ctx)
}

func (s *Session) renew(ctx context.Context) (string, error) {
	tokens, err := s.plain.Refresh(ctx, s.grant.RefreshToken)
	if err != nil {
		return "", err
	}
	s.grant = GrantOf(tokens, time.Now())
	if s.save != nil {
		if err := s.save(s.grant); err != nil {
			return "", err
		}
	}
	return s.grant.AccessToken, nil
}

func newReader(b []byte) io.Reader { return bytes.NewReader(b) }
