package agentapi

import "slices"

// RouteNames are all routes, sorted.
func (a *API) RouteNames() (names []string) {
	for _, r := range a.routes() {
		names = append(names, r.method+" "+pattern(r.path))
	}
	slices.Sort(names)
	return names
}

// Grouping is how many completions and renewals wait for a writer, and how many
// writers there are.
func (a *API) Grouping() (waiting, writers int) {
	for _, at := range []func() (int, int){a.completions.state, a.renewals.state} {
		n, m := at()
		waiting, writers = waiting+n, writers+m
	}
	return waiting, writers
}

func (g *group[P, R]) state() (waiting, writers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting), g.writers
}
