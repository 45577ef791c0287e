package httpapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/apitest"
	"github.com/berth-dev/berth/pkg/berth"
	bclient "github.com/berth-dev/berth/pkg/client"
)

func template(do string) bclient.TaskTemplate {
	return bclient.TaskTemplate{Plugin: "work", Payload: json.RawMessage(`{"do":"` + do + `"}`), Tags: []string{"b", "a"}, Priority: 4}
}

func TestSchedules(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		s.Agent("lab-1", map[string]string{"os": "linux"})
		c := s.As("ops", berth.RoleOperator)
		zone := "Europe/Berlin"
		made, err := c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "nightly", Cron: "30 2 * * *", TimeZone: &zone, Template: template("x")})
		if err != nil {
			t.Fatal(err)
		}
		if made.Kind != "fixed" || made.CatchUp != "latest" || made.CatchUpWindowSeconds != 3600 || made.Overlap != "skip" || made.Version != 1 || made.NextFireAt.IsZero() {
			t.Errorf("it is made as %+v", made)
		}
		got, err := c.GetSchedule(t.Context(), "nightly")
		if err != nil || string(got.Template.Payload) != `{"do":"x"}` || got.Template.Pool != "default" || len(got.Template.Tags) != 2 {
			t.Errorf("it reads as %+v, %v", got, err)
		}
		// What was read can be sent again, and changes nothing.
		same, err := c.EditSchedule(t.Context(), "nightly", bclient.ScheduleChange{Template: &got.Template, Cron: &got.Cron}, "")
		if err != nil || same.Version != 1 {
			t.Errorf("the same again makes %+v, %v", same, err)
		}
		list, err := c.ListSchedules(t.Context(), bclient.ListSchedulesParams{})
		if err != nil || len(list.Schedules) != 1 || list.Schedules[0].Template.Payload != nil {
			t.Errorf("the list is %+v, %v", list, err)
		}

		_, err = c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "nightly", Cron: "@daily", Template: template("x")})
		says(t, "the same name", err, "exists", "nightly")
		bad := template("x")
		bad.Payload, bad.Secrets, bad.Priority = json.RawMessage(`{"do":1}`), []string{"none"}, 3
		_, err = c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "bad", Cron: "0 0 30 2 *", Template: bad})
		says(t, "faults", err, "invalid", "cron", "no such day", "template.payload.do")
		bad = template("x")
		bad.Secrets = []string{"none"}
		_, err = c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "bad", Cron: "@daily", Template: bad})
		says(t, "a secret", err, "invalid", "template.secrets[0]")
		_, err = c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "preview", Cron: "@daily", Template: template("x")})
		says(t, "a route's name", err, "invalid", "name")
		for path, body := range map[string]string{
			"template.pool":     `{"name":"bad","cron":"@daily","template":{"plugin":"work","payload":{"do":"x"},"pool":"none"}}`,
			"template.plugin":   `{"name":"bad","cron":"@daily","template":{"plugin":"none","payload":{"do":"x"}}}`,
			"template.selector": `{"name":"bad","cron":"@daily","template":{"plugin":"work","payload":{"do":"x"},"selector":"=="}}`,
			"not_before":        `{"name":"bad","cron":"@daily","template":{"plugin":"work","payload":{"do":"x"},"not_before":"2027-01-01T00:00:00Z"}}`,
			"time_zone":         `{"name":"bad","cron":"@daily","time_zone":"Local","template":{"plugin":"work","payload":{"do":"x"}}}`,
			"catch_up_limit":    `{"name":"bad","cron":"@daily","catch_up_limit":5,"template":{"plugin":"work","payload":{"do":"x"}}}`,
		} {
			if a := send(t, s, "POST", "/api/v1/schedules", s.Token("ops"), body); !strings.HasPrefix(a.Status, "422") || !strings.Contains(a.body, path) {
				t.Errorf("%s: %s %s", path, a.Status, a.body)
			}
		}

		expr := "0 4 * * *"
		_, err = c.EditSchedule(t.Context(), "nightly", bclient.ScheduleChange{Cron: &expr}, `"7"`)
		says(t, "another version", err, "wrong_state", "version 1")
		edited, err := c.EditSchedule(t.Context(), "nightly", bclient.ScheduleChange{Cron: &expr}, `"1"`)
		if err != nil || edited.Version != 2 || edited.Revision != 2 || !strings.HasSuffix(edited.NextSlot, "T04:00") {
			t.Errorf("it is edited to %+v, %v", edited, err)
		}

		task, err := c.RunSchedule(t.Context(), "nightly")
		if err != nil || task.ScheduleID != made.ID || task.State != "queued" || string(task.Payload) != `{"do":"x"}` || task.Priority != 4 {
			t.Errorf("a run is %+v, %v", task, err)
		}
		tasks, err := c.ListTasks(t.Context(), bclient.ListTasksParams{Schedule: "nightly"})
		if err != nil || len(tasks.Tasks) != 1 || tasks.Tasks[0].ID != task.ID {
			t.Errorf("its tasks are %+v, %v", tasks, err)
		}
		submit(t, c, work("y"))
		if tasks, err = c.ListTasks(t.Context(), bclient.ListTasksParams{Schedule: "nightly"}); err != nil || len(tasks.Tasks) != 1 {
			t.Errorf("its tasks are %+v, %v", tasks, err)
		}
		_, err = c.ListTasks(t.Context(), bclient.ListTasksParams{Schedule: "none"})
		says(t, "tasks of none", err, "invalid", "schedule")
		fires, err := c.ListFires(t.Context(), "nightly", bclient.ListFiresParams{})
		if err != nil || len(fires.Fires) != 1 || fires.Fires[0].TaskID != task.ID || fires.Fires[0].Slot != "run:"+task.ID {
			t.Errorf("the history is %+v, %v", fires, err)
		}

		preview, err := c.PreviewSchedule(t.Context(), "nightly", bclient.PreviewScheduleParams{N: 3})
		if err != nil || len(preview.Slots) != 3 || preview.Slots[0].Slot != edited.NextSlot || !preview.Slots[0].At.Equal(edited.NextFireAt) {
			t.Errorf("the preview is %+v, %v", preview, err)
		}
		paused, err := c.PauseSchedule(t.Context(), "nightly")
		if err != nil || !paused.Paused || !paused.NextFireAt.IsZero() {
			t.Errorf("it is paused as %+v, %v", paused, err)
		}
		if preview, err = c.PreviewSchedule(t.Context(), "nightly", bclient.PreviewScheduleParams{}); err != nil || len(preview.Slots) != 10 {
			t.Errorf("the preview of a paused one is %+v, %v", preview, err)
		}
		resumed, err := c.ResumeSchedule(t.Context(), "nightly")
		if err != nil || resumed.Paused || resumed.NextFireAt.IsZero() {
			t.Errorf("it is resumed as %+v, %v", resumed, err)
		}
		if err := c.DeleteSchedule(t.Context(), "nightly"); err != nil {
			t.Error(err)
		}
		for what, err := range map[string]error{
			"get": second(c.GetSchedule(t.Context(), "nightly")), "pause": second(c.PauseSchedule(t.Context(), "nightly")),
			"resume": second(c.ResumeSchedule(t.Context(), "nightly")), "run": second(c.RunSchedule(t.Context(), "nightly")),
			"edit":    second(c.EditSchedule(t.Context(), "nightly", bclient.ScheduleChange{Cron: &expr}, "")),
			"preview": second(c.PreviewSchedule(t.Context(), "nightly", bclient.PreviewScheduleParams{})),
			"fires":   second(c.ListFires(t.Context(), "nightly", bclient.ListFiresParams{})), "delete": c.DeleteSchedule(t.Context(), "nightly"),
		} {
			says(t, what+" of what is unknown", err, "not_found")
		}
	})
}

