package httpapi

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/store"
)

// CordonDevice answers POST /devices/{id}/cordon.
func (s *Server) CordonDevice(ctx context.Context, in CordonDeviceRequestObject) (CordonDeviceResponseObject, error) {
	d, err := s.setAdmin(ctx, in.ID, berth.AdminCordoned, in.Body)
	return CordonDevice200JSONResponse(d), err
}

// MaintainDevice answers POST /devices/{id}/maintenance.
func (s *Server) MaintainDevice(ctx context.Context, in MaintainDeviceRequestObject) (MaintainDeviceResponseObject, error) {
	d, err := s.setAdmin(ctx, in.ID, berth.AdminMaintenance, in.Body)
	return MaintainDevice200JSONResponse(d), err
}

// ActivateDevice answers POST /devices/{id}/activate.
func (s *Server) ActivateDevice(ctx context.Context, in ActivateDeviceRequestObject) (ActivateDeviceResponseObject, error) {
	d, err := s.setAdmin(ctx, in.ID, berth.AdminActive, in.Body)
	return ActivateDevice200JSONResponse(d), err
}

// RetireDevice answers POST /devices/{id}/retire.
func (s *Server) RetireDevice(ctx context.Context, in RetireDeviceRequestObject) (RetireDeviceResponseObject, error) {
	p, err := adminParams(ctx, in.ID, berth.AdminRetired, in.Body)
	if err != nil {
		return nil, err
	}
	d, transitions, err := s.cfg.Store.RetireDevice(ctx, p)
	logging.Transitions(s.cfg.Logger, transitions)
	if err != nil {
		return nil, err
	}
	return RetireDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// TrustDevice answers POST /devices/{id}/trust.
func (s *Server) TrustDevice(ctx context.Context, in TrustDeviceRequestObject) (TrustDeviceResponseObject, error) {
	d, err := s.cfg.Store.TrustDevice(ctx, actorOf(ctx), berth.DeviceID(in.ID))
	if err != nil {
		return nil, err
	}
	return TrustDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// CleanDevice answers POST /devices/{id}/clean.
func (s *Server) CleanDevice(ctx context.Context, in CleanDeviceRequestObject) (CleanDeviceResponseObject, error) {
	d, err := s.cfg.Store.MarkDeviceClean(ctx, actorOf(ctx), berth.DeviceID(in.ID))
	if err != nil {
		return nil, err
	}
	return CleanDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// ForceReleaseDevice answers POST /devices/{id}/force-release.
func (s *Server) ForceReleaseDevice(ctx context.Context, in ForceReleaseDeviceRequestObject) (ForceReleaseDeviceResponseObject, error) {
	p := store.ForceReleaseParams{Actor: actorOf(ctx), Device: berth.DeviceID(in.ID)}
	if in.Body != nil {
		p.Attempt = berth.AttemptID(in.Body.AttemptID)
	}
	d, transitions, err := s.cfg.Store.ForceRelease(ctx, p)
	logging.Transitions(s.cfg.Logger, transitions)
	if err != nil {
		return nil, err
	}
	return ForceReleaseDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// MoveDevice answers POST /devices/{id}/move.
func (s *Server) MoveDevice(ctx context.Context, in MoveDeviceRequestObject) (MoveDeviceResponseObject, error) {
	d, err := s.cfg.Store.MoveDevice(ctx, actorOf(ctx), berth.DeviceID(in.ID), berth.HostID(in.Body.HostID))
	if err != nil {
		return nil, err
	}
	return MoveDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// SetDeviceLabels answers PUT /devices/{id}/labels.
func (s *Server) SetDeviceLabels(ctx context.Context, in SetDeviceLabelsRequestObject) (SetDeviceLabelsResponseObject, error) {
	var f berth.Faults
	eligibility.CheckLabels("labels", in.Body.Labels, &f)
	for _, key := range sorted(in.Body.Labels) {
		if berth.OwnLabel(key) {
			f.Add(joinPath("labels", key), "is Berth's own label", "leave it out; choose another name")
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	d, err := s.cfg.Store.SetDeviceLabels(ctx, actorOf(ctx), berth.DeviceID(in.ID), in.Body.Labels)
	if err != nil {
		return nil, err
	}
	return SetDeviceLabels200JSONResponse(deviceOf(ctx, d)), nil
}

func (s *Server) setAdmin(ctx context.Context, id ID, state berth.AdminState, body *DeviceNote) (Device, error) {
	p, err := adminParams(ctx, id, state, body)
	if err != nil {
		return Device{}, err
	}
	d, err := s.cfg.Store.SetDeviceAdmin(ctx, p)
	if err != nil {
		return Device{}, err
	}
	return deviceOf(ctx, d), nil
}

func adminParams(ctx context.Context, id ID, state berth.AdminState, body *DeviceNote) (store.DeviceAdminParams, error) {
	p := store.DeviceAdminParams{Actor: actorOf(ctx), Device: berth.DeviceID(id), Admin: state}
	if body == nil {
		return p, nil
	}
	p.Note = strings.TrimSpace(body.Note)
	if len(p.Note) > berth.MaxNameLen || strings.ContainsFunc(p.Note, unicode.IsControl) {
		return p, berth.Invalid("note", "is too long or has control characters", fmt.Sprintf("use one line of at most %d bytes", berth.MaxNameLen))
	}
	return p, nil
}
