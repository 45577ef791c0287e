package client

import (
	"context"

	"github.com/google/uuid"
)

// ListDeadLetters returns one page of what dead letters have in common.
func (c *Client) ListDeadLetters(ctx context.Context, p ListDeadLettersParams) (DeadLetterList, error) {
	return decode[DeadLetterList](c.raw.ListDeadLetters(ctx, &p))
}

// PreviewBulkJob tells what a bulk job would change now.
func (c *Client) PreviewBulkJob(ctx context.Context, spec BulkSpec) (BulkPreview, error) {
	return decode[BulkPreview](c.raw.PreviewBulkJob(mayRepeat(ctx), spec))
}

// StartBulkJob starts a bulk job, once however often the call is repeated.
func (c *Client) StartBulkJob(ctx context.Context, spec BulkSpec) (BulkJob, error) {
	return decode[BulkJob](c.raw.StartBulkJob(ctx, &StartBulkJobParams{IdempotencyKey: uuid.NewString()}, spec))
}

// GetBulkJob returns a bulk job and how far it is.
func (c *Client) GetBulkJob(ctx context.Context, id string) (BulkJob, error) {
	return decode[BulkJob](c.raw.GetBulkJob(ctx, id))
}

// ListBulkJobs returns one page of bulk jobs, newest first.
func (c *Client) ListBulkJobs(ctx context.Context, p ListBulkJobsParams) (BulkJobList, error) {
	return decode[BulkJobList](c.raw.ListBulkJobs(ctx, &p))
}

// StopBulkJob stops a bulk job; what it did stays.
func (c *Client) StopBulkJob(ctx context.Context, id string) (BulkJob, error) {
	return decode[BulkJob](c.raw.StopBulkJob(mayRepeat(ctx), id))
}
