package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// CompleteAttempts is documented at store.Agents.
func (s *Store) CompleteAttempts(ctx context.Context, p store.CompleteParams) ([]store.CompleteAnswer, []berth.Transition, error) {
	all, err := s.completeMany(ctx, "CompleteAttempts", []store.CompleteParams{p})
	if err != nil {
		return nil, nil, err
	}
	return all[0].Answers, all[0].Transitions, all[0].Err
}

// CompleteMany is documented at store.Agents.
func (s *Store) CompleteMany(ctx context.Context, calls []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	return s.completeMany(ctx, "CompleteMany", calls)
}

func (s *Store) completeMany(ctx context.Context, op string, calls []store.CompleteParams) (all []store.CompleteManyAnswer, err error) {
	faults := mapped(calls, func(p store.CompleteParams) error { return store.CheckComplete(p.Items) })
	if !slices.Contains(faults, nil) {
		return mapped(faults, func(err error) store.CompleteManyAnswer { return store.CompleteManyAnswer{Err: err} }), nil
	}
	err = s.write(ctx, op, func(t *tx) error {
		all = mapped(faults, func(err error) store.CompleteManyAnswer { return store.CompleteManyAnswer{Err: err} })
		return t.completeMany(calls, all)
	})
	return only(all, err)
}

// completeMany completes the calls that have no fault yet.
func (t *tx) completeMany(calls []store.CompleteParams, all []store.CompleteManyAnswer) error {
	var hosts []berth.HostID
	var ids []berth.AttemptID
	for i, p := range calls {
		if all[i].Err == nil {
			hosts = append(hosts, p.Host)
			ids = append(ids, mapped(p.Items, func(i store.CompleteItem) berth.AttemptID { return i.Attempt })...)
		}
	}
	keys, err := t.lockForEnd(ids, hosts...)
	if err != nil {
		return err
	}
	callers, err := t.hosts(hosts)
	if err != nil {
		return err
	}
	loaded, err := t.load(attemptsOf(keys))
	if err != nil {
		return err
	}
	c := completion{loaded: byID(loaded), ending: map[berth.AttemptID]int{}}
	var now time.Time
	for i, p := range calls {
		if all[i].Err != nil {
			continue
		}
		h, err := callers.caller(p.AgentCall)
		if all[i].Err = err; err == nil {
			c.add(&all[i], p)
			now = h.now
		}
	}
	if c.stored, err = t.storedArtifacts(c.items); err != nil {
		return err
	}
	for i := range c.items {
		c.judge(i)
	}
	return t.complete(now, &c)
}

// complete writes what was judged.
func (t *tx) complete(now time.Time, c *completion) error {
	moves, err := t.endAll(now, c.ends)
	if err != nil {
		return err
	}
	for i, e := range c.ends {
		item := &c.items[c.at[i]]
		item.answer.TaskState = e.next.State
		item.call.Transitions = append(item.call.Transitions, moves[i])
	}
	for _, pair := range c.repeats {
		c.items[pair[0]].answer.TaskState = c.items[pair[1]].answer.TaskState
	}
	return t.formerStates(c.former)
}

// completion sorts the items of calls by what happens to them.
type completion struct {
	items   []completing
	loaded  map[berth.AttemptID]*live
	stored  map[berth.AttemptID]map[string]string
	ending  map[berth.AttemptID]int // items that end their attempt now
	ends    []*end
	at      []int    // index of the item of each end
	repeats [][2]int // item, and the item before it that it repeats
	former  []former
}

// completing is one item, and where its answer goes.
type completing struct {
	store.CompleteItem
	store.AgentCall
	call   *store.CompleteManyAnswer
	answer *store.CompleteAnswer
}

// former is a repeat of what was completed before.
type former struct {
	*live
	answer *store.CompleteAnswer
}

func (c *completion) add(call *store.CompleteManyAnswer, p store.CompleteParams) {
	call.Answers = make([]store.CompleteAnswer, len(p.Items))
	for i, item := range p.Items {
		c.items = append(c.items, completing{item, p.AgentCall, call, &call.Answers[i]})
	}
}

// judge decides one item on its locked attempt.
func (c *completion) judge(i int) {
	item, answer := c.items[i], c.items[i].answer
	*answer = store.CompleteAnswer{Attempt: item.Attempt, Status: store.CompleteGone}
	a := c.loaded[item.Attempt]
	if a == nil || a.fence != item.Fence || a.host != item.Host {
		return
	}
	if first, ok := c.ending[a.id]; ok {
		answer.Outcome, answer.Status = c.items[first].Outcome, store.CompleteMismatch
		if c.items[first].Digest == item.Digest {
			answer.Status = store.CompleteStored
			c.repeats = append(c.repeats, [2]int{i, first})
		}
		return
	}
	if a.ended() {
		c.judgeRepeat(item, a)
		return
	}
	if !a.state.Started() && item.Outcome != berth.OutcomeInfraFailed && item.Outcome != berth.OutcomeCancelled {
		answer.Status = store.CompleteNotStarted
		return
	}
	if item.Outcome == berth.OutcomeSucceeded {
		answer.MissingArtifacts = missingArtifacts(item.Artifacts, c.stored[a.id])
		if answer.LogNext = a.logBytes; len(answer.MissingArtifacts) > 0 || a.logBytes < item.LogBytes {
			answer.Status = store.CompleteMissing
			return
		}
		answer.LogNext = 0
	}
	answer.Status, answer.Outcome = store.CompleteStored, item.Outcome
	c.ending[a.id] = i
	c.at = append(c.at, i)
	c.ends = append(c.ends, endOf(item, a))
}

