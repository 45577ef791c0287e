package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"strings"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/demo"
)

// work is what the operator has done by it, through Caddy.
type work struct {
	s     *stack
	api   *client.Client
	tasks []string // in the order of their submission
}

// demoURL is where Caddy serves the demo page inside the project.
const demoURL = "http://caddy:7780/"

// newWork logs in as the first administrator.
func newWork(ctx context.Context, s *stack) (*work, error) {
	password, err := s.adminPassword()
	if err != nil {
		return nil, err
	}
	plain, err := client.New(s.url, nil, client.WithRetryFor(s.patience))
	if err != nil {
		return nil, err
	}
	say("logging in at %s with the first administrator's secret", s.url)
	tokens, err := plain.Login(ctx, "admin", password)
	if err != nil {
		return nil, fmt.Errorf("login: %w", err)
	}
	session, err := client.NewSession(s.url, client.GrantOf(tokens, time.Now()), nil)
	if err != nil {
		return nil, err
	}
	w := &work{s: s}
	w.api, err = client.New(s.url, session, client.WithRetryFor(s.patience))
	return w, err
}

// awaitHosts waits until n hosts have let themselves in and are online.
func (w *work) awaitHosts(ctx context.Context, n int) error {
	return w.s.await(ctx, "hosts", func(ctx context.Context) (bool, string, error) {
		hosts, err := w.api.ListHosts(ctx, client.ListHostsParams{})
		online, names := 0, []string{}
		for _, h := range hosts.Hosts {
			names = append(names, h.Name+" "+string(h.State))
			if h.State == "online" {
				online++
			}
		}
		return online == n && len(hosts.Hosts) == n, strings.Join(names, ", "), err
	})
}

// shell is a task that runs a script of the shell.
func shell(script string) client.TaskSpec {
	payload, err := json.Marshal(map[string]any{"command": []string{"sh", "-c", script}})
	if err != nil {
		panic(err) // strings always encode
	}
	return client.TaskSpec{Plugin: "process.run", Payload: payload}
}

// finish waits for a task's end.
func (w *work) finish(ctx context.Context, id string) (client.Task, error) {
	var task client.Task
	err := w.s.await(ctx, "task "+id, func(ctx context.Context) (bool, string, error) {
		var err error
		task, err = w.api.GetTask(ctx, id, 20*time.Second)
		return err == nil && !task.FinishedAt.IsZero(), "it is " + string(task.State), err
	})
	return task, err
}

// mainJob runs the first task in a browser and one as a process, and looks at
// what they left.
func (w *work) mainJob(ctx context.Context) error {
	if err := w.awaitHosts(ctx, 1); err != nil {
		return err
	}
	say("running a command and a browser on the demo page")
	process, err := w.api.SubmitTask(ctx, shell("echo hello from a container"), client.SubmitOptions{})
	if err != nil {
		return err
	}
	browser, err := w.api.SubmitTask(ctx, client.TaskSpec{
		Name: "first task", Plugin: "browser.script", Selector: "browser=chromium", Payload: demo.FirstTask(demoURL),
	}, client.SubmitOptions{})
	if err != nil {
		return err
	}
	for _, id := range []string{process.ID, browser.ID} {
		task, err := w.finish(ctx, id)
		if err != nil {
			return err
		}
		if task.State != client.TaskStateSucceeded {
			return fmt.Errorf("%s is %s: %s", task.Plugin, task.State, task.Reason)
		}
		w.tasks = append(w.tasks, id)
	}
	log, err := w.log(ctx, process.ID, 1)
	if err != nil || !strings.Contains(log, "hello from a container") {
		return errors.Join(err, errors.New("the command's log does not hold what it wrote"))
	}
	picture, err := w.api.Artifact(ctx, browser.ID, browserAttempt, demo.ScreenshotName)
	if err != nil {
		return err
	}
	defer func() { _ = picture.Close() }()
	img, err := png.Decode(picture)
	if err != nil {
		return fmt.Errorf("the screenshot is no PNG: %w", err)
	}
	say("  the browser left a picture of %d x %d", img.Bounds().Dx(), img.Bounds().Dy())
	return nil
}

// browserAttempt is the one that succeeds where nothing is killed.
const browserAttempt = 1

func (w *work) log(ctx context.Context, id string, number int) (string, error) {
	var text strings.Builder
	for {
		piece, err := w.api.ReadLog(ctx, id, number, int64(text.Len()), false)
		if err != nil || len(piece.Bytes) == 0 {
			return text.String(), err
		}
		text.Write(piece.Bytes)
	}
}

// submit submits n tasks that take so many seconds and write which they are.
func (w *work) submit(ctx context.Context, n, seconds int) error {
	tries := 20 // many processes die here
	quick := 1.0
	var specs []client.TaskSpec
	for range n {
		spec := shell(fmt.Sprintf("sleep %d; echo task %d is done", seconds, len(w.tasks)+len(specs)))
		spec.Retry = &client.RetrySpec{MaxAttempts: &tries, BackoffInitialSeconds: &quick}
		specs = append(specs, spec)
	}
	tasks, err := w.api.SubmitTasks(ctx, specs, client.SubmitOptions{})
	for _, t := range tasks {
		w.tasks = append(w.tasks, t.ID)
	}
	return err
}

// keepBusy sees to it that tasks run, submitting more where few are left.
func (w *work) keepBusy(ctx context.Context, seconds int) error {
	left := 0
	for _, state := range []client.TaskState{client.TaskStateQueued, client.TaskStateRunning} {
		list, err := w.api.ListTasks(ctx, client.ListTasksParams{State: []client.TaskState{state}, PageSize: 100})
		if err != nil {
			return err
		}
		left += len(list.Tasks)
	}
	if left >= 20 {
		return nil
	}
	say("submitting 20 tasks more, so that the rest of the kills happen under load")
	return w.submit(ctx, 20, seconds)
}
