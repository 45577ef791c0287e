package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/client"
)

func newTaskCommand(c *cli) *cobra.Command {
	cmd := group("task", "Submit and follow tasks",
		newSubmitCommand(c), newTaskGetCommand(c), newTaskListCommand(c), newTaskWatchCommand(c), newTaskCancelCommand(c),
		newTaskRetryCommand(c), newTaskLogsCommand(c), newTaskArtifactsCommand(c), newTaskEventsCommand(c),
		newTaskExplainCommand(c), newTaskPrioritiseCommand(c))
	cmd.Long = "Submit and follow tasks.\n\nWherever an ID is asked for, @last stands for the task that was submitted last from this machine."
	return cmd
}

// remember keeps the id for @last. Where it cannot be kept nothing is lost.
func (c *cli) remember(id string) {
	_ = changeLogins(c.loginFile(), func(l *logins) error {
		l.Last = id
		return nil
	})
}

// taskID is the id that an argument means.
func (c *cli) taskID(arg string) (string, error) {
	if arg != "@last" {
		id := strings.ToLower(strings.TrimSpace(arg))
		if !berth.ValidID(id) {
			return "", &usageError{what: fmt.Sprintf("%q is no task id", clip(printable(arg), 40)), remedy: "berth task list shows the ids; @last is the task submitted last from here"}
		}
		return id, nil
	}
	l, err := readLogins(c.loginFile())
	if err != nil {
		return "", err
	}
	if l.Last == "" {
		return "", &usageError{what: "no task was submitted from here yet", remedy: "name a task by its id; berth task list shows them"}
	}
	return l.Last, nil
}

// onTask is a command that acts on one task.
func (c *cli) onTask(use, short string, act func(context.Context, *client.Client, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " ID", Short: short, Args: exactly(1, "one task: its id, or @last"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := c.taskID(args[0])
			if err != nil {
				return err
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			return act(cmd.Context(), api, id)
		},
	}
}

func newTaskGetCommand(c *cli) *cobra.Command {
	return c.onTask("get", "Show a task with its attempts", func(ctx context.Context, api *client.Client, id string) error {
		t, err := api.GetTask(ctx, id, 0)
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(t)
		}
		attempts, err := api.ListAttempts(ctx, id)
		if err != nil {
			return err
		}
		line, err := c.change(ctx, api, t)
		if err != nil {
			return err
		}
		c.showTask(t, line)
		c.showAttempts(attempts)
		if len(t.Result) > 0 {
			fmt.Fprintln(c.stdout, "\nResult:")
			return c.printJSON(t.Result)
		}
		return nil
	})
}

func (c *cli) showTask(t client.Task, state string) {
	plugin := t.Plugin
	if t.PluginVersion != "" {
		plugin += " " + t.PluginVersion
	}
	end := ""
	if !t.FinishedAt.IsZero() {
		end = fmt.Sprintf("%s (after %s)", stamp(t.FinishedAt), span(t.FinishedAt.Sub(t.SubmittedAt)))
	}
	c.printFields([][2]string{
		{"Task", t.ID},
		{"Name", printable(t.Name)},
		{"State", state},
		{"Pool", t.Pool},
		{"Plugin", plugin},
		{"Selector", t.Selector},
		{"Priority", fmt.Sprint(t.Priority)},
		{"Tags", printable(strings.Join(t.Tags, ", "))},
		{"Inputs", inputNames(t.Inputs)},
		{"Secrets", printable(strings.Join(t.Secrets, ", "))},
		{"Tries", fmt.Sprintf("%d of %d", t.Tries, t.MaxTries)},
		{"Submitted", stamp(t.SubmittedAt)},
		{"Finished", end},
		{"Correlation", t.CorrelationID},
	})
}

func inputNames(inputs []client.TaskInput) string {
	names := make([]string, len(inputs))
	for i, in := range inputs {
		names[i] = fmt.Sprintf("%s (%s)", in.Name, size(in.Size))
	}
	return printable(strings.Join(names, ", "))
}

