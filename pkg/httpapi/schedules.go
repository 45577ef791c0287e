package httpapi

import (
	"context"
	"strconv"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/cron"
	"github.com/berth-dev/berth/pkg/logging"
	"github.com/berth-dev/berth/pkg/schedule"
	"github.com/berth-dev/berth/pkg/store"
)

// ListSchedules answers GET /schedules.
func (s *Server) ListSchedules(ctx context.Context, in ListSchedulesRequestObject) (ListSchedulesResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidName)
	if err != nil {
		return nil, err
	}
	schedules, next, err := s.cfg.Store.ListSchedules(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListSchedules200JSONResponse{Schedules: make([]Schedule, 0, len(schedules)), NextPageToken: pageToken(ctx, next)}
	for _, sc := range schedules {
		out.Schedules = append(out.Schedules, scheduleOf(sc))
	}
	return out, nil
}

// CreateSchedule answers POST /schedules.
func (s *Server) CreateSchedule(ctx context.Context, in CreateScheduleRequestObject) (CreateScheduleResponseObject, error) {
	once, err := onceOf(in.Params.IdempotencyKey, "createSchedule", in.Body)
	if err != nil {
		return nil, err
	}
	b := in.Body
	edit, err := s.scheduleEdit(ctx, ScheduleChange{
		Cron: &b.Cron, TimeZone: b.TimeZone, CatchUp: b.CatchUp, CatchUpWindowSeconds: b.CatchUpWindowSeconds, CatchUpLimit: b.CatchUpLimit,
		Overlap: b.Overlap, Template: &b.Template,
	})
	if err != nil {
		return nil, err
	}
	made, err := s.cfg.Store.CreateSchedule(ctx, store.CreateScheduleParams{
		Actor: actorOf(ctx), Scope: writes(ctx), Roles: requestOf(ctx).caller.Roles, ID: berth.ScheduleID(newID()), Name: b.Name, Edit: edit, Once: once,
	})
	if err != nil {
		return nil, err
	}
	bodyDone(ctx)
	return CreateSchedule201JSONResponse{Body: scheduleOf(made), Headers: CreateSchedule201ResponseHeaders{ETag: scheduleTag(made)}}, nil
}

