package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// queues is a pool's queue by class, and counts what is read of it.
type queues struct {
	heads map[berth.ClassID][]store.Head
	asked map[berth.ClassID]int
	read  int
	pages int
}

func (q *queues) add(heads ...store.Head) {
	if q.heads == nil {
		q.heads, q.asked = map[berth.ClassID][]store.Head{}, map[berth.ClassID]int{}
	}
	for _, h := range heads {
		q.heads[h.Class] = append(q.heads[h.Class], h)
	}
	for _, hs := range q.heads {
		slices.SortFunc(hs, func(a, b store.Head) int {
			return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Task, b.Task))
		})
	}
}

func (q *queues) page(_ context.Context, asks []store.HeadsAsk) ([]store.Head, error) {
	q.pages++
	var out []store.Head
	for _, ask := range asks {
		q.asked[ask.Class]++
		n := 0
		for _, h := range q.heads[ask.Class] {
			if n == ask.PerClass {
				break
			}
			if ask.AfterTask == "" || before(store.Head{Rank: ask.AfterRank, Task: ask.AfterTask}, h) {
				out = append(out, h)
				n++
			}
		}
	}
	q.read += len(out)
	return out, nil
}

func task(n int) berth.TaskID { return berth.TaskID(fmt.Sprintf("00000000-0000-7000-8000-%012d", n)) }

func device(n int, host int, plugins []berth.PluginVersion, labels map[string]string) store.FreeDevice {
	id := berth.DeviceID(fmt.Sprintf("0000000d-0000-7000-8000-%012d", n))
	l := map[string]string{berth.LabelDevice: string(id), berth.LabelProbe: string(id)}
	for k, v := range labels {
		l[k] = v
	}
	return store.FreeDevice{ID: id, Host: berth.HostID(fmt.Sprintf("host-%d", host)), Labels: l, Plugins: plugins}
}

var script = []berth.PluginVersion{{Name: "browser.script", Version: "1.0.0"}, {Name: "browser.script", Version: "1.4.0"}}

func class(id int, selector, versions string) store.Class {
	return store.Class{ID: berth.ClassID(id), Requirement: berth.Requirement{Selector: selector, Plugin: "browser.script", VersionRange: versions}}
}

