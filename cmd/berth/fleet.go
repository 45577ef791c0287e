package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newDeviceCommand(c *cli) *cobra.Command {
	var p client.ListDevicesParams
	var limit int
	list := &cobra.Command{
		Use: "list", Short: "List devices", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			devices, next, err := pages(limit, func(size int, token string) ([]client.Device, string, error) {
				p.PageSize, p.PageToken = size, token
				l, err := api.ListDevices(cmd.Context(), p)
				return l.Devices, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.DeviceList{Devices: devices, NextPageToken: next})
			}
			hosts, err := allHosts(cmd.Context(), api)
			if err != nil {
				return err
			}
			trouble := map[string]string{}
			for _, h := range hosts {
				trouble[h.ID] = hostTrouble(h)
			}
			rows := make([][]any, 0, len(devices))
			for _, d := range devices {
				rows = append(rows, []any{d.Name, stateOn(deviceState(d), trouble[d.HostID]), d.Pool, d.HostName, d.Driver, clip(labelText(d.Labels), 60), d.ID})
			}
			c.printTable([]any{"name", "state", "pool", "host", "driver", "labels", "id"}, rows, "No devices. `berth host enrol` lets a host with devices in.")
			c.more(next, len(devices))
			return nil
		},
	}
	list.Flags().StringVar(&p.Pool, "pool", "", "of this pool")
	list.Flags().StringVar(&p.Host, "host", "", "of this host (id)")
	list.Flags().IntVar(&limit, "limit", 200, "at most this many; 0 for all")
	list.Flags().StringVar((*string)(&p.Health), "health", "", "of this health: good, suspect or quarantined")
	list.Flags().StringVar((*string)(&p.Admin), "admin", "", "that operators made active, cordoned, maintenance or retired")
	list.Flags().StringVar((*string)(&p.Occupancy), "occupancy", "", "that are free, held or unclean")
	list.Flags().StringVar(&p.Driver, "driver", "", "of this driver, such as chromium")
	return group("device", "Show devices, and act on them", append([]*cobra.Command{list}, deviceCommands(c)...)...)
}

// deviceState is the four axes in the words that matter, trouble first.
func deviceState(d client.Device) string {
	var words []string
	if d.Admin != client.Active {
		words = append(words, string(d.Admin))
	}
	if !d.Present {
		words = append(words, "absent")
	}
	if d.Health != client.Good {
		words = append(words, string(d.Health))
	}
	switch d.Occupancy {
	case client.Held:
		words = append(words, "busy")
	case client.Unclean:
		words = append(words, "unclean")
	case client.Free:
		if len(words) == 0 {
			words = append(words, "free")
		}
	}
	return strings.Join(words, ", ")
}

// labelText lists labels by name, without Berth's own.
func labelText(l map[string]string) string {
	out := make([]string, 0, len(l))
	for k, v := range l {
		if !berth.OwnLabel(k) {
			out = append(out, k+"="+v)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func newHostCommand(c *cli) *cobra.Command {
	return group("host", "Show hosts, act on them, and let new ones in",
		append([]*cobra.Command{newHostListCommand(c), newHostEnrolCommand(c), newHostAdmitCommand(c)}, hostCommands(c)...)...)
}

func newHostListCommand(c *cli) *cobra.Command {
	var p client.ListHostsParams
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List hosts", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			hosts, next, err := pages(limit, func(size int, token string) ([]client.Host, string, error) {
				p.PageSize, p.PageToken = size, token
				l, err := api.ListHosts(cmd.Context(), p)
				return l.Hosts, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.HostList{Hosts: hosts, NextPageToken: next})
			}
			rows := make([][]any, 0, len(hosts))
			for _, h := range hosts {
				rows = append(rows, []any{
					h.Name, hostState(h), h.Pool, fmt.Sprintf("%d/%d", h.Held, h.Devices), clip(plugins(h.Plugins), 50), c.ago(h.LastSeenAt), h.AgentVersion, h.ID,
				})
			}
			c.printTable([]any{"name", "state", "pool", "busy", "plugins", "seen", "version", "id"}, rows, "No hosts. `berth host enrol` lets one in.")
			c.more(next, len(hosts))
			return nil
		},
	}
	cmd.Flags().StringVar(&p.Pool, "pool", "", "of this pool")
	cmd.Flags().IntVar(&limit, "limit", 200, "at most this many; 0 for all")
	return cmd
}

func hostState(h client.Host) string {
	if h.Draining {
		return string(h.State) + ", draining"
	}
	return string(h.State)
}

