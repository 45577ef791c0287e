package scheduler

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/eligibility"
	"github.com/berth-dev/berth/pkg/store"
)

// This file decides a round's placements and does nothing else: no I/O but
// through the function that reads the heads of queues, no clock, no chance.
//
// The decision. All waiting tasks of the pool are taken in order of (rank, task
// id), and each gets, of the free devices that fit it and are left, the one
// that the fewest waiting classes could use, suspect ones last. So no task waits
// for a device that a task after it got.
//
// The work. It grows with classes, free devices and placements, never with the
// queue's length: tasks of one class fit the same devices, so classes that no
// free device fits are not read at all, a class with no device left is dropped,
// and of the others only a little more is read than is placed.

// readHeads returns the next tasks of each class asked, as store.Round.Heads.
type readHeads func(ctx context.Context, asks []store.HeadsAsk) ([]store.Head, error)

// question is one round's input.
type question struct {
	devices []store.FreeDevice
	// probes are free devices that only classes get which pin them by
	// berth.LabelProbe.
	probes  []store.FreeDevice
	classes []store.Class
	// limit bounds the placements.
	limit int
	// skip lists tasks to leave alone.
	skip map[berth.TaskID]bool
}

// answer is one round's decision.
type answer struct {
	// placements in order of (rank, task id), without attempt ids.
	placements []store.Placement
	// headsRead counts the tasks read from queues.
	headsRead int
	// broken lists classes whose requirement does not compile.
	broken []berth.ClassID
}

// place decides. The error is that of read.
func place(ctx context.Context, q question, match *matchers, read readHeads) (answer, error) {
	var a answer
	r := round{groups: groupDevices(q.devices, q.classes), limit: q.limit}
	for _, d := range q.probes {
		r.groups = append(r.groups, &group{labels: d.Labels, plugins: d.Plugins, devices: []store.FreeDevice{d}, probe: true})
	}
	for _, class := range q.classes {
		w, err := r.newWaiting(class, match)
		switch {
		case err != nil:
			a.broken = append(a.broken, class.ID)
		case len(w.fits) > 0:
			r.waiting = append(r.waiting, w)
		}
	}
	if err := r.merge(ctx, &a, q.skip, read); err != nil {
		return answer{}, err
	}
	return a, nil
}

// group is a set of free devices that no waiting class tells apart.
type group struct {
	labels  map[string]string
	plugins []berth.PluginVersion
	// devices left, suspect ones last, then by id.
	devices []store.FreeDevice
	// probe: only for classes that pin the device by berth.LabelProbe.
	probe bool
	// wanted counts the waiting classes that could use these devices.
	wanted int
}

// fit is a group that a class could use, and the plugin version it would get.
type fit struct {
	group   *group
	version string
}

// waiting is a class with its place in the merge.
type waiting struct {
	class berth.ClassID
	probe bool // pins a device by berth.LabelProbe
	fits  []fit
	heads []store.Head // read and not yet looked at
	taken int          // looked at so far
	after store.Head   // the last one read: the cursor
	ended bool         // the queue has no more
}

type round struct {
	groups  []*group
	waiting []*waiting // a heap by first head while merging
	limit   int
}

// newWaiting finds the groups that fit a class.
func (r *round) newWaiting(class store.Class, match *matchers) (*waiting, error) {
	m, err := match.of(class)
	if err != nil {
		return nil, err
	}
	_, probe := probeOf(class)
	w := &waiting{class: class.ID, probe: probe}
	for _, g := range r.groups {
		if g.probe && !probe {
			continue
		}
		version, ok := m.Version(g.plugins)
		if ok && m.Labels(g.labels) {
			w.fits = append(w.fits, fit{group: g, version: version})
			g.wanted++
		}
	}
	return w, nil
}

// left counts the free devices that a class could still get.
func (w *waiting) left() int {
	n := 0
	for _, f := range w.fits {
		n += len(f.group.devices)
	}
	return n
}

// free counts the free devices that some waiting class fits.
func (r *round) free() int {
	n := 0
	for _, g := range r.groups {
		if g.wanted > 0 {
			n += len(g.devices)
		}
	}
	return n
}

// merge takes heads in order until the devices, the tasks or the limit are used
// up.
func (r *round) merge(ctx context.Context, a *answer, skip map[berth.TaskID]bool, read readHeads) error {
	if err := r.refill(ctx, a, read, r.waiting, 0); err != nil {
		return err
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *waiting) bool { return len(w.heads) == 0 })
	heap.Init(r)
	for seen := 0; len(r.waiting) > 0 && len(a.placements) < r.limit; seen++ {
		w := r.waiting[0]
		head := w.heads[0]
		w.heads, w.taken = w.heads[1:], w.taken+1
		switch placement, ok := w.choose(head); {
		case !ok: // no device left for this class
			heap.Pop(r)
			continue
		case !skip[head.Task]:
			placement.take()
			a.placements = append(a.placements, placement.Placement)
		}
		if len(w.heads) == 0 && !w.ended && len(a.placements) < r.limit {
			if err := r.refill(ctx, a, read, r.waiting, seen+1); err != nil {
				return err
			}
		}
		if len(w.heads) == 0 {
			heap.Pop(r)
		} else {
			heap.Fix(r, 0)
		}
	}
	return nil
}

