package httpapi

import "context"

// RotateHostKey is being built.
func (s *Server) RotateHostKey(context.Context, RotateHostKeyRequestObject) (RotateHostKeyResponseObject, error) {
	return nil, errUnbuilt
}
