package httpapi

import (
	"context"
	"path"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// defaultEnrolmentTTL is how long an enrolment token lets a host in.
const defaultEnrolmentTTL = time.Hour

// CreateEnrolmentToken answers POST /enrolment-tokens. The answer alone holds
// the token.
func (s *Server) CreateEnrolmentToken(ctx context.Context, in CreateEnrolmentTokenRequestObject) (CreateEnrolmentTokenResponseObject, error) {
	pattern, pool, ttl := in.Body.HostNamePattern, in.Body.Pool, defaultEnrolmentTTL
	if pattern == "" {
		pattern = "*"
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, berth.Invalid("host_name_pattern", "is not a glob", "use letters with * and ?, for example lab-*")
	}
	if pool == "" {
		pool = berth.DefaultPool
	}
	if in.Body.TTLSeconds != 0 {
		ttl = seconds(in.Body.TTLSeconds)
	}
	id, err := s.poolNamed(ctx, "pool", pool)
	if err != nil {
		return nil, err
	}
	once, err := onceOf(in.Params.IdempotencyKey, "createEnrolmentToken", in.Body)
	if err != nil {
		return nil, err
	}
	token, hash, err := s.enrolmentToken(ctx, once)
	if err != nil {
		return nil, err
	}
	e, err := s.cfg.Store.CreateEnrolment(ctx, store.CreateEnrolmentParams{
		Actor: actorOf(ctx), ID: berth.EnrolmentID(newID()), Pool: id, Pattern: pattern, TokenHash: hash, TTL: ttl, Once: once,
	})
	if err != nil {
		return nil, err
	}
	out := enrolmentOf(e)
	out.Token = token.Reveal()
	return CreateEnrolmentToken201JSONResponse(out), nil
}

// enrolmentToken makes a token, the same one for the same caller and key: so a
// repeat can be answered with what is stored nowhere.
func (s *Server) enrolmentToken(ctx context.Context, once store.Once) (redact.String, [32]byte, error) {
	if once.Key == "" {
		return identity.NewEnrolmentToken()
	}
	return s.cfg.Identity.EnrolmentTokenFor(requestOf(ctx).caller.Principal, once.Key)
}

// ListEnrolmentTokens answers GET /enrolment-tokens.
func (s *Server) ListEnrolmentTokens(ctx context.Context, in ListEnrolmentTokensRequestObject) (ListEnrolmentTokensResponseObject, error) {
	page, err := pageOf(ctx, in.Params.PageSize, in.Params.PageToken, berth.ValidID)
	if err != nil {
		return nil, err
	}
	tokens, next, err := s.cfg.Store.ListEnrolments(ctx, page)
	if err != nil {
		return nil, err
	}
	out := ListEnrolmentTokens200JSONResponse{EnrolmentTokens: make([]EnrolmentToken, 0, len(tokens)), NextPageToken: pageToken(ctx, next)}
	for _, t := range tokens {
		out.EnrolmentTokens = append(out.EnrolmentTokens, enrolmentOf(t))
	}
	return out, nil
}

// RevokeEnrolmentToken answers DELETE /enrolment-tokens/{id}.
func (s *Server) RevokeEnrolmentToken(ctx context.Context, in RevokeEnrolmentTokenRequestObject) (RevokeEnrolmentTokenResponseObject, error) {
	if err := s.cfg.Store.RevokeEnrolment(ctx, actorOf(ctx), berth.EnrolmentID(in.ID)); err != nil {
		return nil, err
	}
	return RevokeEnrolmentToken204Response{}, nil
}

func enrolmentOf(t berth.EnrolmentToken) EnrolmentToken {
	return EnrolmentToken{
		ID: string(t.ID), Pool: t.PoolName, HostNamePattern: t.Pattern, CreatedAt: t.CreatedAt.UTC(), ExpiresAt: t.ExpiresAt.UTC(),
		UsedAt: utc(t.UsedAt), UsedBy: string(t.UsedBy), RevokedAt: utc(t.RevokedAt),
	}
}

// utc keeps a zero time zero, which the wire leaves out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}
