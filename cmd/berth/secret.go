package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newSecretCommand(c *cli) *cobra.Command {
	return group("secret", "Keep values that tasks are given and nobody is shown",
		newSecretSetCommand(c), newSecretListCommand(c), newSecretGetCommand(c),
		newSecretGrantCommand(c, "grant", "Let the tasks of users, or of everybody with a role, name a secret", true),
		newSecretGrantCommand(c, "ungrant", "Take a grant back; attempts that are handed out later go without the value", false),
		newSecretDeleteCommand(c))
}

func newSecretSetCommand(c *cli) *cobra.Command {
	var file, description string
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Make a secret, or give it a new value", Args: exactly(1, "the secret's name"),
		Long: "Makes a secret, or gives it a new value.\n\nThe value is read from standard input or from --from-file, or asked for; " +
			"one newline at its end is dropped. It is never an argument: those are there for everybody on this machine to see.",
		Example: "  berth secret set db-password < password.txt\n  pass show db | berth secret set db-password",
		RunE: func(cmd *cobra.Command, args []string) error {
			value, err := c.secretValue(args[0], file)
			if err != nil {
				return err
			}
			spec := client.SecretSpec{Value: &value}
			if cmd.Flags().Changed("description") {
				spec.Description = &description
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			s, err := api.PutSecret(cmd.Context(), args[0], spec)
			if err != nil {
				return err
			}
			if err := c.showSecret(cmd.Context(), api, s); err != nil {
				return err
			}
			if len(s.Grants) == 0 && !c.json() {
				c.say("next: berth secret grant %s --role submitter", s.Name)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "from-file", "", "read the value from this file")
	cmd.Flags().StringVar(&description, "description", "", "what it is for")
	return cmd
}

// secretValue reads a value from where it was said to be, or asks a person.
func (c *cli) secretValue(name, file string) (string, error) {
	if f, ok := c.stdin.(*os.File); ok && file == "" && terminal(f) {
		// Not say: the cursor stays on the line.
		_, _ = io.WriteString(c.stderr, "Value of "+printable(name)+": ")
		b, err := term.ReadPassword(int(f.Fd()))
		c.say("")
		if err != nil {
			return "", errors.New("cannot read the value")
		}
		return string(b), nil
	}
	if file == "" {
		file = "-"
	}
	b, err := c.read(file)
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	switch {
	case len(value) < berth.MinSecretLen:
		return "", &usageError{what: "the value is empty, or too short to be masked", remedy: fmt.Sprintf("use at least %d bytes", berth.MinSecretLen)}
	case len(value) > berth.MaxSecretLen:
		return "", &usageError{what: fmt.Sprintf("the value has %d bytes", len(value)), remedy: fmt.Sprintf("use at most %d; bring larger things as an input", berth.MaxSecretLen)}
	}
	return value, nil
}

func newSecretListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List secrets that your tasks may name; administrators see all", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			secrets, _, err := pages(0, func(size int, token string) ([]client.Secret, string, error) {
				l, err := api.ListSecrets(cmd.Context(), client.ListSecretsParams{PageSize: size, PageToken: token})
				return l.Secrets, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.SecretList{Secrets: secrets})
			}
			var grants []client.SecretGrant
			for _, s := range secrets {
				grants = append(grants, s.Grants...)
			}
			names := userNames(cmd.Context(), api, grants)
			rows := make([][]any, 0, len(secrets))
			for _, s := range secrets {
				rows = append(rows, []any{s.Name, s.Version, c.since(s.UpdatedAt), clip(grantsText(s.Grants, names), 60), clip(s.Description, 60)})
			}
			c.printTable([]any{"name", "version", "age", "granted to", "description"}, rows, "No secrets. `berth secret set NAME` makes one (administrators).")
			return nil
		},
	}
}

func newSecretGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a secret and its grants, never its value", Args: exactly(1, "the secret's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			s, err := api.GetSecret(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.showSecret(cmd.Context(), api, s)
		},
	}
}

// newSecretGrantCommand makes grant, which adds, or ungrant, which takes away.
func newSecretGrantCommand(c *cli, verb, short string, add bool) *cobra.Command {
	var users, roles []string
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Args: exactly(1, "the secret's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(users)+len(roles) == 0 {
				return &usageError{command: cmd.CommandPath(), what: "it says neither who nor which role", remedy: "pass --user NAME or --role ROLE"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			var named []client.SecretGrant
			for _, r := range roles {
				named = append(named, client.SecretGrant{Role: client.Role(r)})
			}
			for _, u := range users {
				user, err := c.userNamed(cmd.Context(), api, u)
				if err != nil {
					return err
				}
				named = append(named, client.SecretGrant{User: user.ID})
			}
			spec := client.SecretSpec{RemoveGrants: named}
			if add {
				spec = client.SecretSpec{AddGrants: named}
			}
			s, err := api.PutSecret(cmd.Context(), args[0], spec)
			if err != nil {
				return err
			}
			return c.showSecret(cmd.Context(), api, s)
		},
	}
	cmd.Flags().StringArrayVar(&users, "user", nil, "a user, by name or id; may be repeated")
	cmd.Flags().StringArrayVar(&roles, "role", nil, "everybody who has this role; may be repeated")
	return cmd
}

func newSecretDeleteCommand(c *cli) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "Delete secrets for ever", Args: atLeast(1, "names of secrets"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := c.confirm(cmd, yes, fmt.Sprintf("Delete the secret %s? Tasks that name it fail.", printable(name))); err != nil {
					return err
				}
				if err := api.DeleteSecret(cmd.Context(), name); err != nil {
					return err
				}
				c.say("%s deleted", printable(name))
			}
			return nil
		},
	}
	yesFlag(cmd, &yes)
	return cmd
}

func (c *cli) showSecret(ctx context.Context, api *client.Client, s client.Secret) error {
	if c.json() {
		return c.printJSON(s)
	}
	granted := grantsText(s.Grants, userNames(ctx, api, s.Grants))
	if granted == "" {
		granted = "nobody"
	}
	c.printFields([][2]string{
		{"Secret", s.Name},
		{"Description", printable(s.Description)},
		{"Version", fmt.Sprint(s.Version)},
		{"Granted to", granted},
		{"Created", stamp(s.CreatedAt)},
		{"Changed", stamp(s.UpdatedAt)},
	})
	return nil
}

// userNames are the names of the users in grants, by id. Who is gone, or cannot be
// looked up, is left out: the id says enough.
func userNames(ctx context.Context, api *client.Client, grants []client.SecretGrant) map[string]string {
	const most = 50 // an id each is a call each
	names := map[string]string{}
	for _, g := range grants {
		if _, known := names[g.User]; g.User == "" || known || len(names) == most {
			continue
		}
		names[g.User] = ""
		if u, _, err := api.GetUser(ctx, g.User); err == nil {
			names[g.User] = u.Name
		}
	}
	return names
}

func grantsText(grants []client.SecretGrant, names map[string]string) string {
	out := make([]string, len(grants))
	for i, g := range grants {
		switch {
		case g.User == "":
			out[i] = "role " + string(g.Role)
		case names[g.User] != "":
			out[i] = "user " + printable(names[g.User])
		default:
			out[i] = "user " + g.User
		}
	}
	return strings.Join(out, ", ")
}
