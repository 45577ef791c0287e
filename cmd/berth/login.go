package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

func newLoginCommand(c *cli) *cobra.Command {
	var from loginFlags
	cmd := &cobra.Command{
		Use:   "login [URL]",
		Short: "Log in on a server",
		Long: "Log in on a server and keep the login for later commands.\n\n" +
			"The password is asked for, or taken from --password-file, from standard input (--password-stdin) or from BERTH_PASSWORD.",
		Example: "  berth login http://127.0.0.1:7700 --name admin\n  berth login --api-key\n  berth login --password-stdin < password.txt",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				c.url = args[0]
			}
			return c.login(cmd, from)
		},
	}
	cmd.Flags().StringVarP(&from.name, "name", "n", "admin", "user name")
	cmd.Flags().BoolVar(&from.apiKey, "api-key", false, "keep an API key instead: typed, from standard input, or from BERTH_API_KEY")
	from.add(cmd, "")
	return cmd
}

// loginFlags say who logs in and where the password is.
type loginFlags struct {
	secretFlags
	name   string
	apiKey bool
}

func (c *cli) login(cmd *cobra.Command, from loginFlags) error {
	url, _, err := c.server()
	if err != nil {
		return err
	}
	if from.apiKey {
		return c.keepAPIKey(cmd, url, from)
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
	c.say("Logged in on %s as %s (%s).", url, tokens.User.Name, roleWords(tokens.User.Roles))
	return nil
}

// keepAPIKey is a login with an API key: it is tried, and kept.
func (c *cli) keepAPIKey(cmd *cobra.Command, url string, from loginFlags) error {
	key, err := c.apiKey(from.secretFlags)
	if err != nil {
		return err
	}
	api, err := c.dial(url, client.StaticToken(key))
	if err != nil {
		return err
	}
	me, err := api.Me(cmd.Context())
	if client.HasCode(err, "unauthenticated") {
		return &remedyError{what: "the server does not take this API key", remedy: "check that it is whole, and with berth key list that it is good"}
	}
	if err != nil {
		return err
	}
	err = changeLogins(c.loginFile(), func(l *logins) error {
		l.Current = url
		l.Logins[url] = login{Name: me.Name, APIKey: key}
		return nil
	})
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(me)
	}
	c.say("The API key of %s (%s) is kept for %s.", me.Name, roleWords(me.Roles), url)
	return nil
}

func (c *cli) apiKey(from secretFlags) (string, error) {
	secrets, ok, err := c.lines(from, 1)
	if err != nil || ok {
		return strings.TrimSpace(first(secrets)), err
	}
	if key := c.env["BERTH_API_KEY"]; key != "" {
		return strings.TrimSpace(key), nil
	}
	if !terminal(c.stdin) {
		secrets, _, err = c.lines(secretFlags{stdin: true}, 1)
		return strings.TrimSpace(first(secrets)), err
	}
	return c.ask("API key", "set BERTH_API_KEY")
}

// password reads the password from where it was said to be, or asks a person.
func (c *cli) password(url string, from loginFlags) (string, error) {
	secrets, ok, err := c.lines(from.secretFlags, 1)
	if err != nil || ok {
		return first(secrets), err
	}
	if p := c.env["BERTH_PASSWORD"]; p != "" {
		return p, nil
	}
	return c.ask("Password of "+from.name+" on "+url, "pass it with --password-stdin, or set BERTH_PASSWORD")
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
			if stored.APIKey != "" {
				c.say("This machine has forgotten the API key of %s, which is still good. To end it: berth key revoke", printable(stored.Name))
				return nil
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
