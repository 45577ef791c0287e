package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

// Exit codes; docs/cli.md lists them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitForbidden   = 4
	exitNoSuccess   = 5
	exitUnreachable = 6
	exitInterrupted = 130
)

// usageError is a command line that cannot be understood.
type usageError struct{ command, what, remedy string }

func (e *usageError) Error() string { return e.what }

// remedyError is an error with what to do about it.
type remedyError struct{ what, remedy string }

func (e *remedyError) Error() string { return e.what }

// loginError: there is no login on the server, or it is over.
type loginError struct {
	url  string
	over bool
}

func (e *loginError) Error() string {
	if e.over {
		return "the login on " + e.url + " is over"
	}
	return "not logged in on " + e.url
}

// outcomeError: the command did its work, and the task did not succeed. Its
// words have been printed.
type outcomeError struct{ state client.TaskState }

func (e *outcomeError) Error() string { return "the task is " + string(e.state) }

func exitCode(err error) int {
	var (
		usage       *usageError
		notLoggedIn *loginError
		outcome     *outcomeError
		unreachable *client.UnreachableError
		problem     *client.Problem
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), isCobraUsage(err):
		return exitUsage
	case errors.As(err, &outcome):
		return exitNoSuccess
	case errors.As(err, &notLoggedIn):
		return exitForbidden
	case errors.As(err, &unreachable):
		return exitUnreachable
	case errors.As(err, &problem) && problem.Code == client.CodeNoProblemDocument:
		return exitError // it is not Berth who says so
	case errors.As(err, &problem):
		switch problem.Status {
		case http.StatusNotFound:
			return exitNotFound
		case http.StatusUnauthorized, http.StatusForbidden:
			return exitForbidden
		}
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitError
}

// isCobraUsage recognises the faults that cobra finds itself and has no types
// for.
func isCobraUsage(err error) bool {
	return strings.HasPrefix(err.Error(), "unknown command") || strings.HasPrefix(err.Error(), "required flag")
}

// explain prints one clear sentence, and what to do, on stderr.
func (c *cli) explain(err error) {
	var (
		usage       *usageError
		remedy      *remedyError
		setup       *berth.SetupError
		access      *berth.DatabaseAccessError
		notLoggedIn *loginError
		outcome     *outcomeError
		unreachable *client.UnreachableError
		problem     *client.Problem
	)
	switch {
	case errors.As(err, &outcome):
	case errors.As(err, &usage):
		c.complain(usage.what, usage.hint(), "")
	case isCobraUsage(err):
		first, _, _ := strings.Cut(err.Error(), "\n")
		c.complain(first, "berth --help", "")
	case errors.As(err, &notLoggedIn):
		c.complain(notLoggedIn.Error(), "berth login "+notLoggedIn.url, "")
	case errors.As(err, &access):
		c.complain(access.What, access.Remedy, "")
	case errors.As(err, &setup):
		c.complain(setup.What, setup.Remedy, "")
	case errors.As(err, &remedy):
		c.complain(remedy.what, remedy.remedy, "")
	case errors.As(err, &unreachable):
		c.complain(unreachable.Error(), unreachable.Remedy(), "")
	case errors.As(err, &problem):
		c.explainProblem(problem)
	case errors.Is(err, context.Canceled):
		c.complain("interrupted", "", "")
	default:
		// Berth's own errors say what is wrong; what to do.
		what, remedy, _ := strings.Cut(err.Error(), "; ")
		c.complain(what, remedy, "")
	}
}

