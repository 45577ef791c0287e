package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newDeadLetterCommand(c *cli) *cobra.Command {
	return group("dead-letter", "See what dead-lettered tasks have in common", newDeadLetterListCommand(c),
		newDeadLetterActCommand(c, "retry", "Queue the dead letters of a cause again"),
		newDeadLetterActCommand(c, "purge", "Delete the dead letters of a cause, with all that they left"))
}

func newDeadLetterListCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List dead letters by cause, the most common first", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			all, _, err := pages(0, func(size int, token string) ([]client.DeadLetters, string, error) {
				l, err := api.ListDeadLetters(cmd.Context(), client.ListDeadLettersParams{PageSize: size, PageToken: token})
				return l.DeadLetters, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			slices.SortStableFunc(all, func(a, b client.DeadLetters) int { return cmp.Compare(b.Count, a.Count) })
			if c.json() {
				return c.printJSON(client.DeadLetterList{DeadLetters: all})
			}
			rows := make([][]any, 0, len(all))
			for _, d := range all {
				rows = append(rows, []any{d.Cause, counted(d.Count, d.More), d.Plugin, d.Reason, clip(d.Message, 70), c.since(d.NewestAt), d.NewestTaskID})
			}
			c.printTable([]any{"cause", "tasks", "plugin", "reason", "message", "last", "newest task"}, rows, "No dead letters.")
			return nil
		},
	}
}

// newDeadLetterActCommand makes retry and purge: bulk jobs on one cause.
func newDeadLetterActCommand(c *cli, verb, short string) *cobra.Command {
	var run bulkRun
	spec := client.BulkSpec{Act: client.BulkActDelete}
	cmd := &cobra.Command{
		Use: verb + " CAUSE", Short: short, Args: exactly(1, "a cause: berth dead-letter list shows them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !berth.CauseKey(args[0]).Valid() {
				return &usageError{command: cmd.CommandPath(), what: fmt.Sprintf("%q is no cause", clip(printable(args[0]), 40)), remedy: "berth dead-letter list shows them; berth bulk takes other filters"}
			}
			spec.Filter.Cause = args[0]
			return c.runBulk(cmd, spec, run)
		},
	}
	run.flags(cmd)
	if verb == "retry" {
		spec.Act = client.BulkActRetry
		cmd.Flags().IntVar(&spec.AddTries, "add-tries", 1, "how many more tries each gets")
	}
	return cmd
}

// counted is a number of things, of which there may be more.
func counted(n int, more bool) string {
	if more {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}
