package postgres

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// ClaimAttempts is documented at store.Agents.
func (s *Store) ClaimAttempts(ctx context.Context, p store.ClaimParams) (got []store.Assignment, moves []berth.Transition, err error) {
	err = s.write(ctx, "ClaimAttempts", func(t *tx) error {
		got, moves = nil, nil
		ids, err := t.claimable(p)
		if err != nil {
			return err
		}
		var keys []lockedKey
		if len(ids) > 0 {
			if keys, err = t.lockAttempts(ids, p.Host); err != nil {
				return err
			}
			if err := t.lockLeases(mapped(keys, func(k lockedKey) berth.DeviceID { return k.device })); err != nil {
				return err
			}
		}
		h, err := t.judgeCaller(p.Host, p.Epoch)
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if got, moves, err = t.claim(p, attemptsOf(keys), h); err != nil {
				return err
			}
		}
		return t.seen(p.Host, h)
	})
	return committed(got, moves, err)
}

// claimable lists, without a lock, what the claim may get, oldest first.
func (t *tx) claimable(p store.ClaimParams) ([]berth.AttemptID, error) {
	return collect(t, column[berth.AttemptID], `
SELECT a.id FROM attempts a JOIN leases l ON l.device_id = a.device_id AND l.attempt_id = a.id
WHERE a.host_id = $1 AND a.ended_at IS NULL AND a.state IN ('assigned', 'claimed')
  AND (a.state = 'assigned' OR a.claim_id = $2 OR a.claim_epoch < $3)
  AND l.expires_at > berth_now()
ORDER BY a.assigned_at, a.id LIMIT $4`, uid(p.Host), uid(p.ClaimID), int64(p.Epoch), max(1, min(p.Max, 100)))
}

// claim hands over those of the locked attempts that may be.
func (t *tx) claim(p store.ClaimParams, ids []berth.AttemptID, h hostRow) ([]store.Assignment, []berth.Transition, error) {
	now := h.now
	loaded, err := t.load(ids)
	if err != nil {
		return nil, nil, err
	}
	// Oldest first, as they were picked: the trail tells it in that order too.
	slices.SortFunc(loaded, func(x, y *live) int {
		return cmp.Or(x.assignedAt.Compare(y.assignedAt), cmp.Compare(x.id, y.id))
	})
	var hand, fresh []*live
	var moves []berth.Transition
	for _, a := range loaded {
		again := a.state == berth.AttemptClaimed && a.claim == p.ClaimID && a.claimEpoch == p.Epoch
		mine := a.state == berth.AttemptAssigned || a.claim == p.ClaimID || a.claimEpoch < p.Epoch
		if a.ended() || a.state.Started() || !a.holds || !mine || !berth.LeaseAlive(a.expiresAt, now) || !berth.Deliverable(h.protocol, a.brings) {
			continue
		}
		if !again {
			fresh = append(fresh, a)
			a.expiresAt = now.Add(t.s.timings.LeaseTTL)
		}
		if a.state == berth.AttemptAssigned {
			moves = append(moves, a.transition(berth.EventClaimed, berth.StateAssigned, berth.StateClaimed, now))
			t.hint(store.HintTask, string(a.task))
		}
		hand = append(hand, a)
	}
	if err := t.writeClaims(p, fresh, now); err != nil {
		return nil, nil, err
	}
	if err := t.audit(p.Actor, moves); err != nil {
		return nil, nil, err
	}
	got, err := t.assignments(hand, now)
	return got, moves, err
}

func (t *tx) writeClaims(p store.ClaimParams, fresh []*live, now time.Time) error {
	if len(fresh) == 0 {
		return nil
	}
	if _, err := t.exec(`
UPDATE attempts a SET state = 'claimed', claim_id = $1, claim_epoch = $2, claimed_at = COALESCE(claimed_at, $3)
FROM unnest($4::uuid[], $5::integer[]) AS e (task, number) WHERE a.task_id = e.task AND a.number = e.number`,
		uid(p.ClaimID), int64(p.Epoch), now,
		mapped(fresh, func(a *live) pgtype.UUID { return uid(a.task) }),
		mapped(fresh, func(a *live) int32 { return int32(a.number) })); err != nil {
		return err
	}
	return t.extend(fresh, now)
}

// extend gives locked leases a fresh TTL from now.
func (t *tx) extend(held []*live, now time.Time) error {
	if len(held) == 0 {
		return nil
	}
	_, err := t.exec(`UPDATE leases SET expires_at = $2 WHERE device_id = ANY ($1)`,
		mapped(held, func(a *live) pgtype.UUID { return uid(a.device) }), now.Add(t.s.timings.LeaseTTL))
	return err
}

