package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newUserCommand(c *cli) *cobra.Command {
	return group("user", "Show and manage users and services",
		newUserListCommand(c), newUserGetCommand(c), newUserCreateCommand(c), newUserChangeCommand(c),
		c.onUsers("disable", "Shut users out at once: their logins end, their API keys are refused", true),
		c.onUsers("enable", "Let disabled users in again", false),
		newUserResetCommand(c))
}

func newUserListCommand(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List users and services", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			users, next, err := pages(limit, func(size int, token string) ([]client.User, string, error) {
				l, err := api.ListUsers(cmd.Context(), client.ListUsersParams{PageSize: size, PageToken: token})
				return l.Users, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.UserList{Users: users, NextPageToken: next})
			}
			rows := make([][]any, 0, len(users))
			for _, u := range users {
				rows = append(rows, []any{u.Name, userState(u), roleWords(u.Roles), userKind(u), c.since(u.CreatedAt), u.ID})
			}
			c.printTable([]any{"name", "state", "roles", "kind", "age", "id"}, rows, "No users.")
			c.more(next, len(users))
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 200, "at most this many; 0 for all")
	return cmd
}

func userState(u client.User) string {
	if u.Disabled {
		return "disabled"
	}
	return "enabled"
}

// userKind is how somebody gets in.
func userKind(u client.User) string {
	switch {
	case u.Issuer != "":
		return u.Issuer
	case u.HasPassword:
		return "password"
	}
	return "service"
}

func roleWords(roles []client.Role) string {
	words := make([]string, len(roles))
	for i, r := range roles {
		words[i] = string(r)
	}
	return strings.Join(words, ",")
}

func rolesFlag(cmd *cobra.Command, roles *[]string) {
	cmd.Flags().StringSliceVarP(roles, "role", "r", nil, "roles: viewer, submitter, operator, admin")
}

func roleList(words []string) []client.Role {
	out := make([]client.Role, len(words))
	for i, w := range words {
		out[i] = client.Role(strings.TrimSpace(w))
	}
	return out
}

func newUserGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get USER", Short: "Show a user", Args: exactly(1, "the user's name, or id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			u, err := c.userNamed(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			return c.printUser(u)
		},
	}
}

// userNamed finds a user by its id or name.
func (c *cli) userNamed(ctx context.Context, api *client.Client, arg string) (client.User, error) {
	if id := strings.ToLower(strings.TrimSpace(arg)); berth.ValidID(id) {
		u, _, err := api.GetUser(ctx, id)
		return u, err
	}
	if !berth.ValidName(arg) {
		return only("user", arg, []client.User(nil), nil)
	}
	l, err := api.ListUsers(ctx, client.ListUsersParams{Name: arg})
	if err != nil {
		return client.User{}, err
	}
	return only("user", arg, l.Users, func(u client.User) string { return u.ID })
}

func (c *cli) printUser(u client.User) error {
	if c.json() {
		return c.printJSON(u)
	}
	fmt.Fprintf(c.stdout, "%s  %s  %s  %s  %s\n", printable(u.Name), userState(u), roleWords(u.Roles), printable(userKind(u)), u.ID)
	return nil
}

func newUserCreateCommand(c *cli) *cobra.Command {
	var from secretFlags
	var roles []string
	var service bool
	cmd := &cobra.Command{
		Use: "create NAME --role ROLE", Short: "Create a user, or a service that API keys speak for",
		Example: "  berth user create mia --role submitter\n  berth user create ci --role submitter --service\n  berth key create nightly --user ci --role submitter",
		Args:    exactly(1, "the user's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec := client.UserSpec{Name: args[0], Roles: roleList(roles)}
			if len(roles) == 0 {
				return &usageError{command: cmd.CommandPath(), what: "which role?", remedy: "add --role viewer, submitter, operator or admin"}
			}
			if unknown := slices.IndexFunc(spec.Roles, func(r client.Role) bool { return !slices.Contains(berth.Roles(), berth.Role(r)) }); unknown >= 0 {
				return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("there is no role %q", printable(string(spec.Roles[unknown]))), remedy: "take viewer, submitter, operator or admin"}
			}
			if service && (from.stdin || from.file != "") {
				return &usageError{command: cmd.CommandPath(), what: "a service has no password", remedy: "leave out --service, or the password"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			if !service {
				if spec.Password, err = c.newPassword(from, printable(args[0])); err != nil {
					return err
				}
			}
			u, err := api.CreateUser(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if service && !c.json() {
				c.say("next: berth key create NAME --user %s --role %s", u.Name, roleWords(u.Roles))
			}
			return c.printUser(u)
		},
	}
	rolesFlag(cmd, &roles)
	from.add(cmd, "")
	cmd.Flags().BoolVar(&service, "service", false, "without a password: nobody logs in as it")
	return cmd
}

func newUserChangeCommand(c *cli) *cobra.Command {
	var roles []string
	cmd := &cobra.Command{
		Use: "change USER --role ROLE", Short: "Give a user other roles", Args: exactly(1, "the user's name, or id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(roles) == 0 {
				return &usageError{command: cmd.CommandPath(), what: "which role?", remedy: "add --role with all roles that the user is to have"}
			}
			return c.changeUser(cmd.Context(), args[0], client.UserChange{Roles: roleList(roles)})
		},
	}
	rolesFlag(cmd, &roles)
	return cmd
}

func (c *cli) changeUser(ctx context.Context, name string, change client.UserChange) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	u, err := c.userNamed(ctx, api, name)
	if err != nil {
		return err
	}
	if u, err = api.ChangeUser(ctx, u.ID, change, ""); err != nil {
		return err
	}
	return c.printUser(u)
}

func (c *cli) onUsers(verb, short string, disabled bool) *cobra.Command {
	return &cobra.Command{
		Use: verb + " USER...", Short: short, Args: atLeast(1, "users: their names, or ids"),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if err := c.changeUser(cmd.Context(), arg, client.UserChange{Disabled: &disabled}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newUserResetCommand(c *cli) *cobra.Command {
	var from secretFlags
	cmd := &cobra.Command{
		Use: "reset-password USER", Short: "Give a user a new password; its logins end, its API keys stay", Args: exactly(1, "the user's name, or id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			u, err := c.userNamed(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			password, err := c.newPassword(from, printable(u.Name))
			if err != nil {
				return err
			}
			if err := api.SetUserPassword(cmd.Context(), u.ID, password); err != nil {
				return err
			}
			c.say("The new password of %s counts, and its logins have ended.", printable(u.Name))
			return nil
		},
	}
	from.add(cmd, "")
	return cmd
}

func newPasswordCommand(c *cli) *cobra.Command {
	var from secretFlags
	cmd := &cobra.Command{
		Use: "password", Short: "Change your own password; your other logins end", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			secrets, ok, err := c.lines(from, 2)
			if err != nil {
				return err
			}
			if !ok {
				current, err := c.ask("Current password", passwordRemedy)
				if err != nil {
					return err
				}
				next, err := c.newPassword(from, "yours")
				if err != nil {
					return err
				}
				secrets = []string{current, next}
			}
			if err := api.ChangePassword(cmd.Context(), secrets[0], secrets[1]); err != nil {
				return err
			}
			c.say("Your new password counts. Your other logins have ended; your API keys stay.")
			return nil
		},
	}
	from.add(cmd, ": the current one on the first line, the new one on the second")
	return cmd
}
