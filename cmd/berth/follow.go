package main

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/pkg/client"
)

// followStep is how long one look at a task waits for its end. Between the
// looks its other states are seen.
const followStep = time.Second

// follow says each change of the task on stderr until it is finished.
func (c *cli) follow(ctx context.Context, api *client.Client, t client.Task) (client.Task, error) {
	said := ""
	for {
		line, err := c.change(ctx, api, t)
		if err != nil {
			return t, err
		}
		if line != said {
			c.say("%s  %s", c.now().Local().Format("15:04:05"), line)
			said = line
		}
		if finished(t.State) {
			return t, nil
		}
		if t, err = api.GetTask(ctx, t.ID, followStep); err != nil {
			return t, err
		}
	}
}

// waitFor waits for a task's end in silence.
func (c *cli) waitFor(ctx context.Context, api *client.Client, t client.Task) (client.Task, error) {
	var err error
	for !finished(t.State) {
		if t, err = api.GetTask(ctx, t.ID, 25*time.Second); err != nil {
			return t, err
		}
	}
	return t, nil
}

// change is a task's state in one line.
func (c *cli) change(ctx context.Context, api *client.Client, t client.Task) (string, error) {
	switch t.State {
	case client.TaskStateScheduled:
		return "scheduled, not before " + stamp(t.NotBefore), nil
	case client.TaskStateFailed:
		return fmt.Sprintf("failed, try %d of %d at %s", t.Tries+1, t.MaxTries, t.DueAt.Local().Format("15:04:05")), nil
	case client.TaskStateAssigned, client.TaskStateClaimed, client.TaskStateRunning:
		a, err := lastAttempt(ctx, api, t.ID)
		if err != nil {
			return "", err
		}
		line := string(t.State)
		if a != nil {
			line += " on " + printable(a.DeviceName)
			if a.Number > 1 {
				line += fmt.Sprintf(", attempt %d", a.Number)
			}
		}
		if t.CancelRequested {
			line += ", asked to stop"
		}
		return line, nil
	}
	if why := reason(t); why != "" {
		return fmt.Sprintf("%s (%s)", t.State, why), nil
	}
	return string(t.State), nil
}

// showEnd prints a finished task, downloads what it left when dir is not "",
// and turns what is no success into the exit code that says so.
func (c *cli) showEnd(ctx context.Context, api *client.Client, t client.Task, dir string) error {
	artifacts, err := api.ListArtifacts(ctx, t.ID)
	if err != nil {
		return err
	}
	if c.json() {
		err = c.printJSON(t)
	} else {
		err = c.showResult(ctx, api, t)
	}
	if err != nil {
		return err
	}
	if n := len(artifacts); dir != "" {
		err = c.download(ctx, api, t.ID, artifacts, dir)
	} else if n > 0 && !c.json() {
		c.say("next: berth task artifacts %s --output-dir .   (%s)", t.ID, plural(n, "file"))
	}
	if err != nil {
		return err
	}
	if t.State != client.TaskStateSucceeded {
		return &outcomeError{state: t.State}
	}
	return nil
}

func (c *cli) showResult(ctx context.Context, api *client.Client, t client.Task) error {
	a, err := lastAttempt(ctx, api, t.ID)
	if err != nil {
		return err
	}
	if a != nil && a.Message != "" {
		c.say("%s", printable(a.Message))
	}
	if len(t.Result) > 0 {
		if err := c.printJSON(t.Result); err != nil {
			return err
		}
	}
	return nil
}

func lastAttempt(ctx context.Context, api *client.Client, id string) (*client.Attempt, error) {
	attempts, err := api.ListAttempts(ctx, id)
	if err != nil || len(attempts) == 0 {
		return nil, err
	}
	return &attempts[len(attempts)-1], nil
}

func finished(s client.TaskState) bool {
	return s == client.TaskStateSucceeded || s == client.TaskStateDeadLetter || s == client.TaskStateCancelled
}
