package main

import (
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/berth-dev/berth/pkg/client"
)

// defaultURL is where `berth up` listens.
const defaultURL = "http://127.0.0.1:7700"

// cli is what every command works with: one command line's streams,
// environment and shared flags.
type cli struct {
	env    map[string]string
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// Shared flags.
	output string
	url    string

	// session is the server whose stored login the command uses; "": none.
	session string
	now     func() time.Time
}

func newCLI(env []string, stdin io.Reader, stdout, stderr io.Writer) *cli {
	c := &cli{env: map[string]string{}, stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		c.env[k] = v
	}
	return c
}

func (c *cli) json() bool { return c.output == "json" }

// terminal reports whether a person looks at w.
func terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour reports whether stdout takes colours.
func (c *cli) colour() bool {
	return c.env["NO_COLOR"] == "" && c.env["TERM"] != "dumb" && terminal(c.stdout)
}

// envToken is the token or API key of the environment, and its variable.
func (c *cli) envToken() (token, variable string) {
	for _, variable := range []string{"BERTH_TOKEN", "BERTH_API_KEY"} {
		if token := strings.TrimSpace(c.env[variable]); token != "" {
			return token, variable
		}
	}
	return "", ""
}

// client is the API with the caller's token: BERTH_TOKEN, BERTH_API_KEY, or that
// of the login on the server that is meant.
func (c *cli) client() (*client.Client, error) {
	url, stored, err := c.server()
	if err != nil {
		return nil, err
	}
	if token, _ := c.envToken(); token != "" {
		return c.dial(url, client.StaticToken(token))
	}
	if stored == nil {
		if _, err := c.dial(url, client.StaticToken("")); err != nil {
			return nil, err // nobody can log in there
		}
		return nil, &loginError{url: url}
	}
	c.session = url
	if stored.APIKey != "" {
		return c.dial(url, client.StaticToken(stored.APIKey))
	}
	return c.dial(url, &session{file: c.loginFile(), url: url, cli: c})
}

func (c *cli) dial(url string, auth client.TokenSource) (*client.Client, error) {
	transport, err := c.http()
	if err != nil {
		return nil, err
	}
	api, err := client.New(url, auth, client.WithUserAgent("berth/"+version), client.WithRetryFor(5*time.Second), client.WithHTTP(transport))
	if err != nil {
		return nil, &usageError{what: err.Error(), remedy: "write for example --url " + defaultURL + ", or set BERTH_URL"}
	}
	return api, nil
}

// server is the address that is meant, --url before BERTH_URL before the last
// login's, and the login there, nil without one.
func (c *cli) server() (url string, stored *login, err error) {
	file, err := readLogins(c.loginFile())
	if err != nil {
		return "", nil, err
	}
	switch {
	case c.url != "":
		url = c.url
	case c.env["BERTH_URL"] != "":
		url = c.env["BERTH_URL"]
	case file.Current != "":
		url = file.Current
	default:
		url = defaultURL
	}
	url = strings.TrimRight(strings.TrimSpace(url), "/")
	if l, ok := file.Logins[url]; ok {
		return url, &l, nil
	}
	return url, nil, nil
}
