package httpapi

import "context"

// ListSigningKeys is being built.
func (s *Server) ListSigningKeys(context.Context, ListSigningKeysRequestObject) (ListSigningKeysResponseObject, error) {
	return nil, errUnbuilt
}

// RotateSigningKey is being built.
func (s *Server) RotateSigningKey(context.Context, RotateSigningKeyRequestObject) (RotateSigningKeyResponseObject, error) {
	return nil, errUnbuilt
}
