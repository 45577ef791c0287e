package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

func newScheduleCommand(c *cli) *cobra.Command {
	return group("schedule", "Make tasks at times that come again",
		newScheduleCreateCommand(c), newScheduleListCommand(c), newScheduleGetCommand(c), newScheduleEditCommand(c),
		newScheduleActCommand(c, "pause", "Fire no more slots; nothing accumulates", (*client.Client).PauseSchedule),
		newScheduleActCommand(c, "resume", "Wait for the first slot after now", (*client.Client).ResumeSchedule),
		newScheduleRunCommand(c), newSchedulePreviewCommand(c), newScheduleFiresCommand(c), newScheduleDeleteCommand(c))
}

// scheduleFlags are a schedule's fields as flags.
type scheduleFlags struct {
	cron, zone, catchUp, overlap string
	window                       time.Duration
	limit                        int
	template                     string
}

func (f *scheduleFlags) on(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.cron, "cron", "", "minute, hour, day of month, month, day of week; or @hourly, @daily, ...")
	flags.StringVar(&f.zone, "time-zone", "", "a zone such as Europe/Berlin (default: UTC)")
	flags.StringVar(&f.catchUp, "catch-up", "", "of slots that nobody looked at: none, latest or all (default: latest)")
	flags.DurationVar(&f.window, "catch-up-window", 0, "how late a slot may fire; 0: as late as may be (default: 1h with latest)")
	flags.IntVar(&f.limit, "catch-up-limit", 0, "how many slots --catch-up all fires at once (default: 10)")
	flags.StringVar(&f.overlap, "overlap", "", "while a task is unfinished: skip, allow, queue_one or cancel_running (default: skip)")
	flags.StringVarP(&f.template, "file", "f", "", "JSON file with the task, as for `berth task submit`; - for standard input")
}

// change is what the flags that were given say.
func (f *scheduleFlags) change(cmd *cobra.Command, c *cli) (client.ScheduleChange, error) {
	var out client.ScheduleChange
	given := cmd.Flags().Changed
	if given("cron") {
		out.Cron = &f.cron
	}
	if given("time-zone") {
		out.TimeZone = &f.zone
	}
	if given("catch-up") {
		out.CatchUp = (*client.CatchUp)(&f.catchUp)
	}
	if given("catch-up-window") {
		window := f.window.Seconds()
		out.CatchUpWindowSeconds = &window
	}
	if given("catch-up-limit") {
		out.CatchUpLimit = &f.limit
	}
	if given("overlap") {
		out.Overlap = (*client.Overlap)(&f.overlap)
	}
	if f.template == "" {
		return out, nil
	}
	raw, err := c.read(f.template)
	if err != nil {
		return out, err
	}
	body, many, err := batchOf(f.template, raw)
	if err != nil {
		return out, err
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	var t client.TaskTemplate
	if err := dec.Decode(&t); err != nil || many {
		return out, &remedyError{what: named(f.template) + " is no task that a schedule can make", remedy: "write one object with the fields of a task, without not_before"}
	}
	out.Template = &t
	return out, nil
}

func newScheduleCreateCommand(c *cli) *cobra.Command {
	var f scheduleFlags
	cmd := &cobra.Command{
		Use: "create NAME --cron EXPR -f FILE", Short: "Create a schedule", Args: exactly(1, "the schedule's name"),
		Example: "  berth schedule create nightly --cron '30 2 * * *' --time-zone Europe/Berlin -f smoke.json\n" +
			"  berth schedule preview --cron '30 2 * * *' --time-zone Europe/Berlin",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.cron == "" || f.template == "" {
				return &usageError{command: cmd.CommandPath(), what: "it needs --cron and --file", remedy: "pass when it fires, and a JSON file with the task that it makes"}
			}
			change, err := f.change(cmd, c)
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			s, err := api.CreateSchedule(cmd.Context(), client.ScheduleSpec{
				Name: args[0], Cron: f.cron, TimeZone: change.TimeZone, CatchUp: change.CatchUp, CatchUpWindowSeconds: change.CatchUpWindowSeconds,
				CatchUpLimit: change.CatchUpLimit, Overlap: change.Overlap, Template: *change.Template,
			})
			if err != nil {
				return err
			}
			return c.showSchedule(s)
		},
	}
	f.on(cmd)
	return cmd
}

func newScheduleListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List schedules", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			all, _, err := pages(0, func(size int, token string) ([]client.Schedule, string, error) {
				l, err := api.ListSchedules(cmd.Context(), client.ListSchedulesParams{PageSize: size, PageToken: token})
				return l.Schedules, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.ScheduleList{Schedules: all})
			}
			rows := make([][]any, 0, len(all))
			for _, s := range all {
				rows = append(rows, []any{s.Name, scheduleState(s), s.Cron, s.TimeZone, nextFire(s), s.Template.Plugin, clip(printable(s.Note), 60)})
			}
			c.printTable([]any{"name", "state", "cron", "zone", "next", "plugin", "note"}, rows, "No schedules. `berth schedule create NAME` makes one (operators).")
			return nil
		},
	}
}

func scheduleState(s client.Schedule) string {
	switch {
	case s.Paused:
		return "paused"
	case s.Waiting:
		return "waiting"
	}
	return "active"
}

func nextFire(s client.Schedule) string {
	if s.NextFireAt.IsZero() {
		return "-"
	}
	return stamp(s.NextFireAt)
}

func newScheduleGetCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a schedule", Args: exactly(1, "the schedule's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			s, err := api.GetSchedule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return c.showSchedule(s)
		},
	}
}

func newScheduleEditCommand(c *cli) *cobra.Command {
	var f scheduleFlags
	cmd := &cobra.Command{
		Use: "edit NAME [flags]", Short: "Change a schedule; what is not named stays", Args: exactly(1, "the schedule's name"),
		Long: "Changes a schedule. Slots that are due are decided before, as it was.\n\n" +
			"With --file the task is replaced as a whole, and the schedule's tasks are then yours.",
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := f.change(cmd, c)
			if err != nil {
				return err
			}
			if change == (client.ScheduleChange{}) {
				return &usageError{command: cmd.CommandPath(), what: "it says nothing to change", remedy: "pass --cron, --time-zone, --overlap, --catch-up or --file"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			s, err := api.EditSchedule(cmd.Context(), args[0], change, "")
			if err != nil {
				return err
			}
			return c.showSchedule(s)
		},
	}
	f.on(cmd)
	return cmd
}

// scheduleAct is a method of the client.
type scheduleAct func(api *client.Client, ctx context.Context, name string) (client.Schedule, error)

// newScheduleActCommand makes pause or resume.
func newScheduleActCommand(c *cli, verb, short string, act scheduleAct) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME...", Short: short, Args: atLeast(1, "names of schedules"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				s, err := act(api, cmd.Context(), name)
				if err != nil {
					return err
				}
				if c.json() {
					if err := c.printJSON(s); err != nil {
						return err
					}
					continue
				}
				fmt.Fprintf(c.stdout, "%s  %s  %s\n", s.Name, scheduleState(s), nextFire(s))
			}
			return nil
		},
	}
}

func newScheduleRunCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "run NAME", Short: "Make a task of a schedule now", Args: exactly(1, "the schedule's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			t, err := api.RunSchedule(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			c.remember(t.ID)
			if c.json() {
				return c.printJSON(t)
			}
			fmt.Fprintf(c.stdout, "%s  %s\n", t.ID, t.State)
			c.say("next: berth task watch @last")
			return nil
		},
	}
}