// firstShare and nextShare say how much of what is expected to be placed is
// read at first and later, and growth bounds a page by what the class took so
// far: little enough that what is read in vain stays small also when the guess
// was wrong, enough that few pages are read.
const (
	firstShare = 1.0 / 3
	nextShare  = 0.7
	growth     = 0.5
)

// refill reads the next page of each class that ran out, and, since it reads
// anyway, of those that soon will. seen is the number of heads looked at.
func (r *round) refill(ctx context.Context, a *answer, read readHeads, among []*waiting, seen int) error {
	open := min(r.free(), r.limit-len(a.placements))
	if open <= 0 {
		return nil
	}
	var asks []store.HeadsAsk
	asked := map[berth.ClassID]*waiting{}
	for _, w := range among {
		n := w.pageSize(open, len(among), seen)
		if w.ended || n == 0 || (seen > 0 && len(w.heads) > n/4) {
			continue
		}
		asks = append(asks, store.HeadsAsk{Class: w.class, AfterRank: w.after.Rank, AfterTask: w.after.Task, PerClass: n})
		asked[w.class] = w
	}
	if len(asks) == 0 {
		return nil
	}
	heads, err := read(ctx, asks)
	if err != nil {
		return err
	}
	a.headsRead += len(heads)
	got := map[berth.ClassID]int{}
	for _, head := range heads {
		w := asked[head.Class]
		if w == nil {
			return fmt.Errorf("the store answered for class %d, which was not asked", head.Class)
		}
		w.heads, w.after = append(w.heads, head), head
		got[head.Class]++
	}
	for _, ask := range asks {
		asked[ask.Class].ended = got[ask.Class] < ask.PerClass
	}
	return nil
}

// pageSize guesses how many of the open placements the class will take: an
// equal share at first, then the share it had so far. 0 when it has no device.
func (w *waiting) pageSize(open, classes, seen int) int {
	left := min(w.left(), open)
	if left == 0 {
		return 0
	}
	guess := firstShare * float64(open) / float64(classes)
	if seen > 0 {
		share := nextShare * float64(open) * float64(w.taken) / float64(seen)
		guess = min(share, max(guess, growth*float64(w.taken)))
	}
	return min(left, max(1, int(guess+0.999)))
}

// chosen is a placement and where its device is to be taken from.
type chosen struct {
	store.Placement
	from  *group
	index int
}

func (c chosen) take() {
	if c.index == 0 {
		c.from.devices = c.from.devices[1:] // without moving the others
		return
	}
	c.from.devices = slices.Delete(c.from.devices, c.index, c.index+1)
}

// choose picks the device for a head: one that is not suspect, on another host
// or at least another device than its last attempt, then the best fit, then the
// lowest id. ok is false when none is left.
func (w *waiting) choose(head store.Head) (c chosen, ok bool) {
	var best struct {
		avoid, wanted int
		id            berth.DeviceID
	}
	for _, f := range w.fits {
		i, avoid := f.group.candidate(head)
		if i < 0 {
			continue
		}
		d := f.group.devices[i]
		order := cmp.Or(cmp.Compare(avoid, best.avoid), cmp.Compare(f.group.wanted, best.wanted), cmp.Compare(d.ID, best.id))
		if ok && order >= 0 {
			continue
		}
		best.avoid, best.wanted, best.id = avoid, f.group.wanted, d.ID
		c = chosen{from: f.group, index: i, Placement: store.Placement{
			Head: head, Device: d.ID, Host: d.Host, Version: f.version, Probe: w.probe,
		}}
		ok = true
	}
	return c, ok
}

// Why a device should be avoided, more than all of the lower ones together.
const (
	avoidLastHost   = 1
	avoidLastDevice = 2
	avoidSuspect    = 4
)

// candidate is the group's device for a head, -1 when none is left, and how
// much it should be avoided.
func (g *group) candidate(head store.Head) (index, avoid int) {
	index = -1
	for i, d := range g.devices {
		least := 0 // of this device and all that follow
		if d.Suspect {
			least = avoidSuspect
		}
		score := least
		switch {
		case head.LastDevice != "" && d.ID == head.LastDevice:
			score += avoidLastDevice
		case head.LastHost != "" && d.Host == head.LastHost:
			score += avoidLastHost
		}
		if index < 0 || score < avoid {
			index, avoid = i, score
		}
		if avoid <= least {
			break
		}
	}
	return index, avoid
}

