package postgres

import (
	"context"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// Heartbeat is documented at store.Agents. One that changes nothing is one HOT
// update, judged on the row it locks; the others take the leases first.
func (s *Store) Heartbeat(ctx context.Context, p store.HeartbeatParams) (result store.HeartbeatResult, err error) {
	err = s.write(ctx, "Heartbeat", func(t *tx) error {
		result = store.HeartbeatResult{}
		if len(p.Health) == 0 {
			n, err := t.exec(`
UPDATE hosts SET last_seen_at = berth_now() WHERE id = $1 AND epoch = $2 AND draining = $3 AND state = 'online'`,
				uid(p.Host), int64(p.Epoch), p.Draining)
			if err != nil || n == 1 {
				return err
			}
		}
		state, err := t.changedHeartbeat(p)
		result.Resync = state != berth.HostOnline
		return err
	})
	return only(result, err)
}

// changedHeartbeat stores draining and healths, and judges the bits.
func (t *tx) changedHeartbeat(p store.HeartbeatParams) (berth.HostState, error) {
	devices, err := t.lockFleetOf(p.Host, nil, nil, nil)
	if err != nil {
		return "", err
	}
	h, err := t.judgeCaller(p.Host, p.Epoch)
	if err != nil {
		return "", err
	}
	if _, err := t.exec(`UPDATE hosts SET last_seen_at = $2, draining = $3 WHERE id = $1`, uid(p.Host), h.now, p.Draining); err != nil {
		return "", err
	}
	var changed []berth.DeviceID
	for id, health := range p.Health {
		if health.Valid() {
			changed = append(changed, id)
		}
	}
	if len(changed) > 0 {
		changed = unique(changed)
		if _, err := t.exec(`
UPDATE devices d SET health = e.health, updated_at = $2
FROM unnest($3::uuid[], $4::text[]) AS e (id, health) WHERE d.id = e.id AND d.host_id = $1 AND d.health <> e.health`,
			uid(p.Host), h.now, uids(changed),
			mapped(changed, func(id berth.DeviceID) string { return string(p.Health[id]) })); err != nil {
			return "", err
		}
	}
	return h.state, t.writeBits(devices)
}
