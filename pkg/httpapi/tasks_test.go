package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/pkg/store"
)

var (
	taskFilter = store.TaskFilter{}
	page       = store.Page{}
)

// engines runs a test on both engines.
func engines(t *testing.T, test func(t *testing.T, s *apitest.Server)) {
	t.Run("sqlite", func(t *testing.T) { test(t, apitest.OnSQLite(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, apitest.OnPostgres(t)) })
}

func work(do string) bclient.TaskSpec {
	return bclient.TaskSpec{Plugin: apitest.Plugin, Payload: json.RawMessage(`{"do":"` + do + `"}`)}
}

func submit(t *testing.T, c *bclient.Client, spec bclient.TaskSpec) bclient.Task {
	t.Helper()
	task, err := c.SubmitTask(t.Context(), spec, bclient.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func TestASubmittedTaskIsReadAsItWasWritten(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("sub", berth.RoleSubmitter)
		tries, jitter, safe := 5, 0.0, false
		on := []bclient.RetriedOutcome{bclient.RetriedOutcomeTimedOut}
		spec := bclient.TaskSpec{
			Name: "  a name  ", Plugin: apitest.Plugin, PluginVersion: "^1.0", Payload: json.RawMessage(`{"do": "x", "times": 2}`),
			Selector: "os in (linux, darwin),browser=chromium", Priority: 7, Tags: []string{"b", "a", "b"},
			NotBefore: time.Now().Add(time.Hour).UTC().Truncate(time.Second), RunTimeoutSeconds: 90.5, QueueTimeoutSeconds: 3600,
			Retry: &bclient.RetrySpec{MaxAttempts: &tries, BackoffJitter: &jitter, RetrySafe: &safe, On: &on},
		}
		sent, err := c.SubmitTask(t.Context(), spec, bclient.SubmitOptions{CorrelationID: "order 66/a"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.GetTask(t.Context(), sent.ID, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := bclient.Task{
			ID: sent.ID, Name: "a name", Pool: "default", State: "scheduled", Plugin: apitest.Plugin, PluginVersion: got.PluginVersion,
			Selector: "browser=chromium,os in (darwin,linux)", Priority: 7, Tags: []string{"a", "b"}, Payload: got.Payload,
			NotBefore: spec.NotBefore, DueAt: spec.NotBefore, RunTimeoutSeconds: 90.5, QueueTimeoutSeconds: 3600,
			GiveUpAt: spec.NotBefore.Add(time.Hour),
			Retry: bclient.Retry{
				MaxAttempts: 5, On: on, BackoffInitialSeconds: 10, BackoffFactor: 2, BackoffMaxSeconds: 600, BackoffJitter: 0, RetrySafe: false,
			},
			MaxTries: 5, Submitter: got.Submitter, CorrelationID: "order66a", SubmittedAt: got.SubmittedAt,
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("task differs (-want +got):\n%s", d)
		}
		if d := cmp.Diff(map[string]any{"do": "x", "times": 2.0}, decoded(t, got.Payload)); d != "" {
			t.Errorf("payload differs: %s", d)
		}
		list, err := c.ListTasks(t.Context(), bclient.ListTasksParams{})
		if err != nil || len(list.Tasks) != 1 || list.Tasks[0].Payload != nil {
			t.Errorf("list: %+v, %v; want the task without its payload", list, err)
		}
	})
}

func decoded(t *testing.T, raw []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v: %q", err, raw)
	}
	return v
}

func TestTheSameIdempotencyKeyGivesTheSameTask(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.User("sub", berth.RoleSubmitter)
		s.User("other", berth.RoleSubmitter)
		token := s.Token("sub")
		key := []string{"Idempotency-Key", "k-1"}
		id := func(a answer) string {
			var task struct{ ID string }
			if err := json.Unmarshal([]byte(a.body), &task); err != nil || a.StatusCode != http.StatusCreated {
				t.Fatalf("status %d: %s", a.StatusCode, a.body)
			}
			return task.ID
		}
		first := send(t, s, "POST", "/api/v1/tasks", token, `{"plugin":"work","payload":{"do":"x","times":1}}`, key...)
		// Another spelling of the same body.
		again := send(t, s, "POST", "/api/v1/tasks", token, `{ "payload": {"times":1, "do":"\u0078"}, "plugin":"work", "priority":0}`, key...)
		if id(first) != id(again) {
			t.Errorf("the repeat made another task")
		}
		if f, a := first.Header.Get("Berth-Replayed"), again.Header.Get("Berth-Replayed"); f != "false" || a != "true" {
			t.Errorf("Berth-Replayed is %q, then %q", f, a)
		}
		other := send(t, s, "POST", "/api/v1/tasks", token, `{"plugin":"work","payload":{"do":"y"}}`, key...)
		if p := other.problem(t); other.StatusCode != 422 || p.Code != "idempotency_mismatch" {
			t.Errorf("another body: %d %s", other.StatusCode, other.body)
		}
		theirs := send(t, s, "POST", "/api/v1/tasks", s.Token("other"), `{"plugin":"work","payload":{"do":"x","times":1}}`, key...)
		if id(theirs) == id(first) {
			t.Errorf("another principal's key gave this one's task")
		}
		// What was accepted stays so, also where the same is refused today.
		s.User("boss", berth.RoleAdmin)
		if a := send(t, s, "POST", "/api/v1/plugins/work/1.2.0/disable", s.Token("boss"), ""); a.StatusCode != http.StatusOK {
			t.Fatalf("disable: %d %s", a.StatusCode, a.body)
		}
		late := send(t, s, "POST", "/api/v1/tasks", token, `{"plugin":"work","payload":{"do":"x","times":1}}`, key...)
		if id(late) != id(first) || late.Header.Get("Berth-Replayed") != "true" {
			t.Errorf("after the plugin was disabled: %d %s", late.StatusCode, late.body)
		}
		for what, c := range map[string]struct{ by, body, key, code string }{
			"another body":      {token, `{"plugin":"work","payload":{"do":"y"}}`, "k-1", "idempotency_mismatch"},
			"another key":       {token, `{"plugin":"work","payload":{"do":"x","times":1}}`, "k-2", "invalid"},
			"another principal": {s.Token("boss"), `{"plugin":"work","payload":{"do":"x","times":1}}`, "k-1", "invalid"},
		} {
			a := send(t, s, "POST", "/api/v1/tasks", c.by, c.body, "Idempotency-Key", c.key)
			if p := a.problem(t); a.StatusCode != 422 || p.Code != c.code {
				t.Errorf("%s, while the plugin is disabled: %d %s", what, a.StatusCode, a.body)
			}
		}
	})
}

func TestABatchIsStoredInItsOrder(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	specs := make([]bclient.TaskSpec, 1000)
	for i := range specs {
		specs[i] = work("x")
		specs[i].Name = fmt.Sprintf("n%03d", i)
	}
	tasks, err := c.SubmitTasks(t.Context(), specs, bclient.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, task := range tasks {
		if task.Name != specs[i].Name {
			t.Fatalf("task %d is %s", i, task.Name)
		}
	}
	// All pages, newest first.
	var names []string
	p := bclient.ListTasksParams{PageSize: 200, NamePrefix: "n"}
	for {
		l, err := c.ListTasks(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range l.Tasks {
			names = append(names, task.Name)
		}
		if p.PageToken = l.NextPageToken; p.PageToken == "" {
			break
		}
	}
	if len(names) != 1000 || names[0] != "n999" || !slices.IsSortedFunc(names, func(a, b string) int { return strings.Compare(b, a) }) {
		t.Errorf("%d names, first %v", len(names), names[:min(3, len(names))])
	}
}

func TestWhoSeesAndChangesWhichTask(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		mine, other := s.As("mine", berth.RoleSubmitter), s.As("other", berth.RoleSubmitter)
		viewer, operator := s.As("viewer", berth.RoleViewer), s.As("operator", berth.RoleOperator)
		both := s.As("both", berth.RoleViewer, berth.RoleSubmitter)
		task := submit(t, mine, work("x"))
		code := func(err error) string {
			var p *bclient.Problem
			if errors.As(err, &p) {
				return p.Code
			}
			return fmt.Sprint(err)
		}
		for _, tc := range []struct {
			who  string
			c    *bclient.Client
			read string
		}{{"the submitter", mine, "<nil>"}, {"another", other, "not_found"}, {"a viewer", viewer, "<nil>"}, {"an operator", operator, "<nil>"}, {"both", both, "<nil>"}} {
			_, err := tc.c.GetTask(t.Context(), task.ID, 0)
			_, err2 := tc.c.ListAttempts(t.Context(), task.ID)
			_, err3 := tc.c.ListArtifacts(t.Context(), task.ID)
			_, err4 := tc.c.ListTaskEvents(t.Context(), task.ID, bclient.ListTaskEventsParams{})
			for i, err := range []error{err, err2, err3, err4} {
				if code(err) != tc.read {
					t.Errorf("%s reads (%d): %s, want %s", tc.who, i, code(err), tc.read)
				}
			}
			l, err := tc.c.ListTasks(t.Context(), bclient.ListTasksParams{})
			if want := tc.read == "<nil>"; err != nil || len(l.Tasks) > 0 != want {
				t.Errorf("%s lists %d tasks, %v", tc.who, len(l.Tasks), err)
			}
		}
		for who, tc := range map[string]struct {
			c    *bclient.Client
			want string
		}{"another": {other, "not_found"}, "a viewer": {viewer, "forbidden"}, "both": {both, "forbidden"}} {
			if _, err := tc.c.CancelTask(t.Context(), task.ID); code(err) != tc.want {
				t.Errorf("%s cancels: %s, want %s", who, code(err), tc.want)
			}
			if _, err := tc.c.RetryTask(t.Context(), task.ID, 1); code(err) != tc.want {
				t.Errorf("%s retries: %s, want %s", who, code(err), tc.want)
			}
		}
		if got, err := operator.CancelTask(t.Context(), task.ID); err != nil || got.State != "cancelled" {
			t.Errorf("the operator cancels: %s, %v", got.State, err)
		}
		if _, err := mine.RetryTask(t.Context(), task.ID, 1); code(err) != "wrong_state" {
			t.Errorf("a cancelled task is retried: %s", code(err))
		}
	})
}

func TestTheLifeOfATask(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("sub", berth.RoleSubmitter)
		agent := s.Agent("lab-1", map[string]string{"os": "linux"})
		spec := work("x")
		one := 1
		spec.Retry = &bclient.RetrySpec{MaxAttempts: &one}
		task, err := c.SubmitTask(t.Context(), spec, bclient.SubmitOptions{CorrelationID: "corr-1"})
		if err != nil {
			t.Fatal(err)
		}
		first := agent.Run(task.ID)
		first.Log("no\n")
		first.Complete(berth.OutcomeFailed, "it said no", "")
		if got, _ := c.GetTask(t.Context(), task.ID, 0); got.State != "dead_letter" || got.Reason != berth.ReasonNoTriesLeft || got.Tries != 1 {
			t.Fatalf("after the failure: %+v", got)
		}
		if got, err := c.RetryTask(t.Context(), task.ID, 2); err != nil || got.State != "queued" || got.MaxTries != 3 {
			t.Fatalf("after the retry: %+v, %v", got, err)
		}

		second := agent.Run(task.ID)
		if got, _ := c.GetTask(t.Context(), task.ID, 0); got.State != "running" || got.DeviceID != string(agent.Devices[0]) {
			t.Errorf("while it runs: %+v", got)
		}
		if d, err := c.GetDevice(t.Context(), string(agent.Devices[0])); err != nil || d.Occupancy != "held" || d.TaskID != "" {
			t.Errorf("the device tells a submitter who holds it: %+v, %v", d, err)
		}
		if _, err := c.RetryTask(t.Context(), task.ID, 1); !bclient.HasCode(err, "wrong_state") {
			t.Errorf("a running task is retried: %v", err)
		}
		second.Log("hello ")
		second.Log("world\n")
		second.Artifact("page.png", "image/png", "PNG")
		second.Artifact("evil.html", "text/html", "<script>alert(1)</script>")

		waited := make(chan bclient.Task, 1)
		go func() {
			got, _ := c.GetTask(t.Context(), task.ID, 20*time.Second)
			waited <- got
		}()
		second.Complete(berth.OutcomeSucceeded, "", `{"answer": 42}`)
		got := <-waited
		if got.State != "succeeded" || got.Tries != 2 {
			t.Errorf("the wait gave %+v", got)
		}
		if d := cmp.Diff(map[string]any{"answer": 42.0}, decoded(t, got.Result)); d != "" {
			t.Errorf("result: %s", d)
		}

		attempts, err := c.ListAttempts(t.Context(), task.ID)
		if err != nil || len(attempts) != 2 || attempts[0].Outcome != "failed" || attempts[0].Message != "it said no" || attempts[1].Outcome != "succeeded" ||
			attempts[1].DeviceName != "slot a" || attempts[1].HostName != "lab-1" {
			t.Errorf("attempts: %+v, %v", attempts, err)
		}
		for offset, want := range map[int64]string{0: "hello world\n", 3: "lo world\n", 6: "world\n", 12: ""} {
			piece, err := c.ReadLog(t.Context(), task.ID, 2, offset, true)
			if err != nil || string(piece.Bytes) != want || piece.Next != 12 || !piece.Ended {
				t.Errorf("log from %d: %q, %+v, %v", offset, piece.Bytes, piece, err)
			}
		}
		if _, err := c.ReadLog(t.Context(), task.ID, 9, 0, false); !bclient.HasCode(err, "not_found") {
			t.Errorf("log of no attempt: %v", err)
		}
		events, err := c.ListTaskEvents(t.Context(), task.ID, bclient.ListTaskEventsParams{})
		if err != nil {
			t.Fatal(err)
		}
		var actions []string
		for _, e := range events.Events {
			actions = append(actions, strings.TrimPrefix(e.Action, "task."))
		}
		want := []string{"submitted", "assigned", "claimed", "started", "failed", "retried_by_hand", "assigned", "claimed", "started", "completed"}
		if d := cmp.Diff(want, actions); d != "" {
			t.Errorf("events (-want +got):\n%s", d)
		}
		logged := s.Logs.FilterMessage("submitted").All()
		if len(logged) != 1 || logged[0].ContextMap()["task_id"] != task.ID || logged[0].ContextMap()["correlation_id"] != "corr-1" {
			t.Errorf("the submit was logged as %v", logged)
		}
	})
}

