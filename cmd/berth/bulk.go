package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newBulkCommand(c *cli) *cobra.Command {
	cmd := group("bulk", "Cancel, retry, delete or re-prioritise many tasks",
		newBulkActCommand(c, "cancel", "Cancel all unfinished tasks that the filter passes"),
		newBulkActCommand(c, "retry", "Queue all dead letters that the filter passes again"),
		newBulkActCommand(c, "delete", "Delete all finished tasks that the filter passes, with all that they left"),
		newBulkActCommand(c, "reprioritise", "Give all unfinished tasks that the filter passes another priority"),
		newBulkListCommand(c), newBulkGetCommand(c), newBulkStopCommand(c))
	cmd.Long = "Cancel, retry, delete or re-prioritise many tasks.\n\n" +
		"Each command says how many tasks it would change, asks, and starts a job that goes on by itself on the server."
	return cmd
}

// taskFilter are the flags that choose tasks.
type taskFilter struct {
	client.BulkFilter
	states   []string
	from, to string
}

func (f *taskFilter) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.states, "state", nil, "in this state; may be repeated")
	flags.StringVar(&f.Pool, "pool", "", "of this pool")
	flags.StringVar(&f.Plugin, "plugin", "", "of this plugin")
	flags.StringVar(&f.Tag, "tag", "", "with this tag")
	flags.StringVar(&f.NamePrefix, "name-prefix", "", "whose name begins so")
	flags.StringVar(&f.Submitter, "submitter", "", "submitted by this user (id)")
	flags.StringVar(&f.Device, "device", "", "tried on this device (id)")
	flags.StringVar(&f.Cause, "cause", "", "dead letters of this cause (berth dead-letter list)")
	flags.StringVar(&f.from, "since", "", "submitted since: RFC 3339, or a duration ago such as 1h")
	flags.StringVar(&f.to, "until", "", "submitted before: RFC 3339, or a duration ago")
}

func (f *taskFilter) read(c *cli) (out client.BulkFilter, err error) {
	out = f.BulkFilter
	for _, s := range f.states {
		out.State = append(out.State, client.TaskState(s))
	}
	if out.SubmittedFrom, err = c.past(f.from); err != nil {
		return out, err
	}
	out.SubmittedTo, err = c.past(f.to)
	return out, err
}

// bulkRun is how a command that starts a job goes about it.
type bulkRun struct{ preview, yes, wait bool }

func (r *bulkRun) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.preview, "preview", false, "only say what it would change")
	cmd.Flags().BoolVar(&r.wait, "wait", false, "wait until the job has ended")
	yesFlag(cmd, &r.yes)
}

func newBulkActCommand(c *cli, act, short string) *cobra.Command {
	var f taskFilter
	var run bulkRun
	spec := client.BulkSpec{Act: client.BulkAct(act)}
	var priority int
	cmd := &cobra.Command{
		Use: act, Short: short, Args: exactly(0, ""),
		Example: "  berth bulk " + act + " --tag nightly --preview\n  berth bulk " + act + " --plugin browser.script --since 1h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if spec.Filter, err = f.read(c); err != nil {
				return err
			}
			if cmd.Flags().Lookup("priority") != nil {
				if !cmd.Flags().Changed("priority") {
					return &usageError{command: cmd.CommandPath(), what: "it does not say which priority", remedy: "add --priority 0 (least urgent) to 9"}
				}
				spec.Priority = &priority
			}
			return c.runBulk(cmd, spec, run)
		},
	}
	f.flags(cmd)
	run.flags(cmd)
	cmd.Flags().BoolVar(&spec.All, "all", false, "all tasks, without a filter")
	switch act {
	case "reprioritise":
		cmd.Flags().IntVar(&priority, "priority", 0, "0 (least urgent) to 9")
	case "retry":
		cmd.Flags().IntVar(&spec.AddTries, "add-tries", 1, "how many more tries a dead letter gets")
	}
	return cmd
}

// runBulk says what a job would change, asks, and starts it.
func (c *cli) runBulk(cmd *cobra.Command, spec client.BulkSpec, run bulkRun) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	p, err := api.PreviewBulkJob(ctx, spec)
	if err != nil {
		return err
	}
	if run.preview {
		if c.json() {
			return c.printJSON(p)
		}
		c.printTasks(p.Sample)
		c.say("%s %s tasks", verbOf(spec.Act), counted(p.Count, p.More))
		return nil
	}
	if p.Count == 0 && !p.More {
		return &remedyError{what: "the filter passes no task that this could change", remedy: "look with berth task list"}
	}
	question := fmt.Sprintf("%s %s tasks?", verbOf(spec.Act), counted(p.Count, p.More))
	if spec.Act == client.BulkActDelete {
		question += " They and all that they left are gone for ever."
	}
	if err := c.confirm(cmd, run.yes, question); err != nil {
		return err
	}
	job, err := api.StartBulkJob(ctx, spec)
	if err != nil {
		return err
	}
	if run.wait {
		if job, err = c.awaitBulk(ctx, api, job); err != nil {
			return err
		}
	}
	if err := c.showBulk(job); err != nil {
		return err
	}
	if !run.wait && !c.json() {
		c.say("next: berth bulk get %s", job.ID)
	}
	return nil
}