func endOf(item completing, a *live) *end {
	e := &end{
		live: a, actor: item.Actor, outcome: item.Outcome, reason: item.Reason, by: berth.EndedByAgent, message: item.Message.Reveal(),
		dirty: !item.DeviceClean, proved: item.DeviceClean, digest: bytes.Clone(item.Digest[:]),
	}
	if e.reason == "" {
		e.reason = string(item.Outcome)
	}
	// A result that is no JSON would make the statement fail for all items.
	if b := item.Result.Reveal(); json.Valid(b) {
		e.result = b
	}
	return e
}

// judgeRepeat answers for an attempt that had ended before.
func (c *completion) judgeRepeat(item completing, a *live) {
	answer := item.answer
	answer.Outcome = a.outcome
	switch {
	case len(a.digest) == 0:
		answer.Status = store.CompleteGone
	case bytes.Equal(a.digest, item.Digest[:]):
		answer.Status = store.CompleteStored
		c.former = append(c.former, former{a, answer})
	default:
		answer.Status = store.CompleteMismatch
	}
}

func missingArtifacts(listed, stored map[string]string) []string {
	var missing []string
	for name, sum := range listed {
		if stored[name] != sum {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return missing
}

// storedArtifacts reads what is stored of the artifacts that successes list.
func (t *tx) storedArtifacts(items []completing) (map[berth.AttemptID]map[string]string, error) {
	var ids []berth.AttemptID
	for _, i := range items {
		if i.Outcome == berth.OutcomeSucceeded && len(i.Artifacts) > 0 {
			ids = append(ids, i.Attempt)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	type row struct {
		attempt   berth.AttemptID
		name, sum string
	}
	rows, err := collect(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.attempt, &r.name, &r.sum)
	}, `SELECT attempt_id, name, encode(sha256, 'hex') FROM artifacts WHERE attempt_id = ANY ($1)`, uids(ids))
	stored := map[berth.AttemptID]map[string]string{}
	for _, r := range rows {
		if stored[r.attempt] == nil {
			stored[r.attempt] = map[string]string{}
		}
		stored[r.attempt][r.name] = r.sum
	}
	return stored, err
}

// formerStates gives repeats the state that the task went to when the attempt
// ended: the audit row of that transition has it.
func (t *tx) formerStates(repeats []former) error {
	if len(repeats) == 0 {
		return nil
	}
	type row struct {
		attempt berth.AttemptID
		state   berth.TaskState
	}
	rows, err := collect(t, func(c pgx.CollectableRow) (r row, err error) {
		return r, c.Scan(&r.attempt, &r.state)
	}, `
SELECT e.attempt, s.to_state FROM unnest($1::text[], $2::uuid[]) AS e (task, attempt)
CROSS JOIN LATERAL (
    SELECT to_state FROM audit_events
    WHERE target_id = e.task AND target_kind = 'task' AND attempt_id = e.attempt AND outcome IS NOT NULL
    ORDER BY id DESC LIMIT 1) s`,
		mapped(repeats, func(r former) string { return string(r.task) }),
		mapped(repeats, func(r former) pgtype.UUID { return uid(r.id) }))
	states := make(map[berth.AttemptID]berth.TaskState, len(rows))
	for _, r := range rows {
		states[r.attempt] = r.state
	}
	for _, r := range repeats {
		r.answer.TaskState = states[r.id]
	}
	return err
}

// ReleaseAttempts is documented at store.Agents.
func (s *Store) ReleaseAttempts(ctx context.Context, p store.ReleaseParams) (answers []store.LeaseAnswer, moves []berth.Transition, err error) {
	if err := store.CheckRelease(p.Reason); err != nil {
		return nil, nil, err
	}
	err = s.write(ctx, "ReleaseAttempts", func(t *tx) error {
		answers, moves = make([]store.LeaseAnswer, len(p.Items)), nil
		keys, err := t.lockForEnd(attemptIDs(p.Items), p.Host)
		if err != nil {
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
		var ends []*end
		for i, a := range matched(p.Items, loaded) {
			answers[i] = store.LeaseAnswer{Attempt: p.Items[i].Attempt, Status: releaseStatus(a)}
			if answers[i].Status != store.LeaseReleased || a.ended() {
				continue
			}
			ends = append(ends, release(a, p))
			a.endedAt, a.outcome = h.now, berth.OutcomeReleased // a second item is a repeat
		}
		moves, err = t.endAttempts(p.Actor, h.now, ends)
		return err
	})
	return committed(answers, moves, err)
}

func releaseStatus(a *live) store.LeaseStatus {
	switch {
	case a == nil:
		return store.LeaseGone
	case a.ended() && a.outcome == berth.OutcomeReleased:
		return store.LeaseReleased
	case a.ended():
		return store.LeaseGone
	case a.state.Started():
		return store.LeaseStarted
	}
	return store.LeaseReleased
}

func release(a *live, p store.ReleaseParams) *end {
	e := &end{live: a, outcome: berth.OutcomeReleased, reason: p.Reason, by: berth.EndedByAgent, uncounted: p.Draining}
	if e.reason == "" {
		e.reason = berth.ReasonHandBack
	}
	return e
}
