package httpapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// ListPools answers GET /pools.
func (s *Server) ListPools(ctx context.Context, in ListPoolsRequestObject) (ListPoolsResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidName)
	if err != nil {
		return nil, err
	}
	pools, next, err := s.cfg.Store.ListPools(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListPools200JSONResponse{Pools: make([]Pool, 0, len(pools)), NextPageToken: pageToken(ctx, next)}
	for _, p := range pools {
		out.Pools = append(out.Pools, poolOf(p))
	}
	return out, nil
}

// GetPool answers GET /pools/{name}.
func (s *Server) GetPool(ctx context.Context, in GetPoolRequestObject) (GetPoolResponseObject, error) {
	p, err := s.cfg.Store.GetPool(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return GetPool200JSONResponse(poolOf(p)), nil
}

// CreatePool answers POST /pools.
func (s *Server) CreatePool(ctx context.Context, in CreatePoolRequestObject) (CreatePoolResponseObject, error) {
	pool := berth.Pool{ID: berth.PoolID(newID()), Name: in.Body.Name, AgeingStep: berth.DefaultAgeingStep}
	if in.Body.AgeingStepSeconds != 0 {
		pool.AgeingStep = seconds(in.Body.AgeingStepSeconds)
	}
	once, err := onceOf(in.Params.IdempotencyKey, "createPool", in.Body)
	if err != nil {
		return nil, err
	}
	p, err := s.cfg.Store.CreatePool(ctx, store.CreatePoolParams{Actor: actorOf(ctx), Pool: pool, Once: once})
	if err != nil {
		return nil, err
	}
	return CreatePool201JSONResponse(poolOf(p)), nil
}

// PausePool answers POST /pools/{name}/pause.
func (s *Server) PausePool(ctx context.Context, in PausePoolRequestObject) (PausePoolResponseObject, error) {
	p, err := s.cfg.Store.SetPoolPaused(ctx, actorOf(ctx), in.Name, true)
	if err != nil {
		return nil, err
	}
	return PausePool200JSONResponse(poolOf(p)), nil
}

// ResumePool answers POST /pools/{name}/resume.
func (s *Server) ResumePool(ctx context.Context, in ResumePoolRequestObject) (ResumePoolResponseObject, error) {
	p, err := s.cfg.Store.SetPoolPaused(ctx, actorOf(ctx), in.Name, false)
	if err != nil {
		return nil, err
	}
	return ResumePool200JSONResponse(poolOf(p)), nil
}

// poolNamed finds the pool that a field or a parameter names; an unknown one is
// a fault of that field that lists those there are.
func (s *Server) poolNamed(ctx context.Context, path, name string) (berth.PoolID, error) {
	if name == "" {
		return "", nil
	}
	p, err := s.cfg.Store.GetPool(ctx, name)
	if err == nil {
		return p.ID, nil
	}
	if !errors.Is(err, berth.ErrNotFound) {
		return "", err
	}
	pools, next, err := s.cfg.Store.ListPools(ctx, store.Page{Size: maxNamed})
	if err != nil {
		return "", err
	}
	names := make([]string, len(pools))
	for i, p := range pools {
		names[i] = p.Name
	}
	return "", berth.Invalid(path, fmt.Sprintf("there is no pool %q", name), known(names, next != ""))
}

// maxNamed is how many names a remedy lists.
const maxNamed = 10

// known makes a remedy of the names there are.
func known(names []string, more bool) string {
	switch {
	case len(names) == 0:
		return "none is known yet"
	case more:
		return "known are " + strings.Join(names, ", ") + " and more"
	case len(names) == 1:
		return "known is " + names[0]
	}
	return "known are " + strings.Join(names, ", ")
}

func poolOf(p berth.Pool) Pool {
	return Pool{
		ID: string(p.ID), Name: p.Name, Paused: p.Paused, AgeingStepSeconds: p.AgeingStep.Seconds(), CreatedAt: p.CreatedAt.UTC(),
	}
}

// seconds is a number of seconds, to the microsecond.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}
