package client

import (
	"context"

	"github.com/google/uuid"
)

// ChangePassword replaces the caller's own password. It is repeated when the
// answer is lost: the server knows the new one then.
func (c *Client) ChangePassword(ctx context.Context, current, next string) error {
	_, err := decode[none](c.raw.ChangePassword(mayRepeat(ctx), PasswordChange{CurrentPassword: current, NewPassword: next}))
	return err
}

// ListUsers returns one page by name.
func (c *Client) ListUsers(ctx context.Context, p ListUsersParams) (UserList, error) {
	return decode[UserList](c.raw.ListUsers(ctx, &p))
}

// CreateUser makes a user; without a password it is a service.
func (c *Client) CreateUser(ctx context.Context, spec UserSpec) (User, error) {
	return decode[User](c.raw.CreateUser(ctx, &CreateUserParams{IdempotencyKey: uuid.NewString()}, spec))
}

// GetUser returns a user and its ETag, for ChangeUser.
func (c *Client) GetUser(ctx context.Context, id string) (u User, etag string, err error) {
	res, err := c.raw.GetUser(ctx, id)
	if err == nil {
		etag = res.Header.Get("ETag")
	}
	u, err = decode[User](res, err)
	return u, etag, err
}

// ChangeUser changes roles or disables and enables. With an ETag only that
// version of the user is changed.
func (c *Client) ChangeUser(ctx context.Context, id string, change UserChange, etag string) (User, error) {
	return decode[User](c.raw.ChangeUser(mayRepeat(ctx), id, &ChangeUserParams{IfMatch: etag}, change))
}

// SetUserPassword gives a user a new password; its logins end.
func (c *Client) SetUserPassword(ctx context.Context, id, password string) error {
	_, err := decode[none](c.raw.SetUserPassword(ctx, id, NewPassword{Password: password}))
	return err
}

// ListAPIKeys returns one page of keys, without their secrets.
func (c *Client) ListAPIKeys(ctx context.Context, p ListAPIKeysParams) (APIKeyList, error) {
	return decode[APIKeyList](c.raw.ListAPIKeys(ctx, &p))
}

// CreateAPIKey makes a key; this answer alone holds it.
func (c *Client) CreateAPIKey(ctx context.Context, spec APIKeySpec) (APIKey, error) {
	return decode[APIKey](c.raw.CreateAPIKey(ctx, &CreateAPIKeyParams{IdempotencyKey: uuid.NewString()}, spec))
}

// RevokeAPIKey ends a key at once.
func (c *Client) RevokeAPIKey(ctx context.Context, id string) error {
	_, err := decode[none](c.raw.RevokeAPIKey(ctx, id))
	return err
}
