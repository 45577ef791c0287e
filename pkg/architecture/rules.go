// Package architecture holds no code of Berth's: its test checks that the
// packages import each other only in the direction that docs/ARCHITECTURE.md
// draws.
package architecture

import (
	"fmt"
	"slices"
	"strings"
)

const module = "github.com/berth-dev/berth/"

// Package is what `go list -json` tells of one package, without its tests.
type Package struct {
	ImportPath string
	// Imports are what its own files name, Deps all that is linked in with it.
	Imports, Deps []string
}

// rule forbids packages of one place to use packages of another.
type rule struct {
	// of and not are the places that are bound and, within them, those that are
	// free. A place is a package's path and all below it; a trailing $ means the
	// package alone. Paths without a dot in the first element are below module.
	of, not []string
	// imports forbids naming a place, deps also reaching it through others.
	imports, deps []string
	// why says what the rule protects.
	why string
}

func rules() []rule {
	engines := []string{
		"pkg/store/postgres", "pkg/store/sqlite",
		"github.com/jackc/pgx", "github.com/mattn/go-sqlite3",
	}
	http := []string{"pkg/httpapi", "pkg/agentapi", "github.com/labstack/echo"}
	return []rule{
		{
			of:   []string{"pkg/httpapi", "pkg/agentapi", "pkg/scheduler", "pkg/leasekeeper", "pkg/store$"},
			deps: engines, why: "HTTP and the workers speak to the contract, never to an engine",
		},
		{
			of:   []string{"pkg/store/postgres", "pkg/store/sqlite"},
			deps: http, imports: []string{"std:net/http"}, why: "engines know nothing of HTTP",
		},
		{
			of:   []string{"pkg/store/postgres"},
			deps: []string{"pkg/store/sqlite", "github.com/mattn/go-sqlite3"}, why: "engines do not know each other",
		},
		{
			of:   []string{"pkg/store/sqlite"},
			deps: []string{"pkg/store/postgres", "github.com/jackc/pgx"}, why: "engines do not know each other",
		},
		{
			of: []string{"pkg/runtime", "cmd/runtime"},
			deps: append([]string{
				"pkg/store", "pkg/identity", "pkg/scheduler", "pkg/leasekeeper", "pkg/hostagent", "pkg/agentapi", "pkg/httpapi",
			}, engines...),
			why: "the runtime stands alone, without a control plane",
		},
		{
			of: []string{"pkg/hostagent", "cmd/hostagent", "pkg/client"},
			deps: append([]string{"pkg/scheduler", "pkg/leasekeeper", "pkg/httpapi", "pkg/agentapi"},
				engines...),
			why: "agents and clients reach the control plane over HTTP only",
		},
		{
			of: []string{""}, not: []string{"pkg/identity"},
			imports: []string{"github.com/lestrrat-go/jwx"}, why: "tokens are made and read in pkg/identity alone",
		},
		{
			of: []string{""}, not: []string{"pkg/cron"},
			imports: []string{"github.com/adhocore/gronx"}, why: "cron expressions are read and matched in pkg/cron alone",
		},
		{
			of:   []string{"pkg/cron", "pkg/schedule"},
			deps: append(append([]string{"pkg/store", "std:net/http"}, http...), engines...), why: "when a schedule fires is a pure rule",
		},
		{
			of:   []string{"cmd"},
			deps: []string{"std:testing", "pkg/pgtest", "pkg/store/storetest"}, why: "programs carry no test helpers",
		},
		{
			of: []string{"pkg"}, not: []string{"pkg/pgtest/cmd"},
			imports: []string{"cmd", "test", "scripts"}, why: "imports point down only",
		},
	}
}

// Violations returns one line for each rule that a package breaks, in the order
// of the packages.
func Violations(packages []Package) []string {
	var found []string
	for _, p := range packages {
		if anyWithin(p.ImportPath, domain()) {
			found = append(found, foreign(p)...)
		}
		for _, r := range rules() {
			if anyWithin(p.ImportPath, r.of) && !anyWithin(p.ImportPath, r.not) {
				found = append(found, r.broken(p)...)
			}
		}
	}
	return found
}

// domain lists the domain and the one package that it builds on: the types
// whose printed form hides their content, which the runtime, that knows no
// tasks, uses as well.
func domain() []string { return []string{"pkg/berth", "pkg/redact"} }

// foreign returns what a package of the domain imports beside the standard
// library and the domain.
func foreign(p Package) []string {
	var found []string
	for _, path := range p.Imports {
		if !standard(path) && !anyWithin(path, domain()) {
			found = append(found, fmt.Sprintf("%s imports %s: the domain imports the standard library alone",
				p.ImportPath, path))
		}
	}
	return found
}

func (r rule) broken(p Package) []string {
	var found []string
	for _, path := range p.Imports {
		if anyWithin(path, r.imports) || anyWithin(path, r.deps) {
			found = append(found, fmt.Sprintf("%s imports %s: %s", p.ImportPath, path, r.why))
		}
	}
	if len(found) > 0 {
		return found // what comes through that import needs no line of its own
	}
	for _, place := range r.deps {
		i := slices.IndexFunc(p.Deps, func(path string) bool { return within(path, place) })
		if i >= 0 { // one package of a module stands for all
			found = append(found, fmt.Sprintf("%s reaches %s through its imports: %s", p.ImportPath, p.Deps[i], r.why))
		}
	}
	return found
}

func anyWithin(path string, places []string) bool {
	return slices.ContainsFunc(places, func(place string) bool { return within(path, place) })
}

// within reports whether the package path is in place, see rule.
func within(path, place string) bool {
	if std, ok := strings.CutPrefix(place, "std:"); ok {
		return path == std
	}
	first, _, _ := strings.Cut(place, "/")
	if !strings.Contains(first, ".") {
		place = module + place
	}
	if alone, ok := strings.CutSuffix(place, "$"); ok {
		return path == alone
	}
	place = strings.TrimSuffix(place, "/")
	return path == place || strings.HasPrefix(path, place+"/")
}

// standard reports whether path is of the standard library: its first element
// is no host name.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
