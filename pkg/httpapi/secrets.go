package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListSecrets answers GET /secrets: an administrator sees all with their grants,
// everybody else those that its tasks may name.
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

// PutSecret answers PUT /secrets/{name}. A value that is the one stored already is
// no change, so that a repeat has no second effect.
func (s *Server) PutSecret(ctx context.Context, in PutSecretRequestObject) (PutSecretResponseObject, error) {
	p := store.PutSecretParams{Actor: actorOf(ctx), Name: in.Name, Description: in.Body.Description}
	if in.Body.Description != nil {
		if err := berth.CheckSecretDescription(*in.Body.Description); err != nil {
			return nil, err
		}
	}
	if in.Body.Value != nil {
		value := redact.NewString(*in.Body.Value)
		if err := berth.CheckSecretValue(value); err != nil {
			return nil, err
		}
		p.Seal = func(version int) (redact.Bytes, error) { return s.cfg.Identity.SealSecret(in.Name, version, value) }
		p.Same = func(old store.SealedValue) bool {
			was, err := s.cfg.Identity.OpenSecret(old)
			return err == nil && was.Equal(value) // what cannot be opened is replaced
		}
	}
	if in.Body.Grants != nil {
		set := grantsOf(*in.Body.Grants)
		p.Grants.Set = &set
	}
	p.Grants.Add, p.Grants.Remove = grantsOf(in.Body.AddGrants), grantsOf(in.Body.RemoveGrants)
	secret, err := s.cfg.Store.PutSecret(ctx, p)
	if err != nil {
		return nil, err
	}
	return PutSecret200JSONResponse(secretOf(secret)), nil
}

// DeleteSecret answers DELETE /secrets/{name}.
func (s *Server) DeleteSecret(ctx context.Context, in DeleteSecretRequestObject) (DeleteSecretResponseObject, error) {
	if err := s.cfg.Store.DeleteSecret(ctx, actorOf(ctx), in.Name); err != nil {
		return nil, err
	}
	return DeleteSecret204Response{}, nil
}

func grantsOf(in []SecretGrant) []berth.SecretGrant {
	grants := make([]berth.SecretGrant, 0, len(in))
	for _, g := range in {
		if g.User != "" {
			grants = append(grants, berth.SecretGrant{Kind: berth.GrantUser, Grantee: g.User})
		} else {
			grants = append(grants, berth.SecretGrant{Kind: berth.GrantRole, Grantee: string(g.Role)})
		}
	}
	return grants
}

func secretOf(secret berth.Secret) Secret {
	out := Secret{
		Name: secret.Name, Description: secret.Description, Version: secret.Version, Grants: []SecretGrant{},
		CreatedAt: secret.CreatedAt.UTC(), UpdatedAt: secret.UpdatedAt.UTC(),
	}
	for _, g := range secret.Grants {
		if g.Kind == berth.GrantUser {
			out.Grants = append(out.Grants, SecretGrant{User: g.Grantee})
		} else {
			out.Grants = append(out.Grants, SecretGrant{Role: Role(g.Grantee)})
		}
	}
	return out
}
