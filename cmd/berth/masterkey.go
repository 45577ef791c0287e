package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/identity"
	"github.com/berth-dev/berth/pkg/redact"
	"github.com/berth-dev/berth/pkg/store"
	"github.com/berth-dev/berth/pkg/storeopen"
)

// newMasterKeyCommand makes `berth master-key`. It speaks to the database
// itself, as `berth migrate`: the master keys are where the API's configuration
// is, and no route of the API has power over all secrets at once.
func newMasterKeyCommand(c *cli) *cobra.Command {
	var target string
	cmd := group("master-key", "Follow a new master key through the database",
		c.onMasterKey("status", "Count what is sealed under which master key; exit code 1 while an old one is needed", &target, identity.SealedStatus),
		c.onMasterKey("reseal", "Seal all under the current master key; safe to break off and to repeat", &target, identity.Reseal))
	cmd.Long = "Reads the master keys as the API does: BERTH_MASTER_KEY(_FILE), and the old ones in BERTH_MASTER_KEY_OLD(_FILE).\n" +
		"docs/operations.md has the order of the steps. API processes may run meanwhile, but for SQLite, which has room for one process."
	cmd.PersistentFlags().StringVar(&target, "database-url", "", "the database (default: BERTH_DATABASE_URL)")
	return cmd
}

func (c *cli) onMasterKey(verb, short string, flag *string,
	act func(context.Context, store.Sealed, berth.Actor, identity.MasterKeys) (identity.SealedCounts, error),
) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short, Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			keys, err := c.masterKeys()
			if err != nil {
				return err
			}
			target, err := c.databaseURL(*flag)
			if err != nil {
				return err
			}
			if err := readySchema(cmd.Context(), target); err != nil {
				return err
			}
			s, err := storeopen.Open(cmd.Context(), redact.NewString(target), store.Options{})
			if err != nil {
				return err
			}
			defer func() { _ = s.Close() }()
			actor := berth.Actor{Principal: berth.Principal{Kind: berth.ActorSystem, ID: "berth master-key"}}
			counts, err := act(cmd.Context(), s, actor, keys)
			if err != nil {
				return err
			}
			if err := c.printSealed(counts); err != nil {
				return err
			}
			return needed(counts)
		},
	}
}

func (c *cli) printSealed(n identity.SealedCounts) error {
	if c.json() {
		return c.printJSON(map[string]int{"current": n.Current, "old": n.Old, "resealed": n.Resealed, "unknown": n.Unknown})
	}
	c.printFields([][2]string{
		{"Under the current master key", fmt.Sprint(n.Current)},
		{"Sealed anew just now", fmt.Sprint(n.Resealed)},
		{"Under an old one", fmt.Sprint(n.Old)},
		{"Under an unknown one", fmt.Sprint(n.Unknown)},
	})
	return nil
}

// needed is an error while the old master keys may not be taken away.
func needed(n identity.SealedCounts) error {
	switch {
	case n.Unknown > 0:
		return &remedyError{
			what:   plural(n.Unknown, "value") + " cannot be opened: sealed under a master key that is not configured here",
			remedy: "add that key to BERTH_MASTER_KEY_OLD(_FILE)",
		}
	case n.Old > 0:
		return &remedyError{what: "an old master key is still needed, by " + plural(n.Old, "value"), remedy: "berth master-key reseal"}
	}
	return nil
}

func (c *cli) masterKeys() (keys identity.MasterKeys, err error) {
	text, err := c.secretOf("BERTH_MASTER_KEY")
	if err != nil {
		return keys, err
	}
	if text == "" {
		return keys, &usageError{what: "which master key?", remedy: "set BERTH_MASTER_KEY_FILE as for the API"}
	}
	if keys.Current, err = identity.ParseMasterKey(text); err != nil {
		return keys, fmt.Errorf("BERTH_MASTER_KEY: %w", err)
	}
	if text, err = c.secretOf("BERTH_MASTER_KEY_OLD"); err != nil {
		return keys, err
	}
	if keys.Old, err = identity.ParseMasterKeys(text); err != nil {
		return keys, fmt.Errorf("BERTH_MASTER_KEY_OLD: %w", err)
	}
	return keys, nil
}

// secretOf is a variable, or the content of the file that <name>_FILE names.
func (c *cli) secretOf(name string) (string, error) {
	file := c.env[name+"_FILE"]
	if c.env[name] != "" || file == "" {
		return c.env[name], nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &remedyError{what: "the file that " + name + "_FILE names cannot be read", remedy: "check its path and rights"}
	}
	return strings.TrimSpace(string(b)), nil
}
