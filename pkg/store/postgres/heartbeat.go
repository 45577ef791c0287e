package postgres

import (
	"context"
	"maps"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// Heartbeat is documented at store.Agents. One that changes nothing is one HOT
// update, judged on the row it locks; the others take the leases first.
func (s *Store) Heartbeat(ctx context.Context, p store.HeartbeatParams) (result store.HeartbeatResult, err error) {
	signals := map[berth.DeviceID]berth.HealthSignal{}
	for id, health := range p.Health {
		if health.Valid() {
			signals[id] = berth.ProbeSignal(health)
		}
	}
	err = s.write(ctx, "Heartbeat", func(t *tx) error {
		result = store.HeartbeatResult{}
		news, err := t.judgeHealth(p.Host, signals)
		if err != nil {
			return err
		}
		if len(news) == 0 {
			drain, ok, err := first(t, column[bool], `
UPDATE hosts SET last_seen_at = berth_now() WHERE id = $1 AND epoch = $2 AND draining = $3 AND state = 'online'
RETURNING drain_requested_at IS NOT NULL`, uid(p.Host), int64(p.Epoch), p.Draining)
			if result.Drain = drain; err != nil || ok {
				return err
			}
		}
		h, err := t.changedHeartbeat(p, signals)
		result.Resync, result.Drain = h.state != berth.HostOnline, h.drain
		return err
	})
	return only(result, err)
}

// changedHeartbeat stores draining and healths, and judges the bits.
func (t *tx) changedHeartbeat(p store.HeartbeatParams, signals map[berth.DeviceID]berth.HealthSignal) (hostRow, error) {
	devices, err := t.lockFleetOf(p.Host, nil, nil, nil)
	if err != nil {
		return hostRow{}, err
	}
	h, err := t.judgeCaller(p.Host, p.Epoch)
	if err != nil {
		return h, err
	}
	if _, err := t.exec(`UPDATE hosts SET last_seen_at = $2, draining = $3 WHERE id = $1`, uid(p.Host), h.now, p.Draining); err != nil {
		return h, err
	}
	maps.DeleteFunc(signals, func(id berth.DeviceID, _ berth.HealthSignal) bool { return !slices.Contains(devices, id) })
	if err := t.hear(p.Actor, h.now, signals); err != nil {
		return h, err
	}
	return h, t.writeBits(devices)
}
