package e2e

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/protocol"
	"github.com/berth-dev/berth/test/harness"
)

// TestSIGTERMEndsLongPolls: a claim, the following of a log, and waits for a
// task are open; told to stop, the API answers them all and exits with 0, long
// before they would have ended by themselves.
func TestSIGTERMEndsLongPolls(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, engine harness.Engine) {
		c := harness.NewCluster(t, harness.Options{Engine: engine})
		w := c.Enrol(t, "polls")
		w.Sync(t, map[string]string{"slot": "a"})
		task := c.Submit(t, harness.Shell(t, "true"))
		a := w.Claim(t, 1)[0]
		w.StartAttempt(t, a)

		begun := time.Now()
		written, replies := make(chan struct{}, 4), make(chan reply, 4)
		open := func(call func(ctx context.Context) (int, []byte, error)) {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				WroteRequest: func(httptrace.WroteRequestInfo) { written <- struct{}{} },
			})
			go func() {
				status, body, err := call(ctx)
				replies <- reply{status, body, err}
			}()
		}
		get := func(path string) func(ctx context.Context) (int, []byte, error) {
			return func(ctx context.Context) (int, []byte, error) {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.APIs[0].URL()+path, nil)
				if err != nil {
					return 0, nil, err
				}
				return do(c, req, "")
			}
		}
		open(get("/api/v1/tasks/" + task.ID + "?wait=25"))
		open(get("/api/v1/tasks/" + task.ID + "/attempts/1/log?follow=true"))
		open(func(ctx context.Context) (int, []byte, error) {
			spec := harness.Shell(t, "true")
			spec.Selector = "slot=nowhere"
			return userCall(ctx, c, c.APIs[0].URL(), "/api/v1/tasks?wait=25", spec, "")
		})
		open(func(ctx context.Context) (int, []byte, error) {
			return w.Call(ctx, http.MethodPost, protocol.PathClaims, protocol.ClaimRequest{ClaimID: newUUID(), Wait: protocol.MillisOf(protocol.MaxClaimWait), Max: 1})
		})
		for range 4 {
			<-written
		}
		// The submit is stored: by then its request waits, and the others came before.
		harness.Eventually(t, harness.Patience, "the waiting submit is stored", func() bool { return len(c.Query(t, "SELECT 1 FROM tasks")) == 2 })
		select {
		case r := <-replies:
			t.Fatalf("a poll was answered before its time: %d %s %v", r.status, r.body, r.err)
		default:
		}
		api := c.APIs[0]
		api.Terminate()
		api.MustExit(t, exitBound, 0)
		for range 4 {
			if r := <-replies; r.err != nil || (r.status/100 != 2 && r.status != http.StatusServiceUnavailable) {
				t.Errorf("a poll ended with %d %s %v", r.status, r.body, r.err)
			}
		}
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %v: the polls ended by themselves", took)
		}
		// What runs goes on: the attempt is as it was.
		api.Start(t)
		api.AwaitReady(t)
		if got := harness.Task(t, c.Client, task.ID); got.State != client.TaskStateRunning {
			t.Errorf("the running task is %s", got.State)
		}
	})
}
