package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func fleetChecks() []check {
	return []check{
		in("pools are made, found and listed", pools),
		in("a repeated create under one idempotency key gives what there is", createdOnce),
		in("devices and hosts are listed by id with filters", devicesAndHosts),
		in("plugins are registered once, also at once", plugins),
		in("a reported plugin is completed, a registered one left alone", pluginsCompleted),
		in("the audit trail is read by target and in pages", auditTrail),
		in("health: ping, schema and the clock that decides", health),
	}
}

// createdOnce: a repeat under the same key gives what the first call made.
func createdOnce(w *world) {
	pool := func(key, digest, name string) (berth.Pool, error) {
		return w.Store.CreatePool(bg(), store.CreatePoolParams{
			Actor: w.operator, Pool: berth.Pool{ID: newID[berth.PoolID](w.Env), Name: name, AgeingStep: time.Hour}, Once: store.Once{Key: key, BodyDigest: hashOf(digest)},
		})
	}
	made, err := pool("k", "zoo", "zoo")
	w.must("create", err)
	rows := len(w.audit("", ""))
	w.Clock.Advance(time.Minute)
	again, err := pool("k", "zoo", "zoo")
	if err != nil || diff(made, again) != "" {
		w.t.Errorf("made %+v, again %+v, %v", made, again, err)
	}
	_, err = pool("k", "other", "other")
	w.fails("another body under the key", err, berth.ErrIdempotencyMismatch)
	_, err = pool("k2", "zoo", "zoo")
	w.fails("a taken name under another key", err, berth.ErrExists)

	token := func(key, secret string) (berth.EnrolmentToken, error) {
		return w.Store.CreateEnrolment(bg(), store.CreateEnrolmentParams{
			Actor: w.operator, ID: newID[berth.EnrolmentID](w.Env), Pool: made.ID, Pattern: "*", TokenHash: hashOf(secret), TTL: time.Hour,
			Once: store.Once{Key: key, BodyDigest: hashOf("token")},
		})
	}
	first, err := token("t", "secret")
	w.must("create enrolment", err)
	w.Clock.Advance(time.Minute)
	second, err := token("t", "secret")
	if err != nil || diff(first, second) != "" {
		w.t.Errorf("made %+v, again %+v, %v", first, second, err)
	}
	_, err = token("t", "another secret")
	w.fails("another hash under the key", err, berth.ErrExists)
	_, err = token("t2", "secret")
	w.fails("a known hash", err, berth.ErrExists)
	if n := len(w.audit("", "")); n != rows+1 {
		w.t.Errorf("%d audit rows, want one more than %d", n, rows)
	}
}

func pools(w *world) {
	def, err := w.Store.GetPool(bg(), berth.DefaultPool)
	if err != nil || def.ID == "" || def.Paused || def.AgeingStep != berth.DefaultAgeingStep {
		w.t.Fatalf("default pool %+v, %v", def, err)
	}
	p := berth.Pool{ID: newID[berth.PoolID](w.Env), Name: "zoo", Paused: true, AgeingStep: time.Hour}
	made, err := w.Store.CreatePool(bg(), store.CreatePoolParams{Actor: w.operator, Pool: p})
	w.must("create", err)
	p.CreatedAt = w.Clock.Now()
	got, err := w.Store.GetPool(bg(), "zoo")
	if err != nil || diff(p, made) != "" || diff(p, got) != "" {
		w.t.Errorf("made %+v, got %+v, %v", made, got, err)
	}
	_, err = w.Store.CreatePool(bg(), store.CreatePoolParams{Actor: w.operator, Pool: berth.Pool{ID: newID[berth.PoolID](w.Env), Name: "zoo", AgeingStep: time.Hour}})
	w.fails("a taken name", err, berth.ErrExists)
	_, err = w.Store.GetPool(bg(), "nowhere")
	w.fails("an unknown name", err, berth.ErrNotFound)
	var names []string
	for after := ""; ; {
		page, next, err := w.Store.ListPools(bg(), store.Page{Size: 2, After: after})
		w.must("list", err)
		for _, p := range page {
			names = append(names, p.Name)
		}
		if after = next; next == "" {
			break
		}
		if next != names[len(names)-1] {
			w.t.Fatalf("cursor %q", next)
		}
	}
	if want := []string{berth.DefaultPool, "lab", "zoo"}; !slices.Equal(names, want) {
		w.t.Errorf("pools %v, should be %v", names, want)
	}
	if n := w.acted(berth.AuditPoolCreated, "pool", string(p.ID)); n != 1 {
		w.t.Errorf("%d audit rows", n)
	}
}

