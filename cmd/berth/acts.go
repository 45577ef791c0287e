package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

// hostCommands are the commands on single hosts.
func hostCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{
		c.onHosts("drain", "Let hosts take nothing more; what runs there finishes", "", (*client.Client).DrainHost),
		c.onHosts("undrain", "End a drain", "", (*client.Client).UndrainHost),
		c.onHosts("rotate-key", "Ask hosts for new keys; what runs there goes on", "", (*client.Client).RotateHostKey),
		c.onHosts("revoke", "Shut hosts out for ever, and end what runs there",
			"Revoke host %s? What runs there is ended and tried again elsewhere; to come back it must be enrolled anew.", (*client.Client).RevokeHost),
	}
}

// onHosts is a command that does one thing to hosts, one after the other.
// question, where it is not "", is asked before.
func (c *cli) onHosts(verb, short, question string, act func(*client.Client, context.Context, string) (client.Host, error)) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: verb + " HOST...", Short: short, Args: atLeast(1, "hosts: their ids, or names"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, arg := range args {
				h, err := c.host(cmd.Context(), api, arg)
				if err != nil {
					return err
				}
				if question != "" {
					if err := c.confirm(cmd, yes, fmt.Sprintf(question, printable(h.Name))); err != nil {
						return err
					}
				}
				if h, err = act(api, cmd.Context(), h.ID); err != nil {
					return err
				}
				if err := c.printHost(h); err != nil {
					return err
				}
			}
			return nil
		},
	}
	if question != "" {
		yesFlag(cmd, &yes)
	}
	return cmd
}

func (c *cli) printHost(h client.Host) error {
	if c.json() {
		return c.printJSON(h)
	}
	busy := ""
	if h.Held > 0 {
		busy = fmt.Sprintf(", %d of %s busy", h.Held, plural(h.Devices, "device"))
	}
	key := ""
	if !h.KeyRotationRequestedAt.IsZero() {
		key = ", new key asked for " + c.ago(h.KeyRotationRequestedAt)
	}
	fmt.Fprintf(c.stdout, "%s  %s%s%s\n", printable(h.Name), hostState(h), busy, key)
	return nil
}

// poolCommands pause and resume.
func poolCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{
		c.onPool("pause", "Place nothing more in a pool; what runs there finishes", (*client.Client).PausePool),
		c.onPool("resume", "Place tasks in a pool again", (*client.Client).ResumePool),
	}
}

func (c *cli) onPool(verb, short string, act func(*client.Client, context.Context, string) (client.Pool, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: exactly(1, "the pool's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			p, err := act(api, cmd.Context(), args[0])
			if err != nil {
				return unnamed(err, fmt.Sprintf("pool %q", clip(printable(args[0]), 60)), "berth pool list shows them")
			}
			if c.json() {
				return c.printJSON(p)
			}
			fmt.Fprintf(c.stdout, "%s  %s\n", p.Name, poolState(p))
			return nil
		},
	}
}

func poolState(p client.Pool) string {
	if p.Paused {
		return "paused"
	}
	return "active"
}

// pluginCommands show a plugin, and switch its versions on and off.
func pluginCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{
		newPluginGetCommand(c),
		c.onPlugin("enable", "Let hosts serve a version of a plugin", (*client.Client).EnablePlugin),
		c.onPlugin("disable", "Place no more tasks on a version of a plugin; what runs finishes", (*client.Client).DisablePlugin),
	}
}

func newPluginGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a plugin's versions and what their payloads may hold", Args: exactly(1, "the plugin's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			p, err := api.GetPlugin(cmd.Context(), args[0])
			if err != nil {
				return unnamed(err, fmt.Sprintf("plugin %q", clip(printable(args[0]), 60)), "berth plugin list shows them")
			}
			if c.json() {
				return c.printJSON(p)
			}
			for i, v := range p.Versions {
				if i > 0 {
					fmt.Fprintln(c.stdout)
				}
				c.printFields([][2]string{
					{"Plugin", v.Name + " " + v.Version},
					{"State", pluginState(v)},
					{"Does", printable(v.Description)},
					{"Needs", v.Requires},
					{"Since", stamp(v.CreatedAt)},
				})
				if len(v.Schema) == 0 {
					c.say("No schema is known: a host reported it, and nobody registered it.")
					continue
				}
				fmt.Fprintln(c.stdout, "Payload:")
				if err := c.printJSON(v.Schema); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (c *cli) onPlugin(verb, short string, act func(*client.Client, context.Context, string, string) (client.Plugin, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME VERSION", Short: short, Example: "  berth plugin " + verb + " browser.script 1.0.0",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 || len(args) == 1 && strings.Contains(args[0], "@") {
				return nil
			}
			return &usageError{command: cmd.CommandPath(), what: "it takes a plugin and its version", remedy: "berth plugin list shows them"}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				args = strings.SplitN(args[0], "@", 2)
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			p, err := act(api, cmd.Context(), args[0], args[1])
			if err != nil {
				return unnamed(err, fmt.Sprintf("plugin %q of version %q", clip(printable(args[0]), 60), clip(printable(args[1]), 60)), "berth plugin list shows them")
			}
			if c.json() {
				return c.printJSON(p)
			}
			fmt.Fprintf(c.stdout, "%s %s  %s\n", p.Name, p.Version, pluginState(p))
			return nil
		},
	}
}

func pluginState(p client.Plugin) string {
	if p.Enabled {
		return "enabled"
	}
	return "disabled"
}
