package httpapi

import "context"

// ChangePassword is being built.
func (s *Server) ChangePassword(context.Context, ChangePasswordRequestObject) (ChangePasswordResponseObject, error) {
	return nil, errUnbuilt
}

// ListUsers is being built.
func (s *Server) ListUsers(context.Context, ListUsersRequestObject) (ListUsersResponseObject, error) {
	return nil, errUnbuilt
}

// CreateUser is being built.
func (s *Server) CreateUser(context.Context, CreateUserRequestObject) (CreateUserResponseObject, error) {
	return nil, errUnbuilt
}

// GetUser is being built.
func (s *Server) GetUser(context.Context, GetUserRequestObject) (GetUserResponseObject, error) {
	return nil, errUnbuilt
}

// ChangeUser is being built.
func (s *Server) ChangeUser(context.Context, ChangeUserRequestObject) (ChangeUserResponseObject, error) {
	return nil, errUnbuilt
}

// SetUserPassword is being built.
func (s *Server) SetUserPassword(context.Context, SetUserPasswordRequestObject) (SetUserPasswordResponseObject, error) {
	return nil, errUnbuilt
}
