package httpapi

import (
	"context"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListUsers answers GET /users.
func (s *Server) ListUsers(ctx context.Context, in ListUsersRequestObject) (ListUsersResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidName)
	if err != nil {
		return nil, err
	}
	users, next, err := s.cfg.Store.ListUsers(ctx, in.Params.Name, page)
	if err != nil {
		return nil, err
	}
	out := ListUsers200JSONResponse{Users: make([]User, 0, len(users)), NextPageToken: pageToken(ctx, next)}
	for _, u := range users {
		out.Users = append(out.Users, userOf(u))
	}
	return out, nil
}

// CreateUser answers POST /users.
func (s *Server) CreateUser(ctx context.Context, in CreateUserRequestObject) (CreateUserResponseObject, error) {
	// The digest is kept, and guesses at a password would be quick to try on it.
	body := *in.Body
	body.Password = ""
	once, err := onceOf(in.Params.IdempotencyKey, "createUser", body)
	if err != nil {
		return nil, err
	}
	u, err := s.cfg.Identity.AddUser(ctx, actorOf(ctx), berth.User{
		ID: berth.UserID(newID()), Name: in.Body.Name, Roles: rolesIn(in.Body.Roles),
	}, redact.NewString(in.Body.Password), once)
	if err != nil {
		return nil, err
	}
	return CreateUser201JSONResponse(userOf(u)), nil
}

// GetUser answers GET /users/{id}.
func (s *Server) GetUser(ctx context.Context, in GetUserRequestObject) (GetUserResponseObject, error) {
	u, err := s.cfg.Store.UserByID(ctx, berth.UserID(in.ID))
	if err != nil {
		return nil, err
	}
	return GetUser200JSONResponse{Body: userOf(u), Headers: GetUser200ResponseHeaders{ETag: etag(u)}}, nil
}

// ChangeUser answers PATCH /users/{id}.
func (s *Server) ChangeUser(ctx context.Context, in ChangeUserRequestObject) (ChangeUserResponseObject, error) {
	version, err := versionOf(in.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	p := store.ChangeUserParams{Actor: actorOf(ctx), User: berth.UserID(in.ID), Disabled: in.Body.Disabled, Version: version}
	if in.Body.Roles != nil {
		p.Roles = rolesIn(in.Body.Roles)
	}
	u, err := s.cfg.Store.ChangeUser(ctx, p)
	if err != nil {
		return nil, err
	}
	return ChangeUser200JSONResponse{Body: userOf(u), Headers: ChangeUser200ResponseHeaders{ETag: etag(u)}}, nil
}

// SetUserPassword answers PUT /users/{id}/password.
func (s *Server) SetUserPassword(ctx context.Context, in SetUserPasswordRequestObject) (SetUserPasswordResponseObject, error) {
	err := s.cfg.Identity.ResetPassword(ctx, actorOf(ctx), berth.UserID(in.ID), redact.NewString(in.Body.Password))
	if err != nil {
		return nil, err
	}
	return SetUserPassword204Response{}, nil
}

// etag is a user's version as an entity tag.
func etag(u berth.User) string { return `"` + strconv.Itoa(u.Version) + `"` }

// versionOf is the version that If-Match names, 0 for any.
func versionOf(ifMatch string) (int, error) {
	if ifMatch == "" || ifMatch == "*" {
		return 0, nil
	}
	inner, ok := strings.CutPrefix(ifMatch, `"`)
	inner, closed := strings.CutSuffix(inner, `"`)
	n, err := strconv.ParseUint(inner, 10, 31)
	if !ok || !closed || err != nil || n == 0 {
		return 0, berth.Invalid("If-Match", "is no ETag", "send the ETag of the GET as it came, or leave it out")
	}
	return int(n), nil
}

func userOf(u berth.User) User {
	return User{
		ID: string(u.ID), Name: u.Name, Roles: rolesOut(u.Roles), Disabled: u.Disabled, HasPassword: u.HasPassword,
		Issuer: u.Issuer, CreatedAt: u.CreatedAt.UTC(),
	}
}

func rolesOut(roles []berth.Role) []Role {
	out := make([]Role, 0, len(roles))
	for _, r := range roles {
		out = append(out, Role(r))
	}
	return out
}

func rolesIn(roles []Role) []berth.Role {
	out := make([]berth.Role, 0, len(roles))
	for _, r := range roles {
		out = append(out, berth.Role(r))
	}
	return out
}
