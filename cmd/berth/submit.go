package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/pkg/client"
)

// maxFile bounds what is read of a task file, in bytes; the server's bound is
// the same.
const maxFile = 8 << 20

// submitFlags are a task's fields as flags, and how to submit it.
type submitFlags struct {
	file        string
	spec        client.TaskSpec
	payload     string
	notBefore   string
	run, queue  time.Duration
	maxAttempts int
	retrySafe   bool
	key         string
	correlation string
	wait        bool
	dir         string
	inputs      []string
	files       []inputFile
}

func newSubmitCommand(c *cli) *cobra.Command {
	var f submitFlags
	cmd := &cobra.Command{
		Use:   "submit (-f FILE | --plugin NAME [flags])",
		Short: "Submit a task, or many from a file",
		Long: "Submit a task from flags, or from a JSON file (- for standard input).\n\n" +
			"A file holds one task, an array of up to 1,000 tasks, or {\"tasks\": [...]}. Many are stored all or none.",
		Example: "  berth task submit --plugin process.run --payload '{\"command\": [\"uname\", \"-a\"]}' --wait\n" +
			"  berth task submit -f smoke.json --wait\n" +
			"  generate | berth task submit -f -",
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.submit(cmd, &f) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "JSON file with the task or tasks; - for standard input")
	flags.StringVar(&f.spec.Plugin, "plugin", "", "kind of work, such as browser.script")
	flags.StringVar(&f.spec.PluginVersion, "plugin-version", "", "version range, such as ^1 (default: any)")
	flags.StringVar(&f.payload, "payload", "", "the plugin's input: JSON, @FILE, or - for standard input")
	flags.StringVar(&f.spec.Selector, "selector", "", "devices that fit, such as browser=chromium")
	flags.IntVar(&f.spec.Priority, "priority", 0, "0 to 9, 9 most urgent")
	flags.StringVar(&f.spec.Name, "name", "", "a name for people")
	flags.StringArrayVar(&f.spec.Tags, "tag", nil, "a tag; may be repeated")
	flags.StringVar(&f.spec.Pool, "pool", "", "pool (default: default)")
	flags.StringVar(&f.notBefore, "not-before", "", "wait until then: RFC 3339, or a duration from now such as 10m")
	flags.DurationVar(&f.run, "run-timeout", 0, "bound of one attempt (default: 1h)")
	flags.DurationVar(&f.queue, "queue-timeout", 0, "give up after waiting this long (default: never)")
	flags.IntVar(&f.maxAttempts, "max-attempts", 0, "tries (default: 3)")
	flags.BoolVar(&f.retrySafe, "retry-safe", true, "whether the work may happen twice")
	flags.StringArrayVar(&f.inputs, "input", nil, "a file that the work gets: NAME=FILE, FILE, or NAME=sha256:DIGEST; may be repeated")
	flags.StringArrayVar(&f.spec.Secrets, "secret", nil, "a secret that the work is given, by name; may be repeated")
	flags.StringVar(&f.key, "idempotency-key", "", "makes repeating this command safe")
	flags.StringVar(&f.correlation, "correlation-id", "", "an id to find in logs")
	flags.BoolVarP(&f.wait, "wait", "w", false, "follow until finished; exit code 5 unless it succeeded")
	flags.StringVarP(&f.dir, "output-dir", "d", "", "with --wait: download what the task left into this folder")
	return cmd
}

