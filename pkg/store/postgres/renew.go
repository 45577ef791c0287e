package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// RenewAttempts is documented at store.Agents.
func (s *Store) RenewAttempts(ctx context.Context, p store.RenewParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	all, err := s.renewMany(ctx, "RenewAttempts", []store.RenewParams{p})
	if err != nil {
		return nil, nil, err
	}
	return all[0].Answers, all[0].Transitions, all[0].Err
}

// RenewMany is documented at store.Agents.
func (s *Store) RenewMany(ctx context.Context, calls []store.RenewParams) ([]store.RenewManyAnswer, error) {
	return s.renewMany(ctx, "RenewMany", calls)
}

func (s *Store) renewMany(ctx context.Context, op string, calls []store.RenewParams) (all []store.RenewManyAnswer, err error) {
	if len(calls) == 0 {
		return nil, nil
	}
	err = s.write(ctx, op, func(t *tx) error {
		all = make([]store.RenewManyAnswer, len(calls))
		return t.renewMany(calls, all)
	})
	return only(all, err)
}

// renewMany waits for lease rows only: whoever ends an attempt holds its lease
// row too, so what the locked row says about its holder stays so.
func (t *tx) renewMany(calls []store.RenewParams, all []store.RenewManyAnswer) error {
	var ids []berth.AttemptID
	for _, p := range calls {
		ids = append(ids, mapped(p.Items, func(i store.RenewItem) berth.AttemptID { return i.Attempt })...)
	}
	hosts := mapped(calls, func(p store.RenewParams) berth.HostID { return p.Host })
	held, err := t.lockHeld(hosts, ids)
	if err != nil {
		return err
	}
	callers, err := t.hosts(hosts)
	if err != nil {
		return err
	}
	loaded, err := t.load(held)
	if err != nil {
		return err
	}
	r := renewal{loaded: byID(loaded), ttl: t.s.timings.LeaseTTL}
	for i, p := range calls {
		h, err := callers.caller(p.AgentCall)
		if all[i].Err = err; err == nil {
			r.now = h.now
			r.judge(&all[i], p)
		}
	}
	if err := t.extend(r.renewed, r.now); err != nil {
		return err
	}
	if err := t.progress(r.notes); err != nil || len(r.renewed) == 0 {
		return err
	}
	return t.markRenewed(r.now)
}

// renewal sorts the items of calls by what happens to them.
type renewal struct {
	loaded  map[berth.AttemptID]*live
	ttl     time.Duration
	now     time.Time
	renewed []*live
	notes   []store.RenewItem
}

// judge decides the items of one call on their locked leases. It is strict:
// what has expired is gone.
func (r *renewal) judge(call *store.RenewManyAnswer, p store.RenewParams) {
	call.Answers = make([]store.LeaseAnswer, len(p.Items))
	for i, item := range p.Items {
		call.Answers[i] = store.LeaseAnswer{Attempt: item.Attempt, Status: store.LeaseGone}
		a := r.loaded[item.Attempt]
		if a == nil || a.fence != item.Fence || a.host != p.Host || a.ended() || !a.holds ||
			a.state == berth.AttemptAssigned || !berth.LeaseAlive(a.expiresAt, r.now) {
			continue
		}
		call.Answers[i] = store.LeaseAnswer{Attempt: a.id, Status: store.LeaseGranted, Left: r.ttl, Cancel: !a.cancelAt.IsZero()}
		call.Transitions = append(call.Transitions, a.transition(berth.EventRenewed, a.state.TaskState(), a.state.TaskState(), r.now))
		r.renewed = append(r.renewed, a)
		if item.Progress >= 0 || !item.Note.IsZero() {
			r.notes = append(r.notes, item)
		}
	}
}

// lockHeld locks the leases of hosts' attempts, and those alone.
func (t *tx) lockHeld(hosts []berth.HostID, ids []berth.AttemptID) ([]berth.AttemptID, error) {
	return collect(t, column[berth.AttemptID], `
WITH mine AS MATERIALIZED (
    SELECT id, device_id FROM attempts WHERE id = ANY ($1) AND host_id = ANY ($2)
)
SELECT m.id FROM mine m JOIN leases l ON l.device_id = m.device_id AND l.attempt_id = m.id
ORDER BY l.device_id
FOR NO KEY UPDATE OF l`, uids(ids), uids(unique(hosts)))
}

// latest leaves one item an attempt: what later ones say over what earlier ones
// said.
func latest(items []store.RenewItem) []store.RenewItem {
	at := map[berth.AttemptID]int{}
	var out []store.RenewItem
	for _, item := range items {
		i, ok := at[item.Attempt]
		if !ok {
			at[item.Attempt] = len(out)
			out = append(out, item)
			continue
		}
		if item.Progress >= 0 {
			out[i].Progress = item.Progress
		}
		if !item.Note.IsZero() {
			out[i].Note = item.Note
		}
	}
	return out
}

// progress stores what the agents said of their work. The attempts' rows come
// before the leases in the lock order, so a row that is locked just now is
// passed over: the next renewal brings the progress again.
func (t *tx) progress(items []store.RenewItem) error {
	if len(items) == 0 {
		return nil
	}
	items = latest(items)
	_, err := t.exec(`
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::real[], $3::text[]) AS e (id, progress, note)
), free AS MATERIALIZED (
    SELECT a.task_id, a.number, e.progress, e.note FROM e JOIN attempts a ON a.id = e.id
    WHERE a.ended_at IS NULL
    FOR NO KEY UPDATE OF a SKIP LOCKED
)
UPDATE attempts a
SET progress = CASE WHEN f.progress >= 0 THEN f.progress ELSE a.progress END,
    progress_note = CASE WHEN f.note <> '' THEN f.note ELSE a.progress_note END
FROM free f WHERE a.task_id = f.task_id AND a.number = f.number
  AND (f.progress >= 0 AND f.progress <> a.progress OR f.note <> '' AND f.note <> a.progress_note)`,
		mapped(items, func(i store.RenewItem) pgtype.UUID { return uid(i.Attempt) }),
		mapped(items, func(i store.RenewItem) float32 { return float32(min(i.Progress, 1)) }),
		mapped(items, func(i store.RenewItem) string { return clean(i.Note.Reveal()) }))
	return err
}
