package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/identity"
)

// ListSigningKeys answers GET /signing-keys.
func (s *Server) ListSigningKeys(ctx context.Context, _ ListSigningKeysRequestObject) (ListSigningKeysResponseObject, error) {
	keys, err := s.cfg.Identity.SigningKeys(ctx)
	if err != nil {
		return nil, err
	}
	return ListSigningKeys200JSONResponse(signingKeysOf(keys)), nil
}

// RotateSigningKey answers POST /signing-keys/rotate. A repeat is answered with
// the keys as they are now.
func (s *Server) RotateSigningKey(ctx context.Context, in RotateSigningKeyRequestObject) (RotateSigningKeyResponseObject, error) {
	once, err := onceOf(in.Params.IdempotencyKey, "rotateSigningKey", nil)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Identity.RotateSigningKey(ctx, actorOf(ctx), once); err != nil {
		return nil, err
	}
	keys, err := s.cfg.Identity.SigningKeys(ctx)
	if err != nil {
		return nil, err
	}
	return RotateSigningKey200JSONResponse(signingKeysOf(keys)), nil
}

func signingKeysOf(keys []identity.SigningKey) SigningKeyList {
	out := SigningKeyList{SigningKeys: make([]SigningKey, 0, len(keys))}
	for _, k := range keys {
		out.SigningKeys = append(out.SigningKeys, SigningKey{ID: k.ID, Algorithm: k.Algorithm, CreatedAt: k.CreatedAt.UTC(), Signs: k.Signs})
	}
	return out
}