// hostTrouble is why nothing is placed on a host, in two words; "" without.
func hostTrouble(h client.Host) string {
	switch {
	case h.State != client.Online:
		return "host " + string(h.State)
	case h.Draining:
		return "host draining"
	}
	return ""
}

// stateOn is a device's state with its host's trouble, which goes before "free".
func stateOn(state, trouble string) string {
	switch {
	case trouble == "":
		return state
	case state == "free":
		return trouble
	}
	return state + ", " + trouble
}

func plugins(versions []client.PluginVersion) string {
	out := make([]string, len(versions))
	for i, v := range versions {
		out[i] = v.Name + " " + v.Version
	}
	return strings.Join(out, ", ")
}

func (c *cli) ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return c.since(t) + " ago"
}

func newHostEnrolCommand(c *cli) *cobra.Command {
	var spec client.EnrolmentTokenSpec
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "enrol", Short: "Make a token that lets one host in, and print the command for the host", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec.TTLSeconds = ttl.Seconds()
			api, err := c.client()
			if err != nil {
				return err
			}
			t, err := api.CreateEnrolmentToken(cmd.Context(), spec)
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(t)
			}
			c.say("Run this on the host, once, by %s. The token is not shown again.\n", stamp(t.ExpiresAt))
			fmt.Fprintf(c.stdout, "BERTH_ENROLMENT_TOKEN=%s hostagent --server %s\n", t.Token, api.Server())
			if t.HostNamePattern != "*" {
				c.say("\nThe host's name must match %s; pass --name where the machine's own does not.", t.HostNamePattern)
			}
			if onLoopback(api.Server()) {
				c.say("\nThat address is this machine's alone. For a host elsewhere, let Berth listen where the host reaches it\n(--listen), log in by that address (berth login http://ADDRESS:PORT), and make the token then.")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&spec.Pool, "pool", "", "pool that the host joins (default: default)")
	cmd.Flags().StringVar(&spec.HostNamePattern, "name-pattern", "", "glob that the host's name must match, such as lab-* (default: any)")
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the token is good")
	return cmd
}

func newPoolCommand(c *cli) *cobra.Command {
	return group("pool", "Show, create, pause and resume pools",
		append([]*cobra.Command{newPoolListCommand(c), newPoolCreateCommand(c)}, poolCommands(c)...)...)
}

func newPoolListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List pools", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			pools, _, err := pages(0, func(size int, token string) ([]client.Pool, string, error) {
				l, err := api.ListPools(cmd.Context(), client.ListPoolsParams{PageSize: size, PageToken: token})
				return l.Pools, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.PoolList{Pools: pools})
			}
			c.printPools(pools)
			return nil
		},
	}
}

func (c *cli) printPools(pools []client.Pool) {
	rows := make([][]any, 0, len(pools))
	for _, p := range pools {
		rows = append(rows, []any{p.Name, poolState(p), time.Duration(p.AgeingStepSeconds * float64(time.Second)).String(), c.since(p.CreatedAt)})
	}
	c.printTable([]any{"name", "state", "ageing step", "age"}, rows, "No pools.")
}

func newPoolCreateCommand(c *cli) *cobra.Command {
	var step time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a pool", Args: exactly(1, "the pool's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			p, err := api.CreatePool(cmd.Context(), client.PoolSpec{Name: args[0], AgeingStepSeconds: step.Seconds()})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(p)
			}
			fmt.Fprintf(c.stdout, "%s  created\n", p.Name)
			c.say("next: berth host enrol --pool %s", p.Name)
			return nil
		},
	}
	cmd.Flags().DurationVar(&step, "ageing-step", 10*time.Minute, "how much waiting outweighs one step of priority")
	return cmd
}

func newPluginCommand(c *cli) *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List plugins", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			all, _, err := pages(0, func(size int, token string) ([]client.Plugin, string, error) {
				l, err := api.ListPlugins(cmd.Context(), client.ListPluginsParams{PageSize: size, PageToken: token})
				return l.Plugins, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.PluginList{Plugins: all})
			}
			rows := make([][]any, 0, len(all))
			for _, p := range all {
				rows = append(rows, []any{p.Name, p.Version, pluginState(p), clip(p.Description, 80)})
			}
			c.printTable([]any{"name", "version", "state", "description"}, rows, "No plugins.")
			return nil
		},
	}
	return group("plugin", "Show plugins, and switch their versions on and off", append([]*cobra.Command{list}, pluginCommands(c)...)...)
}

// onLoopback reports whether a server's address leads nowhere from another machine.
func onLoopback(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}
