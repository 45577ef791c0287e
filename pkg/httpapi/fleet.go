package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// ListDevices answers GET /devices.
func (s *Server) ListDevices(ctx context.Context, in ListDevicesRequestObject) (ListDevicesResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	filter := store.DeviceFilter{
		Host: berth.HostID(in.Params.Host), Driver: in.Params.Driver, Health: berth.Health(in.Params.Health),
		Admin: berth.AdminState(in.Params.Admin), Occupancy: berth.Occupancy(in.Params.Occupancy),
	}
	if filter.Pool, err = s.poolNamed(ctx, "pool", in.Params.Pool); err != nil {
		return nil, err
	}
	devices, next, err := s.cfg.Store.ListDevices(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	out := ListDevices200JSONResponse{Devices: make([]Device, 0, len(devices)), NextPageToken: pageToken(ctx, next)}
	for _, d := range devices {
		out.Devices = append(out.Devices, deviceOf(ctx, d))
	}
	return out, nil
}

// GetDevice answers GET /devices/{id}.
func (s *Server) GetDevice(ctx context.Context, in GetDeviceRequestObject) (GetDeviceResponseObject, error) {
	d, err := s.cfg.Store.GetDevice(ctx, berth.DeviceID(in.ID))
	if err != nil {
		return nil, err
	}
	return GetDevice200JSONResponse(deviceOf(ctx, d)), nil
}

// ListHosts answers GET /hosts.
func (s *Server) ListHosts(ctx context.Context, in ListHostsRequestObject) (ListHostsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	pool, err := s.poolNamed(ctx, "pool", in.Params.Pool)
	if err != nil {
		return nil, err
	}
	hosts, next, err := s.cfg.Store.ListHosts(ctx, pool, page)
	if err != nil {
		return nil, err
	}
	out := ListHosts200JSONResponse{Hosts: make([]Host, 0, len(hosts)), NextPageToken: pageToken(ctx, next)}
	for _, h := range hosts {
		out.Hosts = append(out.Hosts, hostOf(h))
	}
	return out, nil
}

// GetHost answers GET /hosts/{id}.
func (s *Server) GetHost(ctx context.Context, in GetHostRequestObject) (GetHostResponseObject, error) {
	h, err := s.cfg.Store.GetHost(ctx, berth.HostID(in.ID))
	if err != nil {
		return nil, err
	}
	return GetHost200JSONResponse(hostOf(h)), nil
}

// deviceOf leaves out who holds the device for callers that may see their own
// tasks only.
func deviceOf(ctx context.Context, d berth.Device) Device {
	out := Device{
		ID: string(d.ID), Name: d.Name, Pool: d.PoolName, HostID: string(d.Host), HostName: d.HostName,
		Driver: d.Driver, HardwareID: d.HardwareID, Labels: d.Labels, AdminLabels: d.AdminLabels, Present: d.Present,
		ConflictHostID: string(d.ConflictHost), Health: DeviceHealth(d.Health), HealthFailures: d.HealthRecord.Failures,
		QuarantinedUntil: utc(d.HealthRecord.QuarantinedUntil), Admin: DeviceAdmin(d.Admin), AdminNote: d.AdminNote,
		Occupancy: DeviceOccupancy(d.Occupancy),
		Fence:     int64(d.Fence), CreatedAt: d.CreatedAt.UTC(), UpdatedAt: d.UpdatedAt.UTC(),
	}
	if out.Labels == nil {
		out.Labels = map[string]string{}
	}
	if out.AdminLabels == nil {
		out.AdminLabels = map[string]string{}
	}
	if reads(ctx).All {
		out.AttemptID, out.TaskID = string(d.Attempt), string(d.Task)
	}
	return out
}

func hostOf(h berth.Host) Host {
	out := Host{
		ID: string(h.ID), Name: h.Name, Pool: h.PoolName, State: HostState(h.State), Protocol: h.Protocol,
		Draining: h.Draining || !h.DrainRequestedAt.IsZero(), DrainRequestedAt: utc(h.DrainRequestedAt),
		AgentVersion: h.AgentVersion, Plugins: make([]PluginVersion, 0, len(h.Plugins)), Devices: h.Devices, Held: h.Held,
		LastSeenAt: utc(h.LastSeenAt), EnrolledAt: h.EnrolledAt.UTC(),
		KeyChangedAt: utc(h.KeyChangedAt), KeyRotationRequestedAt: utc(h.KeyRotationRequestedAt),
	}
	for _, p := range h.Plugins {
		out.Plugins = append(out.Plugins, PluginVersion{Name: p.Name, Version: p.Version})
	}
	return out
}