func mustPlace(t interface{ Fatal(...any) }, q question, from *queues) answer {
	a, err := place(context.Background(), q, &matchers{}, from.page)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBestFitLeavesTheRareDeviceToTheOneThatNeedsIt(t *testing.T) {
	var from queues
	from.add(store.Head{Class: 1, Rank: 1, Task: task(1), Number: 1}, store.Head{Class: 2, Rank: 2, Task: task(2), Number: 1})
	a := mustPlace(t, question{
		devices: []store.FreeDevice{device(1, 1, script, map[string]string{"os": "linux", "gpu": "yes"}), device(2, 1, script, map[string]string{"os": "linux"})},
		classes: []store.Class{class(1, "os=linux", ""), class(2, "gpu=yes", "")}, limit: 10,
	}, &from)
	if len(a.placements) != 2 || a.placements[0].Device != device(2, 1, nil, nil).ID || a.placements[1].Device != device(1, 1, nil, nil).ID {
		t.Fatalf("%+v", a.placements)
	}
	if a.placements[0].Version != "1.4.0" {
		t.Errorf("version %s", a.placements[0].Version)
	}
}

func TestARetryPrefersAnotherHostThenAnotherDevice(t *testing.T) {
	devices := []store.FreeDevice{device(1, 1, script, nil), device(2, 1, script, nil), device(3, 2, script, map[string]string{"x": "y"})}
	head := store.Head{Class: 1, Task: task(1), LastHost: "host-1", LastDevice: devices[0].ID}
	for n, want := range map[int]int{3: 2, 2: 1, 1: 0} { // free devices -> the one chosen
		var from queues
		from.add(head)
		a := mustPlace(t, question{devices: devices[:n], classes: []store.Class{class(1, "", ""), class(2, "x=y", "")}, limit: 10}, &from)
		if len(a.placements) != 1 || a.placements[0].Device != devices[want].ID {
			t.Errorf("%d devices: %+v", n, a.placements)
		}
	}
}

func TestAPinFindsItsDevice(t *testing.T) {
	var devices []store.FreeDevice
	for i := range 100 {
		devices = append(devices, device(i, i%3, script, nil))
	}
	pin := class(2, berth.LabelDevice+"="+string(devices[70].ID), "")
	var from queues
	from.add(store.Head{Class: 1, Rank: 1, Task: task(1)}, store.Head{Class: 2, Rank: 2, Task: task(2)})
	if n := len(groupDevices(devices, []store.Class{class(1, "", ""), pin})); n != 2 {
		t.Fatalf("%d groups", n)
	}
	a := mustPlace(t, question{devices: devices, classes: []store.Class{class(1, "", ""), pin}, limit: 10}, &from)
	if len(a.placements) != 2 || a.placements[1].Device != devices[70].ID || a.placements[0].Device != devices[0].ID {
		t.Fatalf("%+v", a.placements)
	}
}

// A device that is only for probes goes to the class that pins it so, and to no
// other, not even to one that pins it by its plain label.
func TestAProbeReachesWhatOthersDoNot(t *testing.T) {
	devices := []store.FreeDevice{device(1, 1, script, nil), device(2, 1, script, nil)}
	cordoned := device(3, 2, script, nil)
	probe := func(d store.FreeDevice) string { return berth.LabelProbe + "=" + string(d.ID) }
	classes := []store.Class{
		class(1, "", ""), class(2, berth.LabelDevice+"="+string(cordoned.ID), ""), class(3, probe(cordoned), ""), class(4, probe(devices[0]), ""),
		class(5, berth.LabelProbe+" in ("+string(cordoned.ID)+")", ""), class(6, berth.LabelProbe+"!="+string(devices[0].ID), ""),
	}
	if ids := probedDevices(classes); !slices.Equal(ids, []berth.DeviceID{devices[0].ID, cordoned.ID}) {
		t.Fatalf("probed: %v", ids)
	}
	var from queues
	for i, c := range classes[:4] {
		from.add(store.Head{Class: c.ID, Rank: berth.Rank(i), Task: task(i), Number: 1})
	}
	a := mustPlace(t, question{devices: devices, probes: onlyProbes([]store.FreeDevice{devices[0], cordoned}, devices), classes: classes[:4], limit: 10}, &from)
	got := map[berth.ClassID]store.Placement{}
	for _, p := range a.placements {
		got[p.Head.Class] = p
	}
	if len(got) != 3 || got[3].Device != cordoned.ID || !got[3].Probe || got[4].Device != devices[0].ID || !got[4].Probe || got[1].Device != devices[1].ID || got[1].Probe {
		t.Fatalf("%+v", a.placements)
	}
}

func TestSuspectDevicesAreChosenLast(t *testing.T) {
	devices := []store.FreeDevice{device(1, 1, script, nil), device(2, 2, script, nil), device(3, 3, script, map[string]string{"gpu": "yes"}), device(4, 4, script, nil)}
	devices[0].Suspect, devices[1].Suspect = true, true
	var from queues
	for i := range 4 {
		from.add(store.Head{Class: 1, Rank: berth.Rank(i), Task: task(i), Number: 1})
	}
	// The retry of a task that failed on a good device waits for no other.
	from.heads[1][1].LastDevice, from.heads[1][1].LastHost = devices[2].ID, devices[2].Host
	a := mustPlace(t, question{devices: devices, classes: []store.Class{class(1, "", ""), class(2, "gpu=yes", "")}, limit: 10}, &from)
	var got []berth.DeviceID
	for _, p := range a.placements {
		got = append(got, p.Device)
	}
	want := []berth.DeviceID{devices[3].ID, devices[2].ID, devices[0].ID, devices[1].ID}
	if !slices.Equal(got, want) {
		t.Fatalf("%v, should be %v", got, want)
	}
}

func TestABrokenClassHindersNobody(t *testing.T) {
	var from queues
	from.add(store.Head{Class: 1, Task: task(1)}, store.Head{Class: 2, Rank: 1, Task: task(2)})
	a := mustPlace(t, question{devices: []store.FreeDevice{device(1, 1, script, nil)}, classes: []store.Class{class(1, "!!", ""), class(2, "", "")}, limit: 10}, &from)
	if len(a.placements) != 1 || a.placements[0].Head.Class != 2 || !slices.Equal(a.broken, []berth.ClassID{1}) {
		t.Fatalf("%+v", a)
	}
}

// world is a random pool.
type world struct {
	q    question
	from queues
}

func drawWorld(t *rapid.T) *world {
	w := &world{}
	selectors := []string{"", "os=linux", "os=android", "gpu=yes", "os in (linux,android),gpu!=yes", "!gpu", "os=none"}
	ranges := []string{"", "^1.2", ">=2.0.0"}
	plugins := [][]berth.PluginVersion{script, {{Name: "browser.script", Version: "1.1.0"}}, {{Name: "process.run", Version: "1.0.0"}}, nil}
	for i := range rapid.IntRange(0, 30).Draw(t, "devices") {
		labels := map[string]string{"os": rapid.SampledFrom([]string{"linux", "android"}).Draw(t, "os")}
		if rapid.Bool().Draw(t, "gpu") {
			labels["gpu"] = "yes"
		}
		host := rapid.IntRange(0, 3).Draw(t, "host")
		w.q.devices = append(w.q.devices, device(i, host, plugins[host], labels))
	}
	n := 0
	for c := range rapid.IntRange(0, 8).Draw(t, "classes") {
		sel := rapid.SampledFrom(selectors).Draw(t, "selector")
		if len(w.q.devices) > 0 && rapid.IntRange(0, 4).Draw(t, "pinned") == 0 {
			sel = berth.LabelDevice + "=" + string(rapid.SampledFrom(w.q.devices).Draw(t, "pin").ID)
		}
		w.q.classes = append(w.q.classes, class(c+1, sel, rapid.SampledFrom(ranges).Draw(t, "range")))
		for range rapid.IntRange(1, 60).Draw(t, "tasks") {
			n++
			h := store.Head{Class: berth.ClassID(c + 1), Rank: berth.Rank(rapid.IntRange(-20, 20).Draw(t, "rank")), Task: task(n), Number: 1}
			if rapid.IntRange(0, 5).Draw(t, "retry") == 0 {
				h.LastHost = berth.HostID(fmt.Sprintf("host-%d", rapid.IntRange(0, 3).Draw(t, "last")))
			}
			w.from.add(h)
		}
	}
	w.q.limit = rapid.IntRange(1, 40).Draw(t, "limit")
	return w
}

func (w *world) fits(t *rapid.T, c store.Class, d store.FreeDevice) bool {
	m, err := (&matchers{}).of(c)
	if err != nil {
		t.Fatal(err)
	}
	return m.Fits(d.Labels, d.Plugins)
}

func TestPlacementHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		a := mustPlace(t, w.q, &w.from)
		devices, classes := map[berth.DeviceID]store.FreeDevice{}, map[berth.ClassID]store.Class{}
		for _, d := range w.q.devices {
			devices[d.ID] = d
		}
		for _, c := range w.q.classes {
			classes[c.ID] = c
		}
		usedDevice, usedTask := map[berth.DeviceID]bool{}, map[berth.TaskID]bool{}
		for i, p := range a.placements {
			if usedDevice[p.Device] || usedTask[p.Head.Task] {
				t.Fatalf("placed twice: %+v", p)
			}
			usedDevice[p.Device], usedTask[p.Head.Task] = true, true
			if d, ok := devices[p.Device]; !ok || d.Host != p.Host || !w.fits(t, classes[p.Head.Class], d) {
				t.Fatalf("does not fit: %+v on %+v", p, d)
			}
			if i > 0 && !before(a.placements[i-1].Head, p.Head) {
				t.Fatalf("out of order: %+v after %+v", p.Head, a.placements[i-1].Head)
			}
		}
		if len(a.placements) > w.q.limit {
			t.Fatalf("%d placements above the limit %d", len(a.placements), w.q.limit)
		}
		w.checkOrder(t, a, usedDevice, usedTask)
		w.checkWork(t, a)
	})
}

