package sqlite

import (
	"context"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// freeLease ends the hold of an attempt on its device. An unclean device is
// marked, and nobody is placed on it until it is proved clean.
func freeLease(t *tx, actor berth.Actor, a attempt, e ending) error {
	err := t.execOne(`UPDATE leases SET attempt_id = NULL, task_id = NULL, number = NULL, expires_at = NULL, kill_by = NULL
		WHERE device_id = ?1 AND attempt_id = ?2`, a.Device, a.ID)
	if err != nil {
		return err
	}
	hintOf(t, store.HintWork, a.task.pool)
	judge, err := markDevice(t, actor, a, e)
	if err != nil {
		return err
	}
	if signal, ok := berth.SignalOf(e.outcome, e.reason, e.by, a.State.Started()); ok {
		changed, err := hear(t, actor, a.Host, map[berth.DeviceID]berth.HealthSignal{a.Device: signal})
		if err != nil {
			return err
		}
		judge = judge || changed
	}
	if !judge {
		return nil
	}
	return judgePlaceable(t, a.Host)
}

// markDevice marks the device of an ended attempt unclean, or ends that mark,
// and reports whether it changed.
func markDevice(t *tx, actor berth.Actor, a attempt, e ending) (changed bool, err error) {
	switch {
	case e.proved:
		return markClean(t, actor, a.Device)
	case !e.unclean:
		return false, nil
	}
	n, err := t.exec("UPDATE devices SET unclean = 1, updated_at = ?2 WHERE id = ?1 AND unclean = 0", a.Device, micros(t.now))
	if err != nil || n == 0 {
		return false, err
	}
	before, after := berth.FlagFacts("unclean", true)
	return true, auditChange(t, actor, berth.AuditDeviceUnclean, "device", string(a.Device), before, after)
}

// extend gives the attempt's lease a fresh TTL.
func extend(t *tx, a *attempt) error {
	a.expires = t.now.Add(t.store.timings.LeaseTTL)
	return t.execOne("UPDATE leases SET expires_at = ?3 WHERE device_id = ?1 AND attempt_id = ?2", a.Device, a.ID, micros(a.expires))
}

// ClaimAttempts implements store.Agents.
func (s *Store) ClaimAttempts(ctx context.Context, p store.ClaimParams) (out []store.Assignment, trs []berth.Transition, err error) {
	if !berth.ValidID(p.ClaimID) {
		return nil, nil, berth.Invalid("claim_id", "is not an id", "send a UUID of your own")
	}
	err = s.write(ctx, "ClaimAttempts", func(t *tx) error {
		host, err := callingHost(t, p.AgentCall)
		if err != nil {
			return err
		}
		if err := markSeen(t, host); err != nil {
			return err
		}
		live, err := liveAttempts(t, host.id)
		if err != nil {
			return err
		}
		for i := 0; i < len(live) && len(out) < min(max(p.Max, 1), 100); i++ {
			a := &live[i]
			if !a.alive(t) || !a.claimable(p) || !berth.Deliverable(host.protocol, a.task.brings) {
				continue
			}
			tr, err := claim(t, p, a)
			if err != nil {
				return err
			}
			if tr.Event != "" {
				trs = append(trs, tr)
			}
			assignment, err := loadAssignment(t, *a)
			if err != nil {
				return err
			}
			out = append(out, assignment)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return out, trs, nil
}

// claimable: assigned, or claimed by a call that this one repeats, or by an
// agent process that is gone.
func (a *attempt) claimable(p store.ClaimParams) bool {
	switch a.State {
	case berth.AttemptAssigned:
		return true
	case berth.AttemptClaimed:
		return a.claim == p.ClaimID || a.claimEpoch < p.Epoch
	}
	return false
}

// claim hands an attempt over. A repeat changes nothing; one that was claimed
// by a process that is gone gets a fresh lease, but its state does not change.
func claim(t *tx, p store.ClaimParams, a *attempt) (tr berth.Transition, err error) {
	from := a.State
	if from == berth.AttemptClaimed && a.claim == p.ClaimID && a.claimEpoch == p.Epoch {
		return tr, nil
	}
	a.State = berth.AttemptClaimed
	err = t.execOne("UPDATE attempts SET state = ?2, claim_id = ?3, claim_epoch = ?4, claimed_at = coalesce(claimed_at, ?5) WHERE id = ?1",
		a.ID, a.State, p.ClaimID, p.Epoch, micros(t.now))
	if err != nil {
		return tr, err
	}
	if err := extend(t, a); err != nil || from == berth.AttemptClaimed {
		return tr, err
	}
	hintOf(t, store.HintTask, a.Task)
	tr = a.transition(t, berth.EventClaimed, from.TaskState())
	return tr, audit(t, p.Actor, tr)
}

func loadAssignment(t *tx, a attempt) (store.Assignment, error) {
	out := store.Assignment{
		Attempt: a.ID, Task: a.Task, Number: a.Number, Device: a.Device, Fence: a.Fence, Left: a.expires.Sub(t.now),
		Plugin: berth.PluginVersion{Version: a.version}, RunTimeout: a.task.runTimeout, CorrelationID: a.task.correlationID,
	}
	_, ok, err := queryOne(t, func(r row) (struct{}, error) {
		return struct{}{}, r.Scan(&out.Plugin.Name, hidden(&out.Payload), &out.TraceParent, &out.TaskName, fromJSON(&out.Inputs), fromJSON(&out.Secrets))
	}, `SELECT c.plugin, t.payload, t.trace_parent, t.name, t.inputs, t.secrets FROM tasks t JOIN task_classes c ON c.id = t.class_id WHERE t.id = ?1`, a.Task)
	if err == nil && !ok {
		err = notFound("task")
	}
	return out, err
}

// each runs judge for every item in one transaction, under the host's epoch,
// and collects what it answers.
func each[I any](ctx context.Context, s *Store, op string, call store.AgentCall, items []I,
	judge func(t *tx, item I) (store.LeaseAnswer, berth.Transition, error),
) (answers []store.LeaseAnswer, trs []berth.Transition, err error) {
	err = s.write(ctx, op, func(t *tx) error {
		if _, err := callingHost(t, call); err != nil {
			return err
		}
		for _, item := range items {
			answer, tr, err := judge(t, item)
			if err != nil {
				return err
			}
			answers = append(answers, answer)
			if tr.Event != "" {
				trs = append(trs, tr)
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return answers, trs, nil
}

// StartAttempts implements store.Agents.
func (s *Store) StartAttempts(ctx context.Context, p store.StartParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	return each(ctx, s, "StartAttempts", p.AgentCall, p.Items, func(t *tx, h store.Holder) (store.LeaseAnswer, berth.Transition, error) {
		return start(t, p.AgentCall, h)
	})
}

func start(t *tx, call store.AgentCall, h store.Holder) (answer store.LeaseAnswer, tr berth.Transition, err error) {
	answer = store.LeaseAnswer{Attempt: h.Attempt, Status: store.LeaseGone}
	a, ok, err := loadAttempt(t, h.Attempt)
	if err != nil || !ok || !a.ofHolder(call.Host, h) {
		return answer, tr, err
	}
	switch {
	case !a.alive(t) || a.State == berth.AttemptAssigned:
		return answer, tr, nil
	case a.State.Started():
		answer.Status, answer.Left, answer.Cancel = store.LeaseGranted, a.expires.Sub(t.now), !a.CancelRequestedAt.IsZero()
		return answer, tr, nil
	}
	from := a.State
	a.State = berth.AttemptRunning
	if err := t.execOne("UPDATE attempts SET state = ?2, started_at = ?3 WHERE id = ?1", a.ID, a.State, micros(t.now)); err != nil {
		return answer, tr, err
	}
	a.expires = t.now.Add(t.store.timings.LeaseTTL)
	killBy := t.store.timings.KillBy(t.now, a.task.runTimeout, time.Time{})
	err = t.execOne("UPDATE leases SET expires_at = ?3, kill_by = ?4 WHERE device_id = ?1 AND attempt_id = ?2",
		a.Device, a.ID, micros(a.expires), micros(killBy))
	if err != nil {
		return answer, tr, err
	}
	hintOf(t, store.HintTask, a.Task)
	answer.Status, answer.Left = store.LeaseGranted, a.expires.Sub(t.now)
	tr = a.transition(t, berth.EventStarted, from.TaskState())
	return answer, tr, audit(t, call.Actor, tr)
}

// ReleaseAttempts implements store.Agents.
func (s *Store) ReleaseAttempts(ctx context.Context, p store.ReleaseParams) ([]store.LeaseAnswer, []berth.Transition, error) {
	if err := store.CheckRelease(p.Reason); err != nil {
		return nil, nil, err
	}
	if p.Reason == "" {
		p.Reason = berth.ReasonHandBack
	}
	return each(ctx, s, "ReleaseAttempts", p.AgentCall, p.Items, func(t *tx, h store.Holder) (store.LeaseAnswer, berth.Transition, error) {
		return release(t, p, h)
	})
}

func release(t *tx, p store.ReleaseParams, h store.Holder) (answer store.LeaseAnswer, tr berth.Transition, err error) {
	answer = store.LeaseAnswer{Attempt: h.Attempt, Status: store.LeaseGone}
	a, ok, err := loadAttempt(t, h.Attempt)
	if err != nil || !ok || !a.ofHolder(p.Host, h) {
		return answer, tr, err
	}
	switch {
	case a.Outcome == berth.OutcomeReleased:
		answer.Status = store.LeaseReleased // a repeat
		return answer, tr, nil
	case !a.Live():
		return answer, tr, nil
	case a.State.Started():
		answer.Status = store.LeaseStarted
		return answer, tr, nil
	}
	answer.Status = store.LeaseReleased
	tr, err = endAttempt(t, p.Actor, a, ending{
		outcome: berth.OutcomeReleased, reason: p.Reason, by: berth.EndedByAgent, uncounted: p.Draining,
	})
	return answer, tr, err
}
