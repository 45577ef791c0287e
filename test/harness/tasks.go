package harness

import (
	"context"
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
)

// Payload encodes a payload.
func Payload(tb testing.TB, v any) json.RawMessage {
	tb.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// Shell is a process.run of a shell script.
func Shell(tb testing.TB, script string) client.TaskSpec {
	tb.Helper()
	return client.TaskSpec{Plugin: "process.run", Payload: Payload(tb, map[string]any{"command": []string{"sh", "-c", script}})}
}

// Submit submits a task and fails the test where it is refused.
func (c *Cluster) Submit(tb testing.TB, spec client.TaskSpec) client.Task {
	tb.Helper()
	return Submit(tb, c.Client, spec, client.SubmitOptions{})
}

// Submit submits a task by any client.
func Submit(tb testing.TB, cl *client.Client, spec client.TaskSpec, o client.SubmitOptions) client.Task {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	task, err := cl.SubmitTask(ctx, spec, o)
	if err != nil {
		tb.Fatalf("submit: %v", err)
	}
	return task
}

// Finished waits until the task is finished.
func Finished(tb testing.TB, cl *client.Client, id string, within time.Duration) client.Task {
	tb.Helper()
	var last client.Task
	ok := poll(within, func() bool {
		ctx, cancel := context.WithTimeout(tb.Context(), Patience)
		defer cancel()
		var err error
		last, err = cl.GetTask(ctx, id, 10*time.Second)
		return err == nil && !last.FinishedAt.IsZero()
	})
	if !ok {
		tb.Fatalf("task %s is %q after %v, not finished", id, last.State, within)
	}
	return last
}

// AwaitState waits until the task is in the state.
func AwaitState(tb testing.TB, cl *client.Client, id string, state client.TaskState, within time.Duration) client.Task {
	tb.Helper()
	var last client.Task
	ok := poll(within, func() bool {
		last = Task(tb, cl, id)
		return last.State == state
	})
	if !ok {
		tb.Fatalf("task %s is %q (%s) after %v, want %q", id, last.State, last.Reason, within, state)
	}
	return last
}

// Task gets a task.
func Task(tb testing.TB, cl *client.Client, id string) client.Task {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	task, err := cl.GetTask(ctx, id, 0)
	if err != nil {
		tb.Fatalf("get task %s: %v", id, err)
	}
	return task
}

// Attempts lists a task's attempts.
func Attempts(tb testing.TB, cl *client.Client, id string) []client.Attempt {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	out, err := cl.ListAttempts(ctx, id)
	if err != nil {
		tb.Fatalf("attempts of %s: %v", id, err)
	}
	return out
}

// Artifact downloads an artifact.
func Artifact(tb testing.TB, cl *client.Client, id string, number int, name string) []byte {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	r, err := cl.Artifact(ctx, id, number, name)
	if err != nil {
		tb.Fatalf("artifact %s of %s: %v", name, id, err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
