package sqlite

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// refused reports whether a call cannot be done because of who calls: an error
// of this call alone.
func refused(err error) bool {
	return errors.Is(err, berth.ErrNotFound) || errors.Is(err, berth.ErrStaleEpoch)
}

// CompleteAttempts implements store.Agents.
func (s *Store) CompleteAttempts(ctx context.Context, p store.CompleteParams) ([]store.CompleteAnswer, []berth.Transition, error) {
	all, err := s.completeMany(ctx, "CompleteAttempts", []store.CompleteParams{p})
	if err != nil {
		return nil, nil, err
	}
	return all[0].Answers, all[0].Transitions, all[0].Err
}

// CompleteMany implements store.Agents.
func (s *Store) CompleteMany(ctx context.Context, calls []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	return s.completeMany(ctx, "CompleteMany", calls)
}

func (s *Store) completeMany(ctx context.Context, op string, calls []store.CompleteParams) ([]store.CompleteManyAnswer, error) {
	all, open := make([]store.CompleteManyAnswer, len(calls)), false
	for i, p := range calls {
		all[i].Err = store.CheckComplete(p.Items)
		open = open || all[i].Err == nil
	}
	if !open {
		return all, nil
	}
	err := s.write(ctx, op, func(t *tx) error {
		for i, p := range calls {
			if all[i].Err != nil {
				continue
			}
			if err := completeCall(t, p, &all[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// completeCall does one call; its error is one of them all.
func completeCall(t *tx, p store.CompleteParams, call *store.CompleteManyAnswer) error {
	if _, err := callingHost(t, p.AgentCall); err != nil {
		if !refused(err) {
			return err
		}
		call.Err = err
		return nil
	}
	for _, item := range p.Items {
		answer, tr, err := complete(t, p.AgentCall, item)
		if err != nil {
			return err
		}
		call.Answers = append(call.Answers, answer)
		if tr.Event != "" {
			call.Transitions = append(call.Transitions, tr)
		}
	}
	return nil
}

// complete ends one attempt as its agent saw it end. The transition is empty
// when nothing changed.
func complete(t *tx, call store.AgentCall, item store.CompleteItem) (answer store.CompleteAnswer, tr berth.Transition, err error) {
	answer = store.CompleteAnswer{Attempt: item.Attempt, Status: store.CompleteGone}
	a, ok, err := loadAttempt(t, item.Attempt)
	if err != nil || !ok || !a.ofHolder(call.Host, item.Holder) {
		return answer, tr, err
	}
	if !a.Live() {
		answer, err = completedBefore(t, a, item, answer)
		return answer, tr, err
	}
	if !a.State.Started() && item.Outcome != berth.OutcomeInfraFailed && item.Outcome != berth.OutcomeCancelled {
		answer.Status = store.CompleteNotStarted
		return answer, tr, nil
	}
	if item.Outcome == berth.OutcomeSucceeded {
		if answer.MissingArtifacts, err = missingArtifacts(t, a.ID, item.Artifacts); err != nil {
			return answer, tr, err
		}
		if answer.LogNext = a.LogBytes; len(answer.MissingArtifacts) > 0 || a.LogBytes < item.LogBytes {
			answer.Status = store.CompleteMissing
			return answer, tr, nil
		}
		answer.LogNext = 0
	}
	reason := item.Reason
	if reason == "" {
		reason = string(item.Outcome)
	}
	e := ending{
		outcome: item.Outcome, reason: reason, by: berth.EndedByAgent, unclean: !item.DeviceClean, proved: item.DeviceClean,
		message: item.Message, digest: item.Digest[:],
	}
	if json.Valid(item.Result.Reveal()) {
		e.result = item.Result
	}
	tr, err = endAttempt(t, call.Actor, a, e)
	answer.Status, answer.Outcome, answer.TaskState = store.CompleteStored, item.Outcome, tr.To
	return answer, tr, err
}

// completedBefore answers for an attempt that has ended: a repeat of the same
// body gets the same answer, whatever became of the task since.
func completedBefore(t *tx, a attempt, item store.CompleteItem, answer store.CompleteAnswer) (store.CompleteAnswer, error) {
	if answer.Outcome = a.Outcome; len(a.digest) == 0 {
		return answer, nil
	}
	if string(a.digest) != string(item.Digest[:]) {
		answer.Status = store.CompleteMismatch
		return answer, nil
	}
	answer.Status = store.CompleteStored
	state, _, err := queryOne(t, func(r row) (s berth.TaskState, err error) {
		return s, r.Scan(opt(&s))
	}, `SELECT to_state FROM audit_events WHERE target_id = ?1 AND target_kind = 'task' AND attempt_id = ?2 AND outcome IS NOT NULL
		ORDER BY id DESC LIMIT 1`, a.Task, a.ID)
	answer.TaskState = state
	return answer, err
}
