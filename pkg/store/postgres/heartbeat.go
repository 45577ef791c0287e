package postgres

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

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
			told, ok, err := first(t, scanDirectives, `
UPDATE hosts h SET last_seen_at = n.now FROM (SELECT berth_now() AS now OFFSET 0) n
WHERE h.id = $1 AND h.epoch = $2 AND h.draining = $3 AND h.state = 'online' AND h.last_seen_at >= n.now - make_interval(secs => $4)
RETURNING h.drain_requested_at IS NOT NULL, h.key_rotation_requested_at IS NOT NULL`, uid(p.Host), int64(p.Epoch), p.Draining, t.s.timings.HostOfflineAfter.Seconds())
			if err != nil || ok {
				result = told
				return err
			}
		}
		h, err := t.changedHeartbeat(p, signals)
		result = store.HeartbeatResult{Resync: t.s.timings.MustSync(h.state, h.seen, h.now), Drain: h.drain, RotateKey: h.rotate}
		return err
	})
	return only(result, err)
}

// scanDirectives reads what a host that need not sync is told.
func scanDirectives(row pgx.CollectableRow) (r store.HeartbeatResult, err error) {
	return r, row.Scan(&r.Drain, &r.RotateKey)
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
	seen := h.now
	if t.s.timings.MustSync(h.state, h.seen, h.now) {
		seen = h.seen
	}
	if _, err := t.exec(`UPDATE hosts SET last_seen_at = $2, draining = $3 WHERE id = $1`, uid(p.Host), orNull(seen), p.Draining); err != nil {
		return h, err
	}
	maps.DeleteFunc(signals, func(id berth.DeviceID, _ berth.HealthSignal) bool { return !slices.Contains(devices, id) })
	if err := t.hear(p.Actor, h.now, signals); err != nil {
		return h, err
	}
	return h, t.writeBits(devices)
}
