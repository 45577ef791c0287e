package httpapi

import "context"

// ListSecrets is being built.
func (s *Server) ListSecrets(context.Context, ListSecretsRequestObject) (ListSecretsResponseObject, error) {
	return nil, errUnbuilt
}

// GetSecret is being built.
func (s *Server) GetSecret(context.Context, GetSecretRequestObject) (GetSecretResponseObject, error) {
	return nil, errUnbuilt
}

// PutSecret is being built.
func (s *Server) PutSecret(context.Context, PutSecretRequestObject) (PutSecretResponseObject, error) {
	return nil, errUnbuilt
}

// DeleteSecret is being built.
func (s *Server) DeleteSecret(context.Context, DeleteSecretRequestObject) (DeleteSecretResponseObject, error) {
	return nil, errUnbuilt
}