func (c *cli) showAttempts(attempts []client.Attempt) {
	if len(attempts) == 0 {
		return
	}
	fmt.Fprintln(c.stdout)
	rows := make([][]any, 0, len(attempts))
	for _, a := range attempts {
		state, ran := string(a.State), ""
		if a.Outcome != "" {
			state = string(a.Outcome)
		}
		switch {
		case a.StartedAt.IsZero():
		case a.EndedAt.IsZero():
			ran = span(c.now().Sub(a.StartedAt))
		default:
			ran = span(a.EndedAt.Sub(a.StartedAt))
		}
		note := a.Message
		if note == "" && a.Reason != state {
			note = a.Reason
		}
		rows = append(rows, []any{a.Number, state, a.DeviceName, a.HostName, ran, clip(note, 60)})
	}
	c.printTable([]any{"attempt", "outcome", "device", "host", "ran", "note"}, rows, "")
}

// clip shortens a cell to at most n characters.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}

func newTaskListCommand(c *cli) *cobra.Command {
	var p client.ListTasksParams
	var states []string
	var from, to string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List tasks, newest first", Args: exactly(0, ""),
		Example: "  berth task list --state queued --state running\n  berth task list --plugin browser.script --since 1h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, s := range states {
				p.State = append(p.State, client.TaskState(s))
			}
			var err error
			if p.SubmittedFrom, err = c.past(from); err != nil {
				return err
			}
			if p.SubmittedTo, err = c.past(to); err != nil {
				return err
			}
			return c.listTasks(cmd.Context(), p, limit)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&states, "state", nil, "in this state; may be repeated")
	flags.StringVar(&p.Pool, "pool", "", "of this pool")
	flags.StringVar(&p.Plugin, "plugin", "", "of this plugin")
	flags.StringVar(&p.Tag, "tag", "", "with this tag")
	flags.StringVar(&p.NamePrefix, "name-prefix", "", "whose name begins so")
	flags.StringVar(&p.Submitter, "submitter", "", "submitted by this user (id)")
	flags.StringVar(&p.Device, "device", "", "tried on this device (id)")
	flags.StringVar(&p.Cause, "cause", "", "dead letters of this cause (berth dead-letter list)")
	flags.StringVar(&from, "since", "", "submitted since: RFC 3339, or a duration ago such as 1h")
	flags.StringVar(&to, "until", "", "submitted before: RFC 3339, or a duration ago")
	flags.IntVar(&limit, "limit", 50, "at most this many; 0 for all")
	return cmd
}

// past reads a time, or a duration ago.
func (c *cli) past(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return c.now().Add(-d).UTC(), nil
	}
	return c.instant(s)
}

func (c *cli) listTasks(ctx context.Context, p client.ListTasksParams, limit int) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	tasks, next, err := pages(limit, func(size int, token string) ([]client.Task, string, error) {
		p.PageSize, p.PageToken = size, token
		l, err := api.ListTasks(ctx, p)
		return l.Tasks, l.NextPageToken, err
	})
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(client.TaskList{Tasks: tasks, NextPageToken: next})
	}
	c.printTasks(tasks)
	c.more(next, len(tasks))
	return nil
}

// more says that a list goes on.
func (c *cli) more(next string, shown int) {
	if next != "" {
		c.say("The first %d are shown; --limit 0 shows all.", shown)
	}
}

// pages gathers at most limit items (0: all) page by page. next is the token of
// the page that would follow, "" at the end.
func pages[T any](limit int, get func(size int, token string) ([]T, string, error)) (all []T, next string, err error) {
	const most = 200
	all = []T{}
	for {
		size := most
		if limit > 0 {
			size = min(most, limit-len(all))
		}
		page, token, err := get(size, next)
		if err != nil {
			return nil, "", err
		}
		all, next = append(all, page...), token
		if next == "" || limit > 0 && len(all) >= limit {
			return all, next, nil
		}
	}
}

func (c *cli) printTasks(tasks []client.Task) {
	rows := make([][]any, 0, len(tasks))
	for _, t := range tasks {
		rows = append(rows, []any{
			t.ID, c.stateWord(t.State), clip(t.Name, 30), t.Plugin, t.Pool, t.Priority, fmt.Sprintf("%d/%d", t.Tries, t.MaxTries),
			c.since(t.SubmittedAt), reason(t),
		})
	}
	c.printTable([]any{"id", "state", "name", "plugin", "pool", "prio", "tries", "age", "reason"}, rows, "No tasks.")
}

