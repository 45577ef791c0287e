package client

import (
	"context"
)

// CordonDevice keeps new tasks off a device; note says why.
func (c *Client) CordonDevice(ctx context.Context, id, note string) (Device, error) {
	return decode[Device](c.raw.CordonDevice(mayRepeat(ctx), id, DeviceNote{Note: note}))
}

// MaintainDevice takes a device into maintenance.
func (c *Client) MaintainDevice(ctx context.Context, id, note string) (Device, error) {
	return decode[Device](c.raw.MaintainDevice(mayRepeat(ctx), id, DeviceNote{Note: note}))
}

// ActivateDevice ends a cordon, a maintenance or a retirement.
func (c *Client) ActivateDevice(ctx context.Context, id, note string) (Device, error) {
	return decode[Device](c.raw.ActivateDevice(mayRepeat(ctx), id, DeviceNote{Note: note}))
}

// RetireDevice takes a device out for good and ends what runs on it.
func (c *Client) RetireDevice(ctx context.Context, id, note string) (Device, error) {
	return decode[Device](c.raw.RetireDevice(mayRepeat(ctx), id, DeviceNote{Note: note}))
}

// TrustDevice ends a quarantine or a doubt by hand.
func (c *Client) TrustDevice(ctx context.Context, id string) (Device, error) {
	return decode[Device](c.raw.TrustDevice(mayRepeat(ctx), id))
}

// CleanDevice says that nothing touches an unclean device any more.
func (c *Client) CleanDevice(ctx context.Context, id string) (Device, error) {
	return decode[Device](c.raw.CleanDevice(mayRepeat(ctx), id))
}

// ForceRelease ends the attempt that holds a device. With attempt only that one,
// and the call is repeated when its answer is lost; with "" whichever holds it.
func (c *Client) ForceRelease(ctx context.Context, id, attempt string) (Device, error) {
	if attempt != "" {
		ctx = mayRepeat(ctx)
	}
	return decode[Device](c.raw.ForceReleaseDevice(ctx, id, ForceRelease{AttemptID: attempt}))
}

// MoveDevice gives a device to another host.
func (c *Client) MoveDevice(ctx context.Context, id, host string) (Device, error) {
	return decode[Device](c.raw.MoveDevice(mayRepeat(ctx), id, DeviceMove{HostID: host}))
}

// SetDeviceLabels replaces the operators' labels of a device.
func (c *Client) SetDeviceLabels(ctx context.Context, id string, labels map[string]string) (Device, error) {
	if labels == nil {
		labels = map[string]string{}
	}
	return decode[Device](c.raw.SetDeviceLabels(ctx, id, DeviceLabels{Labels: labels}))
}

// DrainHost asks a host to take nothing more.
func (c *Client) DrainHost(ctx context.Context, id string) (Host, error) {
	return decode[Host](c.raw.DrainHost(mayRepeat(ctx), id))
}

// UndrainHost ends a drain.
func (c *Client) UndrainHost(ctx context.Context, id string) (Host, error) {
	return decode[Host](c.raw.UndrainHost(mayRepeat(ctx), id))
}

// RevokeHost shuts a host out for ever.
func (c *Client) RevokeHost(ctx context.Context, id string) (Host, error) {
	return decode[Host](c.raw.RevokeHost(mayRepeat(ctx), id))
}

// RotateHostKey asks a host's agent to change its key.
func (c *Client) RotateHostKey(ctx context.Context, id string) (Host, error) {
	return decode[Host](c.raw.RotateHostKey(mayRepeat(ctx), id))
}

// PausePool stops placement in a pool.
func (c *Client) PausePool(ctx context.Context, name string) (Pool, error) {
	return decode[Pool](c.raw.PausePool(mayRepeat(ctx), name))
}

// ResumePool goes on with placement in a pool.
func (c *Client) ResumePool(ctx context.Context, name string) (Pool, error) {
	return decode[Pool](c.raw.ResumePool(mayRepeat(ctx), name))
}

// EnablePlugin lets hosts serve a version of a plugin.
func (c *Client) EnablePlugin(ctx context.Context, name, version string) (Plugin, error) {
	return decode[Plugin](c.raw.EnablePlugin(mayRepeat(ctx), name, version))
}

// DisablePlugin stops placing tasks on a version of a plugin.
func (c *Client) DisablePlugin(ctx context.Context, name, version string) (Plugin, error) {
	return decode[Plugin](c.raw.DisablePlugin(mayRepeat(ctx), name, version))
}

// SetTaskPriority gives an unfinished task another priority, 0 to 9.
func (c *Client) SetTaskPriority(ctx context.Context, id string, priority int) (Task, error) {
	return decode[Task](c.raw.ChangeTask(mayRepeat(ctx), id, TaskChange{Priority: priority}))
}

// GetPlacement explains why a task is where it is.
func (c *Client) GetPlacement(ctx context.Context, id string) (Placement, error) {
	return decode[Placement](c.raw.GetPlacement(ctx, id))
}