// GetSchedule answers GET /schedules/{name}.
func (s *Server) GetSchedule(ctx context.Context, in GetScheduleRequestObject) (GetScheduleResponseObject, error) {
	sc, err := s.cfg.Store.GetSchedule(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return GetSchedule200JSONResponse{Body: scheduleOf(sc), Headers: GetSchedule200ResponseHeaders{ETag: scheduleTag(sc)}}, nil
}

// EditSchedule answers PATCH /schedules/{name}.
func (s *Server) EditSchedule(ctx context.Context, in EditScheduleRequestObject) (EditScheduleResponseObject, error) {
	version, err := versionOf(in.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	edit, err := s.scheduleEdit(ctx, *in.Body)
	if err != nil {
		return nil, err
	}
	sc, transitions, err := s.cfg.Store.EditSchedule(ctx, store.EditScheduleParams{
		Actor: actorOf(ctx), Scope: writes(ctx), Roles: requestOf(ctx).caller.Roles, Name: in.Name, Version: version, Edit: edit, Fresh: freshTask,
	})
	if err != nil {
		return nil, err
	}
	bodyDone(ctx)
	logging.Transitions(s.cfg.Logger, transitions)
	return EditSchedule200JSONResponse{Body: scheduleOf(sc), Headers: EditSchedule200ResponseHeaders{ETag: scheduleTag(sc)}}, nil
}

func freshTask() berth.TaskID { return berth.TaskID(newID()) }

// scheduleEdit is what a body asks for, its template judged as a submit is; it
// names every fault of it.
func (s *Server) scheduleEdit(ctx context.Context, b ScheduleChange) (berth.ScheduleEdit, error) {
	e := berth.ScheduleEdit{
		Cron: b.Cron, TimeZone: b.TimeZone, CatchUp: (*berth.CatchUp)(b.CatchUp), CatchUpLimit: b.CatchUpLimit, Overlap: (*berth.Overlap)(b.Overlap),
	}
	if b.CatchUpWindowSeconds != nil {
		window := seconds(*b.CatchUpWindowSeconds)
		e.CatchUpWindow = &window
	}
	var f berth.Faults
	if b.Cron != nil {
		zone := "UTC"
		if b.TimeZone != nil {
			zone = *b.TimeZone
		}
		if _, err := cron.Parse(*b.Cron, zone); err != nil {
			if err := noted(err, &f); err != nil {
				return e, err
			}
		}
	}
	if b.Template != nil {
		t := *b.Template
		j := newJudge(s)
		n, err := j.task(ctx, "template", TaskSpec{
			Name: t.Name, Pool: t.Pool, Plugin: t.Plugin, PluginVersion: t.PluginVersion, Payload: t.Payload, Selector: t.Selector,
			Priority: t.Priority, Tags: t.Tags, RunTimeoutSeconds: t.RunTimeoutSeconds, QueueTimeoutSeconds: t.QueueTimeoutSeconds,
			Retry: t.Retry, Inputs: t.Inputs, Secrets: t.Secrets,
		}, &f)
		if err != nil {
			return e, err
		}
		e.Template = &n
	}
	return e, f.Err()
}

// DeleteSchedule answers DELETE /schedules/{name}.
func (s *Server) DeleteSchedule(ctx context.Context, in DeleteScheduleRequestObject) (DeleteScheduleResponseObject, error) {
	version, err := versionOf(in.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Store.DeleteSchedule(ctx, actorOf(ctx), in.Name, version); err != nil {
		return nil, err
	}
	return DeleteSchedule204Response{}, nil
}

// PauseSchedule answers POST /schedules/{name}/pause.
func (s *Server) PauseSchedule(ctx context.Context, in PauseScheduleRequestObject) (PauseScheduleResponseObject, error) {
	sc, transitions, err := s.cfg.Store.PauseSchedule(ctx, actorOf(ctx), in.Name, freshTask)
	if err != nil {
		return nil, err
	}
	logging.Transitions(s.cfg.Logger, transitions)
	return PauseSchedule200JSONResponse(scheduleOf(sc)), nil
}

// ResumeSchedule answers POST /schedules/{name}/resume.
func (s *Server) ResumeSchedule(ctx context.Context, in ResumeScheduleRequestObject) (ResumeScheduleResponseObject, error) {
	sc, err := s.cfg.Store.ResumeSchedule(ctx, actorOf(ctx), in.Name)
	if err != nil {
		return nil, err
	}
	return ResumeSchedule200JSONResponse(scheduleOf(sc)), nil
}

// RunSchedule answers POST /schedules/{name}/run.
func (s *Server) RunSchedule(ctx context.Context, in RunScheduleRequestObject) (RunScheduleResponseObject, error) {
	once, err := onceOf(in.Params.IdempotencyKey, "runSchedule "+in.Name, nil)
	if err != nil {
		return nil, err
	}
	result, err := s.cfg.Store.RunSchedule(ctx, store.RunScheduleParams{Actor: actorOf(ctx), Name: in.Name, Task: freshTask(), Once: once})
	if err != nil {
		return nil, err
	}
	logging.Transitions(s.cfg.Logger, result.Transitions)
	return RunSchedule201JSONResponse{Body: taskOf(result.Task), Headers: RunSchedule201ResponseHeaders{BerthReplayed: result.Replayed}}, nil
}

// PreviewCron answers POST /schedules/preview.
func (s *Server) PreviewCron(ctx context.Context, in PreviewCronRequestObject) (PreviewCronResponseObject, error) {
	zone, after, n := in.Body.TimeZone, in.Body.After, in.Body.N
	if zone == "" {
		zone = "UTC"
	}
	spec, err := cron.Parse(in.Body.Cron, zone)
	if err != nil {
		return nil, err
	}
	if after.IsZero() {
		if after, err = s.cfg.Store.Now(ctx); err != nil {
			return nil, err
		}
	}
	if year := after.Year(); year < 1970 || year > 2200 {
		return nil, berth.Invalid("after", "is out of range", "use a time from 1970 to 2200")
	}
	return PreviewCron200JSONResponse(previewOf(spec, spec.Preview(after, previewed(n)))), nil
}

// PreviewSchedule answers GET /schedules/{name}/preview.
func (s *Server) PreviewSchedule(ctx context.Context, in PreviewScheduleRequestObject) (PreviewScheduleResponseObject, error) {
	sc, err := s.cfg.Store.GetSchedule(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	spec, err := schedule.Spec(sc)
	if err != nil {
		return nil, err
	}
	n := previewed(in.Params.N)
	if sc.Paused {
		now, err := s.cfg.Store.Now(ctx)
		if err != nil {
			return nil, err
		}
		return PreviewSchedule200JSONResponse(previewOf(spec, spec.Preview(now, n))), nil
	}
	next, err := schedule.Next(sc, spec)
	if err != nil {
		return nil, err
	}
	return PreviewSchedule200JSONResponse(previewOf(spec, append([]cron.Slot{next}, spec.Preview(next.At, n-1)...))), nil
}

func previewed(n int) int {
	if n == 0 {
		return 10
	}
	return min(n, berth.MaxPreview)
}

// ListFires answers GET /schedules/{name}/fires.
func (s *Server) ListFires(ctx context.Context, in ListFiresRequestObject) (ListFiresResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, func(cursor string) bool {
		_, err := berth.ParseFireCursor(cursor)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	fires, next, err := s.cfg.Store.ListFires(ctx, in.Name, page)
	if err != nil {
		return nil, err
	}
	out := ListFires200JSONResponse{Fires: make([]Fire, 0, len(fires)), NextPageToken: pageToken(ctx, next)}
	for _, f := range fires {
		out.Fires = append(out.Fires, Fire{
			Slot: f.Key, SlotAt: f.SlotAt.UTC(), LastSlotAt: f.LastSlotAt.UTC(), DecidedAt: f.DecidedAt.UTC(), TaskID: string(f.Task),
			Reason: f.Reason, Slots: f.Slots, AtLeast: f.AtLeast, Revision: f.Revision,
		})
	}
	return out, nil
}

// scheduleTag is a schedule's version as an entity tag.
func scheduleTag(sc berth.Schedule) string { return `"` + strconv.Itoa(sc.Version) + `"` }

func scheduleOf(sc berth.Schedule) Schedule {
	out := Schedule{
		ID: string(sc.ID), Name: sc.Name, Cron: sc.Cron, TimeZone: sc.TimeZone, CatchUp: CatchUp(sc.CatchUp),
		CatchUpWindowSeconds: sc.CatchUpWindow.Seconds(), CatchUpLimit: sc.CatchUpLimit, Overlap: Overlap(sc.Overlap), Template: templateOf(sc),
		Paused: sc.Paused, Note: sc.Note, NextFireAt: utc(sc.NextAt), NextSlot: sc.NextKey, Waiting: sc.Waiting, Revision: sc.Revision, Version: sc.Version,
		Owner: submitterOf(sc.Owner), CreatedAt: sc.CreatedAt.UTC(), UpdatedAt: sc.UpdatedAt.UTC(),
	}
	if spec, err := schedule.Spec(sc); err == nil {
		out.Kind = ScheduleKind(spec.Kind())
	}
	return out
}

// templateOf is a template as it can be sent again.
func templateOf(sc berth.Schedule) TaskTemplate {
	n := sc.Template
	out := TaskTemplate{
		Name: n.Name, Pool: sc.PoolName, Plugin: n.Requirement.Plugin, PluginVersion: n.Requirement.VersionRange, Selector: n.Requirement.Selector,
		Payload: raw(n.Payload.Reveal()), Priority: n.Priority, Tags: n.Tags, RunTimeoutSeconds: n.RunTimeout.Seconds(),
		QueueTimeoutSeconds: n.QueueTimeout.Seconds(), Secrets: n.Secrets,
	}
	r := retryOf(n.Retry)
	out.Retry = &RetrySpec{
		MaxAttempts: &r.MaxAttempts, On: &r.On, BackoffInitialSeconds: &r.BackoffInitialSeconds, BackoffFactor: &r.BackoffFactor,
		BackoffMaxSeconds: &r.BackoffMaxSeconds, BackoffJitter: &r.BackoffJitter, RetrySafe: &r.RetrySafe,
	}
	for _, in := range n.Inputs {
		out.Inputs = append(out.Inputs, InputUse{Name: in.Name, Digest: in.Digest})
	}
	return out
}

func previewOf(spec cron.Spec, slots []cron.Slot) Preview {
	out := Preview{Cron: spec.Expression(), TimeZone: spec.Zone(), Kind: ScheduleKind(spec.Kind()), Slots: make([]Slot, 0, len(slots))}
	for _, slot := range slots {
		out.Slots = append(out.Slots, Slot{Slot: string(slot.Key), At: slot.At, Local: slot.Local.String(), Clock: spec.In(slot.At).Format(time.RFC3339)})
	}
	return out
}
