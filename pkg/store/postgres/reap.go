package postgres

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/pkg/berth"
)

// reapable is what the keeper's sweep finds without a lock: what could not be
// ended before comes last, and what runs is left out while an amnesty is in force.
const reapable = `
SELECT l.attempt_id FROM leases l JOIN attempts a ON a.task_id = l.task_id AND a.number = l.number,
     (SELECT berth_now() AS now OFFSET 0) n
WHERE l.attempt_id IS NOT NULL
  AND CASE WHEN a.state = 'running' THEN NOT $3 AND LEAST(l.expires_at, l.kill_by) + make_interval(secs => $1) <= n.now
           ELSE l.expires_at <= n.now END
ORDER BY l.attempt_id = ANY ($4), l.expires_at, l.device_id LIMIT $2`

// ReapLeases is documented at store.Keeping.
func (s *Store) ReapLeases(ctx context.Context, actor berth.Actor, limit int) (moves []berth.Transition, err error) {
	held, err := s.judgeAmnesty(ctx, actor, "ReapLeases")
	if err != nil {
		return nil, err
	}
	var ids []berth.AttemptID
	if err := s.read(ctx, "ReapLeases", func(t *tx) error {
		ids, err = collect(t, column[berth.AttemptID], reapable, s.timings.ReapGrace.Seconds(), max(0, limit), held, uids(s.aside.IDs()))
		return err
	}); err != nil {
		return nil, err
	}
	var fault error
	for _, id := range ids {
		var ended []berth.Transition
		err := s.write(ctx, "ReapLeases", func(t *tx) error {
			ended, err = t.reap(actor, id)
			return err
		})
		s.aside.Note(id, err)
		if err == nil {
			moves = append(moves, ended...)
		} else if fault == nil {
			fault = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return moves, fault
}

func (t *tx) reap(actor berth.Actor, id berth.AttemptID) ([]berth.Transition, error) {
	keys, err := t.lockForEnd([]berth.AttemptID{id}, "")
	if err != nil {
		return nil, err
	}
	now, err := t.now()
	if err != nil {
		return nil, err
	}
	loaded, err := t.load(attemptsOf(keys))
	if err != nil || len(loaded) == 0 || loaded[0].ended() || !loaded[0].holds {
		return nil, err
	}
	a := loaded[0]
	verdict, over := t.s.timings.Reap(berth.Reaping{
		State: a.state, ExpiresAt: a.expiresAt, KillBy: a.killBy, Cancel: !a.cancelAt.IsZero(),
	}, now)
	if !over {
		return nil, nil
	}
	if a.state.Started() {
		if may, err := t.mayEnd(now); err != nil || !may {
			return nil, err
		}
	}
	return t.endAttempts(actor, now, []*end{{
		live: a, outcome: verdict.Outcome, reason: verdict.Reason, by: verdict.By, dirty: verdict.Unclean,
	}})
}

// MarkSilentHosts is documented at store.Keeping.
func (s *Store) MarkSilentHosts(ctx context.Context, actor berth.Actor, limit int) (hosts []berth.HostID, err error) {
	var silent []berth.HostID
	if err := s.read(ctx, "MarkSilentHosts", func(t *tx) error {
		now, err := t.now()
		if err != nil {
			return err
		}
		if may, err := t.mayEnd(now); err != nil || !may {
			return err
		}
		silent, err = collect(t, column[berth.HostID], `
SELECT id FROM hosts, (SELECT berth_now() AS now OFFSET 0) n
WHERE state = 'online' AND (last_seen_at IS NULL OR last_seen_at < n.now - make_interval(secs => $1))
ORDER BY last_seen_at NULLS FIRST, id LIMIT $2`, s.timings.HostOfflineAfter.Seconds(), max(0, limit))
		return err
	}); err != nil {
		return nil, err
	}
	for _, id := range silent {
		marked := false
		err := s.write(ctx, "MarkSilentHosts", func(t *tx) error {
			marked, err = t.takeOffline(actor, id)
			return err
		})
		if err != nil {
			return hosts, err
		}
		if marked {
			hosts = append(hosts, id)
		}
	}
	return hosts, nil
}

// takeOffline clears the bits of a host that is still silent once its leases
// and its row are held.
func (t *tx) takeOffline(actor berth.Actor, id berth.HostID) (bool, error) {
	devices, err := t.lockFleetOf(id, nil, nil, nil)
	if err != nil {
		return false, err
	}
	h, err := t.host(id)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	if h.state != berth.HostOnline || t.s.timings.HostFresh(h.seen, h.now) {
		return false, nil
	}
	if _, err := t.exec(`UPDATE hosts SET state = 'offline' WHERE id = $1`, uid(id)); err != nil {
		return false, err
	}
	if err := t.writeBits(devices); err != nil {
		return false, err
	}
	return true, t.auditChange(actor, h.now, berth.AuditHostOffline, "host", string(id),
		berth.Fact("state", string(h.state)), berth.Fact("state", string(berth.HostOffline)))
}

// lockFleetOf locks the leases of a host's devices, and of others that the
// caller names, then the devices, then the host, and starts over when the host
// got another device meanwhile, or lost one to another host. afterLeases and beforeHost, when not nil, run at
// those points of the lock order. It returns the host's devices.
func (t *tx) lockFleetOf(host berth.HostID, others []berth.DeviceID, afterLeases, beforeHost func() error) ([]berth.DeviceID, error) {
	mine, err := t.devicesOf(host)
	if err != nil {
		return nil, err
	}
	locked := unique(append(mine, others...))
	steps := []func() error{
		func() error { return t.lockLeases(locked) },
		afterLeases,
		func() error { return t.lockDevices(locked) },
		beforeHost,
		func() error { return t.lockHost(host) },
	}
	for _, step := range steps {
		if step == nil {
			continue
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	// What this transaction itself added is new to everybody and needs no lock.
	moved, err := collect(t, column[berth.DeviceID], `
SELECT id FROM devices WHERE host_id = $1 AND id <> ALL ($2) AND xmin <> pg_current_xact_id()::xid
UNION ALL
SELECT id FROM devices WHERE id = ANY ($3) AND host_id <> $1`, uid(host), uids(locked), uids(mine))
	if err != nil {
		return nil, err
	}
	if len(moved) > 0 {
		return nil, errStartOver
	}
	return mine, nil
}

func (t *tx) devicesOf(host berth.HostID) ([]berth.DeviceID, error) {
	return collect(t, column[berth.DeviceID], `SELECT id FROM devices WHERE host_id = $1 ORDER BY id`, uid(host))
}

func ignoreNotFound(err error) error {
	if errors.Is(err, berth.ErrNotFound) {
		return nil
	}
	return err
}
