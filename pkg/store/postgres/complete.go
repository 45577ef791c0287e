package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// CompleteAttempts is documented at store.Agents.
func (s *Store) CompleteAttempts(ctx context.Context, p store.CompleteParams) (answers []store.CompleteAnswer, moves []berth.Transition, err error) {
	if err := store.CheckComplete(p.Items); err != nil {
		return nil, nil, err
	}
	items := mapped(p.Items, func(i store.CompleteItem) store.Holder { return i.Holder })
	err = s.write(ctx, "CompleteAttempts", func(t *tx) error {
		answers, moves = make([]store.CompleteAnswer, len(p.Items)), nil
		keys, err := t.lockForEnd(attemptIDs(items), p.Host)
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
		stored, err := t.storedArtifacts(p.Items)
		if err != nil {
			return err
		}
		c := completion{items: p.Items, answers: answers, byID: map[berth.AttemptID]int{}}
		for i, a := range matched(items, loaded) {
			c.judge(i, a, stored)
		}
		if moves, err = t.endAttempts(p.Actor, h.now, c.ends); err != nil {
			return err
		}
		for i, e := range c.ends {
			answers[c.at[i]].TaskState = e.next.State
		}
		for _, pair := range c.repeats {
			answers[pair[0]].TaskState = answers[pair[1]].TaskState
		}
		return t.formerStates(c)
	})
	return committed(answers, moves, err)
}

// completion sorts the items of one call by what happens to them.
type completion struct {
	items   []store.CompleteItem
	answers []store.CompleteAnswer
	byID    map[berth.AttemptID]int // items that end their attempt now
	ends    []*end
	at      []int    // index of the item of each end
	repeats [][2]int // item, and the item of this call that it repeats
	former  map[int]*live
}

// judge decides one item on its locked attempt; nil is somebody else's.
func (c *completion) judge(i int, a *live, stored map[berth.AttemptID]map[string]string) {
	item, answer := c.items[i], &c.answers[i]
	*answer = store.CompleteAnswer{Attempt: item.Attempt, Status: store.CompleteGone}
	if a == nil {
		return
	}
	if first, ok := c.byID[a.id]; ok {
		answer.Outcome, answer.Status = c.items[first].Outcome, store.CompleteMismatch
		if c.items[first].Digest == item.Digest {
			answer.Status = store.CompleteStored
			c.repeats = append(c.repeats, [2]int{i, first})
		}
		return
	}
	if a.ended() {
		c.judgeRepeat(i, a)
		return
	}
	if !a.state.Started() && item.Outcome != berth.OutcomeInfraFailed && item.Outcome != berth.OutcomeCancelled {
		answer.Status = store.CompleteNotStarted
		return
	}
	if item.Outcome == berth.OutcomeSucceeded {
		answer.MissingArtifacts = missingArtifacts(item.Artifacts, stored[a.id])
		if answer.LogNext = a.logBytes; len(answer.MissingArtifacts) > 0 || a.logBytes < item.LogBytes {
			answer.Status = store.CompleteMissing
			return
		}
		answer.LogNext = 0
	}
	answer.Status, answer.Outcome = store.CompleteStored, item.Outcome
	c.byID[a.id] = i
	c.at = append(c.at, i)
	c.ends = append(c.ends, endOf(item, a))
}

func endOf(item store.CompleteItem, a *live) *end {
	e := &end{
		live: a, outcome: item.Outcome, reason: item.Reason, by: berth.EndedByAgent, message: item.Message.Reveal(),
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
func (c *completion) judgeRepeat(i int, a *live) {
	answer := &c.answers[i]
	answer.Outcome = a.outcome
	switch {
	case len(a.digest) == 0:
		answer.Status = store.CompleteGone
	case bytes.Equal(a.digest, c.items[i].Digest[:]):
		answer.Status = store.CompleteStored
		if c.former == nil {
			c.former = map[int]*live{}
		}
		c.former[i] = a
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
func (t *tx) storedArtifacts(items []store.CompleteItem) (map[berth.AttemptID]map[string]string, error) {
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
func (t *tx) formerStates(c completion) error {
	for i, a := range c.former {
		state, _, err := first(t, column[string], `
SELECT to_state FROM audit_events
WHERE target_id = $1 AND target_kind = 'task' AND attempt_id = $2 AND outcome IS NOT NULL ORDER BY id DESC LIMIT 1`,
			string(a.task), uid(a.id))
		if err != nil {
			return err
		}
		c.answers[i].TaskState = berth.TaskState(state)
	}
	return nil
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