func TestARunningTaskIsAskedToStop(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	agent := s.Agent("lab-1", map[string]string{"os": "linux"})
	task := submit(t, c, work("x"))
	attempt := agent.Run(task.ID)
	for range 2 { // again is no error
		if got, err := c.CancelTask(t.Context(), task.ID); err != nil || got.State != "running" || !got.CancelRequested {
			t.Fatalf("cancel: %+v, %v", got, err)
		}
	}
	attempt.Complete(berth.OutcomeCancelled, "", "")
	if got, _ := c.GetTask(t.Context(), task.ID, 0); got.State != "cancelled" {
		t.Errorf("state is %s", got.State)
	}
}

func TestArtifactsAreServedSoThatNoBrowserRunsThem(t *testing.T) {
	s := apitest.OnSQLite(t)
	s.User("sub", berth.RoleSubmitter)
	token := s.Token("sub")
	task := submit(t, s.Client(token), work("x"))
	attempt := s.Agent("lab-1", map[string]string{"os": "linux"}).Run(task.ID)
	for name, tc := range map[string]struct{ stored, served, disposition string }{
		"page.png":  {"image/png", "image/png", "attachment; filename=page.png"},
		"tree.json": {"application/json", "application/json; charset=utf-8", "attachment; filename=tree.json"},
		"evil.html": {"text/html", "application/octet-stream", "attachment; filename=evil.html"},
		"evil.svg":  {"image/svg+xml", "application/octet-stream", "attachment; filename=evil.svg"},
		"odd.bin":   {"not a type", "application/octet-stream", "attachment; filename=odd.bin"},
		"clip.mp4":  {"video/mp4", "video/mp4", "attachment; filename=clip.mp4"},
	} {
		attempt.Artifact(name, tc.stored, "<script>"+name)
		a := send(t, s, "GET", "/api/v1/tasks/"+task.ID+"/attempts/1/artifacts/"+name, token, "")
		if a.StatusCode != http.StatusOK || a.body != "<script>"+name {
			t.Errorf("%s: status %d, %q", name, a.StatusCode, a.body)
		}
		for header, want := range map[string]string{
			"Content-Type": tc.served, "Content-Disposition": tc.disposition, "X-Content-Type-Options": "nosniff",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
		} {
			if got := a.Header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
		if !strings.HasPrefix(a.Header.Get("Digest"), "sha-256=") {
			t.Errorf("%s: Digest is %q", name, a.Header.Get("Digest"))
		}
	}
	a := send(t, s, "GET", "/api/v1/tasks/"+task.ID+"/attempts/1/artifacts/none.txt", token, "")
	if a.StatusCode != http.StatusNotFound {
		t.Errorf("no such artifact: %d", a.StatusCode)
	}
}

func TestFollowingALogWaitsForItsBytes(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	task := submit(t, c, work("x"))
	attempt := s.Agent("lab-1", map[string]string{"os": "linux"}).Run(task.ID)
	if piece, err := c.ReadLog(t.Context(), task.ID, 1, 0, false); err != nil || len(piece.Bytes) > 0 || piece.Ended {
		t.Fatalf("without follow: %+v, %v", piece, err)
	}
	got := make(chan bclient.LogPiece, 1)
	go func() {
		piece, _ := c.ReadLog(t.Context(), task.ID, 1, 0, true)
		got <- piece
	}()
	attempt.Log("at last\n")
	if piece := <-got; string(piece.Bytes) != "at last\n" || piece.Next != 8 || piece.Ended {
		t.Errorf("piece: %q %+v", piece.Bytes, piece)
	}
}

func TestDrainingWakesLongPolls(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	task := submit(t, c, work("x"))
	got := make(chan bclient.Task, 1)
	began := time.Now()
	go func() {
		task, _ := c.GetTask(t.Context(), task.ID, 20*time.Second)
		got <- task
	}()
	s.Drain.Begin()
	if task := <-got; task.State != "queued" || time.Since(began) > 10*time.Second {
		t.Errorf("state %s after %v", task.State, time.Since(began))
	}
}

func TestSubmitWaitsForTheEnd(t *testing.T) {
	s := apitest.OnSQLite(t)
	c := s.As("sub", berth.RoleSubmitter)
	agent := s.Agent("lab-1", map[string]string{"os": "linux"})
	got := make(chan bclient.Task, 1)
	go func() {
		task, _ := c.SubmitTask(t.Context(), work("x"), bclient.SubmitOptions{Wait: 20 * time.Second})
		got <- task
	}()
	agent.Run(onlyTask(t, s)).Complete(berth.OutcomeSucceeded, "", "")
	if task := <-got; task.State != "succeeded" {
		t.Errorf("state is %s", task.State)
	}
}

// onlyTask waits for the one task there is.
func onlyTask(t *testing.T, s *apitest.Server) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	hint, end := s.Store.Subscribe(store.HintTask, "")
	defer end()
	for {
		tasks, _, err := s.Store.ListTasks(ctx, berth.Scope{All: true}, taskFilter, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(tasks) == 1 {
			return string(tasks[0].ID)
		}
		select {
		case <-hint:
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("no task came")
		}
	}
}

// What is in payloads, results, messages, logs, artifacts, passwords and tokens
// is in no log line and in no error.
func TestNoContentIsLogged(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.User("sub", berth.RoleSubmitter)
		tokens, err := s.Client("").Login(t.Context(), "sub", apitest.Password)
		if err != nil {
			t.Fatal(err)
		}
		c := s.Client(tokens.AccessToken)
		task := submit(t, c, work(mark))
		attempt := s.Agent("lab-1", map[string]string{"os": "linux"}).Run(task.ID)
		attempt.Log(mark)
		attempt.Artifact("page.txt", "text/plain", mark)
		attempt.Complete(berth.OutcomeFailed, mark, `{"x":"`+mark+`"}`)
		for _, path := range []string{"", "/attempts", "/artifacts", "/events", "/attempts/1/log", "/attempts/1/artifacts/page.txt", "/attempts/1/artifacts/" + mark} {
			send(t, s, "GET", "/api/v1/tasks/"+task.ID+path, tokens.AccessToken, "")
		}
		for _, body := range []string{
			`{"plugin":"work","payload":{"do":["` + mark + `"]}}`, `{"plugin":"work","payload":{"` + "times" + `":"` + mark + `"}}`,
			`{"plugin":"work","payload":{"do":"` + mark, `{"name":"` + mark + `"}`,
		} {
			if a := send(t, s, "POST", "/api/v1/tasks", tokens.AccessToken, body); strings.Contains(a.body, mark) {
				t.Errorf("an error repeats content: %s", a.body)
			}
		}
		send(t, s, "POST", "/api/v1/auth/login", "", `{"name":"sub","password":"`+mark+`"}`)
		send(t, s, "POST", "/api/v1/auth/login", "", `{"name":"`+mark+`","password":"x"}`)
		send(t, s, "POST", "/api/v1/auth/refresh", "", `{"refresh_token":"`+mark+`"}`)
		send(t, s, "GET", "/api/v1/tasks?name_prefix="+mark, mark, "")
		if _, err := s.Client("").Refresh(t.Context(), tokens.RefreshToken); err != nil {
			t.Fatal(err)
		}
		s.AssertSilentAbout(mark, apitest.Password, tokens.AccessToken, tokens.RefreshToken)
		if s.Logs.FilterMessage("request").Len() < 10 {
			t.Errorf("the requests were not logged at all")
		}
	})
}
