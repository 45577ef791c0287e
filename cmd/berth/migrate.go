package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/schema"
)

// newMigrateCommand makes `berth migrate`. It speaks to the database itself, not
// to the API.
func newMigrateCommand(c *cli) *cobra.Command {
	var target string
	cmd := group("migrate", "Bring a database to this program's schema, or back",
		newMigrateUpCommand(c, &target), newMigrateDownCommand(c, &target),
		newMigrateStatusCommand(c, &target), newMigrateForceCommand(c, &target), newMigrateGrantsCommand(c, &target))
	cmd.Long = "Migrates the database that --database-url, BERTH_DATABASE_URL or the file that BERTH_DATABASE_URL_FILE\n" +
		"names: postgres://user:password@host:5432/database (the server itself, no PgBouncer) or sqlite:///path/to/berth.db.\n" +
		"Several at once are no danger: one works and the others wait."
	cmd.PersistentFlags().StringVar(&target, "database-url", "", "the database (default: BERTH_DATABASE_URL)")
	return cmd
}

func newMigrateUpCommand(c *cli, flag *string) *cobra.Command {
	var role runtimeRole
	cmd := &cobra.Command{
		Use: "up", Short: "Apply every migration that the database lacks", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if role.name == "" && role.passwordFile != "" {
				return &usageError{command: cmd.CommandPath(), what: "whose password?", remedy: "--grant-to " + schema.RuntimeRole}
			}
			return c.migrate(*flag, func(target string) error {
				if err := schema.Up(cmd.Context(), target); err != nil || role.name == "" {
					return err
				}
				return role.grant(cmd.Context(), target)
			}, cmd)
		},
	}
	cmd.Flags().StringVar(&role.name, "grant-to", "", "afterwards do what `berth migrate grants` does, for this role")
	role.passwordFlag(cmd)
	return cmd
}

// runtimeRole is the daemons' role, as flags name it.
type runtimeRole struct{ name, passwordFile string }

func (r *runtimeRole) passwordFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.passwordFile, "role-password-file", "", "make the role where it is missing, and give it the password in this file")
}

func (r *runtimeRole) grant(ctx context.Context, target string) error {
	var password redact.String
	if r.passwordFile != "" {
		b, err := os.ReadFile(r.passwordFile)
		if err != nil || strings.TrimSpace(string(b)) == "" {
			return &remedyError{what: "the file that --role-password-file names cannot be read, or is empty", remedy: "check its path, rights and content"}
		}
		password = redact.NewString(strings.TrimSpace(string(b)))
	}
	return schema.Grant(ctx, target, r.name, password)
}

// newMigrateGrantsCommand makes `berth migrate grants`.
func newMigrateGrantsCommand(c *cli, flag *string) *cobra.Command {
	role := runtimeRole{name: schema.RuntimeRole}
	cmd := &cobra.Command{
		Use: "grants", Short: "Give the daemons' Postgres role exactly the rights that they need", Args: exactly(0, ""),
		Long: "Gives the role that the daemons connect as the right to read and write rows, to read and add audit rows, and\n" +
			"nothing that makes, changes or empties tables; takes every other right on Berth's tables from it. Run it as the\n" +
			"owner of the tables, after the first migration and after each later one. It may be repeated at any time.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.migrate(*flag, func(target string) error { return role.grant(cmd.Context(), target) }, cmd)
		},
	}
	cmd.Flags().StringVar(&role.name, "role", schema.RuntimeRole, "the daemons' role")
	role.passwordFlag(cmd)
	return cmd
}

func newMigrateDownCommand(c *cli, flag *string) *cobra.Command {
	steps := 1
	cmd := &cobra.Command{
		Use: "down", Short: "Take back the last migration; what only the newer schema holds is lost", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.migrate(*flag, func(target string) error { return schema.Down(cmd.Context(), target, steps) }, cmd)
		},
	}
	cmd.Flags().IntVar(&steps, "steps", 1, "how many migrations to take back")
	return cmd
}

func newMigrateForceCommand(c *cli, flag *string) *cobra.Command {
	return &cobra.Command{
		Use: "force VERSION", Short: "Say at which version a dirty database really is; runs nothing", Args: exactly(1, "the version"),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%q is no version", args[0]), remedy: fmt.Sprintf("use 0 to %d", schema.Latest())}
			}
			return c.migrate(*flag, func(target string) error { return schema.Force(cmd.Context(), target, uint(version)) }, cmd)
		},
	}
}

func newMigrateStatusCommand(c *cli, flag *string) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the schema's version; exit code 1 when it will not do", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.migrate(*flag, func(string) error { return nil }, cmd)
		},
	}
}

// migrate acts on the database and prints where it stands then. A database that
// this program could not work on is an error of status alone.
func (c *cli) migrate(flag string, act func(target string) error, cmd *cobra.Command) error {
	target, err := c.databaseURL(flag)
	if err != nil {
		return err
	}
	if err := act(target); err != nil {
		return err
	}
	s, err := schema.ReadStatus(cmd.Context(), target)
	if err != nil {
		return err
	}
	c.printSchema(s)
	if cmd.Name() != "status" {
		return nil
	}
	switch s.Code {
	case schema.CodeBehind:
		return &remedyError{what: "the schema is behind this program", remedy: "berth migrate up"}
	case schema.CodeAhead:
		return &remedyError{what: "the schema is ahead of this program", remedy: "use a Berth at least as new as the one that migrated it"}
	case schema.CodeDirty:
		return &remedyError{what: "a migration was broken off", remedy: "look which version's tables are there, then: berth migrate force VERSION"}
	}
	return nil
}

func (c *cli) printSchema(s schema.Status) {
	if c.json() {
		_ = json.NewEncoder(c.stdout).Encode(map[string]any{"version": s.Version, "latest": s.Latest, "dirty": s.Dirty, "code": string(s.Code)})
		return
	}
	state := "ready"
	if s.Code != schema.CodeOK {
		state = string(s.Code)
	}
	fmt.Fprintf(c.stdout, "schema version %d, this program wants %d: %s\n", s.Version, s.Latest, state)
}

// databaseURL is the flag, the variable, or what is in its file.
func (c *cli) databaseURL(flag string) (string, error) {
	switch file := c.env["BERTH_DATABASE_URL_FILE"]; {
	case flag != "":
		return flag, nil
	case c.env["BERTH_DATABASE_URL"] != "":
		return c.env["BERTH_DATABASE_URL"], nil
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return "", &remedyError{what: "the file that BERTH_DATABASE_URL_FILE names cannot be read", remedy: "check its path and rights"}
		}
		return strings.TrimSpace(string(b)), nil
	}
	return "", &usageError{what: "which database?", remedy: "--database-url sqlite:///path/to/berth.db, or set BERTH_DATABASE_URL"}
}
