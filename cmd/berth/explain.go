package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

func newTaskExplainCommand(c *cli) *cobra.Command {
	return c.onTask("explain", "Say why a task is where it is, and what to do about it", func(ctx context.Context, api *client.Client, id string) error {
		p, err := api.GetPlacement(ctx, id)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(p)
		}
		c.showPlacement(p)
		return nil
	})
}

func (c *cli) showPlacement(p client.Placement) {
	for i, r := range p.Reasons {
		intro := "Also: "
		if i == 0 {
			intro = string(p.State) + ": "
		}
		fmt.Fprintln(c.stdout, intro+printable(r.Message))
		if r.Remedy != "" {
			fmt.Fprintln(c.stdout, "  try: "+printable(r.Remedy))
		}
	}
	if p.Unsatisfiable {
		fmt.Fprintln(c.stdout, "No registered device of the pool could ever run it.")
	}
	if len(p.RuledOut) > 0 {
		fmt.Fprintln(c.stdout)
		rows := make([][]any, 0, len(p.RuledOut))
		for _, r := range p.RuledOut {
			rows = append(rows, []any{clip(r.Requirement, 80), fmt.Sprintf("%d of %s", r.Devices, plural(p.Devices, "device"))})
		}
		c.printTable([]any{"it asks for", "which rules out"}, rows, "")
	}
	if p.Fitting > 0 {
		fmt.Fprintln(c.stdout)
		rows := make([][]any, 0, 1+len(p.Unavailable))
		if p.Free > 0 {
			rows = append(rows, []any{p.Free, "free"})
		}
		for _, u := range p.Unavailable {
			rows = append(rows, []any{u.Devices, strings.ReplaceAll(u.Code, "_", " ")})
		}
		c.printTable([]any{"devices that fit", "are"}, rows, "")
	}
	c.showLine(p)
}

// showLine is where the task stands and how long it will.
func (c *cli) showLine(p client.Placement) {
	ahead := ""
	if p.State == client.TaskStateQueued && p.Fitting > 0 {
		ahead = "next of its kind"
		switch {
		case p.AheadMore:
			ahead = fmt.Sprintf("more than %d tasks of its kind before it", p.Ahead)
		case p.Ahead > 0:
			ahead = plural(p.Ahead, "task") + " of its kind before it"
		}
	}
	if ahead != "" || !p.DueAt.IsZero() || !p.GiveUpAt.IsZero() {
		fmt.Fprintln(c.stdout)
	}
	c.printFields([][2]string{{"Position", ahead}, {"Due", stamp(p.DueAt)}, {"Given up", stamp(p.GiveUpAt)}})
	if p.Truncated {
		c.say("The pool has more devices than were looked at.")
	}
}

func newTaskPrioritiseCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "prioritise ID PRIORITY", Aliases: []string{"prioritize"}, Short: "Give an unfinished task another priority, 0 to 9", Args: exactly(2, "a task and its priority, 0 to 9"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := c.taskID(args[0])
			if err != nil {
				return err
			}
			priority, err := strconv.Atoi(args[1])
			if err != nil {
				return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%q is no priority", clip(printable(args[1]), 40)), remedy: "write 0 (least urgent) to 9 (most urgent)"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			t, err := api.SetTaskPriority(cmd.Context(), id, priority)
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(t)
			}
			fmt.Fprintf(c.stdout, "%s  %s, priority %d\n", t.ID, nowIs(t), t.Priority)
			return nil
		},
	}
}