// flagError says what is wrong with a flag, as Berth says it.
func flagError(command string, err error) error {
	var (
		unknown *pflag.NotExistError
		value   *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
	)
	e := &usageError{command: command, what: err.Error()}
	switch {
	case errors.As(err, &unknown):
		e.what = "there is no flag " + dashed(unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		e.what = dashed(missing.GetSpecifiedName()) + " needs a value"
	case errors.As(err, &value):
		kinds := map[string][2]string{
			"duration": {"duration", "write for example 90s, 10m or 1h30m"}, "int": {"number", "write for example 3"},
			"bool": {"truth value", "write true or false"},
		}
		if k, ok := kinds[value.GetFlag().Value.Type()]; ok {
			e.what, e.remedy = fmt.Sprintf("--%s: %q is no %s", value.GetFlag().Name, berth.Clip(value.GetValue(), 40), k[0]), k[1]
		}
	}
	return e
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func (e *usageError) hint() string {
	if e.remedy != "" {
		return e.remedy
	}
	if e.command != "" {
		return e.command + " --help"
	}
	return "berth --help"
}

func (c *cli) explainProblem(p *client.Problem) {
	p = shown(p)
	id := "code " + p.Code
	if p.RequestID != "" {
		id += ", request " + p.RequestID
	}
	_, variable := c.envToken()
	switch {
	case p.Status == http.StatusUnauthorized && variable == "BERTH_API_KEY":
		c.complain("the API key in BERTH_API_KEY is not good: unknown, expired, revoked, or its user is disabled",
			"with a login, berth key list shows the keys", id)
	case p.Status == http.StatusUnauthorized && variable != "":
		c.complain("the token in BERTH_TOKEN is not valid", "take a fresh one, or unset it and run: berth login", id)
	case p.Status == http.StatusUnauthorized && c.session != "":
		over := &loginError{url: c.session, over: true}
		c.complain(over.Error(), "berth login "+over.url, id)
	case len(p.Errors) == 1:
		remedy := p.Errors[0].Remedy
		if remedy == "" {
			remedy = "mend that field and try again"
		}
		c.complain(fault(p.Errors[0]), remedy, id)
	case len(p.Errors) > 1:
		lines := []string{fmt.Sprintf("%d faults:", len(p.Errors))}
		for _, f := range p.Errors {
			lines = append(lines, "  - "+f.String())
		}
		c.complain(strings.Join(lines, "\n"), "", id)
	default:
		c.complain(lower(p.What()), lower(p.Remedy), id)
	}
}

// lower is a server's sentence as it stands in this program's: BERTH_URL, HTTP and
// Berth stay what they are.
func lower(sentence string) string {
	first, size := utf8.DecodeRuneInString(sentence)
	second, _ := utf8.DecodeRuneInString(sentence[size:])
	if !unicode.IsUpper(first) || !unicode.IsLower(second) && second != ' ' || strings.HasPrefix(sentence, "Berth") || strings.HasPrefix(sentence, "Postgres") {
		return sentence
	}
	return string(unicode.ToLower(first)) + sentence[size:]
}

// shown is a problem as a terminal may show it: a server's texts, each in one line.
func shown(p *client.Problem) *client.Problem {
	out := *p
	out.Code, out.Title, out.Detail, out.Remedy, out.RequestID = printable(p.Code), printable(p.Title), printable(p.Detail), printable(p.Remedy), printable(p.RequestID)
	out.Errors = make([]client.FieldError, len(p.Errors))
	for i, f := range p.Errors {
		out.Errors[i] = client.FieldError{Path: printable(f.Path), Message: printable(f.Message), Remedy: printable(f.Remedy)}
	}
	return &out
}

// unnamed is err, in the words of the command where the server did not find what
// it named.
func unnamed(err error, thing, remedy string) error {
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != http.StatusNotFound || p.Code != "not_found" {
		return err
	}
	said := *p
	said.Detail, said.Remedy = "there is no "+thing, remedy
	return &said
}

func fault(f client.FieldError) string {
	if f.Path == "" {
		return f.Message
	}
	return f.Path + ": " + f.Message
}

func (c *cli) complain(what, remedy, id string) {
	fmt.Fprintf(c.stderr, "error: %s\n", strings.TrimRight(what, ". "))
	if remedy != "" {
		fmt.Fprintf(c.stderr, "  try: %s\n", strings.TrimRight(remedy, ". "))
	}
	if id != "" {
		fmt.Fprintf(c.stderr, "  (%s)\n", id)
	}
}
