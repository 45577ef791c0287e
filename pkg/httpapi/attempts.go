package httpapi

import (
	"context"
	"strconv"

	"github.com/berth-dev/berth/pkg/berth"
)

// ListAttempts answers GET /tasks/{id}/attempts.
func (s *Server) ListAttempts(ctx context.Context, in ListAttemptsRequestObject) (ListAttemptsResponseObject, error) {
	attempts, err := s.cfg.Store.ListAttempts(ctx, reads(ctx), berth.TaskID(in.ID))
	if err != nil {
		return nil, err
	}
	out := ListAttempts200JSONResponse{Attempts: make([]Attempt, 0, len(attempts))}
	for _, a := range attempts {
		out.Attempts = append(out.Attempts, attemptOf(a))
	}
	return out, nil
}

// ListTaskEvents answers GET /tasks/{id}/events: the task's audit trail.
func (s *Server) ListTaskEvents(ctx context.Context, in ListTaskEventsRequestObject) (ListTaskEventsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, validEventCursor)
	if err != nil {
		return nil, err
	}
	if _, err := s.cfg.Store.GetTask(ctx, reads(ctx), berth.TaskID(in.ID)); err != nil {
		return nil, err
	}
	after, _ := strconv.ParseInt(page.After, 10, 64) // valid, or "" for 0
	events, err := s.cfg.Store.ListAudit(ctx, "task", in.ID, after, page.Limit())
	if err != nil {
		return nil, err
	}
	out := ListTaskEvents200JSONResponse{Events: make([]TaskEvent, 0, len(events))}
	for _, e := range events {
		out.Events = append(out.Events, eventOf(e))
	}
	if n := len(events); n == page.Limit() {
		out.NextPageToken = pageToken(ctx, strconv.FormatInt(events[n-1].ID, 10))
	}
	return out, nil
}

func validEventCursor(c string) bool {
	n, err := strconv.ParseInt(c, 10, 64)
	return err == nil && n >= 0 && strconv.FormatInt(n, 10) == c
}

func attemptOf(a berth.Attempt) Attempt {
	return Attempt{
		ID: string(a.ID), Number: a.Number, State: AttemptState(a.State), Outcome: Outcome(a.Outcome), Reason: a.Reason,
		Message: a.Message.Reveal(), Result: raw(a.Result.Reveal()),
		DeviceID: string(a.Device), DeviceName: a.DeviceName, HostID: string(a.Host), HostName: a.HostName, Fence: int64(a.Fence),
		AssignedAt: a.AssignedAt.UTC(), ClaimedAt: utc(a.ClaimedAt), StartedAt: utc(a.StartedAt), EndedAt: utc(a.EndedAt),
		CancelRequestedAt: utc(a.CancelRequestedAt), Progress: a.Progress, ProgressNote: a.ProgressNote.Reveal(), LogBytes: a.LogBytes,
	}
}

func eventOf(e berth.AuditEvent) TaskEvent {
	return TaskEvent{
		ID: e.ID, At: e.At.UTC(), Actor: submitterOf(e.Actor.Principal), RequestID: e.Actor.RequestID, Action: string(e.Action),
		From: TaskState(e.From), To: TaskState(e.To), AttemptID: string(e.Attempt), Number: e.Number,
		DeviceID: string(e.Device), HostID: string(e.Host), Outcome: Outcome(e.Outcome), Reason: e.Reason,
	}
}
