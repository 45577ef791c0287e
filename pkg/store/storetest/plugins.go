package storetest

import (
	"slices"
	"time"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

func pluginChecks() []check {
	return []check{
		in("what a host reports is kept whole until somebody decides, also at once", pluginReported),
		in("a report completes a version of which only the name is known", pluginBare),
		in("a host whose plugin differs gets no tasks, and it is audited once", pluginDiffers),
		in("a version is changed by revision, a repeat is no second change", pluginChanged),
		in("a note, a mark and defaults leave what is placed alone", pluginDefaults),
	}
}

// enabling is an administrator's decision.
func enabling(actor berth.Actor, plugin berth.PluginVersion, on bool) store.ChangePluginParams {
	return store.ChangePluginParams{Actor: actor, Plugin: plugin, Change: berth.PluginChange{Enabled: &on}}
}

func (w *world) enable(plugin berth.PluginVersion, on bool) berth.Plugin {
	w.t.Helper()
	p, err := w.Store.ChangePlugin(bg(), enabling(w.operator, plugin, on))
	w.must("enable", err)
	return p
}

func (w *world) plugin(v berth.PluginVersion) berth.Plugin {
	w.t.Helper()
	list, err := w.Store.PluginVersions(bg(), v.Name)
	w.must("versions", err)
	i := slices.IndexFunc(list, func(p berth.Plugin) bool { return p.PluginVersion == v })
	if i < 0 {
		w.t.Fatalf("%v is not among %+v", v, list)
	}
	return list[i]
}

var reportedVersion = berth.PluginVersion{Name: "extra", Version: "0.3.0"}

// reportedPlugin is a whole manifest, as the protocol brings one.
func reportedPlugin() berth.Plugin {
	return berth.Plugin{
		PluginVersion: reportedVersion, Schema: []byte(`{"type":"object","required":["n"]}`), ResultSchema: []byte(`{"type":"object"}`),
		Requires: "driver=process", Description: "counts",
	}
}

func pluginReported(w *world) {
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 1)
	for _, host := range []*agent{a, b} {
		host.plugins = []berth.Plugin{reportedPlugin()}
	}
	other := w.second()
	for _, r := range both(
		func() (int, error) { return 0, err2(w.Store.SyncHost(bg(), a.syncParams())) },
		func() (int, error) { return 0, err2(other.SyncHost(bg(), b.syncParams())) },
	) {
		w.must("sync", r.err)
	}
	a.sync()
	want := reportedPlugin()
	want.Pending, want.Revision = true, 1
	got := w.plugin(reportedVersion)
	want.CreatedAt = got.CreatedAt
	if diff(want, got) != "" || got.State() != berth.PluginPending || got.CreatedAt.IsZero() {
		w.t.Fatalf("reported %+v, should be %+v", got, want)
	}
	if n := w.acted(berth.AuditPluginRegistered, "plugin", "extra@0.3.0"); n != 1 {
		w.t.Errorf("%d audit rows of a version that two hosts reported", n)
	}
	if w.serves(a, reportedVersion) {
		w.t.Errorf("a pending version is served")
	}
	decided := w.Clock.Advance(time.Minute)
	if p := w.enable(reportedVersion, true); !p.Enabled || p.Pending || string(p.Schema) != string(want.Schema) || string(p.ResultSchema) != string(want.ResultSchema) ||
		p.Requires != want.Requires || p.Revision != 2 || !p.DecidedAt.Equal(decided) || diff(p, w.plugin(reportedVersion)) != "" {
		w.t.Errorf("approved %+v", p)
	}
	a.sync() // a minute has passed
	if !w.serves(a, reportedVersion) {
		w.t.Errorf("an approved version is not served")
	}
}

// serves reports whether a host's devices are offered with a version.
func (w *world) serves(a *agent, v berth.PluginVersion) bool {
	w.t.Helper()
	for _, d := range w.free() {
		if d.Host == a.id {
			return slices.Contains(d.Plugins, v)
		}
	}
	w.t.Fatalf("no free device of %s", a.name)
	return false
}

func pluginBare(w *world) {
	a := w.enrolled("h1", w.pool.ID, 1)
	a.plugins = []berth.Plugin{{PluginVersion: reportedVersion}}
	a.sync()
	w.enable(reportedVersion, true)
	// Submits are judged by what was approved: nothing.
	a.plugins = []berth.Plugin{reportedPlugin()}
	if res := a.sync(); len(res.DifferingPlugins) != 0 || len(w.plugin(reportedVersion).Schema) != 0 {
		w.t.Errorf("an approved version was given a schema: %+v, %+v", res, w.plugin(reportedVersion))
	}
	w.enable(reportedVersion, false)
	a.sync()
	if p := w.plugin(reportedVersion); string(p.Schema) != string(reportedPlugin().Schema) || p.Requires != "driver=process" || p.Enabled || p.State() != berth.PluginDisabled {
		w.t.Errorf("completed %+v", p)
	}
}

