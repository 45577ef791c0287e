// Command vulncheck looks for known vulnerabilities that Berth's programs reach.
// It needs no network beyond the module registry: the database is a module, too
// (golang.org/x/vulndb, pinned in tools/vuln/go.mod), indexed into build/.
//
// It fails on a vulnerability that tools/vuln/allow.txt does not name, and on a
// line there whose date has passed. A line that no finding needs any more is
// told, not a failure: another Go release has fewer faults.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

const (
	modfile   = "tools/vuln/go.mod"
	allowFile = "tools/vuln/allow.txt"
	database  = "golang.org/x/vulndb"
	tool      = "golang.org/x/vuln"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "vulncheck:", err)
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, out io.Writer) error {
	text, err := os.ReadFile(allowFile)
	if err != nil {
		return err
	}
	allowed, err := parseAllowed(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", allowFile, err)
	}
	db, err := index(ctx)
	if err != nil {
		return err
	}
	report, err := output(ctx, "go", "tool", "-modfile="+modfile, "govulncheck", "-db", "file://"+db, "-format", "json", "./cmd/...")
	if err != nil {
		return err
	}
	found, err := reached(bytes.NewReader(report))
	if err != nil {
		return err
	}
	return judge(out, found, allowed, time.Now())
}

// index builds the database, once for each of its versions, and returns its
// folder.
func index(ctx context.Context) (string, error) {
	if _, err := output(ctx, "go", "mod", "download", "-modfile="+modfile, database, tool); err != nil {
		return "", fmt.Errorf("cannot fetch the database of vulnerabilities: the first time it takes the module registry (GOPROXY), later no network\n%w", err)
	}
	described, err := output(ctx, "go", "list", "-modfile="+modfile, "-m", "-f", "{{.Version}} {{.Dir}}", database)
	if err != nil {
		return "", err
	}
	version, dir, _ := strings.Cut(strings.TrimSpace(string(described)), " ")
	db, err := filepath.Abs(filepath.Join("build", "vulndb-"+version))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(db); err == nil {
		return db, nil
	}
	unfinished := db + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	if _, err := output(ctx, "go", "tool", "-modfile="+modfile, "indexdb", "-out", unfinished, "-vulns", filepath.Join(dir, "data", "osv")); err != nil {
		return "", err
	}
	return db, os.Rename(unfinished, db)
}

func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, name, args...)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(append([]string{name}, args...), " "), err, stderr.Bytes())
	}
	return out, nil
}

// vulnerability is one that the programs reach.
type vulnerability struct{ id, module, version, fixed, summary string }

// reached reads govulncheck's JSON: a finding whose trace names a function is
// called by the programs.
func reached(r io.Reader) ([]vulnerability, error) {
	var list []vulnerability
	summaries, seen := map[string]string{}, map[string]bool{}
	for dec := json.NewDecoder(r); ; {
		var m struct {
			OSV *struct {
				ID, Summary string
			} `json:"osv"`
			Finding *struct {
				OSV   string
				Fixed string `json:"fixed_version"`
				Trace []struct{ Module, Version, Function string }
			} `json:"finding"`
		}
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("govulncheck's report: %w", err)
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if f := m.Finding; f != nil && len(f.Trace) > 0 && f.Trace[0].Function != "" && !seen[f.OSV] {
			seen[f.OSV] = true
			list = append(list, vulnerability{id: f.OSV, module: f.Trace[0].Module, version: f.Trace[0].Version, fixed: f.Fixed})
		}
	}
	if len(summaries) == 0 {
		return nil, errors.New("govulncheck looked at nothing: the database is empty")
	}
	for i := range list {
		list[i].summary = summaries[list[i].id]
	}
	return list, nil
}

// allowance is a line of the allow-list.
type allowance struct {
	until  time.Time
	reason string
}

// parseAllowed reads lines of id, last day and reason; # begins a comment.
func parseAllowed(text string) (map[string]allowance, error) {
	allowed := map[string]allowance{}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %d: write id, last day (2027-02-28) and the reason", n+1)
		}
		until, err := time.Parse(time.DateOnly, fields[1])
		if err != nil {
			return nil, fmt.Errorf("line %d: %q is no day such as 2027-02-28", n+1, fields[1])
		}
		allowed[fields[0]] = allowance{until: until.AddDate(0, 0, 1), reason: strings.Join(fields[2:], " ")}
	}
	return allowed, nil
}

// judge tells of each finding and fails where one is not allowed, or not any
// more.
func judge(out io.Writer, found []vulnerability, allowed map[string]allowance, now time.Time) error {
	bad := 0
	used := map[string]bool{}
	for _, v := range found {
		a, ok := allowed[v.id]
		used[v.id] = true
		fixed := "not fixed yet"
		if v.fixed != "" {
			fixed = "fixed in " + v.fixed
		}
		switch {
		case !ok:
			bad++
			fmt.Fprintf(out, "%s: %s (%s %s, %s; https://pkg.go.dev/vuln/%s)\n", v.id, v.summary, v.module, v.version, fixed, v.id)
		case !now.Before(a.until):
			bad++
			fmt.Fprintf(out, "%s: its day in %s has passed: judge it anew (%s, %s)\n", v.id, allowFile, v.summary, fixed)
		}
	}
	for id := range allowed {
		if !used[id] {
			fmt.Fprintf(out, "%s: in %s, and not found any more\n", id, allowFile)
		}
	}
	fmt.Fprintf(out, "vulncheck: %d reached, %d allowed, %d to mend\n", len(found), len(found)-bad, bad)
	if bad > 0 {
		return fmt.Errorf("mend %d, or say in %s why they do no harm and until when", bad, allowFile)
	}
	return nil
}
