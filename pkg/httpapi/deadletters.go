package httpapi

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
)

// ListDeadLetters answers GET /dead-letters.
func (s *Server) ListDeadLetters(ctx context.Context, in ListDeadLettersRequestObject) (ListDeadLettersResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, func(key string) bool { return berth.CauseKey(key).Valid() })
	if err != nil {
		return nil, err
	}
	causes, next, err := s.cfg.Store.ListDeadLetters(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListDeadLetters200JSONResponse{DeadLetters: make([]DeadLetters, 0, len(causes)), NextPageToken: pageToken(ctx, next)}
	for _, d := range causes {
		out.DeadLetters = append(out.DeadLetters, DeadLetters{
			Cause: string(d.Key), Plugin: d.Plugin, Reason: d.Reason, Message: d.Message.Reveal(), Count: d.Count, More: d.More,
			NewestTaskID: string(d.Newest), NewestAt: d.NewestAt.UTC(), Since: utc(d.Since),
		})
	}
	return out, nil
}
