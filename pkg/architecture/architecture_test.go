package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestImportsPointDown(t *testing.T) {
	root := filepath.Join("..", "..")
	readAll(t, root)
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []Package
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p Package
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) == 0 {
		t.Fatal("go list found no package")
	}
	for _, line := range Violations(packages) {
		t.Error(line)
	}
}

// readAll opens each Go file of the module: go's cache of test results sees
// what a test opens, but not what the go command that it calls opens, and would
// give yesterday's answer.
func readAll(t *testing.T, root string) {
	t.Helper()
	for _, top := range []string{"cmd", "db", "pkg", "scripts", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !entry.IsDir() && strings.HasSuffix(path, ".go") {
				_, err = os.ReadFile(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestViolations(t *testing.T) {
	own := func(paths ...string) (full []string) {
		for _, path := range paths {
			if !strings.Contains(path, ".") && !strings.HasPrefix(path, "std:") {
				path = module + path
			}
			full = append(full, strings.TrimPrefix(path, "std:"))
		}
		return full
	}
	for name, c := range map[string]struct {
		path          string
		imports, deps []string
		broken        bool
	}{
		"the domain imports the standard library": {path: "pkg/berth", imports: []string{"std:time", "pkg/berth/ids"}},
		"the domain imports a module":             {path: "pkg/berth", imports: []string{"github.com/google/uuid"}, broken: true},
		"the domain imports what redacts":         {path: "pkg/berth", imports: []string{"pkg/redact"}},
		"what redacts imports the runtime":        {path: "pkg/redact", imports: []string{"pkg/runtime"}, broken: true},
		"the domain imports the store":            {path: "pkg/berth", imports: []string{"pkg/store"}, broken: true},
		"HTTP imports the contract":               {path: "pkg/httpapi", imports: []string{"pkg/store", "pkg/berth"}},
		"HTTP imports an engine":                  {path: "pkg/httpapi", imports: []string{"pkg/store/postgres"}, broken: true},
		"a package below HTTP imports an engine":  {path: "pkg/httpapi/problem", imports: []string{"pkg/store/sqlite"}, broken: true},
		"a worker reaches a driver":               {path: "pkg/scheduler", deps: []string{"github.com/jackc/pgx/v5/pgconn"}, broken: true},
		"the keeper reaches an engine":            {path: "pkg/leasekeeper", deps: []string{"pkg/store/sqlite"}, broken: true},
		"the contract imports an engine":          {path: "pkg/store", imports: []string{"pkg/store/postgres"}, broken: true},
		"an engine imports its driver":            {path: "pkg/store/postgres", imports: []string{"github.com/jackc/pgx/v5"}},
		"an engine imports HTTP":                  {path: "pkg/store/postgres", imports: []string{"std:net/http"}, broken: true},
		"a driver reaches HTTP":                   {path: "pkg/store/sqlite", deps: []string{"std:net/http"}},
		"an engine reaches the routes":            {path: "pkg/store/sqlite", deps: []string{"pkg/agentapi"}, broken: true},
		"an engine imports the other":             {path: "pkg/store/sqlite", imports: []string{"pkg/store/postgres"}, broken: true},
		"the runtime reaches the store":           {path: "cmd/runtime", deps: []string{"pkg/store"}, broken: true},
		"the runtime reaches identity":            {path: "pkg/runtime/server", deps: []string{"pkg/identity"}, broken: true},
		"the runtime imports its drivers":         {path: "cmd/runtime", imports: []string{"pkg/runtime", "pkg/berth"}},
		"a program imports engines":               {path: "cmd/api", imports: []string{"pkg/store/postgres", "pkg/store/sqlite"}},
		"a program carries test helpers":          {path: "cmd/api", deps: []string{"pkg/pgtest"}, broken: true},
		"identity imports jwx":                    {path: "pkg/identity", imports: []string{"github.com/lestrrat-go/jwx/v2/jwt"}},
		"a program imports jwx":                   {path: "cmd/berth", imports: []string{"github.com/lestrrat-go/jwx/v2/jwk"}, broken: true},
		"a program reaches jwx":                   {path: "cmd/api", deps: []string{"github.com/lestrrat-go/jwx/v2/jwk"}},
		"cron imports gronx":                      {path: "pkg/cron", imports: []string{"github.com/adhocore/gronx", "pkg/berth"}},
		"the scheduler imports gronx":             {path: "pkg/scheduler", imports: []string{"github.com/adhocore/gronx"}, broken: true},
		"the scheduler reaches gronx":             {path: "pkg/scheduler", deps: []string{"github.com/adhocore/gronx"}},
		"cron imports the contract":               {path: "pkg/cron", imports: []string{"pkg/store"}, broken: true},
		"the agent reaches an engine":             {path: "pkg/hostagent", deps: []string{"pkg/store/sqlite"}, broken: true},
		"a name that only begins alike":           {path: "pkg/runtimes", imports: []string{"pkg/store"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Violations([]Package{{ImportPath: module + c.path, Imports: own(c.imports...), Deps: own(c.deps...)}})
			if (len(got) > 0) != c.broken {
				t.Errorf("got %q, want broken: %v", got, c.broken)
			}
		})
	}
}
