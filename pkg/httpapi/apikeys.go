package httpapi

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/store"
)

// allUsers asks for everybody's keys.
const allUsers = "all"

// ListAPIKeys answers GET /api-keys.
func (s *Server) ListAPIKeys(ctx context.Context, in ListAPIKeysRequestObject) (ListAPIKeysResponseObject, error) {
	whose, err := keysOf(ctx, in.Params.User)
	if err != nil {
		return nil, err
	}
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	keys, next, err := s.cfg.Store.ListAPIKeys(ctx, whose, page)
	if err != nil {
		return nil, err
	}
	out := ListAPIKeys200JSONResponse{APIKeys: make([]APIKey, 0, len(keys)), NextPageToken: pageToken(ctx, next)}
	for _, k := range keys {
		out.APIKeys = append(out.APIKeys, apiKeyOf(k))
	}
	return out, nil
}

// keysOf is whose keys a call is about: the caller's own, or as an administrator
// asks, "" for all.
func keysOf(ctx context.Context, user string) (berth.UserID, error) {
	c := requestOf(ctx).caller
	switch {
	case user == "" || user == c.ID:
		return c.User(), nil
	case !c.Can(berth.RoleAdmin):
		return "", &berth.RoleError{Needs: berth.RoleAdmin}
	case user == allUsers:
		return "", nil
	}
	return berth.UserID(user), nil
}

// CreateAPIKey answers POST /api-keys. The answer alone holds the key.
func (s *Server) CreateAPIKey(ctx context.Context, in CreateAPIKeyRequestObject) (CreateAPIKeyResponseObject, error) {
	whose, err := keysOf(ctx, in.Body.User)
	if err != nil {
		return nil, err
	}
	if err := s.mayAsk(ctx, whose, rolesIn(in.Body.Roles)); err != nil {
		return nil, err
	}
	once, err := onceOf(in.Params.IdempotencyKey, "createAPIKey", in.Body)
	if err != nil {
		return nil, err
	}
	made, err := s.madeAPIKey(ctx, once)
	if err != nil {
		return nil, err
	}
	p := store.CreateAPIKeyParams{Actor: actorOf(ctx), Hash: made.Hash, TTL: identity.DefaultAPIKeyTTL, Once: once, Key: berth.APIKey{
		ID: berth.APIKeyID(newID()), User: whose, Name: in.Body.Name, Prefix: made.Prefix, Roles: rolesIn(in.Body.Roles),
	}}
	if in.Body.TTLSeconds != 0 {
		p.TTL = seconds(in.Body.TTLSeconds)
	}
	k, err := s.cfg.Store.CreateAPIKey(ctx, p)
	if err != nil {
		return nil, err
	}
	out := apiKeyOf(k)
	out.Key = made.Key.Reveal()
	return CreateAPIKey201JSONResponse(out), nil
}

// mayAsk refuses roles that the key's user has not: they would begin to count on
// the day that the user gets them.
func (s *Server) mayAsk(ctx context.Context, whose berth.UserID, roles []berth.Role) error {
	u, err := s.cfg.Store.UserByID(ctx, whose)
	if errors.Is(err, berth.ErrNotFound) {
		return berth.Invalid("user", "there is no such user", "list users to see them")
	}
	if err != nil {
		return err
	}
	if u.Disabled {
		return berth.Invalid("user", "is disabled", "enable the user first")
	}
	if err := u.MayHaveAPIKeys(); err != nil {
		return err
	}
	if len(berth.Within(roles, u.Roles)) < len(roles) {
		return berth.Invalid("roles", "the key's user has not all of them", "ask for roles that the user has, or that those include; a submitter cannot hand on viewer, which sees everybody's tasks")
	}
	return nil
}

// madeAPIKey makes a key, the same one for the same caller and idempotency key:
// so a repeat can be answered with what is stored nowhere.
func (s *Server) madeAPIKey(ctx context.Context, once store.Once) (identity.MadeAPIKey, error) {
	if once.Key == "" {
		return identity.NewAPIKey()
	}
	return s.cfg.Identity.APIKeyFor(requestOf(ctx).caller.Principal, once.Key)
}

// RevokeAPIKey answers DELETE /api-keys/{id}. Another's key is not found, but for
// administrators.
func (s *Server) RevokeAPIKey(ctx context.Context, in RevokeAPIKeyRequestObject) (RevokeAPIKeyResponseObject, error) {
	c := requestOf(ctx).caller
	owner := c.User()
	if c.Can(berth.RoleAdmin) {
		owner = ""
	}
	if err := s.cfg.Store.RevokeAPIKey(ctx, actorOf(ctx), owner, berth.APIKeyID(in.ID)); err != nil {
		return nil, err
	}
	return RevokeAPIKey204Response{}, nil
}

func apiKeyOf(k berth.APIKey) APIKey {
	return APIKey{
		ID: string(k.ID), User: string(k.User), UserName: k.UserName, Name: k.Name, Prefix: k.Prefix, Roles: rolesOut(k.Roles),
		CreatedAt: k.CreatedAt.UTC(), ExpiresAt: utc(k.ExpiresAt), LastUsedAt: utc(k.LastUsedAt), RevokedAt: utc(k.RevokedAt),
	}
}