// reason is a finished task's, unless its state says the same.
func reason(t client.Task) string {
	if t.Reason == string(t.State) {
		return ""
	}
	return t.Reason
}

func newTaskWatchCommand(c *cli) *cobra.Command {
	var dir string
	cmd := c.onTask("watch", "Follow a task until it is finished", func(ctx context.Context, api *client.Client, id string) error {
		t, err := api.GetTask(ctx, id, 0)
		if err != nil {
			return err
		}
		if t, err = c.follow(ctx, api, t); err != nil {
			return err
		}
		return c.showEnd(ctx, api, t, dir)
	})
	cmd.Flags().StringVarP(&dir, "output-dir", "d", "", "then download what the task left into this folder")
	return cmd
}

func newTaskCancelCommand(c *cli) *cobra.Command {
	return c.onTasks("cancel", "Cancel tasks", func(ctx context.Context, api *client.Client, id string) (client.Task, error) {
		return api.CancelTask(ctx, id)
	})
}

func newTaskRetryCommand(c *cli) *cobra.Command {
	var tries int
	var file string
	var payload []byte // read once
	cmd := c.onTasks("retry", "Queue dead-lettered or failed tasks again", func(ctx context.Context, api *client.Client, id string) (client.Task, error) {
		r := client.RetryRequest{AddTries: tries}
		if file != "" && payload == nil {
			var err error
			if payload, err = c.read(file); err != nil {
				return client.Task{}, err
			}
			if !json.Valid(payload) {
				return client.Task{}, &usageError{what: printable(file) + " is no JSON", remedy: "write the whole payload as one JSON object; berth task get -o json shows the old one"}
			}
		}
		r.Payload = payload
		return api.RetryTaskWith(ctx, id, r)
	})
	cmd.Flags().StringVar(&file, "payload", "", "a file with the payload that the next attempts get (- for standard input)")
	cmd.Flags().IntVar(&tries, "add-tries", 1, "how many more tries a dead-lettered task gets")
	return cmd
}

// onTasks is a command that changes tasks, one after the other, and says what
// they are then. It stops at the first fault.
func (c *cli) onTasks(verb, short string, act func(context.Context, *client.Client, string) (client.Task, error)) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID...", Short: short, Args: atLeast(1, "tasks: their ids, or @last"),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			for _, arg := range args {
				id, err := c.taskID(arg)
				if err != nil {
					return err
				}
				t, err := act(cmd.Context(), api, id)
				if err != nil {
					return err
				}
				if c.json() {
					err = c.printJSON(t)
				} else {
					fmt.Fprintf(c.stdout, "%s  %s\n", t.ID, nowIs(t))
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func nowIs(t client.Task) string {
	if t.CancelRequested && !finished(t.State) {
		return string(t.State) + ", asked to stop"
	}
	return string(t.State)
}

func newTaskEventsCommand(c *cli) *cobra.Command {
	return c.onTask("events", "Show what happened to a task", func(ctx context.Context, api *client.Client, id string) error {
		events, _, err := pages(0, func(size int, token string) ([]client.TaskEvent, string, error) {
			l, err := api.ListTaskEvents(ctx, id, client.ListTaskEventsParams{PageSize: size, PageToken: token})
			return l.Events, l.NextPageToken, err
		})
		if err != nil {
			return err
		}
		if c.json() {
			return c.printJSON(client.EventList{Events: events})
		}
		rows := make([][]any, 0, len(events))
		for _, e := range events {
			move, number := string(e.To), ""
			if e.From != "" && e.From != e.To {
				move = string(e.From) + " > " + string(e.To)
			}
			if e.Number > 0 {
				number = fmt.Sprint(e.Number)
			}
			rows = append(rows, []any{e.At.Local().Format("15:04:05.000"), strings.TrimPrefix(e.Action, "task."), move, number, e.Actor.Kind, e.Reason})
		}
		c.printTable([]any{"at", "event", "state", "attempt", "by", "reason"}, rows, "No events.")
		return nil
	})
}
