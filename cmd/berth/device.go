package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

// deviceCommands are the commands on single devices.
func deviceCommands(c *cli) []*cobra.Command {
	return []*cobra.Command{
		newDeviceGetCommand(c),
		c.notedDevice("cordon", "Keep new tasks off devices; what runs there goes on", (*client.Client).CordonDevice),
		c.notedDevice("maintenance", "Take devices into maintenance: not even probes are placed there", (*client.Client).MaintainDevice),
		activateCommand(c),
		c.onDevices("trust", "End a quarantine, or a doubt, by hand", "", (*client.Client).TrustDevice),
		c.onDevices("clean", "Say that nothing touches unclean devices any more", "", (*client.Client).CleanDevice),
		newDeviceReleaseCommand(c),
		newDeviceMoveCommand(c),
		newDeviceLabelCommand(c),
		newDeviceRetireCommand(c),
	}
}

// activateCommand has the name that people know who know cordon.
func activateCommand(c *cli) *cobra.Command {
	cmd := c.notedDevice("activate", "Put devices back to work", (*client.Client).ActivateDevice)
	cmd.Aliases = []string{"uncordon"}
	return cmd
}

// deviceAct is what a method of the client does to one device.
type deviceAct func(*client.Client, context.Context, string) (client.Device, error)

// onDevices is a command that does one thing to devices, one after the other. It
// stops at the first fault. question, where it is not "", is asked before.
func (c *cli) onDevices(verb, short, question string, act deviceAct) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: verb + " DEVICE...", Short: short, Args: atLeast(1, "devices: their ids, or names"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, arg := range args {
				d, err := c.device(cmd.Context(), api, arg)
				if err != nil {
					return err
				}
				if question != "" {
					if err := c.confirm(cmd, yes, fmt.Sprintf(question, printable(d.Name), printable(d.HostName))); err != nil {
						return err
					}
				}
				if d, err = act(api, cmd.Context(), d.ID); err != nil {
					return err
				}
				if err := c.printDevice(d); err != nil {
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

// notedDevice is a command that takes a note for the people who look later.
func (c *cli) notedDevice(verb, short string, act func(*client.Client, context.Context, string, string) (client.Device, error)) *cobra.Command {
	var note string
	cmd := c.onDevices(verb, short, "", func(api *client.Client, ctx context.Context, id string) (client.Device, error) {
		return act(api, ctx, id, note)
	})
	cmd.Flags().StringVar(&note, "note", "", "why, for those who look at the device later")
	return cmd
}

func newDeviceRetireCommand(c *cli) *cobra.Command {
	var note string
	cmd := c.onDevices("retire", "Take devices out for good, and end what runs on them",
		"Retire %s of host %s? What runs on it is ended and tried again elsewhere.",
		func(api *client.Client, ctx context.Context, id string) (client.Device, error) {
			return api.RetireDevice(ctx, id, note)
		})
	cmd.Flags().StringVar(&note, "note", "", "why, for those who look at the device later")
	return cmd
}

// newDeviceReleaseCommand ends the attempt that was seen, and no other that may
// have come since.
func newDeviceReleaseCommand(c *cli) *cobra.Command {
	return c.onDevices("force-release", "End the attempt that holds a device, whatever its agent does",
		"End what holds %s of host %s? The attempt counts as infra_failed, and the device is unclean until proved.",
		func(api *client.Client, ctx context.Context, id string) (client.Device, error) {
			d, err := api.GetDevice(ctx, id)
			if err != nil {
				return d, err
			}
			if d.AttemptID == "" { // "" would end what may have come since
				return d, &remedyError{what: printable(d.Name) + " is " + deviceState(d) + ": nothing holds it", remedy: "berth device list --occupancy held shows what is held"}
			}
			return api.ForceRelease(ctx, id, d.AttemptID)
		})
}

func newDeviceMoveCommand(c *cli) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "move DEVICE --to HOST", Short: "Give a device to the host that it is plugged into now", Args: exactly(1, "one device: its id, or name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return &usageError{command: cmd.CommandPath(), what: "no host is named", remedy: "add --to HOST; berth host list shows them"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			d, err := c.device(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			h, err := c.host(cmd.Context(), api, to)
			if err != nil {
				return err
			}
			if d, err = api.MoveDevice(cmd.Context(), d.ID, h.ID); err != nil {
				return err
			}
			return c.printDevice(d)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "the host: its id, or name (required)")
	return cmd
}

func newDeviceLabelCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "label DEVICE KEY=VALUE... KEY-...", Short: "Set an operator's labels of a device, or take them away (KEY-)",
		Example: "  berth device label phone-7 rack=b7 broken-",
		Args:    atLeast(2, "one device and labels: KEY=VALUE to set, KEY- to take away"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			d, err := c.device(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			labels := maps.Clone(d.AdminLabels)
			if err := changeLabels(cmd, labels, args[1:]); err != nil {
				return err
			}
			if d, err = api.SetDeviceLabels(cmd.Context(), d.ID, labels); err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(d)
			}
			fmt.Fprintf(c.stdout, "%s  %s\n", printable(d.Name), printable(labelText(d.Labels)))
			return nil
		},
	}
}

