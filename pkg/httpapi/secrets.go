package httpapi

import (
	"context"
	"fmt"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListSecrets answers GET /secrets: to administrators all with their grants, to
// others those that their tasks may name.
func (s *Server) ListSecrets(ctx context.Context, in ListSecretsRequestObject) (ListSecretsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidName)
	if err != nil {
		return nil, err
	}
	caller := requestOf(ctx).caller
	var grantee *store.Grantee
	if !caller.Can(berth.RoleAdmin) {
		grantee = &store.Grantee{User: caller.User(), Roles: caller.Roles}
	}
	secrets, next, err := s.cfg.Store.ListSecrets(ctx, grantee, page)
	if err != nil {
		return nil, err
	}
	out := ListSecrets200JSONResponse{Secrets: make([]Secret, 0, len(secrets)), NextPageToken: pageToken(ctx, next)}
	for _, secret := range secrets {
		if grantee != nil {
			secret.Grants = nil
		}
		out.Secrets = append(out.Secrets, secretOf(secret))
	}
	return out, nil
}

// GetSecret answers GET /secrets/{name}.
func (s *Server) GetSecret(ctx context.Context, in GetSecretRequestObject) (GetSecretResponseObject, error) {
	secret, err := s.cfg.Store.GetSecret(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return GetSecret200JSONResponse(secretOf(secret)), nil
}

// PutSecret answers PUT /secrets/{name}. The value goes nowhere but under the
// master key.
func (s *Server) PutSecret(ctx context.Context, in PutSecretRequestObject) (PutSecretResponseObject, error) {
	p := store.PutSecretParams{Actor: actorOf(ctx), Name: in.Name, Description: in.Body.Description}
	if in.Body.Value != nil {
		value := redact.NewString(*in.Body.Value)
		if err := checkSecretValue(value); err != nil {
			return nil, err
		}
		p.Seal = func(version int) (redact.Bytes, error) { return s.cfg.Identity.SealSecret(in.Name, version, value) }
	}
	if in.Body.Grants != nil {
		grants := make([]berth.SecretGrant, 0, len(*in.Body.Grants))
		for _, g := range *in.Body.Grants {
			grant := berth.SecretGrant{Kind: berth.GrantRole, Grantee: string(g.Role)}
			if g.User != "" {
				grant = berth.SecretGrant{Kind: berth.GrantUser, Grantee: g.User}
			}
			grants = append(grants, grant)
		}
		p.Grants = &grants
	}
	secret, err := s.cfg.Store.PutSecret(ctx, p)
	if err != nil {
		return nil, err
	}
	return PutSecret200JSONResponse(secretOf(secret)), nil
}

// checkSecretValue judges what the document cannot: bytes.
func checkSecretValue(value redact.String) error {
	switch n := value.Len(); {
	case n < berth.MinSecretLen:
		return berth.Invalid("value", fmt.Sprintf("the value has %d bytes", n), fmt.Sprintf("use at least %d: what is shorter cannot be masked", berth.MinSecretLen))
	case n > berth.MaxSecretLen:
		return berth.Invalid("value", fmt.Sprintf("the value has %d bytes", n), fmt.Sprintf("use at most %d; bring larger things as an input", berth.MaxSecretLen))
	case strings.ContainsRune(value.Reveal(), 0):
		return berth.Invalid("value", "the value has a NUL character, which no environment variable holds", "encode it, for example in base64")
	}
	return nil
}

// DeleteSecret answers DELETE /secrets/{name}.
func (s *Server) DeleteSecret(ctx context.Context, in DeleteSecretRequestObject) (DeleteSecretResponseObject, error) {
	if err := s.cfg.Store.DeleteSecret(ctx, actorOf(ctx), in.Name); err != nil {
		return nil, err
	}
	return DeleteSecret204Response{}, nil
}

func secretOf(s berth.Secret) Secret {
	out := Secret{
		Name: s.Name, Description: s.Description, Version: s.Version, Grants: make([]SecretGrant, 0, len(s.Grants)),
		CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC(),
	}
	for _, g := range s.Grants {
		if g.Kind == berth.GrantUser {
			out.Grants = append(out.Grants, SecretGrant{User: g.Grantee})
		} else {
			out.Grants = append(out.Grants, SecretGrant{Role: Role(g.Grantee)})
		}
	}
	return out
}