// assignments reads what the agent needs of the tasks: columns that never
// change, so that no lock is wanted.
func (t *tx) assignments(hand []*live, now time.Time) ([]store.Assignment, error) {
	if len(hand) == 0 {
		return nil, nil
	}
	known := byID(hand)
	got, err := collect(t, func(row pgx.CollectableRow) (g store.Assignment, err error) {
		var payload, inputs []byte
		err = row.Scan(&g.Attempt, &g.Plugin.Name, &g.Plugin.Version, &payload, &g.TraceParent, &g.TaskName, &inputs, &g.Secrets)
		g.Payload = redact.NewBytes(payload)
		if err == nil {
			g.Inputs, err = inputRefs(inputs)
		}
		return g, err
	}, `
SELECT a.id, c.plugin, a.plugin_version, t.payload, t.trace_parent, t.name, t.inputs, t.secrets
FROM attempts a JOIN tasks t ON t.id = a.task_id JOIN task_classes c ON c.id = t.class_id
WHERE a.id = ANY ($1)`, mapped(hand, func(a *live) pgtype.UUID { return uid(a.id) }))
	if err != nil {
		return nil, err
	}
	for i := range got {
		g, a := &got[i], known[got[i].Attempt]
		g.Task, g.Number, g.Device, g.Fence = a.task, a.number, a.device, a.fence
		g.Left, g.RunTimeout, g.CorrelationID = a.expiresAt.Sub(now), a.runTimeout, a.correlation
	}
	slices.SortFunc(got, func(x, y store.Assignment) int {
		if c := known[x.Attempt].assignedAt.Compare(known[y.Attempt].assignedAt); c != 0 {
			return c
		}
		return compareText(x.Attempt, y.Attempt)
	})
	return got, nil
}

func compareText[T ~string](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// byID indexes loaded attempts.
func byID(loaded []*live) map[berth.AttemptID]*live {
	out := make(map[berth.AttemptID]*live, len(loaded))
	for _, a := range loaded {
		out[a.id] = a
	}
	return out
}

// matched finds the loaded attempt of each item; nil for a foreign or unknown
// one and for another fence.
func matched(items []store.Holder, loaded []*live) []*live {
	known := byID(loaded)
	return mapped(items, func(h store.Holder) *live {
		if a := known[h.Attempt]; a != nil && a.fence == h.Fence {
			return a
		}
		return nil
	})
}

func attemptIDs(items []store.Holder) []berth.AttemptID {
	return mapped(items, func(h store.Holder) berth.AttemptID { return h.Attempt })
}

// StartAttempts is documented at store.Agents.
func (s *Store) StartAttempts(ctx context.Context, p store.StartParams) (answers []store.LeaseAnswer, moves []berth.Transition, err error) {
	err = s.write(ctx, "StartAttempts", func(t *tx) error {
		answers, moves = make([]store.LeaseAnswer, len(p.Items)), nil
		keys, err := t.lockAttempts(attemptIDs(p.Items), p.Host)
		if err != nil {
			return err
		}
		if err := t.lockLeases(mapped(keys, func(k lockedKey) berth.DeviceID { return k.device })); err != nil {
			return err
		}
		h, err := t.judgeCaller(p.Host, p.Epoch)
		if err != nil {
			return err
		}
		loaded, err := t.load(attemptsOf(keys))
		if err != nil {
			return err
		}
		var granted []*live
		for i, a := range matched(p.Items, loaded) {
			answers[i] = store.LeaseAnswer{Attempt: p.Items[i].Attempt, Status: store.LeaseGone}
			if a == nil {
				continue
			}
			answer, grant := t.s.judgeStart(a, h.now)
			if answers[i] = answer; grant {
				granted = append(granted, a)
				moves = append(moves, a.transition(berth.EventStarted, berth.StateClaimed, berth.StateRunning, h.now))
				t.hint(store.HintTask, string(a.task))
			}
		}
		if err := t.writeStarts(granted, h.now); err != nil {
			return err
		}
		return t.audit(p.Actor, moves)
	})
	return committed(answers, moves, err)
}

// judgeStart decides one start on locked rows; grant says that it is new. It
// changes a so that a second item for the same attempt is a repeat.
func (s *Store) judgeStart(a *live, now time.Time) (answer store.LeaseAnswer, grant bool) {
	answer = store.LeaseAnswer{Attempt: a.id, Status: store.LeaseGone}
	switch {
	case a.ended(), !a.holds, !berth.LeaseAlive(a.expiresAt, now), a.state == berth.AttemptAssigned:
	case a.state.Started():
		answer.Status, answer.Left, answer.Cancel = store.LeaseGranted, a.expiresAt.Sub(now), !a.cancelAt.IsZero()
	default:
		a.state, a.startedAt, a.expiresAt = berth.AttemptRunning, now, now.Add(s.timings.LeaseTTL)
		a.killBy = s.timings.KillBy(now, a.runTimeout, time.Time{})
		answer.Status, answer.Left, grant = store.LeaseGranted, s.timings.LeaseTTL, true
	}
	return answer, grant
}

func (t *tx) writeStarts(granted []*live, now time.Time) error {
	if len(granted) == 0 {
		return nil
	}
	_, err := t.exec(`
WITH e AS MATERIALIZED (
    SELECT * FROM unnest($3::uuid[], $4::integer[], $5::uuid[], $6::timestamptz[]) AS e (task, number, device, kill_by)
), a AS (
    UPDATE attempts a SET state = 'running', started_at = $1 FROM e WHERE a.task_id = e.task AND a.number = e.number
)
UPDATE leases l SET expires_at = $2, kill_by = e.kill_by FROM e WHERE l.device_id = e.device`,
		now, now.Add(t.s.timings.LeaseTTL),
		mapped(granted, func(a *live) pgtype.UUID { return uid(a.task) }),
		mapped(granted, func(a *live) int32 { return int32(a.number) }),
		mapped(granted, func(a *live) pgtype.UUID { return uid(a.device) }),
		mapped(granted, func(a *live) time.Time { return a.killBy }))
	return err
}
