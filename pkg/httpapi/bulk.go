package httpapi

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// StartBulkJob answers POST /bulk-jobs.
func (s *Server) StartBulkJob(ctx context.Context, in StartBulkJobRequestObject) (StartBulkJobResponseObject, error) {
	spec, err := s.bulkSpec(ctx, *in.Body)
	if err != nil {
		return nil, err
	}
	p := store.StartBulkParams{Actor: actorOf(ctx), ID: newID(), Spec: spec}
	if p.Once, err = onceOf(in.Params.IdempotencyKey, "startBulkJob", in.Body); err != nil {
		return nil, err
	}
	job, err := s.cfg.Store.StartBulk(ctx, p)
	if err != nil {
		return nil, err
	}
	return StartBulkJob201JSONResponse(bulkJobOf(job)), nil
}

// PreviewBulkJob answers POST /bulk-jobs/preview.
func (s *Server) PreviewBulkJob(ctx context.Context, in PreviewBulkJobRequestObject) (PreviewBulkJobResponseObject, error) {
	spec, err := s.bulkSpec(ctx, *in.Body)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Store.PreviewBulk(ctx, spec)
	if err != nil {
		return nil, err
	}
	out := PreviewBulkJob200JSONResponse{Count: p.Count, More: p.More, Sample: make([]Task, 0, len(p.Sample))}
	for _, t := range p.Sample {
		out.Sample = append(out.Sample, summaryOf(t))
	}
	return out, nil
}

// bulkSpec judges what a job is to do to which tasks.
func (s *Server) bulkSpec(ctx context.Context, in BulkSpec) (store.BulkSpec, error) {
	f := in.Filter
	spec := store.BulkSpec{Act: berth.BulkAct(in.Act), AddTries: in.AddTries, Filter: store.TaskFilter{
		Plugin: f.Plugin, Tag: f.Tag, NamePrefix: f.NamePrefix, Submitter: f.Submitter, Device: berth.DeviceID(f.Device),
		Cause: berth.CauseKey(f.Cause), SubmittedFrom: utc(f.SubmittedFrom), SubmittedTo: utc(f.SubmittedTo),
	}}
	for _, state := range f.State {
		spec.Filter.States = append(spec.Filter.States, berth.TaskState(state))
	}
	var faults berth.Faults
	none := len(f.State) == 0 && f.Pool == "" && f.Plugin == "" && f.Tag == "" && f.NamePrefix == "" && f.Submitter == "" &&
		f.Device == "" && f.Cause == "" && f.SubmittedFrom.IsZero() && f.SubmittedTo.IsZero()
	switch {
	case none && !in.All:
		faults.Add("filter", "it passes every task", "name at least one member, such as tag, or say all: true")
	case !none && in.All:
		faults.Add("all", "it says all, and there is a filter", "leave one of them out")
	}
	switch {
	case spec.Act == berth.BulkReprioritise && in.Priority == nil:
		faults.Add("priority", "missing", "use 0 (least urgent) to 9 (most urgent)")
	case spec.Act != berth.BulkReprioritise && in.Priority != nil:
		faults.Add("priority", "only reprioritise takes it", "leave it out")
	case in.Priority != nil:
		spec.Priority = *in.Priority
	}
	if spec.Act != berth.BulkRetry && in.AddTries != 0 {
		faults.Add("add_tries", "only retry takes it", "leave it out")
	}
	_, _, err := berth.CheckBulk(spec.Act, spec.Filter.States, f.Cause != "")
	if err := noted(err, &faults); err != nil {
		return spec, err
	}
	var invalid *berth.InvalidError
	if spec.Filter.Pool, err = s.poolNamed(ctx, "filter.pool", f.Pool); err != nil {
		if !errors.As(err, &invalid) {
			return spec, err
		}
		addUnder("", invalid, &faults)
	}
	return spec, faults.Err()
}

// GetBulkJob answers GET /bulk-jobs/{id}.
func (s *Server) GetBulkJob(ctx context.Context, in GetBulkJobRequestObject) (GetBulkJobResponseObject, error) {
	job, err := s.cfg.Store.GetBulk(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return GetBulkJob200JSONResponse(bulkJobOf(job)), nil
}

// ListBulkJobs answers GET /bulk-jobs.
func (s *Server) ListBulkJobs(ctx context.Context, in ListBulkJobsRequestObject) (ListBulkJobsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	jobs, next, err := s.cfg.Store.ListBulk(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListBulkJobs200JSONResponse{Jobs: make([]BulkJob, 0, len(jobs)), NextPageToken: pageToken(ctx, next)}
	for _, job := range jobs {
		out.Jobs = append(out.Jobs, bulkJobOf(job))
	}
	return out, nil
}

// StopBulkJob answers POST /bulk-jobs/{id}/stop.
func (s *Server) StopBulkJob(ctx context.Context, in StopBulkJobRequestObject) (StopBulkJobResponseObject, error) {
	job, err := s.cfg.Store.StopBulk(ctx, actorOf(ctx), in.ID)
	if err != nil {
		return nil, err
	}
	return StopBulkJob200JSONResponse(bulkJobOf(job)), nil
}

func bulkJobOf(j store.BulkJob) BulkJob {
	f := j.Filter
	out := BulkJob{
		ID: j.ID, Act: BulkAct(j.Act), AddTries: j.AddTries, State: BulkJobState(j.State), Owner: submitterOf(j.Owner),
		Looked: j.Looked, Changed: j.Changed, Refused: j.Refused,
		CreatedAt: j.CreatedAt.UTC(), UpdatedAt: j.UpdatedAt.UTC(), FinishedAt: utc(j.FinishedAt),
		Filter: BulkFilter{
			Pool: j.PoolName, Plugin: f.Plugin, Tag: f.Tag, NamePrefix: f.NamePrefix, Submitter: f.Submitter, Device: string(f.Device),
			Cause: string(f.Cause), SubmittedFrom: utc(f.SubmittedFrom), SubmittedTo: utc(f.SubmittedTo),
		},
	}
	for _, state := range f.States {
		out.Filter.State = append(out.Filter.State, TaskState(state))
	}
	if j.Act == berth.BulkReprioritise {
		out.Priority = &j.Priority
	}
	return out
}
