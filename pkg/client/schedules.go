package client

import (
	"context"

	"github.com/google/uuid"
)

// ListSchedules returns one page by name, without payloads.
func (c *Client) ListSchedules(ctx context.Context, p ListSchedulesParams) (ScheduleList, error) {
	return decode[ScheduleList](c.raw.ListSchedules(ctx, &p))
}

// CreateSchedule makes a schedule.
func (c *Client) CreateSchedule(ctx context.Context, spec ScheduleSpec) (Schedule, error) {
	return decode[Schedule](c.raw.CreateSchedule(ctx, &CreateScheduleParams{IdempotencyKey: uuid.NewString()}, spec))
}

// GetSchedule returns a schedule.
func (c *Client) GetSchedule(ctx context.Context, name string) (Schedule, error) {
	return decode[Schedule](c.raw.GetSchedule(ctx, name))
}

// EditSchedule changes what change gives of a schedule, if it is still as etag says;
// "" is any.
func (c *Client) EditSchedule(ctx context.Context, name string, change ScheduleChange, etag string) (Schedule, error) {
	return decode[Schedule](c.raw.EditSchedule(mayRepeat(ctx), name, &EditScheduleParams{IfMatch: etag}, change))
}

// DeleteSchedule removes a schedule with its history.
func (c *Client) DeleteSchedule(ctx context.Context, name string) error {
	_, err := decode[none](c.raw.DeleteSchedule(ctx, name, &DeleteScheduleParams{}))
	return err
}

// PauseSchedule makes a schedule fire no more slots.
func (c *Client) PauseSchedule(ctx context.Context, name string) (Schedule, error) {
	return decode[Schedule](c.raw.PauseSchedule(mayRepeat(ctx), name))
}

// ResumeSchedule makes it wait for the first slot after now.
func (c *Client) ResumeSchedule(ctx context.Context, name string) (Schedule, error) {
	return decode[Schedule](c.raw.ResumeSchedule(mayRepeat(ctx), name))
}

// RunSchedule makes a task of its template now.
func (c *Client) RunSchedule(ctx context.Context, name string) (Task, error) {
	return decode[Task](c.raw.RunSchedule(ctx, name, &RunScheduleParams{IdempotencyKey: uuid.NewString()}))
}

// PreviewCron says when an expression would fire.
func (c *Client) PreviewCron(ctx context.Context, spec PreviewSpec) (Preview, error) {
	return decode[Preview](c.raw.PreviewCron(mayRepeat(ctx), spec))
}

// PreviewSchedule returns the next slots of a schedule.
func (c *Client) PreviewSchedule(ctx context.Context, name string, p PreviewScheduleParams) (Preview, error) {
	return decode[Preview](c.raw.PreviewSchedule(ctx, name, &p))
}

// ListFires returns one page of what became of a schedule's slots, the last decided
// first.
func (c *Client) ListFires(ctx context.Context, name string, p ListFiresParams) (FireList, error) {
	return decode[FireList](c.raw.ListFires(ctx, name, &p))
}
