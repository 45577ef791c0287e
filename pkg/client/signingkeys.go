package client

import (
	"context"

	"github.com/google/uuid"
)

// ListSigningKeys returns the keys that verify access tokens, newest first.
func (c *Client) ListSigningKeys(ctx context.Context) (SigningKeyList, error) {
	return decode[SigningKeyList](c.raw.ListSigningKeys(ctx))
}

// RotateSigningKey makes a new key and returns them all.
func (c *Client) RotateSigningKey(ctx context.Context) (SigningKeyList, error) {
	return decode[SigningKeyList](c.raw.RotateSigningKey(ctx, &RotateSigningKeyParams{IdempotencyKey: uuid.NewString()}))
}
