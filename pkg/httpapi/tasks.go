package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ListTasks answers GET /tasks.
func (s *Server) ListTasks(ctx context.Context, in ListTasksRequestObject) (ListTasksResponseObject, error) {
	p := in.Params
	page, err := pageOf(ctx, p.PageSize, p.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	filter := store.TaskFilter{
		Plugin: p.Plugin, Tag: p.Tag, NamePrefix: p.NamePrefix, Submitter: p.Submitter, Device: berth.DeviceID(p.Device), Cause: berth.CauseKey(p.Cause),
		SubmittedFrom: utc(p.SubmittedFrom), SubmittedTo: utc(p.SubmittedTo),
	}
	for _, state := range p.State {
		filter.States = append(filter.States, berth.TaskState(state))
	}
	if filter.Pool, err = s.poolNamed(ctx, "pool", p.Pool); err != nil {
		return nil, err
	}
	if p.Schedule != "" {
		sc, err := s.cfg.Store.GetSchedule(ctx, p.Schedule)
		if errors.Is(err, berth.ErrNotFound) {
			err = berth.Invalid("schedule", "there is no such schedule", "`berth schedule list` shows those there are")
		}
		if err != nil {
			return nil, err
		}
		filter.Schedule = sc.ID
	}
	tasks, next, err := s.cfg.Store.ListTasks(ctx, reads(ctx), filter, page)
	if err != nil {
		return nil, err
	}
	out := ListTasks200JSONResponse{Tasks: make([]Task, 0, len(tasks)), NextPageToken: pageToken(ctx, next)}
	for _, t := range tasks {
		out.Tasks = append(out.Tasks, summaryOf(t))
	}
	return out, nil
}

// GetTask answers GET /tasks/{id}, after the wait that was asked for.
func (s *Server) GetTask(ctx context.Context, in GetTaskRequestObject) (GetTaskResponseObject, error) {
	t, err := s.waitFor(ctx, in.Params.WaitFor, reads(ctx), berth.TaskID(in.ID), in.Params.Wait)
	if err != nil {
		return nil, err
	}
	return GetTask200JSONResponse(taskOf(t)), nil
}

// CancelTask answers POST /tasks/{id}/cancel.
func (s *Server) CancelTask(ctx context.Context, in CancelTaskRequestObject) (CancelTaskResponseObject, error) {
	t, transitions, err := s.cfg.Store.CancelTask(ctx, taskParams(ctx, in.ID))
	if err != nil {
		return nil, s.readable(ctx, in.ID, err)
	}
	logging.Transitions(s.cfg.Logger, transitions)
	return CancelTask200JSONResponse(taskOf(t)), nil
}

// RetryTask answers POST /tasks/{id}/retry.
func (s *Server) RetryTask(ctx context.Context, in RetryTaskRequestObject) (RetryTaskResponseObject, error) {
	p := store.RetryParams{TaskParams: taskParams(ctx, in.ID)}
	if in.Body != nil {
		p.AddTries = in.Body.AddTries
	}
	err := s.editPayload(ctx, &p, in.Body)
	if err != nil {
		return nil, s.readable(ctx, in.ID, err)
	}
	if p.Once, err = onceOf(in.Params.IdempotencyKey, "retryTask "+in.ID, in.Body); err != nil {
		return nil, err
	}
	t, transitions, err := s.cfg.Store.RetryTask(ctx, p)
	if err != nil {
		return nil, s.readable(ctx, in.ID, err)
	}
	logging.Transitions(s.cfg.Logger, transitions)
	return RetryTask200JSONResponse(taskOf(t)), nil
}

// editPayload judges the payload of a retry, where there is one, as at submit.
func (s *Server) editPayload(ctx context.Context, p *store.RetryParams, body *RetryRequest) error {
	if body == nil || len(body.Payload) == 0 {
		return nil
	}
	task, err := s.cfg.Store.GetTask(ctx, p.Scope, p.Task)
	if err != nil {
		return err
	}
	n := berth.NewTask{
		Requirement: task.Requirement, Payload: redact.NewBytes(body.Payload), Retry: berth.DefaultRetryPolicy(),
		Inputs: task.Inputs, Secrets: task.Secrets,
	}
	var f berth.Faults
	n.Normalise("", time.Time{}, &f)
	if err := newJudge(s).plugin(ctx, "", &n, &f); err != nil {
		return err
	}
	p.Payload = n.Payload
	return f.Err()
}

// ChangeTask answers PATCH /tasks/{id}.
func (s *Server) ChangeTask(ctx context.Context, in ChangeTaskRequestObject) (ChangeTaskResponseObject, error) {
	t, transitions, err := s.cfg.Store.SetTaskPriority(ctx, taskParams(ctx, in.ID), in.Body.Priority)
	if err != nil {
		return nil, err
	}
	logging.Transitions(s.cfg.Logger, transitions)
	return ChangeTask200JSONResponse(taskOf(t)), nil
}

func taskParams(ctx context.Context, id ID) store.TaskParams {
	return store.TaskParams{Actor: actorOf(ctx), Scope: writes(ctx), Task: berth.TaskID(id)}
}

// readable turns the "not found" of a task that the caller may see, but not
// change, into "not allowed".
func (s *Server) readable(ctx context.Context, id ID, err error) error {
	if !errors.Is(err, berth.ErrNotFound) || !reads(ctx).All || writes(ctx).All {
		return err
	}
	if _, rerr := s.cfg.Store.GetTask(ctx, reads(ctx), berth.TaskID(id)); rerr == nil {
		return &berth.RoleError{Needs: berth.RoleOperator}
	}
	return err
}

// summaryOf is a task without its payload and result.
func summaryOf(t berth.Task) Task {
	out := taskOf(t)
	out.Payload, out.Result = nil, nil
	return out
}

func taskOf(t berth.Task) Task {
	return Task{
		ID: string(t.ID), Name: t.Name, Pool: t.PoolName, State: TaskState(t.State),
		Plugin: t.Requirement.Plugin, PluginVersion: t.Requirement.VersionRange, Selector: t.Requirement.Selector,
		Priority: t.Priority, Tags: append([]string{}, t.Tags...), Payload: raw(t.Payload.Reveal()),
		ScheduleID: string(t.Schedule), NotBefore: utc(t.NotBefore), RunTimeoutSeconds: t.RunTimeout.Seconds(), QueueTimeoutSeconds: t.QueueTimeout.Seconds(),
		Retry: retryOf(t.Retry), Inputs: taskInputs(t.Inputs), Secrets: t.Secrets, Tries: t.Tries, MaxTries: t.Budget, Attempts: t.Attempts, CancelRequested: t.CancelRequested,
		Submitter: submitterOf(t.Submitter), CorrelationID: t.CorrelationID, SubmittedAt: t.SubmittedAt.UTC(),
		DueAt: utc(t.DueAt), GiveUpAt: utc(t.GiveUpAt), AttemptID: string(t.Attempt), DeviceID: string(t.Device), HostID: string(t.Host),
		FinishedAt: utc(t.FinishedAt), Reason: t.FinalReason, Cause: string(t.Cause), Result: raw(t.Result.Reveal()),
	}
}

func retryOf(p berth.RetryPolicy) Retry {
	out := Retry{
		MaxAttempts: p.MaxAttempts, On: make([]RetriedOutcome, 0, len(p.On)),
		BackoffInitialSeconds: p.Initial.Seconds(), BackoffFactor: p.Factor, BackoffMaxSeconds: p.Max.Seconds(),
		BackoffJitter: p.Jitter, RetrySafe: !p.RetryUnsafe,
	}
	for _, o := range p.On {
		out.On = append(out.On, RetriedOutcome(o))
	}
	return out
}

func taskInputs(refs []berth.InputRef) []TaskInput {
	var out []TaskInput
	for _, r := range refs {
		out = append(out, TaskInput{Name: r.Name, Digest: r.Digest, Size: r.Size})
	}
	return out
}

func submitterOf(p berth.Principal) Submitter { return Submitter{Kind: string(p.Kind), ID: p.ID} }

// raw is stored JSON, or nil, which the wire leaves out.
func raw(b []byte) json.RawMessage {
	if len(b) == 0 {
		return nil
	}
	return json.RawMessage(b)
}