func devicesAndHosts(w *world) {
	other := w.makePool("other")
	a, b := w.host("h1", 3), w.enrolled("h2", other.ID, 2)
	b.sync()
	as := a.running()
	list := func(f store.DeviceFilter) []berth.DeviceID {
		var out []berth.DeviceID
		for after := ""; ; {
			ds, next, err := w.Store.ListDevices(bg(), f, store.Page{Size: 2, After: after})
			w.must("list", err)
			for _, d := range ds {
				if diff(d, w.device(d.ID)) != "" {
					w.t.Errorf("get and list differ: %s", diff(d, w.device(d.ID)))
				}
				out = append(out, d.ID)
			}
			if after = next; next == "" {
				return out
			}
		}
	}
	both := append(slices.Clone(a.ids), b.ids...)
	for i, c := range []struct {
		f    store.DeviceFilter
		want []berth.DeviceID
	}{
		{store.DeviceFilter{}, both},
		{store.DeviceFilter{Pool: other.ID}, b.ids},
		{store.DeviceFilter{Host: a.id}, a.ids},
		{store.DeviceFilter{Pool: other.ID, Host: a.id}, nil},
	} {
		if got := list(c.f); !slices.Equal(got, c.want) {
			w.t.Errorf("filter %d: %v, should be %v", i, got, c.want)
		}
	}
	hosts, next, err := w.Store.ListHosts(bg(), "", store.Page{Size: 1})
	if err != nil || len(hosts) != 1 || hosts[0].ID != a.id || next != string(a.id) || hosts[0].Held != 1 || hosts[0].Devices != 3 {
		w.t.Errorf("hosts %+v, next %q, %v", hosts, next, err)
	}
	if diff(hosts[0], w.hostOf(a)) != "" {
		w.t.Errorf("get and list differ: %s", diff(hosts[0], w.hostOf(a)))
	}
	hosts, next, err = w.Store.ListHosts(bg(), other.ID, store.Page{})
	if err != nil || len(hosts) != 1 || hosts[0].ID != b.id || next != "" {
		w.t.Errorf("hosts of a pool %+v, %v", hosts, err)
	}
	if d := w.device(as.Device); d.Attempt != as.Attempt || d.Task != as.Task || d.Occupancy != berth.OccupancyHeld || d.Fence != as.Fence {
		w.t.Errorf("held device %+v", d)
	}
	_, err = w.Store.GetDevice(bg(), newID[berth.DeviceID](w.Env))
	w.fails("an unknown device", err, berth.ErrNotFound)
}

func plugins(w *world) {
	other := w.second()
	batch := []berth.Plugin{
		{PluginVersion: berth.PluginVersion{Name: "b", Version: "1.10.0"}, Enabled: true, Schema: []byte(`{"a": 1}`), Requires: "driver=x", Description: "ten"},
		{PluginVersion: berth.PluginVersion{Name: "b", Version: "1.9.0"}, Enabled: false, Schema: []byte(`{}`)},
		{PluginVersion: berth.PluginVersion{Name: "a.b", Version: "1.0.0"}, Enabled: true},
	}
	reversed := slices.Clone(batch)
	slices.Reverse(reversed)
	for _, r := range both(
		func() (int, error) { return 0, w.Store.RegisterPlugins(bg(), w.operator, batch) },
		func() (int, error) { return 0, other.RegisterPlugins(bg(), w.operator, reversed) },
	) {
		w.must("register", r.err)
	}
	w.must("register again", w.Store.RegisterPlugins(bg(), w.operator, batch))
	var names []string
	for after := ""; ; {
		page, next, err := w.Store.ListPlugins(bg(), store.Page{Size: 2, After: after})
		w.must("list", err)
		for _, p := range page {
			names = append(names, p.Name+"@"+p.Version)
		}
		if after = next; next == "" {
			break
		}
		if next != names[len(names)-1] {
			w.t.Fatalf("cursor %q", next)
		}
	}
	if want := []string{"a.b@1.0.0", "b@1.10.0", "b@1.9.0", "work@1.2.0"}; !slices.Equal(names, want) {
		w.t.Errorf("plugins %v, should be %v", names, want)
	}
	versions, err := w.Store.PluginVersions(bg(), "b")
	if err != nil || len(versions) != 2 {
		w.t.Fatalf("versions %+v, %v", versions, err)
	}
	for _, v := range versions {
		want := batch[map[string]int{"1.10.0": 0, "1.9.0": 1}[v.Version]]
		want.CreatedAt, want.DecidedAt, want.Revision = w.Clock.Now(), w.Clock.Now(), 1
		if d := diff(want, v); d != "" {
			w.t.Errorf("version (-want +got):\n%s", d)
		}
	}
	if versions, err := w.Store.PluginVersions(bg(), "none"); err != nil || len(versions) != 0 {
		w.t.Errorf("versions of an unknown plugin %+v, %v", versions, err)
	}
	n := 0
	for _, row := range w.audit("", "") {
		if row.Action == berth.AuditPluginRegistered {
			n++
		}
	}
	if n != 4 {
		w.t.Errorf("%d audit rows of 4 registered versions", n)
	}
}

