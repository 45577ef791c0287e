package client

import "context"

// ListAudit searches the audit trail, newest first. A page may be short and still
// have a next one.
func (c *Client) ListAudit(ctx context.Context, p ListAuditParams) (AuditList, error) {
	return decode[AuditList](c.raw.ListAudit(ctx, &p))
}
