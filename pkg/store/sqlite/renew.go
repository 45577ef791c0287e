package sqlite

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// RenewAttempts implements store.Agents.
func (s *Store) RenewAttempts(ctx context.Context, p store.RenewParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	all, err := s.renewMany(ctx, "RenewAttempts", []store.RenewParams{p})
	if err != nil {
		return nil, nil, err
	}
	return all[0].Answers, all[0].Transitions, all[0].Err
}

// RenewMany implements store.Agents.
func (s *Store) RenewMany(ctx context.Context, calls []store.RenewParams) ([]store.RenewManyAnswer, error) {
	return s.renewMany(ctx, "RenewMany", calls)
}

func (s *Store) renewMany(ctx context.Context, op string, calls []store.RenewParams) ([]store.RenewManyAnswer, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	all := make([]store.RenewManyAnswer, len(calls))
	err := s.write(ctx, op, func(t *tx) error {
		renewed := 0
		for i, p := range calls {
			if err := renewCall(t, p, &all[i]); err != nil {
				return err
			}
			renewed += len(all[i].Transitions)
		}
		if renewed == 0 {
			return nil
		}
		return markRenewed(t)
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// renewCall does one call; its error is one of them all.
func renewCall(t *tx, p store.RenewParams, call *store.RenewManyAnswer) error {
	if _, err := callingHost(t, p.AgentCall); err != nil {
		if !refused(err) {
			return err
		}
		call.Err = err
		return nil
	}
	for _, item := range p.Items {
		answer, tr, err := renew(t, p.AgentCall, item)
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

// renew is strict: what has expired is gone. A renewal is no change of state
// and writes no audit row.
func renew(t *tx, call store.AgentCall, item store.RenewItem) (answer store.LeaseAnswer, tr berth.Transition, err error) {
	answer = store.LeaseAnswer{Attempt: item.Attempt, Status: store.LeaseGone}
	a, ok, err := loadAttempt(t, item.Attempt)
	if err != nil || !ok || !a.ofHolder(call.Host, item.Holder) || !a.alive(t) || a.State == berth.AttemptAssigned {
		return answer, tr, err
	}
	if err := extend(t, &a); err != nil {
		return answer, tr, err
	}
	if err := storeProgress(t, a.ID, item.Progress, item.Note); err != nil {
		return answer, tr, err
	}
	answer.Status, answer.Left, answer.Cancel = store.LeaseGranted, a.expires.Sub(t.now), !a.CancelRequestedAt.IsZero()
	return answer, a.transition(t, berth.EventRenewed, a.State.TaskState()), nil
}

func storeProgress(t *tx, id berth.AttemptID, progress float64, note redact.String) error {
	if progress >= 0 {
		if err := t.execOne("UPDATE attempts SET progress = ?2 WHERE id = ?1", id, min(progress, 1)); err != nil {
			return err
		}
	}
	if note.IsZero() {
		return nil
	}
	return t.execOne("UPDATE attempts SET progress_note = ?2 WHERE id = ?1", id, note.Reveal())
}