// checkOrder: no task is left out while a device that it could use is free, or
// went to a task after it.
func (w *world) checkOrder(t *rapid.T, a answer, usedDevice map[berth.DeviceID]bool, usedTask map[berth.TaskID]bool) {
	for _, c := range w.q.classes {
		for _, h := range w.from.heads[c.ID] {
			if usedTask[h.Task] {
				continue
			}
			for _, d := range w.q.devices {
				if !w.fits(t, c, d) {
					continue
				}
				if !usedDevice[d.ID] && len(a.placements) < w.q.limit {
					t.Fatalf("%+v waits although %s is free", h, d.ID)
				}
				for _, p := range a.placements {
					if p.Device == d.ID && before(h, p.Head) {
						t.Fatalf("%+v overtook %+v on %s", p.Head, h, d.ID)
					}
				}
			}
		}
	}
}

// checkWork: classes that nothing fits are never read, and what is read is
// bounded by devices and classes, not by the queue.
func (w *world) checkWork(t *rapid.T, a answer) {
	readable := 0
	for _, c := range w.q.classes {
		fitting := slices.ContainsFunc(w.q.devices, func(d store.FreeDevice) bool { return w.fits(t, c, d) })
		if fitting {
			readable++
		} else if w.from.asked[c.ID] > 0 {
			t.Fatalf("class %d was read although nothing fits it", c.ID)
		}
	}
	if a.headsRead != w.from.read {
		t.Fatalf("counted %d of %d heads", a.headsRead, w.from.read)
	}
	if most := 2*min(len(w.q.devices), w.q.limit) + 3*readable; a.headsRead > most {
		t.Fatalf("%d heads read for %d devices and %d classes", a.headsRead, len(w.q.devices), readable)
	}
}

