package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/storeopen"
)

// newAdminCommand makes `berth admin`. It speaks to the database itself: who may
// write there may do everything anyhow.
func newAdminCommand(c *cli) *cobra.Command {
	var target string
	cmd := group("admin", "Let an administrator in again, with access to the database", newAdminResetCommand(c, &target))
	cmd.PersistentFlags().StringVar(&target, "database-url", "", "the database (default: BERTH_DATABASE_URL)")
	return cmd
}

func newAdminResetCommand(c *cli, flag *string) *cobra.Command {
	var from secretFlags
	var promote bool
	cmd := &cobra.Command{
		Use: "reset-password [NAME]", Short: "Give an administrator a new password and enable it, when nobody can log in any more",
		Long: "Sets the password in the database itself, enables the user and ends its logins. NAME is admin unless given.\n" +
			"API processes may run meanwhile, but for SQLite, which has room for one process. The audit trail has it as an act of the system.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "admin"
			if len(args) == 1 {
				name = args[0]
			}
			url, err := c.databaseURL(*flag)
			if err != nil {
				return err
			}
			if err := readySchema(cmd.Context(), url); err != nil {
				return err
			}
			password, err := c.newPassword(from, printable(name))
			if err != nil {
				return err
			}
			hash, err := identity.HashPassword("password", redact.NewString(password))
			if err != nil {
				return err
			}
			s, err := storeopen.Open(cmd.Context(), redact.NewString(url), store.Options{})
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			if err := resetAdmin(cmd.Context(), s, name, hash, promote); err != nil {
				return err
			}
			c.say("%s has a new password, is enabled and an administrator. Its logins have ended; its API keys stay.", printable(name))
			return nil
		},
	}
	from.add(cmd, "")
	cmd.Flags().BoolVar(&promote, "make-admin", false, "make the user an administrator where it is none")
	return cmd
}

func readySchema(ctx context.Context, url string) error {
	s, err := schema.ReadStatus(ctx, url)
	if err == nil && s.Code != schema.CodeOK {
		err = &remedyError{what: fmt.Sprintf("the database's schema is at version %d, and this program wants %d", s.Version, s.Latest), remedy: "berth migrate status"}
	}
	return err
}

func resetAdmin(ctx context.Context, s store.Accounts, name string, hash redact.String, promote bool) error {
	u, _, err := s.UserByName(ctx, name)
	if errors.Is(err, berth.ErrNotFound) {
		return &remedyError{what: fmt.Sprintf("there is no user %q", clip(printable(name), 60)), remedy: "the API makes one of a new BERTH_ADMIN_NAME when it starts"}
	}
	if err != nil {
		return err
	}
	admin := slices.Contains(u.Roles, berth.RoleAdmin)
	if !admin && !promote {
		return &remedyError{what: printable(name) + " is no administrator", remedy: "name one, or add --make-admin"}
	}
	actor := berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "berth admin"}}
	if _, err := s.SetPassword(ctx, store.SetPasswordParams{Actor: actor, User: u.ID, Hash: hash}); err != nil {
		return err
	}
	enabled := false
	change := store.ChangeUserParams{Actor: actor, User: u.ID, Disabled: &enabled}
	if !admin {
		change.Roles = append(slices.Clone(u.Roles), berth.RoleAdmin)
	}
	_, err = s.ChangeUser(ctx, change)
	return err
}