func newSchedulePreviewCommand(c *cli) *cobra.Command {
	var f scheduleFlags
	var n int
	cmd := &cobra.Command{
		Use: "preview (NAME | --cron EXPR)", Short: "Show when a schedule fires next",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == (f.cron != "") {
				return &usageError{command: cmd.CommandPath(), what: "it takes the schedule's name, or --cron"}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			var p client.Preview
			if len(args) == 1 {
				p, err = api.PreviewSchedule(cmd.Context(), args[0], client.PreviewScheduleParams{N: n})
			} else {
				p, err = api.PreviewCron(cmd.Context(), client.PreviewSpec{Cron: f.cron, TimeZone: f.zone, N: n})
			}
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(p)
			}
			c.say("%s in %s, %s", p.Cron, p.TimeZone, p.Kind)
			rows := make([][]any, 0, len(p.Slots))
			for _, s := range p.Slots {
				rows = append(rows, []any{stamp(s.At), s.Clock, s.Local})
			}
			c.printTable([]any{"at", "clock", "for"}, rows, "It fires no more.")
			return nil
		},
	}
	cmd.Flags().StringVar(&f.cron, "cron", "", "an expression that is no schedule yet")
	cmd.Flags().StringVar(&f.zone, "time-zone", "", "with --cron: a zone such as Europe/Berlin (default: UTC)")
	cmd.Flags().IntVarP(&n, "number", "n", 10, "how many, 1 to 100")
	return cmd
}

func newScheduleFiresCommand(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "fires NAME", Short: "Show what became of a schedule's slots, the last decided first", Args: exactly(1, "the schedule's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			fires, more, err := pages(limit, func(size int, token string) ([]client.Fire, string, error) {
				l, err := api.ListFires(cmd.Context(), args[0], client.ListFiresParams{PageSize: size, PageToken: token})
				return l.Fires, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.FireList{Fires: fires})
			}
			rows := make([][]any, 0, len(fires))
			for _, f := range fires {
				rows = append(rows, []any{stamp(f.SlotAt), f.Slot, fireText(f), stamp(f.DecidedAt)})
			}
			c.printTable([]any{"slot", "key", "became", "decided"}, rows, "No slot was decided yet.")
			if more != "" {
				c.say("there are more: --limit 0 shows all")
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many; 0 for all")
	return cmd
}

// fireText is the task that a slot became, or why it was skipped.
func fireText(f client.Fire) string {
	switch {
	case f.TaskID != "":
		return f.TaskID
	case f.AtLeast:
		return fmt.Sprintf("skipped: %s, at least %d slots to %s", f.Reason, f.Slots, stamp(f.LastSlotAt))
	case f.Slots > 1:
		return fmt.Sprintf("skipped: %s, %d slots to %s", f.Reason, f.Slots, stamp(f.LastSlotAt))
	}
	return "skipped: " + f.Reason
}

func newScheduleDeleteCommand(c *cli) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME...", Short: "Delete schedules with their history", Args: atLeast(1, "names of schedules"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := c.confirm(cmd, yes, fmt.Sprintf("Delete the schedule %s with its history? Its tasks go on.", printable(name))); err != nil {
					return err
				}
				if err := api.DeleteSchedule(cmd.Context(), name); err != nil {
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

func (c *cli) showSchedule(s client.Schedule) error {
	if c.json() {
		return c.printJSON(s)
	}
	catchUp := string(s.CatchUp)
	if s.CatchUp == client.CatchUp("all") {
		catchUp += fmt.Sprintf(", at most %d", s.CatchUpLimit)
	}
	if s.CatchUpWindowSeconds > 0 {
		catchUp += ", within " + time.Duration(s.CatchUpWindowSeconds*float64(time.Second)).String()
	}
	fields := [][2]string{
		{"Schedule", s.Name},
		{"State", scheduleState(s)},
		{"Fires", s.Cron + " in " + s.TimeZone + ", " + string(s.Kind)},
		{"Next", nextFire(s)},
		{"Catch-up", catchUp},
		{"Overlap", string(s.Overlap)},
		{"Task", s.Template.Plugin + " in " + s.Template.Pool},
		{"Owner", s.Owner.ID},
		{"Changed", stamp(s.UpdatedAt)},
	}
	if s.Note != "" {
		fields = append(fields, [2]string{"Note", printable(s.Note)})
	}
	c.printFields(fields)
	return nil
}
