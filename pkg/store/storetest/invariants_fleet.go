package storetest

import (
	"context"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// offer is what placement is offered of a pool.
type offer struct {
	Free, Probes []store.FreeDevice
}

// offers reads what placement is offered of each pool.
func (w *world) offers(pools []berth.Pool, devices []berth.Device) map[berth.PoolID]offer {
	w.t.Helper()
	ids := make([]berth.DeviceID, len(devices))
	for i, d := range devices {
		ids[i] = d.ID
	}
	out := map[berth.PoolID]offer{}
	for _, p := range pools {
		_, err := w.Store.PlacementRound(bg(), w.scheduler, p.ID, func(ctx context.Context, r store.Round) (err error) {
			var o offer
			if o.Free, err = r.FreeDevices(ctx, 0); err != nil {
				return err
			}
			o.Probes, err = r.ProbeDevices(ctx, ids)
			out[p.ID] = o
			return err
		})
		w.must("placement round", err)
	}
	return out
}

func (w *world) allPools() []berth.Pool {
	w.t.Helper()
	pools, _, err := w.Store.ListPools(bg(), store.Page{Size: 200})
	w.must("list pools", err)
	return pools
}

// checkOffers: the free devices that placement is offered are exactly those
// whose axes and host allow it (I14): none more, and none is forgotten.
func (w *world) checkOffers() {
	w.t.Helper()
	devices, pools := w.allDevices(), w.allPools()
	hosts := map[berth.HostID]berth.Host{}
	for _, h := range w.allHosts() {
		hosts[h.ID] = h
	}
	now := w.Clock.Now()
	for pool, o := range w.offers(pools, devices) {
		var free, probes []berth.DeviceID
		for _, d := range devices {
			h := hosts[d.Host]
			if d.HealthRecord.Health != d.Health {
				w.t.Errorf("device %s is %s and remembered as %s", d.ID, d.Health, d.HealthRecord.Health)
			}
			if d.Pool != pool || d.Attempt != "" || !w.Timings.HostFresh(h.LastSeenAt, now) {
				continue
			}
			if h.Pool != pool {
				w.t.Errorf("device %s of pool %s is on a host of pool %s", d.ID, pool, h.Pool)
			}
			bit := berth.PlaceableOf(d.Present, d.Health, d.Admin, d.Unclean, h.State, h.Draining || !h.DrainRequestedAt.IsZero())
			if bit >= berth.PlaceProbes {
				probes = append(probes, d.ID)
			}
			if bit >= berth.PlaceAll {
				free = append(free, d.ID)
			}
		}
		if got := idsOf(o.Free); !slices.Equal(got, free) {
			w.t.Errorf("I14: free for all are %v, should be %v", got, free)
		}
		if got := idsOf(o.Probes); !slices.Equal(got, probes) {
			w.t.Errorf("I14: free for probes are %v, should be %v", got, probes)
		}
	}
}

func idsOf(devices []store.FreeDevice) (ids []berth.DeviceID) {
	for _, d := range devices {
		ids = append(ids, d.ID)
	}
	return ids
}