func pluginDiffers(w *world) {
	a, b := w.enrolled("h1", w.pool.ID, 1), w.enrolled("h2", w.pool.ID, 1)
	a.plugins, b.plugins = []berth.Plugin{reportedPlugin()}, []berth.Plugin{reportedPlugin()}
	a.sync()
	other := reportedPlugin()
	other.Schema = []byte(`{"type":"object"}`)
	differs := func(want bool, rows int) {
		w.t.Helper()
		res := b.sync()
		if got := slices.Contains(res.DifferingPlugins, reportedVersion); got != want || len(res.DifferingPlugins) > 1 {
			w.t.Fatalf("differing plugins %v", res.DifferingPlugins)
		}
		if n := w.acted(berth.AuditPluginDiffers, "plugin", "extra@0.3.0"); n != rows {
			w.t.Fatalf("%d audit rows, should be %d", n, rows)
		}
		if p := w.plugin(reportedVersion); string(p.Schema) != string(reportedPlugin().Schema) || p.Requires != "driver=process" {
			w.t.Fatalf("it was replaced: %+v", p)
		}
	}
	b.plugins = []berth.Plugin{other}
	differs(true, 1) // nobody has decided, and what was read first stays
	w.enable(reportedVersion, true)
	differs(true, 1)
	if !w.serves(a, reportedVersion) || w.serves(b, reportedVersion) {
		w.t.Errorf("served by the first %v, by the other %v", w.serves(a, reportedVersion), w.serves(b, reportedVersion))
	}
	rows := w.audit("plugin", "extra@0.3.0")
	if i := slices.IndexFunc(rows, func(e berth.AuditEvent) bool { return e.Action == berth.AuditPluginDiffers }); rows[i].Host != b.id || rows[i].Actor != b.actor {
		w.t.Errorf("audit row %+v", rows[i])
	}
	// Another spelling of the same, a report that says nothing, and an approval of
	// all that hosts bring are no other plugin.
	b.plugins[0] = reportedPlugin()
	b.plugins[0].Schema = []byte(`{"required": ["n"], "type": "object"}`)
	differs(false, 1)
	if !w.serves(b, reportedVersion) {
		w.t.Errorf("what is the same again is not served")
	}
	b.plugins[0] = berth.Plugin{PluginVersion: reportedVersion}
	differs(false, 1)
	b.plugins[0] = reportedPlugin()
	b.plugins[0].Requires = "driver=chromium"
	differs(true, 2)
	b.plugins[0] = reportedPlugin()
	b.plugins[0].ResultSchema = []byte(`{"type":"object","required":["sum"]}`)
	differs(true, 2)
	b.plugins[0].ResultSchema = nil
	differs(false, 2)
	b.plugins[0] = other
	if res := b.sync(func(p *store.SyncParams) { p.ApprovePlugins = true }); !slices.Contains(res.DifferingPlugins, reportedVersion) || w.serves(b, reportedVersion) {
		w.t.Errorf("approved at once: %+v", res)
	}
}

func pluginChanged(w *world) {
	version := berth.PluginVersion{Name: pluginName, Version: pluginVersion}
	before := w.plugin(version)
	change := func(c berth.PluginChange) (berth.Plugin, error) {
		return w.Store.ChangePlugin(bg(), store.ChangePluginParams{Actor: w.operator, Plugin: version, Change: c})
	}
	policy := berth.DefaultRetryPolicy()
	policy.MaxAttempts, policy.On, policy.RetryUnsafe = 7, []berth.Outcome{berth.OutcomeLost}, true
	on, note := true, "use 2.x"
	c := berth.PluginChange{
		Deprecated: &on, Note: &note, Defaults: &berth.PluginDefaults{RunTimeout: 90 * time.Second, Retry: &policy}, Revision: before.Revision,
	}
	for range 2 { // the second repeats a call whose answer was lost
		p, err := change(c)
		w.must("change", err)
		if !p.Deprecated || !p.Enabled || p.Note != note || p.Defaults.RunTimeout != 90*time.Second || diff(*p.Defaults.Retry, policy) != "" ||
			p.Revision != before.Revision+1 || !p.DecidedAt.Equal(before.DecidedAt) || diff(p, w.plugin(version)) != "" {
			w.t.Fatalf("changed %+v", p)
		}
	}
	if n := w.acted(berth.AuditPluginChanged, "plugin", pluginName+"@"+pluginVersion); n != 1 {
		w.t.Errorf("%d audit rows of one change", n)
	}
	other := "another"
	_, err := change(berth.PluginChange{Note: &other, Revision: before.Revision})
	w.fails("a change of an older revision", err, berth.ErrWrongState)
	_, err = change(berth.PluginChange{Defaults: &berth.PluginDefaults{RunTimeout: time.Millisecond}})
	w.fails("a run timeout that no task may have", err, berth.ErrInvalid)
	if p, err := change(berth.PluginChange{Defaults: &berth.PluginDefaults{}, Revision: before.Revision + 1}); err != nil || p.Defaults != (berth.PluginDefaults{}) || p.Note != note {
		w.t.Errorf("without defaults %+v, %v", p, err)
	}
	_, err = w.Store.ChangePlugin(bg(), store.ChangePluginParams{Actor: w.operator, Plugin: berth.PluginVersion{Name: pluginName, Version: "9.9.9"}, Change: c})
	w.fails("an unknown version", err, berth.ErrNotFound)
}

func pluginDefaults(w *world) {
	a := w.host("h1", 1)
	task := w.submit()
	w.placed(task.ID)
	on := true
	_, err := w.Store.ChangePlugin(bg(), store.ChangePluginParams{
		Actor: w.operator, Plugin: berth.PluginVersion{Name: pluginName, Version: pluginVersion},
		Change: berth.PluginChange{Deprecated: &on, Defaults: &berth.PluginDefaults{RunTimeout: time.Second}},
	})
	w.must("change", err)
	as := a.one(task.ID)
	if as.RunTimeout != task.RunTimeout {
		w.t.Errorf("the run timeout of a task became %v", as.RunTimeout)
	}
	a.start(as)
	a.completed(as, berth.OutcomeSucceeded)
	again := w.submit()
	w.placed(again.ID) // deprecated, and served
}
