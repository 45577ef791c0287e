package e2e

import (
	"net/http"

	"github.com/berth-dev/berth/pkg/client"
	"github.com/berth-dev/berth/test/harness"
)

// lostScheduleCases are the acts on schedules.
func lostScheduleCases() map[string]lostCase {
	return map[string]lostCase{
		"POST /api/v1/schedules":              lostCreateSchedule,
		"POST /api/v1/schedules/preview":      lostPreview,
		"PATCH /api/v1/schedules/:name":       lostEditSchedule,
		"DELETE /api/v1/schedules/:name":      lostDeleteSchedule,
		"POST /api/v1/schedules/:name/pause":  lostPauseSchedule,
		"POST /api/v1/schedules/:name/resume": lostResumeSchedule,
		"POST /api/v1/schedules/:name/run":    lostRunSchedule,
	}
}

func (w *lostWorld) scheduleSpec() client.ScheduleSpec {
	task := harness.Shell(w.t, "true")
	return client.ScheduleSpec{
		Name: w.next("schedule"), Cron: "0 0 1 1 *",
		Template: client.TaskTemplate{Plugin: task.Plugin, Payload: task.Payload, Selector: "slot=nowhere"},
	}
}

func (w *lostWorld) schedule() client.Schedule {
	w.t.Helper()
	s, err := w.Client.CreateSchedule(w.t.Context(), w.scheduleSpec())
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func lostCreateSchedule(w *lostWorld) lostCall {
	spec := w.scheduleSpec()
	c := w.admin(http.MethodPost, "/api/v1/schedules", spec).keyed()
	c.effect = "SELECT count(*), (SELECT count(*) FROM audit_events WHERE action = 'schedule.created') FROM schedules WHERE name = '" + spec.Name + "'"
	return c
}

func lostPreview(w *lostWorld) lostCall {
	c := w.admin(http.MethodPost, "/api/v1/schedules/preview", map[string]any{"cron": "@yearly"})
	c.nothingStored = true
	return c
}

func (w *lostWorld) onSchedule(s client.Schedule, method, act string, in any) lostCall {
	w.t.Helper()
	c := w.admin(method, "/api/v1/schedules/"+s.Name+act, in)
	c.effect = acts(s.ID)
	return c
}

func lostEditSchedule(w *lostWorld) lostCall {
	c := w.onSchedule(w.schedule(), http.MethodPatch, "", map[string]any{"cron": "0 4 2 1 *", "time_zone": "Europe/Berlin"})
	c.header["If-Match"] = `"1"`
	return c
}

// lostDeleteSchedule: the repeat finds nothing.
func lostDeleteSchedule(w *lostWorld) lostCall {
	c := w.onSchedule(w.schedule(), http.MethodDelete, "", nil)
	c.status = http.StatusNotFound
	return c
}

func lostPauseSchedule(w *lostWorld) lostCall {
	return w.onSchedule(w.schedule(), http.MethodPost, "/pause", nil)
}

func lostResumeSchedule(w *lostWorld) lostCall {
	s := w.schedule()
	w.must(w.Client.PauseSchedule(w.t.Context(), s.Name))
	return w.onSchedule(s, http.MethodPost, "/resume", nil)
}

func lostRunSchedule(w *lostWorld) lostCall {
	s := w.schedule()
	c := w.onSchedule(s, http.MethodPost, "/run", nil).keyed()
	c.effect = "SELECT count(*) FROM tasks WHERE schedule_id = '" + s.ID + "'"
	return c
}
