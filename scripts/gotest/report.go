package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of `go test -json`, see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	Test       string
	ImportPath string
	Output     string
}

// summary counts tests and subtests.
type summary struct {
	passed, failed, skipped int
	// failures are packages that failed, whether in a test or beside them.
	failures int
	skips    []string
}

// String is the closing line.
func (s summary) String() string {
	return fmt.Sprintf("tests: %d passed, %d failed, %d skipped", s.passed, s.failed, s.skipped)
}

// verdict is an error unless tests ran and all of them passed.
func (s summary) verdict() error {
	switch {
	case s.failed > 0 || s.failures > 0:
		return fmt.Errorf("%d tests failed, in %d packages", s.failed, s.failures)
	case s.skipped > 0:
		return fmt.Errorf("skipped, which counts as failed:\n  %s", strings.Join(s.skips, "\n  "))
	case s.passed == 0:
		return errors.New("no test ran")
	default:
		return nil
	}
}

// reporter keeps what each running test said until it is known whether anybody
// wants to read it.
type reporter struct {
	out  io.Writer
	said map[string]map[string][]string // package -> test ("" for the package itself) -> lines
	sum  summary
}

// report writes to out what a person wants to see of the events.
func report(events io.Reader, out io.Writer) (summary, error) {
	r := &reporter{out: out, said: map[string]map[string][]string{}}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				r.print(string(line)) // go itself speaks plainly of some faults
			} else {
				r.take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return r.sum, nil
		}
		if err != nil {
			return r.sum, fmt.Errorf("read the events of go test: %w", err)
		}
	}
}

func (r *reporter) take(e event) {
	switch e.Action {
	case "build-output":
		r.print(e.Output)
	case "output":
		if r.said[e.Package] == nil {
			r.said[e.Package] = map[string][]string{}
		}
		r.said[e.Package][e.Test] = append(r.said[e.Package][e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.endTest(e)
		} else {
			r.endPackage(e)
		}
	}
}

func (r *reporter) endTest(e event) {
	switch e.Action {
	case "pass":
		r.sum.passed++
	case "fail":
		r.sum.failed++
	case "skip":
		r.sum.skipped++
		r.sum.skips = append(r.sum.skips, e.Package+" "+e.Test)
	}
	if e.Action != "pass" {
		r.print(r.said[e.Package][e.Test]...)
	}
	delete(r.said[e.Package], e.Test)
}

// endPackage prints the package's line; of a failed package also what its
// unfinished tests said, for a panic or a time-out is among it.
func (r *reporter) endPackage(e event) {
	said := r.said[e.Package]
	delete(r.said, e.Package)
	own := said[""]
	delete(said, "")
	if e.Action == "fail" {
		r.sum.failures++
		for _, lines := range said {
			r.print(lines...)
		}
		r.print(own...)
		return
	}
	for _, line := range own {
		if strings.HasPrefix(line, "ok  \t") {
			r.print(line)
		}
	}
}

func (r *reporter) print(lines ...string) {
	for _, line := range lines {
		fmt.Fprint(r.out, line)
	}
}
