package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

func newSigningKeyCommand(c *cli) *cobra.Command {
	cmd := group("signing-key", "Show and rotate the keys that sign access tokens",
		c.onSigningKeys("list", "List the keys that verify tokens, newest first", (*client.Client).ListSigningKeys),
		c.onSigningKeys("rotate", "Make a new key; it signs in a quarter of a minute, and the old one verifies until its tokens end",
			(*client.Client).RotateSigningKey))
	return cmd
}

func (c *cli) onSigningKeys(verb, short string, act func(*client.Client, context.Context) (client.SigningKeyList, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short, Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			keys, err := act(api, cmd.Context())
			if client.HasCode(err, "wrong_state") { // there are as many as may be
				return &remedyError{what: strings.TrimRight(whatOf(err), "."), remedy: "berth signing-key list shows how old they are"}
			}
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(keys)
			}
			rows := make([][]any, 0, len(keys.SigningKeys))
			for i, k := range keys.SigningKeys {
				rows = append(rows, []any{k.ID, k.Algorithm, stamp(k.CreatedAt), signingKeyState(keys.SigningKeys, i)})
			}
			c.printTable([]any{"id", "algorithm", "created", "state"}, rows, "No signing keys.")
			return nil
		},
	}
}

func whatOf(err error) string {
	var p *client.Problem
	if errors.As(err, &p) {
		return p.What()
	}
	return err.Error()
}

// signingKeyState: keys newer than the one that signs are on their way.
func signingKeyState(keys []client.SigningKey, i int) string {
	if keys[i].Signs {
		return "signs"
	}
	for _, older := range keys[i+1:] {
		if older.Signs {
			return "signs soon"
		}
	}
	return "verifies"
}
