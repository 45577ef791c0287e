package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
)

// Login answers POST /auth/login.
func (s *Server) Login(ctx context.Context, in LoginRequestObject) (LoginResponseObject, error) {
	r := requestOf(ctx)
	tokens, err := s.cfg.Identity.Login(ctx, identity.Credentials{
		Name: in.Body.Name, Password: redact.NewString(in.Body.Password), Client: r.client, RequestID: r.id,
	})
	if err != nil {
		return nil, refused(err, "The name or the password is wrong.", "Check both and try again.")
	}
	return Login200JSONResponse(tokensOf(tokens)), nil
}

// Refresh answers POST /auth/refresh.
func (s *Server) Refresh(ctx context.Context, in RefreshRequestObject) (RefreshResponseObject, error) {
	tokens, err := s.cfg.Identity.Refresh(ctx, actorOf(ctx), redact.NewString(in.Body.RefreshToken))
	if err != nil {
		return nil, refused(err, "The refresh token is not valid any more.", "Log in again.")
	}
	return Refresh200JSONResponse(tokensOf(tokens)), nil
}

// Logout answers POST /auth/logout.
func (s *Server) Logout(ctx context.Context, in LogoutRequestObject) (LogoutResponseObject, error) {
	if err := s.cfg.Identity.Logout(ctx, actorOf(ctx), redact.NewString(in.Body.RefreshToken)); err != nil {
		return nil, err
	}
	return Logout204Response{}, nil
}

// GetJWKS answers GET /auth/jwks.
func (s *Server) GetJWKS(context.Context, GetJWKSRequestObject) (GetJWKSResponseObject, error) {
	set, err := s.cfg.Identity.JWKS()
	if err != nil {
		return nil, err
	}
	var out GetJWKS200JSONResponse
	return out, json.Unmarshal(set, &out)
}

// ChangePassword answers POST /auth/password.
func (s *Server) ChangePassword(ctx context.Context, in ChangePasswordRequestObject) (ChangePasswordResponseObject, error) {
	err := s.cfg.Identity.ChangePassword(ctx, requestOf(ctx).caller, actorOf(ctx),
		redact.NewString(in.Body.CurrentPassword), redact.NewString(in.Body.NewPassword))
	if err != nil {
		return nil, err
	}
	return ChangePassword204Response{}, nil
}

// GetMe answers GET /auth/me: the user, with what this caller may do, which is
// for an API key less than its user, and for a user of an issuer what the token
// says.
func (s *Server) GetMe(ctx context.Context, _ GetMeRequestObject) (GetMeResponseObject, error) {
	c := requestOf(ctx).caller
	user, err := s.cfg.Store.UserByID(ctx, c.User())
	if errors.Is(err, berth.ErrNotFound) {
		return nil, berth.ErrUnauthenticated
	}
	if err != nil {
		return nil, err
	}
	user.Roles = c.Roles
	me := meOf(user)
	switch {
	case c.Credential.APIKey() != "":
		me.Via = MeViaAPIKey
	case c.Credential.Session() == "":
		me.Via = MeViaIssuer
	}
	return GetMe200JSONResponse(me), nil
}

// refused says which credential was wrong, where that tells nobody more than
// the caller knew.
func refused(err error, detail, remedy string) error {
	if !errors.Is(err, berth.ErrUnauthenticated) {
		return err
	}
	return &problem.Error{
		Status: http.StatusUnauthorized, Code: protocol.CodeUnauthorised, Title: "Not authenticated",
		Detail: detail, Remedy: remedy, Err: err,
	}
}

func tokensOf(t identity.Tokens) Tokens {
	return Tokens{
		AccessToken: t.Access.Reveal(), TokenType: Bearer, ExpiresInSeconds: t.ExpiresIn.Seconds(),
		RefreshToken: t.Refresh.Reveal(), RefreshExpiresInSeconds: t.RefreshExpiresIn.Seconds(), User: meOf(t.User),
	}
}

func meOf(u berth.User) Me {
	return Me{ID: string(u.ID), Name: u.Name, Roles: rolesOut(u.Roles), Via: MeViaPassword}
}
