package httpapi_test

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

// died brings a new task to dead_letter.
func died(t *testing.T, s *apitest.Server, c *bclient.Client, agent *apitest.Agent, message string) bclient.Task {
	t.Helper()
	spec := work("x")
	one := 1
	spec.Retry, spec.Tags = &bclient.RetrySpec{MaxAttempts: &one}, []string{"nightly"}
	task, err := c.SubmitTask(t.Context(), spec, bclient.SubmitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	agent.Run(task.ID).Complete(berth.OutcomeFailed, message, "")
	if task, err = c.GetTask(t.Context(), task.ID, 0); err != nil || task.State != "dead_letter" || task.Cause == "" {
		t.Fatalf("%+v, %v", task, err)
	}
	return task
}

func TestDeadLettersAreRetriedByCause(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("ops", berth.RoleOperator)
		agent := s.Agent("lab-1", map[string]string{"os": "linux"})
		one, two := died(t, s, c, agent, "no button 17"), died(t, s, c, agent, "no button 18")
		other := died(t, s, c, agent, "no window")
		list, err := c.ListDeadLetters(t.Context(), bclient.ListDeadLettersParams{})
		if err != nil || len(list.DeadLetters) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, d := range list.DeadLetters {
			if d.Cause == one.Cause && (d.Count != 2 || d.More || d.Message != "no button <n>" || d.NewestTaskID != two.ID || d.NewestAt.IsZero() || d.Since.IsZero()) {
				t.Errorf("dead letters: %+v", d)
			}
		}
		tasks, err := c.ListTasks(t.Context(), bclient.ListTasksParams{Cause: one.Cause})
		if err != nil || len(tasks.Tasks) != 2 || tasks.Tasks[0].ID != two.ID {
			t.Errorf("tasks of the cause: %+v, %v", tasks, err)
		}
		spec := bclient.BulkSpec{Act: bclient.BulkActRetry, Filter: bclient.BulkFilter{Cause: one.Cause}, AddTries: 2}
		p, err := c.PreviewBulkJob(t.Context(), spec)
		if err != nil || p.Count != 2 || p.More || len(p.Sample) != 2 || len(p.Sample[0].Payload) != 0 {
			t.Errorf("preview: %+v, %v", p, err)
		}
		job, err := c.StartBulkJob(t.Context(), spec)
		if err != nil || job.State != "running" || job.Filter.Cause != one.Cause || job.AddTries != 2 {
			t.Fatalf("job: %+v, %v", job, err)
		}
		if _, err := s.Store.RunBulkPage(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		if job, err = c.GetBulkJob(t.Context(), job.ID); err != nil || job.State != "done" || job.Changed != 2 || job.Refused != 0 {
			t.Errorf("job: %+v, %v", job, err)
		}
		for id, want := range map[string]string{one.ID: "queued", two.ID: "queued", other.ID: "dead_letter"} {
			if got, err := c.GetTask(t.Context(), id, 0); err != nil || string(got.State) != want {
				t.Errorf("%s, not %s: %v", got.State, want, err)
			}
		}
		if again, err := c.StopBulkJob(t.Context(), job.ID); err != nil || again.State != "done" {
			t.Errorf("stop what is done: %+v, %v", again, err)
		}
		jobs, err := c.ListBulkJobs(t.Context(), bclient.ListBulkJobsParams{})
		if err != nil || len(jobs.Jobs) != 1 || jobs.Jobs[0].ID != job.ID {
			t.Errorf("jobs: %+v, %v", jobs, err)
		}
		_, err = c.GetBulkJob(t.Context(), nowhere)
		says(t, "unknown job", err, "not_found")
	})
}

func TestBulkJobsThatMakeNoSense(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("ops", berth.RoleOperator)
		three := 3
		for what, x := range map[string]struct {
			spec  bclient.BulkSpec
			words string
		}{
			"no filter":            {bclient.BulkSpec{Act: bclient.BulkActCancel}, "filter"},
			"a filter and all":     {bclient.BulkSpec{Act: bclient.BulkActCancel, All: true, Filter: bclient.BulkFilter{Tag: "a"}}, "all"},
			"no priority":          {bclient.BulkSpec{Act: bclient.BulkActReprioritise, All: true}, "priority"},
			"a priority":           {bclient.BulkSpec{Act: bclient.BulkActCancel, All: true, Priority: &three}, "priority"},
			"tries":                {bclient.BulkSpec{Act: bclient.BulkActDelete, All: true, AddTries: 3}, "add_tries"},
			"states of another":    {bclient.BulkSpec{Act: bclient.BulkActDelete, Filter: bclient.BulkFilter{State: []bclient.TaskState{"queued"}}}, "filter.state"},
			"the cause of no dead": {bclient.BulkSpec{Act: bclient.BulkActCancel, Filter: bclient.BulkFilter{Cause: strings.Repeat("0", 32)}}, "filter.cause"},
			"an unknown pool":      {bclient.BulkSpec{Act: bclient.BulkActCancel, Filter: bclient.BulkFilter{Pool: "nowhere"}}, "filter.pool"},
		} {
			_, err := c.StartBulkJob(t.Context(), x.spec)
			says(t, what, err, "invalid", x.words)
			_, err = c.PreviewBulkJob(t.Context(), x.spec)
			says(t, what, err, "invalid", x.words)
		}
		_, err := s.As("sub", berth.RoleSubmitter).StartBulkJob(t.Context(), bclient.BulkSpec{Act: bclient.BulkActCancel, All: true})
		says(t, "a submitter", err, "forbidden")
	})
}

func TestARetryEditsThePayload(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("ops", berth.RoleOperator)
		task := died(t, s, c, s.Agent("lab-1", map[string]string{"os": "linux"}), "no")
		_, err := c.RetryTaskWith(t.Context(), task.ID, bclient.RetryRequest{Payload: []byte(`{"do": 7}`)})
		says(t, "a payload that the schema refuses", err, "invalid", "payload.do")
		got, err := c.RetryTaskWith(t.Context(), task.ID, bclient.RetryRequest{Payload: []byte(`{"do": "c0ntent-mark other"}`)})
		if err != nil || got.State != "queued" || !strings.Contains(string(got.Payload), "c0ntent-mark other") {
			t.Fatalf("retry: %+v, %v", got, err)
		}
		trail, err := s.Store.ListAudit(t.Context(), "task", task.ID, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		last := trail[len(trail)-1]
		if !strings.Contains(string(last.After), `"payload":"edited"`) || strings.Contains(string(last.Before+last.After), "c0ntent") {
			t.Errorf("the trail says %s, %s", last.Before, last.After)
		}
		s.AssertSilentAbout("c0ntent-mark")
	})
}
