package storetest

import (
	"cmp"
	"context"
	"slices"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/store"
)

// allHeads lists at most perClass heads of each class, in order of placement.
func allHeads(ctx context.Context, r store.Round, perClass int) ([]store.Head, error) {
	classes, err := r.WaitingClasses(ctx)
	if err != nil || len(classes) == 0 {
		return nil, err
	}
	var asks []store.HeadsAsk
	for _, c := range classes {
		asks = append(asks, store.HeadsAsk{Class: c.ID, PerClass: perClass})
	}
	heads, err := r.Heads(ctx, asks)
	slices.SortStableFunc(heads, func(a, b store.Head) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Task, b.Task))
	})
	return heads, err
}

// plan fits the waiting tasks on the free devices, first come first served.
func (w *world) plan(ctx context.Context, r store.Round) ([]store.Placement, error) {
	free, err := r.FreeDevices(ctx, 0)
	if err != nil {
		return nil, err
	}
	return w.planOn(ctx, r, free)
}

// planOn is plan on devices that may be free; probes find theirs themselves.
func (w *world) planOn(ctx context.Context, r store.Round, free []store.FreeDevice) ([]store.Placement, error) {
	classes, err := r.WaitingClasses(ctx)
	if err != nil {
		return nil, err
	}
	free = slices.Clone(free)
	matchers, probes := map[berth.ClassID]*eligibility.Matcher{}, map[berth.ClassID]bool{}
	var pinned []berth.DeviceID
	for _, c := range classes {
		if matchers[c.ID], err = eligibility.Compile(c.Requirement); err != nil {
			return nil, err
		}
		if id, ok := eligibility.Probe(c.Requirement.Selector); ok {
			probes[c.ID] = true
			pinned = append(pinned, id)
		}
	}
	reachable, err := r.ProbeDevices(ctx, pinned)
	if err != nil {
		return nil, err
	}
	only := map[berth.DeviceID]bool{}
	for _, d := range reachable {
		if !slices.ContainsFunc(free, func(f store.FreeDevice) bool { return f.ID == d.ID }) {
			free = append(free, d)
			only[d.ID] = true
		}
	}
	if len(free) == 0 {
		return nil, nil
	}
	heads, err := allHeads(ctx, r, len(free))
	if err != nil {
		return nil, err
	}
	var plan []store.Placement
	for _, h := range heads {
		i := slices.IndexFunc(free, func(d store.FreeDevice) bool {
			return (!only[d.ID] || probes[h.Class]) && matchers[h.Class].Fits(d.Labels, d.Plugins)
		})
		if i < 0 {
			continue
		}
		version, _ := matchers[h.Class].Version(free[i].Plugins)
		plan = append(plan, store.Placement{
			Head: h, Attempt: newID[berth.AttemptID](w.Env), Device: free[i].ID, Host: free[i].Host, Version: version,
			Probe: probes[h.Class],
		})
		free = slices.Delete(free, i, i+1)
	}
	return plan, nil
}