// TestHeadsReadStayNearPlacements measures full rounds of 1,000 devices: few
// heads are read in vain and few pages are asked, whatever the shares of the
// classes, and however long the queue is.
func TestHeadsReadStayNearPlacements(t *testing.T) {
	shapes := map[string]func(i int) int{ // the class of the i-th task
		"equal":     func(i int) int { return i % 10 },
		"one class": func(int) int { return 3 },
		"skewed":    func(i int) int { return min(i%40, 9) },
		"in blocks": func(i int) int { return i / 300 % 10 },
		"rare asks": func(i int) int { return 100 + i%50*(1-min(i%7, 1)) },
	}
	for name, shape := range shapes {
		var reads [2]int
		for k, length := range []int{2_000, 60_000} {
			var from queues
			var heads []store.Head
			for i := range length {
				heads = append(heads, store.Head{Class: berth.ClassID(shape(i)), Rank: berth.Rank(i), Task: task(i)})
			}
			from.add(heads...)
			q := question{limit: 1000}
			for i := range 1000 {
				q.devices = append(q.devices, device(i, i/8, script, map[string]string{"os": "linux"}))
			}
			for id := range from.heads {
				q.classes = append(q.classes, class(int(id), "", ""))
			}
			for i := range 200 { // asks that nothing fits, at the top
				q.classes = append(q.classes, class(5000+i, fmt.Sprintf("os=beos%d", i), ""))
			}
			slices.SortFunc(q.classes, func(a, b store.Class) int { return cmp.Compare(a.ID, b.ID) })
			a := mustPlace(t, q, &from)
			if len(a.placements) != 1000 {
				t.Fatalf("%s: %d placements", name, len(a.placements))
			}
			reads[k] = a.headsRead
			t.Logf("%s, %d queued: %d heads in %d pages", name, length, a.headsRead, from.pages)
			if a.headsRead > 1450 || from.pages > 120 {
				t.Errorf("%s: %d heads in %d pages for 1,000 placements", name, a.headsRead, from.pages)
			}
		}
		if reads[1] > reads[0]*5/4 {
			t.Errorf("%s: %v heads read, it grows with the queue", name, reads)
		}
	}
}

func BenchmarkPlace(b *testing.B) {
	var heads []store.Head
	for i := range 5_000 {
		heads = append(heads, store.Head{Class: berth.ClassID(i % 50), Rank: berth.Rank(i), Task: task(i)})
	}
	var from queues
	from.add(heads...)
	q := question{limit: 1000}
	for i := range 2000 {
		q.devices = append(q.devices, device(i, i/8, script, map[string]string{"os": "linux", "rack": fmt.Sprint(i % 20)}))
	}
	for c := range 50 {
		q.classes = append(q.classes, class(c, fmt.Sprintf("rack!=%d", c), ""))
	}
	m := &matchers{}
	for b.Loop() {
		if _, err := place(context.Background(), q, m, from.page); err != nil {
			b.Fatal(err)
		}
	}
}
