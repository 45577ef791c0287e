package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// RotateHostKey answers POST /hosts/{id}/rotate-key. The host's agent hears of it
// with its next heartbeat.
func (s *Server) RotateHostKey(ctx context.Context, in RotateHostKeyRequestObject) (RotateHostKeyResponseObject, error) {
	h, err := s.cfg.Store.RequestKeyRotation(ctx, actorOf(ctx), berth.HostID(in.ID))
	if err != nil {
		return nil, err
	}
	return RotateHostKey200JSONResponse(hostOf(h)), nil
}
