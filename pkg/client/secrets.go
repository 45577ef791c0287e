package client

import "context"

// ListSecrets returns one page by name, without values: to administrators of all,
// to others of those that their tasks may name.
func (c *Client) ListSecrets(ctx context.Context, p ListSecretsParams) (SecretList, error) {
	return decode[SecretList](c.raw.ListSecrets(ctx, &p))
}

// GetSecret returns a secret without its value.
func (c *Client) GetSecret(ctx context.Context, name string) (Secret, error) {
	return decode[Secret](c.raw.GetSecret(ctx, name))
}

// PutSecret makes a secret, or changes what spec gives of it.
func (c *Client) PutSecret(ctx context.Context, name string, spec SecretSpec) (Secret, error) {
	return decode[Secret](c.raw.PutSecret(mayRepeat(ctx), name, spec))
}

// DeleteSecret removes a secret.
func (c *Client) DeleteSecret(ctx context.Context, name string) error {
	_, err := decode[none](c.raw.DeleteSecret(ctx, name))
	return err
}
