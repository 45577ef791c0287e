package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newKeyCommand(c *cli) *cobra.Command {
	return group("key", "Create, show and revoke API keys", newKeyCreateCommand(c), newKeyListCommand(c), newKeyRevokeCommand(c))
}

func newKeyCreateCommand(c *cli) *cobra.Command {
	var roles []string
	var user string
	var days int
	cmd := &cobra.Command{
		Use: "create NAME --role ROLE", Short: "Create an API key and print it, this once",
		Long: "Creates an API key for a program: it needs no login, and takes the key from BERTH_API_KEY.\n" +
			"What a key may do is at each use what its user may do as well. It needs a login: a key makes no other key.",
		Example: "  berth key create nightly --role submitter --days 90\n  BERTH_API_KEY=berth_... berth task submit -f task.json",
		Args:    exactly(1, "a name for the key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(roles) == 0 {
				return &usageError{command: cmd.CommandPath(), what: "which role?", remedy: "add --role with the least that the program needs"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			spec := client.APIKeySpec{Name: args[0], Roles: roleList(roles), TTLSeconds: (time.Duration(days) * 24 * time.Hour).Seconds()}
			if user != "" {
				u, err := c.userNamed(cmd.Context(), api, user)
				if err != nil {
					return err
				}
				spec.User = u.ID
			}
			k, err := api.CreateAPIKey(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(k)
			}
			c.say("The key of %s, good until %s. It is not shown again.", printable(k.UserName), stamp(k.ExpiresAt))
			fmt.Fprintln(c.stdout, k.Key)
			return nil
		},
	}
	rolesFlag(cmd, &roles)
	cmd.Flags().StringVar(&user, "user", "", "the user or service that it speaks for (administrators; default: you)")
	cmd.Flags().IntVar(&days, "days", 365, "how long it is good, at most 366")
	return cmd
}

// keys lists API keys: one's own, one user's or all.
func (c *cli) keys(ctx context.Context, api *client.Client, user string, limit int) ([]client.APIKey, string, error) {
	return pages(limit, func(size int, token string) ([]client.APIKey, string, error) {
		l, err := api.ListAPIKeys(ctx, client.ListAPIKeysParams{User: user, PageSize: size, PageToken: token})
		return l.APIKeys, l.NextPageToken, err
	})
}

func newKeyListCommand(c *cli) *cobra.Command {
	var user string
	var all bool
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List your API keys", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && user != "" {
				return &usageError{command: cmd.CommandPath(), what: "--all and --user exclude each other"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			whose := ""
			if all {
				whose = "all"
			}
			if user != "" {
				u, err := c.userNamed(cmd.Context(), api, user)
				if err != nil {
					return err
				}
				whose = u.ID
			}
			keys, next, err := c.keys(cmd.Context(), api, whose, limit)
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.APIKeyList{APIKeys: keys, NextPageToken: next})
			}
			rows := make([][]any, 0, len(keys))
			for _, k := range keys {
				rows = append(rows, []any{k.Name, c.keyState(k), k.UserName, roleWords(k.Roles), k.Prefix, c.ago(k.LastUsedAt), k.ID})
			}
			c.printTable([]any{"name", "state", "user", "roles", "prefix", "used", "id"}, rows, "No API keys. `berth key create` makes one.")
			c.more(next, len(keys))
			return nil
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "of this user or service (administrators)")
	cmd.Flags().BoolVar(&all, "all", false, "of everybody (administrators)")
	cmd.Flags().IntVar(&limit, "limit", 200, "at most this many; 0 for all")
	return cmd
}

func (c *cli) keyState(k client.APIKey) string {
	switch {
	case !k.RevokedAt.IsZero():
		return "revoked"
	case k.ExpiresAt.IsZero():
		return "good"
	case !c.now().Before(k.ExpiresAt):
		return "expired"
	}
	return "good until " + k.ExpiresAt.Local().Format(time.DateOnly)
}

func newKeyRevokeCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "revoke KEY...", Short: "End API keys for ever, at once", Args: atLeast(1, "keys: their ids, or of your own the names or prefixes"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, arg := range args {
				id, err := c.keyNamed(cmd.Context(), api, arg)
				if err != nil {
					return err
				}
				if err := api.RevokeAPIKey(cmd.Context(), id); err != nil {
					return unnamed(err, "API key "+id, "berth key list shows them")
				}
				c.say("%s is revoked.", id)
			}
			return nil
		},
	}
}

// keyNamed is the id of a key of the caller's that is not revoked.
func (c *cli) keyNamed(ctx context.Context, api *client.Client, arg string) (string, error) {
	if id := strings.ToLower(strings.TrimSpace(arg)); berth.ValidID(id) {
		return id, nil
	}
	mine, _, err := c.keys(ctx, api, "", 0)
	if err != nil {
		return "", err
	}
	mine = slices.DeleteFunc(mine, func(k client.APIKey) bool { return k.Name != arg && k.Prefix != arg || !k.RevokedAt.IsZero() })
	if strings.HasPrefix(arg, "berth_") && len(arg) > len("berth_12345678") {
		arg = arg[:len("berth_12345678")] + "..." // it is a key, and errors are logged
	}
	k, err := only("key", arg, mine, func(k client.APIKey) string { return k.ID })
	return k.ID, err
}