func pluginsCompleted(w *world) {
	a := w.enrolled("h1", w.pool.ID, 1)
	a.plugins = []berth.Plugin{{PluginVersion: berth.PluginVersion{Name: "new", Version: "1.0.0"}}}
	a.sync()
	register := func(enabled bool, schema string) berth.Plugin {
		w.t.Helper()
		w.must("register", w.Store.RegisterPlugins(bg(), w.operator, []berth.Plugin{{PluginVersion: a.plugins[0].PluginVersion, Enabled: enabled, Schema: []byte(schema), Requires: "driver=x", Description: "d " + schema}}))
		got, err := w.Store.PluginVersions(bg(), "new")
		if err != nil || len(got) != 1 {
			w.t.Fatalf("versions %+v, %v", got, err)
		}
		return got[0]
	}
	if p := register(true, `{"a": 1}`); !p.Enabled || string(p.Schema) != `{"a": 1}` || p.Requires != "driver=x" {
		w.t.Errorf("completed %+v", p)
	}
	if p := register(false, `{"b": 2}`); !p.Enabled || string(p.Schema) != `{"a": 1}` {
		w.t.Errorf("a registered one was changed: %+v", p)
	}
}

func auditTrail(w *world) {
	a := w.host("h1", 1)
	as := a.running()
	a.completed(as, berth.OutcomeSucceeded)
	w.submit()
	var actions []string
	for _, row := range w.audit("task", string(as.Task)) {
		if row.TargetKind != "task" || row.TargetID != string(as.Task) {
			w.t.Errorf("foreign row %+v", row)
		}
		actions = append(actions, fmt.Sprint(row.Action, " ", row.Actor.Kind))
	}
	want := []string{"task.submitted user", "task.assigned scheduler", "task.claimed host", "task.started host", "task.completed host"}
	if !slices.Equal(actions, want) {
		w.t.Errorf("trail %q, should be %q", actions, want)
	}
	every := w.audit("", "")
	var paged []berth.AuditEvent
	for after := int64(0); ; {
		rows, err := w.Store.ListAudit(bg(), "", "", after, 3)
		w.must("list", err)
		if len(rows) > 3 {
			w.t.Fatalf("%d rows, asked for 3", len(rows))
		}
		if len(rows) == 0 {
			break
		}
		paged = append(paged, rows...)
		after = rows[len(rows)-1].ID
	}
	if d := diff(every, paged); d != "" {
		w.t.Errorf("pages differ from the whole:\n%s", d)
	}
	if rows, err := w.Store.ListAudit(bg(), "host", string(as.Task), 0, 10); err != nil || len(rows) != 0 {
		w.t.Errorf("another kind of the same id: %+v, %v", rows, err)
	}
}

func health(w *world) {
	w.must("ping", w.Store.Ping(bg()))
	version, dirty, err := w.Store.SchemaVersion(bg())
	if err != nil || version < 2 || dirty {
		w.t.Errorf("schema %d, dirty %v, %v", version, dirty, err)
	}
	w.Clock.Advance(time.Hour)
	now, err := w.Store.Now(bg())
	if err != nil || !now.Equal(w.Clock.Now()) {
		w.t.Errorf("now is %v, %v", now, err)
	}
	s := w.second()
	w.must("close", s.Close())
	w.must("close again", s.Close())
	w.fails("ping of a closed store", s.Ping(bg()), berth.ErrUnavailable)
}
