package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
)

// DrainHost answers POST /hosts/{id}/drain.
func (s *Server) DrainHost(ctx context.Context, in DrainHostRequestObject) (DrainHostResponseObject, error) {
	h, err := s.drain(ctx, in.ID, true)
	return DrainHost200JSONResponse(h), err
}

// UndrainHost answers POST /hosts/{id}/undrain.
func (s *Server) UndrainHost(ctx context.Context, in UndrainHostRequestObject) (UndrainHostResponseObject, error) {
	h, err := s.drain(ctx, in.ID, false)
	return UndrainHost200JSONResponse(h), err
}

func (s *Server) drain(ctx context.Context, id ID, on bool) (Host, error) {
	h, transitions, err := s.cfg.Store.DrainHost(ctx, actorOf(ctx), berth.HostID(id), on)
	logging.Transitions(s.cfg.Logger, transitions)
	if err != nil {
		return Host{}, err
	}
	return hostOf(h), nil
}

// RevokeHost answers POST /hosts/{id}/revoke.
func (s *Server) RevokeHost(ctx context.Context, in RevokeHostRequestObject) (RevokeHostResponseObject, error) {
	h, transitions, err := s.cfg.Store.RevokeHost(ctx, actorOf(ctx), berth.HostID(in.ID))
	logging.Transitions(s.cfg.Logger, transitions)
	if err != nil {
		return nil, err
	}
	return RevokeHost200JSONResponse(hostOf(h)), nil
}
