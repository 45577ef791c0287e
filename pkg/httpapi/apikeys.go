package httpapi

import "context"

// ListAPIKeys is being built.
func (s *Server) ListAPIKeys(context.Context, ListAPIKeysRequestObject) (ListAPIKeysResponseObject, error) {
	return nil, errUnbuilt
}

// CreateAPIKey is being built.
func (s *Server) CreateAPIKey(context.Context, CreateAPIKeyRequestObject) (CreateAPIKeyResponseObject, error) {
	return nil, errUnbuilt
}

// RevokeAPIKey is being built.
func (s *Server) RevokeAPIKey(context.Context, RevokeAPIKeyRequestObject) (RevokeAPIKeyResponseObject, error) {
	return nil, errUnbuilt
}
