package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/explain"
)

// GetPlacement answers GET /tasks/{id}/placement.
func (s *Server) GetPlacement(ctx context.Context, in GetPlacementRequestObject) (GetPlacementResponseObject, error) {
	facts, err := s.cfg.Store.PlacementFacts(ctx, reads(ctx), berth.TaskID(in.ID))
	if err != nil {
		return nil, err
	}
	return GetPlacement200JSONResponse(placementOf(explain.Explain(facts))), nil
}

func placementOf(e explain.Explanation) Placement {
	out := Placement{
		State: TaskState(e.State), Summary: e.Summary, Reasons: make([]PlacementReason, 0, len(e.Reasons)),
		Unsatisfiable: e.Unsatisfiable, Ahead: e.Ahead, AheadMore: e.AheadMore, DueAt: utc(e.DueAt), GiveUpAt: utc(e.GiveUpAt),
		Devices: e.Devices, Fitting: e.Fitting, Free: e.Free, Truncated: e.Truncated,
		RuledOut: make([]PlacementRuledOut, 0, len(e.RuledOut)), Unavailable: make([]PlacementUnavailable, 0, len(e.Unavailable)),
	}
	for _, r := range e.Reasons {
		out.Reasons = append(out.Reasons, PlacementReason{Code: string(r.Code), Message: r.Message, Remedy: r.Remedy})
	}
	for _, r := range e.RuledOut {
		out.RuledOut = append(out.RuledOut, PlacementRuledOut{Requirement: r.Requirement, Devices: r.Devices})
	}
	for _, u := range e.Unavailable {
		out.Unavailable = append(out.Unavailable, PlacementUnavailable{Code: string(u.Code), Devices: u.Devices})
	}
	return out
}