func verbOf(act client.BulkAct) string {
	return strings.ToUpper(string(act[:1])) + string(act[1:])
}

// awaitBulk asks for a job until it has ended.
func (c *cli) awaitBulk(ctx context.Context, api *client.Client, job client.BulkJob) (client.BulkJob, error) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for job.State == client.BulkRunning {
		select {
		case <-ctx.Done():
			return job, ctx.Err()
		case <-tick.C:
		}
		var err error
		if job, err = api.GetBulkJob(ctx, job.ID); err != nil {
			return job, err
		}
	}
	return job, nil
}

func (c *cli) showBulk(j client.BulkJob) error {
	if c.json() {
		return c.printJSON(j)
	}
	priority := ""
	if j.Priority != nil {
		priority = fmt.Sprint(*j.Priority)
	}
	c.printFields([][2]string{
		{"Job", j.ID},
		{"Act", string(j.Act)},
		{"Filter", filterText(j.Filter)},
		{"Priority", priority},
		{"State", string(j.State)},
		{"Looked at", fmt.Sprint(j.Looked)},
		{"Changed", fmt.Sprint(j.Changed)},
		{"Refused", fmt.Sprint(j.Refused)},
		{"Started", stamp(j.CreatedAt)},
		{"Ended", stamp(j.FinishedAt)},
	})
	return nil
}

// filterText is a filter in the words of the flags.
func filterText(f client.BulkFilter) string {
	var out []string
	add := func(name, value string) {
		if value != "" {
			out = append(out, name+"="+printable(value))
		}
	}
	for _, s := range f.State {
		add("state", string(s))
	}
	add("pool", f.Pool)
	add("plugin", f.Plugin)
	add("tag", f.Tag)
	add("name-prefix", f.NamePrefix)
	add("submitter", f.Submitter)
	add("device", f.Device)
	add("cause", f.Cause)
	add("since", stamp(f.SubmittedFrom))
	add("until", stamp(f.SubmittedTo))
	if len(out) == 0 {
		return "all"
	}
	return strings.Join(out, " ")
}

func newBulkListCommand(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List bulk jobs, newest first", Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			jobs, next, err := pages(limit, func(size int, token string) ([]client.BulkJob, string, error) {
				l, err := api.ListBulkJobs(cmd.Context(), client.ListBulkJobsParams{PageSize: size, PageToken: token})
				return l.Jobs, l.NextPageToken, err
			})
			if err != nil {
				return err
			}
			if c.json() {
				return c.printJSON(client.BulkJobList{Jobs: jobs, NextPageToken: next})
			}
			rows := make([][]any, 0, len(jobs))
			for _, j := range jobs {
				rows = append(rows, []any{j.ID, j.Act, j.State, j.Looked, j.Changed, j.Refused, c.since(j.CreatedAt), clip(filterText(j.Filter), 60)})
			}
			c.printTable([]any{"id", "act", "state", "looked at", "changed", "refused", "age", "filter"}, rows, "No bulk jobs.")
			c.more(next, len(jobs))
			return nil
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	return cmd
}

// onBulk is a command on one job.
func (c *cli) onBulk(use, short string, act func(context.Context, *client.Client, string) (client.BulkJob, error)) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: exactly(1, "the job's id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := strings.ToLower(strings.TrimSpace(args[0]))
			if !berth.ValidID(id) {
				return &usageError{what: fmt.Sprintf("%q is no id of a bulk job", clip(printable(args[0]), 40)), remedy: "berth bulk list shows them"}
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			job, err := act(cmd.Context(), api, id)
			if err != nil {
				return unnamed(err, "bulk job "+id, "berth bulk list shows them")
			}
			return c.showBulk(job)
		},
	}
}

func newBulkGetCommand(c *cli) *cobra.Command {
	return c.onBulk("get", "Show a bulk job and how far it is", func(ctx context.Context, api *client.Client, id string) (client.BulkJob, error) {
		return api.GetBulkJob(ctx, id)
	})
}

func newBulkStopCommand(c *cli) *cobra.Command {
	return c.onBulk("stop", "Stop a bulk job; what it did stays", func(ctx context.Context, api *client.Client, id string) (client.BulkJob, error) {
		return api.StopBulkJob(ctx, id)
	})
}
