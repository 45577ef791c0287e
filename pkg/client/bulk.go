package client

import "context"

// ListDeadLetters returns one page of what dead letters have in common.
func (c *Client) ListDeadLetters(ctx context.Context, p ListDeadLettersParams) (DeadLetterList, error) {
	return decode[DeadLetterList](c.raw.ListDeadLetters(ctx, &p))
}
