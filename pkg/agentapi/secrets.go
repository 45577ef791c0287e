package agentapi

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/problem"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
)

// claimed is protocol.ClaimResponse with the values of secrets in it.
type claimed struct {
	Attempts []handed `json:"attempts"`
}

// handed is an assignment as the host that claimed it gets it. Nowhere else are
// the values of secrets written: protocol.Assignment writes them as [redacted].
type handed struct {
	protocol.Assignment
	Secrets map[string]string `json:"secrets,omitempty"`
}

// hand makes the answer to a claim. An attempt whose secrets cannot be opened is
// left out, for the others' sake: another API process may have the right master
// key, and when none has, the lease runs out and the task is queued again. With
// nothing else to hand over that is berth.ErrUnavailable, and the same claim
// comes again.
func (a *API) hand(ctx context.Context, call store.AgentCall, assignments []store.Assignment) ([]handed, error) {
	sealed, err := a.sealedValues(ctx, call, assignments)
	if err != nil {
		return nil, err
	}
	out := make([]handed, 0, len(assignments))
	for _, as := range assignments {
		secrets, err := a.open(sealed[as.Attempt])
		if err != nil {
			a.Logger.Error("secrets of an attempt cannot be opened: look at BERTH_MASTER_KEY and BERTH_MASTER_KEY_OLD, or set the secret anew", zap.Error(err),
				zap.String("task_id", string(as.Task)), zap.String("attempt_id", string(as.Attempt)), zap.String("host_id", string(call.Host)),
				zap.String("request_id", call.Actor.RequestID))
			continue
		}
		h := handed{Assignment: assignmentOf(as)}
		for _, name := range as.Secrets {
			if value, ok := secrets[name]; ok {
				if h.Secrets == nil {
					h.Secrets = map[string]string{}
				}
				h.Secrets[name] = value.Reveal()
			} else {
				h.MissingSecrets = append(h.MissingSecrets, name)
			}
		}
		out = append(out, h)
	}
	if len(out) == 0 && len(assignments) > 0 {
		return nil, fmt.Errorf("secrets cannot be opened: %w", berth.ErrUnavailable)
	}
	return out, nil
}

// sealedValues asks for the secrets of the attempts whose tasks name some.
func (a *API) sealedValues(ctx context.Context, call store.AgentCall, assignments []store.Assignment) (map[berth.AttemptID][]store.SealedValue, error) {
	var ids []berth.AttemptID
	for _, as := range assignments {
		if len(as.Secrets) > 0 {
			ids = append(ids, as.Attempt)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	slices.Sort(ids)
	values, err := a.Store.SecretValues(ctx, call, ids)
	if err == nil || !problem.Of(err).Unknown {
		return values, err
	}
	// Such as that the trail takes no rows: without its row nothing is handed over.
	a.Logger.Error("secrets are not handed over: they cannot be read, or their delivery cannot be put on record", zap.Error(err),
		zap.String("host_id", string(call.Host)), zap.String("request_id", call.Actor.RequestID))
	return nil, fmt.Errorf("secrets cannot be delivered: %w", berth.ErrUnavailable)
}

func (a *API) open(sealed []store.SealedValue) (redact.Strings, error) {
	values := redact.Strings{}
	for _, s := range sealed {
		value, err := a.Identity.OpenSecret(s)
		if err != nil {
			return nil, err
		}
		values[s.ID] = value
	}
	return values, nil
}
