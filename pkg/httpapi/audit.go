package httpapi

import "context"

// ListAudit is being built.
func (s *Server) ListAudit(context.Context, ListAuditRequestObject) (ListAuditResponseObject, error) {
	return nil, errUnbuilt
}
