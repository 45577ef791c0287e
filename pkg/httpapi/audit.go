package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// ListAudit answers GET /audit.
func (s *Server) ListAudit(ctx context.Context, in ListAuditRequestObject) (ListAuditResponseObject, error) {
	p := in.Params
	page, err := pageOf(ctx, p.PageSize, p.PageToken, validEventCursor)
	if err != nil {
		return nil, err
	}
	if p.Target != "" && p.TargetKind == "" {
		return nil, berth.Invalid("target_kind", "is missing", "say of which kind `target` is, such as task, host, device, user or pool")
	}
	if !p.From.IsZero() && !p.To.IsZero() && !p.From.Before(p.To) {
		return nil, berth.Invalid("to", "is not after `from`", "use a later time, or leave one of them out")
	}
	below, _ := strconv.ParseInt(page.After, 10, 64) // valid, or "" for the newest
	rows, next, err := s.cfg.Store.SearchAudit(ctx, store.AuditFilter{
		ActorID: p.Actor, Action: p.Action, TargetKind: p.TargetKind, TargetID: p.Target,
		Host: berth.HostID(p.Host), Device: berth.DeviceID(p.Device), RequestID: p.RequestID, From: p.From, To: p.To,
	}, below, page.Limit())
	if err != nil {
		return nil, err
	}
	out := ListAudit200JSONResponse{Events: make([]AuditEvent, 0, len(rows))}
	for _, r := range rows {
		out.Events = append(out.Events, auditEventOf(r))
	}
	if next > 0 {
		out.NextPageToken = pageToken(ctx, strconv.FormatInt(next, 10))
	}
	return out, nil
}

func auditEventOf(r store.AuditRow) AuditEvent {
	return AuditEvent{
		ID: strconv.FormatInt(r.ID, 10), At: r.At.UTC(), ActorKind: string(r.Actor.Kind), Actor: r.Actor.ID, ActorName: r.ActorName,
		Client: r.Actor.Client, Credential: string(r.Actor.Credential), RequestID: r.Actor.RequestID,
		Action: string(r.Action), TargetKind: r.TargetKind, Target: r.TargetID,
		Attempt: string(r.Attempt), Number: r.Number, Device: string(r.Device), Host: string(r.Host),
		From: string(r.From), To: string(r.To), Outcome: string(r.Outcome), Reason: r.Reason,
		Before: factsOf(r.Before), After: factsOf(r.After),
	}
}

func factsOf(f berth.Facts) map[string]string {
	var out map[string]string
	if f != "" {
		_ = json.Unmarshal([]byte(f), &out) // berth.NewFacts spelled it
	}
	return out
}

// recordRead puts a read of content on record, before the content is sent: what
// cannot be recorded is not read.
func (s *Server) recordRead(ctx context.Context, e berth.AuditEvent) error {
	a := actorOf(ctx)
	err := s.cfg.Store.RecordRead(ctx, a, e)
	if err == nil || ctx.Err() != nil { // the caller has gone
		return err
	}
	// Nothing else tells an operator that the trail takes no rows.
	s.cfg.Logger.Error("what was asked for is not sent: its reading cannot be put on record",
		zap.String("request_id", a.RequestID), zap.String("action", string(e.Action)), zap.Error(err))
	return fmt.Errorf("%w: the read could not be put on record: %s", berth.ErrUnavailable, err.Error())
}

const (
	// readFor is how long one row speaks for further reads of the same content by
	// the same credential from the same address: those that follow a log, fetch it
	// piece by piece, or ask for ranges, leave one row and not one a piece. It counts
	// from the row, however long they go on, and whichever piece they begin with.
	readFor = 10 * time.Minute
	// readsKept bounds the memory; what is forgotten is recorded again.
	readsKept = 10_000
)

// reading is who reads what.
type reading struct {
	principal      berth.Principal
	client         string
	credential     berth.Credential
	action         berth.AuditAction
	target, number string
}

// readings remembers reads that are on record. Each process has its own, so that
// several leave a row each.
type readings struct {
	mu   sync.Mutex
	seen map[reading]time.Time
}

// fresh reports whether a row speaks for the reading.
func (r *readings) fresh(key reading, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ok := r.seen[key]
	return ok && now.Sub(at) < readFor
}

// keep notes a row.
func (r *readings) keep(key reading, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil || len(r.seen) >= readsKept {
		r.seen = map[reading]time.Time{}
	}
	r.seen[key] = now
}

// recordPiece is recordRead of one piece of a content that is read in several.
func (s *Server) recordPiece(ctx context.Context, e berth.AuditEvent) error {
	a := actorOf(ctx)
	key := reading{a.Principal, a.Client, a.Credential, e.Action, e.TargetID, strconv.Itoa(e.Number)}
	if s.readings.fresh(key, time.Now()) {
		return nil
	}
	if err := s.recordRead(ctx, e); err != nil {
		return err
	}
	s.readings.keep(key, time.Now())
	return nil
}