func TestPreviewOfAnExpression(t *testing.T) {
	engines(t, func(t *testing.T, s *apitest.Server) {
		c := s.As("eye", berth.RoleViewer)
		spec := bclient.PreviewSpec{Cron: "30 2 * * sun", TimeZone: "Europe/Berlin", N: 2}
		var err error
		if spec.After, err = time.Parse(time.RFC3339, "2026-03-25T00:00:00Z"); err != nil {
			t.Fatal(err)
		}
		p, err := c.PreviewCron(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if p.Cron != "30 2 * * 0" || p.Kind != "fixed" || len(p.Slots) != 2 || p.Slots[0].Local != "2026-03-29T02:30" || p.Slots[0].Clock != "2026-03-29T03:00:00+02:00" {
			t.Errorf("the preview is %+v", p)
		}
		for expr, word := range map[string]string{"0 0 30 2 *": "never fire", "* * * * * *": "cron", "*/100 * * * *": "cron", "10,99 * * * *": "cron"} {
			_, err := c.PreviewCron(t.Context(), bclient.PreviewSpec{Cron: expr})
			says(t, expr, err, "invalid", word)
		}
		_, err = c.PreviewCron(t.Context(), bclient.PreviewSpec{Cron: "@daily", TimeZone: "Local"})
		says(t, "Local", err, "invalid", "time_zone")
		_, err = c.CreateSchedule(t.Context(), bclient.ScheduleSpec{Name: "x", Cron: "@daily", Template: template("x")})
		says(t, "a viewer's schedule", err, "forbidden")
	})
}