func (c *cli) submit(cmd *cobra.Command, f *submitFlags) error {
	if f.dir != "" && !f.wait {
		return &usageError{command: cmd.CommandPath(), what: "--output-dir needs --wait", remedy: "add --wait, or download later: berth task artifacts @last --output-dir " + f.dir}
	}
	body, many, err := f.body(cmd, c)
	if err != nil {
		return err
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	o := client.SubmitOptions{IdempotencyKey: f.key, CorrelationID: f.correlation}
	if many && f.dir != "" {
		return &usageError{command: cmd.CommandPath(), what: "--output-dir takes the files of one task", remedy: "submit them, then download each: berth task artifacts ID --output-dir DIR"}
	}
	if many {
		tasks, err := api.SubmitTasksJSON(cmd.Context(), body, o)
		if err != nil {
			return err
		}
		return c.submittedMany(cmd.Context(), api, tasks, f.wait)
	}
	for _, in := range f.files {
		if in.path == "" {
			continue
		}
		if _, err := c.upload(cmd.Context(), api, in); err != nil {
			return err
		}
	}
	t, err := api.SubmitTaskJSON(cmd.Context(), body, o)
	if err != nil {
		return err
	}
	c.remember(t.ID)
	return c.submittedOne(cmd.Context(), api, t, f)
}

func (c *cli) submittedOne(ctx context.Context, api *client.Client, t client.Task, f *submitFlags) error {
	if !f.wait {
		if c.json() {
			return c.printJSON(t)
		}
		fmt.Fprintf(c.stdout, "%s  %s\n", t.ID, t.State)
		c.say("next: berth task watch @last")
		return nil
	}
	c.say("%s  %s", t.ID, t.State)
	t, err := c.follow(ctx, api, t)
	if err != nil {
		return err
	}
	return c.showEnd(ctx, api, t, f.dir)
}

func (c *cli) submittedMany(ctx context.Context, api *client.Client, tasks []client.Task, wait bool) error {
	if n := len(tasks); n > 0 {
		c.remember(tasks[n-1].ID)
	}
	var worst error
	if wait {
		c.say("%s submitted; waiting for all of them.", plural(len(tasks), "task"))
		for i, t := range tasks {
			var err error
			if tasks[i], err = c.waitFor(ctx, api, t); err != nil {
				return err
			}
			if s := tasks[i].State; s != client.TaskStateSucceeded {
				worst = &outcomeError{state: s}
			}
		}
	}
	if c.json() {
		if err := c.printJSON(client.SubmittedTasks{Tasks: tasks}); err != nil {
			return err
		}
		return worst
	}
	c.printTasks(tasks)
	return worst
}

// body is the JSON to send: the file's, or that of the flags; many says that
// it is a batch.
func (f *submitFlags) body(cmd *cobra.Command, c *cli) (body json.RawMessage, many bool, err error) {
	if f.file == "" {
		body, err := f.one(cmd, c)
		return body, false, err
	}
	for _, name := range []string{"plugin", "plugin-version", "payload", "selector", "priority", "name", "tag", "pool", "not-before", "run-timeout", "queue-timeout", "max-attempts", "retry-safe", "input", "secret"} {
		if cmd.Flags().Changed(name) {
			return nil, false, &usageError{command: cmd.CommandPath(), what: "--" + name + " and --file exclude each other", remedy: "put the field into the file, or leave --file out"}
		}
	}
	raw, err := c.read(f.file)
	if err != nil {
		return nil, false, err
	}
	return batchOf(f.file, raw)
}

// batchOf tells one task from many.
func batchOf(file string, raw []byte) (json.RawMessage, bool, error) {
	var syntax *json.SyntaxError
	var fields map[string]json.RawMessage
	switch err := json.Unmarshal(raw, &fields); {
	case err == nil:
		_, many := fields["tasks"]
		return raw, many, nil
	case errors.As(err, &syntax):
		line := 1 + bytes.Count(raw[:min(int(syntax.Offset), len(raw))], []byte("\n"))
		return nil, false, &remedyError{what: fmt.Sprintf("%s is not JSON, at line %d", named(file), line), remedy: "mend it; a task is an object with at least a plugin"}
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, false, &remedyError{what: named(file) + " holds no task", remedy: "write one object, or an array of them"}
	}
	body, err := json.Marshal(map[string]any{"tasks": list})
	return body, true, err
}

func named(file string) string {
	if file == "-" {
		return "standard input"
	}
	return file
}

// one is the task that the flags describe.
func (f *submitFlags) one(cmd *cobra.Command, c *cli) (json.RawMessage, error) {
	if f.spec.Plugin == "" {
		return nil, &usageError{command: cmd.CommandPath(), what: "no plugin is named", remedy: "pass --plugin, or a file with --file; `berth plugin list` shows what there is"}
	}
	if f.payload != "" {
		raw, err := f.payloadJSON(c)
		if err != nil {
			return nil, err
		}
		f.spec.Payload = raw
	}
	if f.notBefore != "" {
		at, err := c.instant(f.notBefore)
		if err != nil {
			return nil, err
		}
		f.spec.NotBefore = at
	}
	for _, arg := range f.inputs {
		in, err := inputOf(arg)
		if err != nil {
			return nil, err
		}
		f.files = append(f.files, in)
		f.spec.Inputs = append(f.spec.Inputs, client.InputUse{Name: in.name, Digest: in.digest})
	}
	f.spec.RunTimeoutSeconds, f.spec.QueueTimeoutSeconds = f.run.Seconds(), f.queue.Seconds()
	var retry client.RetrySpec
	if cmd.Flags().Changed("max-attempts") {
		retry.MaxAttempts, f.spec.Retry = &f.maxAttempts, &retry
	}
	if cmd.Flags().Changed("retry-safe") {
		retry.RetrySafe, f.spec.Retry = &f.retrySafe, &retry
	}
	return json.Marshal(f.spec)
}

func (f *submitFlags) payloadJSON(c *cli) (json.RawMessage, error) {
	raw, where := []byte(f.payload), "--payload"
	if name, ok := strings.CutPrefix(f.payload, "@"); ok || f.payload == "-" {
		if !ok {
			name = "-"
		}
		var err error
		if raw, err = c.read(name); err != nil {
			return nil, err
		}
		where = named(name)
	}
	if !json.Valid(raw) {
		return nil, &usageError{what: where + " is not JSON", remedy: `write for example --payload '{"command": ["true"]}', or --payload @file.json`}
	}
	return raw, nil
}

// instant reads a time, or a duration from now.
func (c *cli) instant(s string) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return c.now().Add(d).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, &usageError{what: fmt.Sprintf("%q is no time", s), remedy: "write for example 2026-12-24T18:00:00Z, or 10m"}
	}
	return t.UTC(), nil
}

// read reads a file, or standard input for -.
func (c *cli) read(name string) ([]byte, error) {
	r := c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, &remedyError{what: "cannot read " + name, remedy: "check the path"}
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, &remedyError{what: "cannot read " + named(name), remedy: "check the path"}
	}
	if len(b) > maxFile {
		return nil, &remedyError{what: named(name) + " is larger than 8 MiB", remedy: "submit it in parts"}
	}
	return b, nil
}
