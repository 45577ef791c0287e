package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/pkg/client"
)

func newLoginCommand(c *cli) *cobra.Command {
	var from loginFlags
	cmd := &cobra.Command{
		Use:   "login [URL]",
		Short: "Log in on a server",
		Long: "Log in on a server and keep the login for later commands.\n\n" +
			"The password is asked for, or taken from --password-file, from standard input (--password-stdin) or from BERTH_PASSWORD.",
		Example: "  berth login http://127.0.0.1:7700 --name admin\n  berth login --password-stdin < password.txt",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.url = args[0]
			}
			return c.login(cmd, from)
		},
	}
	cmd.Flags().StringVarP(&from.name, "name", "n", "admin", "user name")
	cmd.Flags().BoolVar(&from.stdin, "password-stdin", false, "read the password from standard input")
	cmd.Flags().StringVar(&from.file, "password-file", "", "read the password from this file")
	return cmd
}

// loginFlags say who logs in and where the password is.
type loginFlags struct {
	name  string
	stdin bool
	file  string
}

func (c *cli) login(cmd *cobra.Command, from loginFlags) error {
	url, _, err := c.server()
	if err != nil {
		return err
	}
	api, err := c.dial(url, nil)
	if err != nil {
		return err
	}
	password, err := c.password(url, from)
	if err != nil {
		return err
	}
	tokens, err := api.Login(cmd.Context(), from.name, password)
	if err != nil {
		return err
	}
	err = changeLogins(c.loginFile(), func(l *logins) error {
		l.Current = url
		l.Logins[url] = loginOf(tokens.User.Name, client.GrantOf(tokens, c.now()))
		return nil
	})
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(tokens.User)
	}
	roles := make([]string, len(tokens.User.Roles))
	for i, r := range tokens.User.Roles {
		roles[i] = string(r)
	}
	c.say("Logged in on %s as %s (%s).", url, tokens.User.Name, strings.Join(roles, ", "))
	return nil
}

// password reads the password from where it was said to be, or asks a person.
func (c *cli) password(url string, from loginFlags) (string, error) {
	if from.stdin && from.file != "" {
		return "", &usageError{what: "--password-stdin and --password-file exclude each other"}
	}
	if from.stdin {
		from.file = "-"
	}
	if from.file != "" {
		b, err := c.read(from.file)
		if err != nil {
			return "", err
		}
		return nonEmpty(strings.TrimRight(string(b), "\r\n"))
	}
	if p := c.env["BERTH_PASSWORD"]; p != "" {
		return p, nil
	}
	f, ok := c.stdin.(*os.File)
	if !ok || !terminal(f) {
		return "", &usageError{what: "nobody is there to ask for the password", remedy: "pass it with --password-stdin, or set BERTH_PASSWORD"}
	}
	// Not say: the cursor stays on the line.
	_, _ = io.WriteString(c.stderr, "Password of "+from.name+" on "+url+": ")
	b, err := term.ReadPassword(int(f.Fd()))
	c.say("")
	if err != nil {
		return "", errors.New("cannot read the password")
	}
	return nonEmpty(string(b))
}

func nonEmpty(password string) (string, error) {
	if password == "" {
		return "", &usageError{what: "the password is empty", remedy: "type it, or pass it with --password-stdin"}
	}
	return password, nil
}

func newLogoutCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "logout",
		Short: "End the login",
		Args:  exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, stored, err := c.server()
			if err != nil {
				return err
			}
			if stored == nil {
				c.say("There is no login on %s.", url)
				return nil
			}
			api, err := c.dial(url, nil)
			if err != nil {
				return err
			}
			// The file goes first: whatever the server says, this machine forgets.
			err = changeLogins(c.loginFile(), func(l *logins) error {
				delete(l.Logins, url)
				return nil
			})
			if err != nil {
				return err
			}
			if err := api.Logout(cmd.Context(), stored.RefreshToken); err != nil {
				c.say("This machine has forgotten the login; the server could not be told.")
				return err
			}
			c.say("Logged out of %s.", url)
			return nil
		},
	}
}
