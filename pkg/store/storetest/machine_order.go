package storetest

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/pkg/berth"
)

func drawPrioritise(rt *rapid.T, m *machine) step {
	i, priority := pick(rt, len(m.tasks), "task"), rapid.IntRange(0, 9).Draw(rt, "priority")
	if i < 0 {
		return skipped
	}
	return func(m *machine) any {
		task, trs, err := m.Store.SetTaskPriority(bg(), m.params(m.tasks[i]), priority)
		return m.told([]any{task.State, task.Priority}, trs, err)
	}
}

// stepPause turns the pool's pause over.
func stepPause(m *machine) any {
	before, err := m.Store.GetPool(bg(), m.pool.Name)
	m.must("get pool", err)
	p, err := m.Store.SetPoolPaused(bg(), m.operator, m.pool.Name, !before.Paused)
	return m.told(p.Paused, nil, err)
}

func stepEnable(m *machine) any {
	version := berth.PluginVersion{Name: pluginName, Version: pluginVersion}
	all, err := m.Store.PluginVersions(bg(), pluginName)
	m.must("plugin versions", err)
	i := slices.IndexFunc(all, func(p berth.Plugin) bool { return p.PluginVersion == version })
	p, err := m.Store.ChangePlugin(bg(), enabling(m.operator, version, !all[i].Enabled))
	return m.told(p.Enabled, nil, err)
}

// stepSweep finds nothing wrong, whatever happened before.
func stepSweep(m *machine) any {
	r := m.sweep()
	if r.Wrong != 0 {
		m.t.Fatalf("the sweep found %+v", r)
	}
	return m.told(r.Looked, nil, nil)
}

// paused reports whether a scheduler leaves the pool alone.
func (m *machine) paused() bool {
	m.t.Helper()
	pools, err := m.Store.SchedulablePools(bg())
	m.must("schedulable pools", err)
	return !slices.Contains(pools, m.pool.ID)
}