func changeLabels(cmd *cobra.Command, labels map[string]string, changes []string) error {
	for _, change := range changes {
		if key, value, ok := strings.Cut(change, "="); ok && key != "" {
			labels[key] = value
			continue
		}
		key, ok := strings.CutSuffix(change, "-")
		if !ok || key == "" {
			return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%q is no label", clip(printable(change), 40)), remedy: "write KEY=VALUE to set a label, KEY- to take it away"}
		}
		delete(labels, key)
	}
	return nil
}

func (c *cli) printDevice(d client.Device) error {
	if c.json() {
		return c.printJSON(d)
	}
	fmt.Fprintf(c.stdout, "%s  %s\n", printable(d.Name), deviceState(d))
	return nil
}

func newDeviceGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get DEVICE", Short: "Show a device", Args: exactly(1, "one device: its id, or name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			d, err := c.device(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(d)
			}
			c.showDevice(d)
			return nil
		},
	}
}

func (c *cli) showDevice(d client.Device) {
	health := string(d.Health)
	if d.HealthFailures > 0 {
		health += fmt.Sprintf(", failed %s in a row", plural(d.HealthFailures, "attempt"))
	}
	if !d.QuarantinedUntil.IsZero() {
		health += ", until " + stamp(d.QuarantinedUntil) + " at least"
	}
	admin := string(d.Admin)
	if d.AdminNote != "" {
		admin += " (" + printable(d.AdminNote) + ")"
	}
	present := "yes"
	if !d.Present {
		present = "no"
	}
	c.printFields([][2]string{
		{"Device", d.ID},
		{"Name", printable(d.Name)},
		{"Pool", d.Pool},
		{"Host", printable(d.HostName)},
		{"Driver", printable(d.Driver)},
		{"Hardware", printable(d.HardwareID)},
		{"State", deviceState(d)},
		{"Present", present},
		{"Health", health},
		{"Admin", admin},
		{"Occupancy", string(d.Occupancy)},
		{"Task", d.TaskID},
		{"Attempt", d.AttemptID},
		{"Conflict", conflict(d)},
		{"Labels", printable(labelText(d.Labels))},
		{"Of operators", printable(labelText(d.AdminLabels))},
	})
}

func conflict(d client.Device) string {
	if d.ConflictHostID == "" {
		return ""
	}
	return "host " + d.ConflictHostID + " reports it, too; berth device move " + d.ID + " --to " + d.ConflictHostID
}

// device finds the device that an argument means: by id, by name where one
// device alone has it, or by HOST/NAME.
func (c *cli) device(ctx context.Context, api *client.Client, arg string) (client.Device, error) {
	if id := strings.ToLower(strings.TrimSpace(arg)); berth.ValidID(id) {
		return api.GetDevice(ctx, id)
	}
	all, _, err := pages(0, func(size int, token string) ([]client.Device, string, error) {
		l, err := api.ListDevices(ctx, client.ListDevicesParams{PageSize: size, PageToken: token})
		return l.Devices, l.NextPageToken, err
	})
	if err != nil {
		return client.Device{}, err
	}
	return only("device", arg, slices.DeleteFunc(all, func(d client.Device) bool {
		return d.Name != arg && d.HostName+"/"+d.Name != arg
	}), func(d client.Device) string { return d.HostName + "/" + d.Name + " (" + d.ID + ")" })
}

// host finds the host that an argument means: by id, or by name where one host
// that is not revoked has it.
func (c *cli) host(ctx context.Context, api *client.Client, arg string) (client.Host, error) {
	if id := strings.ToLower(strings.TrimSpace(arg)); berth.ValidID(id) {
		return api.GetHost(ctx, id)
	}
	all, err := allHosts(ctx, api)
	if err != nil {
		return client.Host{}, err
	}
	all = slices.DeleteFunc(all, func(h client.Host) bool { return h.Name != arg })
	named := len(all)
	all = slices.DeleteFunc(all, func(h client.Host) bool { return h.State == client.Revoked })
	if named > 0 && len(all) == 0 {
		return client.Host{}, &client.Problem{
			Status: 404, Code: "not_found", Detail: fmt.Sprintf("host %q is revoked", clip(printable(arg), 60)), Remedy: "let it in anew: berth host enrol",
		}
	}
	return only("host", arg, all, func(h client.Host) string { return h.ID })
}

func allHosts(ctx context.Context, api *client.Client) ([]client.Host, error) {
	all, _, err := pages(0, func(size int, token string) ([]client.Host, string, error) {
		l, err := api.ListHosts(ctx, client.ListHostsParams{PageSize: size, PageToken: token})
		return l.Hosts, l.NextPageToken, err
	})
	return all, err
}

// only is the one thing that a name means.
func only[T any](noun, arg string, found []T, describe func(T) string) (one T, err error) {
	arg = clip(printable(arg), 60)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return one, &client.Problem{
			Status: 404, Code: "not_found", Detail: fmt.Sprintf("there is no %s %q", noun, arg), Remedy: fmt.Sprintf("berth %s list shows them", noun),
		}
	}
	names := make([]string, 0, len(found))
	for _, f := range found {
		names = append(names, printable(describe(f)))
	}
	const shown = 5
	if len(names) > shown {
		names = append(names[:shown], "...")
	}
	return one, &usageError{what: fmt.Sprintf("%s have the name %q", plural(len(found), noun), arg), remedy: "name one of " + strings.Join(names, ", ")}
}