// The heap of classes by their first head.

func (r *round) Len() int { return len(r.waiting) }

func (r *round) Less(i, j int) bool { return before(r.waiting[i].heads[0], r.waiting[j].heads[0]) }

func (r *round) Swap(i, j int) { r.waiting[i], r.waiting[j] = r.waiting[j], r.waiting[i] }

// Push is never used: classes only leave the merge.
func (r *round) Push(x any) { r.waiting = append(r.waiting, x.(*waiting)) }

func (r *round) Pop() any {
	last := len(r.waiting) - 1
	w := r.waiting[last]
	r.waiting = r.waiting[:last]
	return w
}

func before(a, b store.Head) bool {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Task, b.Task)) < 0
}

// anID finds device ids in a selector.
var anID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// groupDevices puts devices together that have the same labels and plugins.
// Every device has its own berth.dev/device and berth.dev/probe labels; they
// count only for the devices that some class names, so that one pinned task does
// not make a group of each device.
func groupDevices(devices []store.FreeDevice, classes []store.Class) []*group {
	named := map[string]bool{}
	for _, c := range classes {
		if strings.Contains(c.Requirement.Selector, berth.LabelDevice) || strings.Contains(c.Requirement.Selector, berth.LabelProbe) {
			for _, id := range anID.FindAllString(c.Requirement.Selector, -1) {
				named[id] = true
			}
		}
	}
	var groups []*group
	byKey := map[string]*group{}
	pluginKeys := map[*berth.PluginVersion]string{}
	for _, d := range devices {
		key := pluginKey(d.Plugins, pluginKeys) + labelKey(d.Labels, named[string(d.ID)])
		g := byKey[key]
		if g == nil {
			g = &group{labels: d.Labels, plugins: d.Plugins}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.devices = append(g.devices, d)
	}
	for _, g := range groups {
		slices.SortFunc(g.devices, func(a, b store.FreeDevice) int {
			return cmp.Or(compareBool(a.Suspect, b.Suspect), cmp.Compare(a.ID, b.ID))
		})
	}
	return groups
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// probeOf is the device that a class pins by berth.LabelProbe.
func probeOf(c store.Class) (berth.DeviceID, bool) {
	if !strings.Contains(c.Requirement.Selector, berth.LabelProbe) {
		return "", false // most classes need no parsing
	}
	return eligibility.Probe(c.Requirement.Selector)
}

// probedDevices lists the devices that classes pin by berth.LabelProbe.
func probedDevices(classes []store.Class) []berth.DeviceID {
	var ids []berth.DeviceID
	for _, c := range classes {
		if id, ok := probeOf(c); ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// onlyProbes are the devices of probes that are not among those that everybody
// may have.
func onlyProbes(probes, devices []store.FreeDevice) []store.FreeDevice {
	return slices.DeleteFunc(probes, func(p store.FreeDevice) bool {
		return slices.ContainsFunc(devices, func(d store.FreeDevice) bool { return d.ID == p.ID })
	})
}

// pluginKey spells a host's plugins; devices of a host share the slice.
func pluginKey(plugins []berth.PluginVersion, known map[*berth.PluginVersion]string) string {
	if len(plugins) == 0 {
		return "\x00"
	}
	if key, ok := known[&plugins[0]]; ok {
		return key
	}
	parts := make([]string, len(plugins))
	for i, p := range plugins {
		parts[i] = p.Name + "@" + p.Version
	}
	slices.Sort(parts)
	key := strings.Join(parts, ",") + "\x00"
	known[&plugins[0]] = key
	return key
}

func labelKey(labels map[string]string, withID bool) string {
	keys := make([]string, 0, len(labels))
	for k := range labels {
		if k != berth.LabelDevice && k != berth.LabelProbe || withID {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(labels[k])
		b.WriteByte(',')
	}
	return b.String()
}

// matchers keeps compiled requirements by class; classes never change. It is
// for one goroutine.
type matchers struct {
	byClass map[berth.ClassID]*eligibility.Matcher
}

// maxMatchers bounds the memory; a pool with more waiting classes compiles
// again.
const maxMatchers = 50_000

func (m *matchers) of(class store.Class) (*eligibility.Matcher, error) {
	if known := m.byClass[class.ID]; known != nil {
		return known, nil
	}
	compiled, err := eligibility.Compile(class.Requirement)
	if err != nil {
		return nil, err
	}
	if m.byClass == nil || len(m.byClass) >= maxMatchers {
		m.byClass = map[berth.ClassID]*eligibility.Matcher{}
	}
	m.byClass[class.ID] = compiled
	return compiled, nil
}
